/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn copy: copies the checkpoints of runs from one store to another, in this process. The store
 * that is read may be served by a daemon; the one that is written is under this process's lock.
 */
#include "cli.h"
#include "exit_status.h"
#include "keep/mark.h"
#include "offline_salvage.h"

#include "base/digits.h"
#include "base/glob.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct copy_options {
    const char *to, *from;
    struct option_texts runs;
    bool same_marks;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUNS, .at = offsetof(struct copy_options, runs)}, {0}};

static const struct option options[] = {
    {"to", "URL", "store to copy to; `cairn store create` makes one",
     OPTION_AT_TEXT(struct copy_options, to), .needed = true},
    {"from", "URL", "store to copy from, instead of --store",
     OPTION_AT_TEXT(struct copy_options, from)},
    {"same-marks", NULL, "take away tags and pins that the other store does not have",
     OPTION_AT_FLAG(struct copy_options, same_marks)},
    {0}};

struct copying_all {
    struct cli *cli;
    const char *from, *to;
    struct run_name *names;
    size_t name_count;
    struct salvaged_run *runs;
    const struct salvaged_run *failed; /* the first that was not copied to its end */
    size_t count;
    uint64_t copied, there, left;
};

/* Asks the store which runs it has, and keeps those that were named. */
static int choose(struct copying_all *all, const struct copy_options *own, struct diag *diag)
{
    struct cli *cli = all->cli;
    size_t count = 0;
    cli->source.store = all->from;
    int status = cli_connect(cli, false, diag);
    status = status != 0 ? status : source_runs(cli->connection, false, &all->names, &count, diag);
    source_free(cli->connection);
    cli->connection = NULL;
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct run_name_text name = run_name_text(&all->names[i]);
        if (glob_matches_any(own->runs.count, own->runs.items, name.at)) {
            all->names[all->name_count++] = all->names[i];
        }
    }
    return status == 0 && all->name_count == 0
               ? diag_set(diag, CAIRN_E_NOT_FOUND, "%s has no run of that name", all->from)
               : status;
}

static void on_tick(void *user, const struct repair_status *status)
{
    (void)user;
    fprintf(stderr, "\r\033[K%s/%s: %s read and checked", status->run.project, status->run.run,
            bytes_text(status->bytes_read).at);
}

static const char *word_of(enum salvage_outcome outcome)
{
    return outcome == SALVAGE_WHOLE ? "copied" : outcome == SALVAGE_THERE ? "there" : "left";
}

/* Says what was copied, and on stderr what was not. */
static void show_item(const struct copying_all *all, const char *run,
                      const struct salvage_item *item)
{
    struct shown room;
    bool is_left = strcmp(word_of(item->outcome), "left") == 0;
    if (is_left || (item->outcome == SALVAGE_WHOLE && !all->cli->quiet)) {
        fprintf(is_left ? stderr : stdout, "%s%s %s: %s: %s\n", is_left ? "cairn: " : "", run,
                ckpt_id_text(item->id).at, word_of(item->outcome), shown(&room, item->text));
    }
}

static void count(struct copying_all *all)
{
    for (size_t i = 0; i < all->count; i++) {
        all->failed = !all->failed && all->runs[i].code != 0 ? &all->runs[i] : all->failed;
        for (size_t j = 0; j < all->runs[i].count; j++) {
            enum salvage_outcome outcome = all->runs[i].items[j].outcome;
            all->copied += outcome == SALVAGE_WHOLE;
            all->there += outcome == SALVAGE_THERE;
            all->left += outcome != SALVAGE_WHOLE && outcome != SALVAGE_THERE;
            if (!all->cli->json) {
                show_item(all, run_name_text(&all->runs[i].run).at, &all->runs[i].items[j]);
            }
        }
    }
}

