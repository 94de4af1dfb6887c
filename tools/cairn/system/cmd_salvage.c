/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn salvage: checkpoints that lie in the store and that no record tells of are verified and
 * entered again. Without --yes it says what it would do.
 */
#include "base/digits.h"
#include "cli.h"
#include "hash/hash.h"
#include "keep/mark.h"
#include "offline_salvage.h"
#include "store/open/store_open.h"

#include <inttypes.h>

enum { EXIT_LEFT = 3 };

struct salvage_words {
    struct salvage_options how;
    const char *store_uuid;
};

static const struct option options[] = {
    {"yes", NULL, "make the changes; without it the command only shows what it would do",
     OPTION_AT_FLAG(struct salvage_words, how.yes), .alone = true},
    {"accept-loss", NULL,
     "give up the end of a record that cannot be repaired, and continue the record from there",
     OPTION_AT_FLAG(struct salvage_words, how.accept_loss), .alone = true},
    {"quick", NULL, "read only manifests, pages and parts, not the data",
     OPTION_AT_FLAG(struct salvage_words, how.quick)},
    {"discard", NULL, "give up what cannot be entered, so that garbage collection removes it",
     OPTION_AT_FLAG(struct salvage_words, how.discard), .alone = true},
    {"store-uuid", "UUID",
     "the UUID that the store must have; if the store's own record is made again, it gets this "
     "UUID",
     OPTION_AT_TEXT(struct salvage_words, store_uuid), .alone = true},
    {0}};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN, .optional = true}, {0}};

struct salvaged_all {
    struct diag store_lost; /* of the store's own record; code 0: nothing */
    size_t count;
    struct salvaged_run *runs;
};

struct salvage_sums {
    uint64_t whole, damaged, given_up, left, cuts, errors; /* of the runs */
    bool store;                                            /* the store's own record is made anew */
};

static const char *word_of(enum salvage_outcome outcome)
{
    static const char *const words[] = {[SALVAGE_WHOLE] = "whole",
                                        [SALVAGE_DAMAGED] = "damaged",
                                        [SALVAGE_GIVEN_UP] = "given up",
                                        [SALVAGE_LEFT] = "left",
                                        [SALVAGE_THERE] = "there"};
    return words[outcome];
}

static void count(const struct salvaged_run *run, struct salvage_sums *io)
{
    io->errors += run->code != 0;
    for (size_t i = 0; i < run->count; i++) {
        uint64_t *const sums[] = {[SALVAGE_WHOLE] = &io->whole,
                                  [SALVAGE_DAMAGED] = &io->damaged,
                                  [SALVAGE_GIVEN_UP] = &io->given_up,
                                  [SALVAGE_LEFT] = &io->left,
                                  [SALVAGE_THERE] = &io->whole};
        ++*sums[run->items[i].outcome];
        io->cuts += run->items[i].needs_accept_loss;
    }
}

static void show_run(const struct salvaged_run *run)
{
    for (size_t i = 0; i < run->count; i++) {
        const struct salvage_item *item = &run->items[i];
        struct shown room;
        printf("%s/%s %s: %s: %s\n", run->run.project, run->run.run,
               item->id.term == 0 ? "record" : ckpt_id_text(item->id).at, word_of(item->outcome),
               shown(&room, item->text));
    }
    if (run->code != 0) {
        struct shown room;
        fprintf(stderr, "cairn: %s/%s: %s: %s\n", run->run.project, run->run.run,
                err_name(run->code), shown(&room, run->text));
    }
}

/* The command that does it, as it is to be typed. */
static void show_next(const struct cli *cli, const struct salvage_words *words,
                      const struct salvage_sums *sums)
{
    const struct salvage_options *how = &words->how;
    char typed[STORE_URL_MAX];
    store_url_typed(cli->source.store, sizeof(typed), typed);
    const char *store = typed[0] != '\0' ? typed : "URL";
    if (!how->yes && (sums->store || sums->whole + sums->damaged + sums->given_up > 0)) {
        fprintf(stderr,
                "cairn: nothing was changed; `cairn salvage --yes%s%s%s%s%s --store %s%s%s` makes "
                "these changes\n",
                how->accept_loss ? " --accept-loss" : "", how->quick ? " --quick" : "",
                how->discard ? " --discard" : "", words->store_uuid ? " --store-uuid " : "",
                words->store_uuid ? words->store_uuid : "", store, cli->run_text ? " " : "",
                cli->run_text ? cli->run_text : "");
    }
    if (sums->cuts > 0) {
        fprintf(stderr,
                "cairn: `cairn salvage --yes --accept-loss --store %s%s%s` ends a record before "
                "its lost part, and enters again the checkpoints that it no longer lists\n",
                store, cli->run_text ? " " : "", cli->run_text ? cli->run_text : "");
    }
    if (sums->left > 0) {
        fprintf(stderr, "cairn: %" PRIu64 " left as %s, for the reason%s above\n", sums->left,
                sums->left == 1 ? "it is" : "they are", plural(sums->left));
    }
}