static int show_json(const struct copying_all *all)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "from", all->from);
    json_str(&json, "to", all->to);
    json_u64(&json, "copied", all->copied);
    json_u64(&json, "there", all->there);
    json_u64(&json, "left", all->left);
    json_open(&json, "runs", '[');
    for (size_t i = 0; i < all->count; i++) {
        const struct salvaged_run *run = &all->runs[i];
        json_open(&json, NULL, '{');
        json_str(&json, "run", run_name_text(&run->run).at);
        json_str(&json, "error", run->code != 0 ? run->text : NULL);
        json_u64(&json, "bytes_read", run->bytes_read);
        json_open(&json, "checkpoints", '[');
        for (size_t j = 0; j < run->count; j++) {
            json_open(&json, NULL, '{');
            json_ckpt_id(&json, run->items[j].id);
            json_str(&json, "outcome", word_of(run->items[j].outcome));
            json_str(&json, "text", run->items[j].text);
            json_close(&json, '}');
        }
        json_close(&json, ']');
        json_close(&json, '}');
    }
    json_close(&json, ']');
    return json_end(&json);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct copy_options *own = values;
    struct copying_all all = {
        .cli = cli, .to = own->to, .from = own->from ? own->from : cli->source.store};
    char actor[MARK_ACTOR_BYTES];
    if (!all.from) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no store is named to copy from: give --from URL or --store URL");
    }
    mark_actor(actor);
    bool draws = !cli->quiet && !cli->json && cli_stderr_is_terminal();
    int status = choose(&all, own, diag);
    struct offline_salvage_options offline = {.store = own->to,
                                              .from = all.from,
                                              .how = {.same_marks = own->same_marks},
                                              .runs = all.names,
                                              .run_count = all.name_count,
                                              .actor = actor,
                                              .tick = draws ? on_tick : NULL};
    status = status != 0 ? status : offline_salvage(&offline, &all.runs, &all.count, diag);
    if (draws) {
        fprintf(stderr, "\r\033[K");
    }
    if (status == 0) {
        count(&all);
        if (!cli->json && !cli->quiet) {
            printf("%zu run%s: %" PRIu64 " checkpoint%s copied, %" PRIu64 " there already, %" PRIu64
                   " left\n",
                   all.count, plural(all.count), all.copied, plural(all.copied), all.there,
                   all.left);
        }
        status = cli->json ? show_json(&all) : out_flush();
    }
    if (status == 0 && all.failed) {
        status = diag_set(diag, all.failed->code, "%s/%s: %s", all.failed->run.project,
                          all.failed->run.run, all.failed->text);
    } else if (status == 0 && all.left > 0) {
        status = EXIT_PARTIAL;
    }
    offline_salvage_free(all.runs, all.count);
    free(all.names);
    return status;
}

const struct command command_copy = {
    .name = "copy",
    .group = GROUP_KEEP,
    .summary = "copy runs from one store to another, or bring such a copy up to date",
    .details =
        "RUN is project/run, or a pattern: '*' copies all runs. Every checkpoint that the one "
        "store "
        "lists is copied, oldest first, with its step, term, parent, time, tags, metrics, metadata "
        "and pin. What the other store has is not sent again. Each checkpoint is read back from "
        "its new place and checked as a whole before it is listed there. The command may be "
        "interrupted at any moment and started again.\n\nA daemon may serve the store that is "
        "read, but not the one that is written: exit status 11. A checkpoint that is damaged, or "
        "whose place another one has, is named and not copied; the others are, and the exit status "
        "is 3. Of another run of that name nothing is mixed (CONFLICT). Forgetting is not copied. "
        "Tags "
        "and pins that were taken away stay in the copy, where somebody may have given them; "
        "--same-marks takes them away there too.",
    .example = "cairn copy '*' --from dir:/srv/cairn --to dir:/mnt/mirror\n"
               "cairn copy lab/gpt --from 'rados:cairn' --to dir:/mnt/mirror --json",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct copy_options),
    .run = run};