static void add_json(struct json *json, const struct salvaged_run *run)
{
    json_open(json, NULL, '{');
    json_str(json, "run", run_name_text(&run->run).at);
    json_str(json, "error", run->code != 0 ? run->text : NULL);
    json_open(json, "items", '[');
    for (size_t i = 0; i < run->count; i++) {
        json_open(json, NULL, '{');
        json_ckpt_id(json, run->items[i].id);
        json_str(json, "outcome", word_of(run->items[i].outcome));
        json_str(json, "text", run->items[i].text);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

static int print_json(const struct cli *cli, bool dry_run, const struct salvaged_all *all)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "store", cli->source.store);
    json_bool(&json, "dry_run", dry_run);
    json_str(&json, "store_record", all->store_lost.code != 0 ? all->store_lost.text : NULL);
    json_open(&json, "runs", '[');
    for (size_t i = 0; i < all->count; i++) {
        add_json(&json, &all->runs[i]);
    }
    json_close(&json, ']');
    return json_end(&json);
}

static int show(const struct cli *cli, const struct salvage_words *words,
                const struct salvaged_all *all, struct diag *diag)
{
    const struct salvage_options *how = &words->how;
    const struct salvaged_run *runs = all->runs;
    size_t run_count = all->count;
    struct salvage_sums sums = {.store = all->store_lost.code != 0};
    if (sums.store && !cli->json) {
        printf("the store's record: whole: %s: it is made again\n", all->store_lost.text);
    }
    for (size_t i = 0; i < run_count; i++) {
        count(&runs[i], &sums);
        if (!cli->json) {
            show_run(&runs[i]);
        }
    }
    if (!cli->json) {
        printf("in %zu run%s: %" PRIu64 " whole, %" PRIu64 " damaged, %" PRIu64
               " given up, %" PRIu64 " left\n",
               run_count, plural(run_count), sums.whole, sums.damaged, sums.given_up, sums.left);
    }
    int status = cli->json ? print_json(cli, !how->yes, all) : out_flush();
    if (!cli->json) {
        show_next(cli, words, &sums);
    }
    for (size_t i = 0; status == 0 && i < run_count; i++) {
        if (runs[i].code != 0) {
            status = diag_set(diag, runs[i].code, "cannot salvage all of %s/%s: %s",
                              runs[i].run.project, runs[i].run.run, runs[i].text);
        }
    }
    return status != 0 ? status : sums.left > 0 ? EXIT_LEFT : 0;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct salvage_words *words = values;
    struct uuid uuid;
    struct salvaged_all all = {.store_lost = DIAG_INIT};
    struct run_name name;
    char actor[MARK_ACTOR_BYTES];
    if (!cli->source.store) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no store is named: give --store dir:/PATH, and stop the daemon first; "
                        "this command does not ask a server");
    }
    int status = cli->run_text ? run_name_parse(cli->run_text, &name, diag) : 0;
    if (status == 0 && words->store_uuid && !hex_decode(sizeof(uuid), words->store_uuid, &uuid)) {
        status = diag_set(diag, CAIRN_E_INVALID, "--store-uuid is %s; it must be 32 hex digits",
                          words->store_uuid);
    }
    if (status != 0) {
        return status;
    }
    mark_actor(actor);
    struct offline_salvage_options offline = {.store = cli->source.store,
                                              .run = cli->run_text ? &name : NULL,
                                              .how = words->how,
                                              .actor = actor,
                                              .uuid = words->store_uuid ? &uuid : NULL,
                                              .store_lost = &all.store_lost};
    status = offline_salvage(&offline, &all.runs, &all.count, diag);
    status = status != 0 ? status : show(cli, words, &all, diag);
    offline_salvage_free(all.runs, all.count);
    return status;
}

const struct command command_salvage = {
    .name = "salvage",
    .group = GROUP_SYSTEM,
    .summary = "enter checkpoints again that no record lists",
    .details =
        "The record of a run says which checkpoints the run has. If the record was lost, damaged "
        "in both copies, or replaced by an older one, the store holds checkpoints that the record "
        "does not list. Such a run is marked, and nothing of it is removed. This command reads "
        "each of these checkpoints completely (manifest, pages, parts, every chunk) and enters it "
        "again, oldest first, with the terms and parents that the manifests name, so that the "
        "newest good one is the latest again. A checkpoint with damage is entered as damaged. One "
        "that cannot be entered is named with the reason. A missing record is made again, and so "
        "is the store's own record: if nothing tells its UUID, it gets a new one, or the one that "
        "--store-uuid gives.\n\nWithout --yes the command changes nothing and only shows what it "
        "would do. It works on the store itself, with the daemon stopped, and may be interrupted "
        "at any moment and started again. Pins, notes made after a save, and forgettings that only "
        "the lost record held are not brought back, so a checkpoint that was forgotten may be "
        "listed again.\n\nThe exit status is 0 if nothing is left to do, or if --yes did "
        "everything; 3 if something is left as it is; 11 if a daemon is using the store.",
    .example = "cairn salvage --store dir:/srv/cairn\n"
               "cairn salvage --store dir:/srv/cairn --yes lab/gpt",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct salvage_words),
    .run = run};
