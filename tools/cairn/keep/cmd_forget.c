/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn forget: checkpoints by a policy, over one run or many, or by name. Each run is decided for
 * itself: one that is refused does not hold up the others.
 */
#include "mark.h"
#include "rules.h"

#include "exit_status.h"
#include "system/maintenance.h"
#include "system/reclaim.h"

#include "base/check.h"
#include "base/digits.h"
#include "base/glob.h"
#include "policy/policy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { REASONS_BYTES = 512, TIMED_OUT_MAX = 3 /* runs in a row */ };

struct forget_options {
    struct rule_texts rules;
    struct option_texts runs, checkpoints;
    const char *project, *reason;
    bool dry_run, now, all;
};

static const struct option options[] = {
    RULE_OPTIONS(struct forget_options),
    {"checkpoint", "STEP[@TERM]", "forget this checkpoint as well, by name",
     OPTION_AT_TEXTS(struct forget_options, checkpoints), .alone = true},
    {"run", "PATTERN", "apply the policy to all runs whose name matches (gpt-*)",
     OPTION_AT_TEXTS(struct forget_options, runs), .alone = true},
    {"all", NULL, "apply the policy to all runs", OPTION_AT_FLAG(struct forget_options, all),
     .alone = true},
    {"project", "NAME", "apply the policy to all runs of a project, or to those that --run matches",
     OPTION_AT_TEXT(struct forget_options, project), .alone = true},
    {"reason", "TEXT", "reason for the audit record; the policy itself if not given",
     OPTION_AT_TEXT(struct forget_options, reason)},
    {"now", NULL,
     "also reclaim at once everything that is forgotten in these runs, so that undelete can bring "
     "nothing back",
     OPTION_AT_FLAG(struct forget_options, now), .alone = true},
    {"dry-run", NULL, "show what would be forgotten and why the rest stays, and forget nothing",
     OPTION_AT_FLAG(struct forget_options, dry_run), .letter = 'n'},
    {0}};

struct job {
    struct cli *cli;
    const struct forget_options *own;
    struct msg_mark mark;
    struct msg_mark_option rules[MSG_MARK_OPTIONS_MAX];
    struct selector selectors[OPTION_TEXTS_MAX + 1];
    char actor[MARK_ACTOR_BYTES];
    struct json json;
    unsigned run_count, failed_count, passed_count; /* passed over */
    unsigned timed_out;                             /* in a row */
    bool cancelled;
    uint64_t refused_count;
    struct run_name *names; /* in which it has been done; for --now */
    size_t name_count;
    int first_status;
    struct diag first;
};

static bool by_name(const struct job *job) { return job->mark.selector_count > 0; }

static int take_selectors(struct job *job, struct diag *diag)
{
    const struct option_texts *names = &job->own->checkpoints;
    int status = 0;
    if (job->cli->selector_text) {
        job->selectors[job->mark.selector_count++] = job->cli->selector;
    }
    for (uint32_t i = 0; status == 0 && i < names->count; i++) {
        status = selector_parse(names->items[i], &job->selectors[job->mark.selector_count++], diag);
    }
    return status;
}

static int prepare(struct job *job, struct diag *diag)
{
    const struct forget_options *own = job->own;
    job->mark.option_count = rules_take(&own->rules, job->rules);
    mark_actor(job->actor);
    job->mark.kind = MSG_MARK_FORGET;
    job->mark.dry_run = own->dry_run;
    job->mark.options = job->rules;
    job->mark.selectors = job->selectors;
    job->mark.actor = job->actor;
    job->mark.reason = own->reason ? own->reason : "";
    int status = take_selectors(job, diag);
    if (status == 0 && job->mark.selector_count > 0 && own->rules.least != NULL &&
        job->mark.option_count == 1) { /* by name: the one thing that a policy shares with it */
        uint64_t least;
        job->mark.option_count = 0;
        if (!digits_parse_decimal(own->rules.least, UINT32_MAX, &least) || least == 0) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "--keep-least is %s; it must be a number of at least 1",
                            own->rules.least);
        }
        job->mark.keep_least = (uint32_t)least;
    }
    if (status == 0 && own->now && own->rules.remove_idle != NULL) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--now with --remove-idle would take whole runs for good, so nothing is "
                        "done; remove the idle runs first, and reclaim later with `cairn gc --now "
                        "RUN`");
    }
    job->mark.by_policy = job->mark.option_count == 0 && job->mark.selector_count == 0;
    bool many = own->project != NULL || own->runs.count > 0 || own->all;
    if (status == 0 && own->now && job->mark.by_policy && !many) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--now frees for good, and neither a checkpoint nor a rule is given; give "
                        "one, or reclaim what is forgotten already with `cairn gc --now RUN`");
    }
    if (status == 0 && job->cli->run_text == NULL && !many) {
        status = diag_set(diag, CAIRN_E_INVALID,
                          "no run is named: give RUN, --project NAME, --run PATTERN or --all");
    } else if (status == 0 && many && (job->cli->run_text || job->mark.selector_count > 0)) {
        status = diag_set(diag, CAIRN_E_INVALID,
                          "--project, --run and --all choose runs for a policy, so RUN or a "
                          "checkpoint cannot be named as well");
    }
    return status;
}

static bool is_wanted(const struct forget_options *own, const struct run_name *name)
{
    struct run_name_text whole = run_name_text(name);
    bool wanted = own->runs.count == 0;
    for (uint32_t i = 0; i < own->runs.count; i++) {
        const char *pattern = own->runs.items[i];
        wanted = wanted || glob_matches(pattern, strchr(pattern, '/') ? whole.at : name->run);
    }
    return wanted && (own->project == NULL || strcmp(own->project, name->project) == 0);
}

/* ---- showing ---- */

static void show_json(struct job *job, const char *name, const struct msg_marked *marked,
                      const struct diag *diag)
{
    json_open(&job->json, NULL, '{');
    json_str(&job->json, "run", name);
    json_str(&job->json, "error", diag->code != 0 ? diag->text : NULL);
    if (diag->code == 0) {
        json_bool(&job->json, "removed", marked->removed);
        json_str(&job->json, "why", marked->why && marked->why[0] != '\0' ? marked->why : NULL);
        json_u64(&job->json, "bytes", marked->bytes);
        json_u64(&job->json, "waiting", marked->forgotten);
        json_u64(&job->json, "waiting_bytes", marked->forgotten_bytes);
        json_wall(&job->json, "waits_until", marked->last_wall_ns);
        if (job->mark.by_policy) {
            json_str(&job->json, "policy_from", policy_source_name(marked->policy_source));
            json_str(&job->json, "pattern",
                     marked->policy_pattern[0] != '\0' ? marked->policy_pattern : NULL);
            json_str(&job->json, "policy", marked->policy[0] != '\0' ? marked->policy : NULL);
        }
        mark_json(&job->json, marked, "forgotten", by_name(job) ? "asked for" : NULL);
    }
    json_close(&job->json, '}');
}

static void show_table(const struct job *job, const char *name, const struct msg_marked *marked)
{
    static const char *const titles[] = {"", "CHECKPOINT", "COMMITTED", "REASONS"};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    const char *done = job->own->dry_run ? "would forget" : "forgotten";
    for (uint32_t i = 0; table != NULL && i < marked->record_count; i++) {
        const struct msg_mark_record *record = &marked->records[i];
        char reasons[REASONS_BYTES];
        struct ckpt_id_text id = ckpt_id_text(record->id);
        struct text time = time_text(record->wall_ns);
        retention_reasons_text((enum mark_outcome)record->outcome, record->reasons, sizeof(reasons),
                               reasons);
        const char *action = mark_action(record, done);
        table_row(table, (const char *const[]){
                             !by_name(job) && strcmp(action, "refused") == 0 ? "keep" : action,
                             id.at, time.at,
                             record->outcome != MARK_DONE ? reasons
                             : by_name(job)               ? "asked for"
                             : marked->removed            ? "the run is removed"
                                                          : reasons});
    }
    if (job->mark.by_policy) {
        struct shown pattern, policy;
        printf("%s: by the %s policy %s: %s\n", name, policy_source_name(marked->policy_source),
               marked->policy_pattern[0] != '\0' ? shown(&pattern, marked->policy_pattern) : "",
               shown(&policy, marked->policy));
    }
    if (marked->why[0] != '\0') {
        struct shown room;
        printf("%s: %s%s\n", name,
               !marked->removed    ? ""
               : job->own->dry_run ? "the run would be removed, "
                                   : "the run is removed, ",
               shown(&room, marked->why));
    }
    printf("%s: %u %s, %u kept\n", name, marked->done_count, done,
           marked->total_count - marked->done_count);
    if (table != NULL && marked->record_count > 0) {
        table_print(table, stdout);
    }
    table_free(table);
}

/* What is forgotten still takes its room: how much, until when, and what frees it now. */
static void show_waiting(const struct job *job, const char *name, const struct msg_marked *marked)
{
    char until[160];
    bool one = marked->forgotten == 1;
    bool now = job->own->now && !marked->removed;
    if (marked->forgotten == 0 || (now && !job->own->dry_run)) {
        return; /* with --now the report of garbage collection says it */
    }
    struct text waiting = bytes_text(marked->forgotten_bytes);
    if (now) { /* the dry run of garbage collection finds nothing newly forgotten */
        printf("%s: %s of %" PRIu64 " forgotten checkpoint%s, with those above, would be reclaimed "
               "at once and be gone for good, unless an open save or a restore uses %s\n",
               name, waiting.at, marked->forgotten, plural(marked->forgotten), one ? "it" : "them");
        return;
    }
    maintenance_waits_text(marked->first_wall_ns, marked->last_wall_ns, sizeof(until), until);
    if (marked->removed) {
        printf("%s: until it is reclaimed, %s, `cairn undelete %s --all` brings the run back\n",
               name, until, name);
        return;
    }
    printf("%s: %s of %" PRIu64 " forgotten checkpoint%s %s to be reclaimed, %s; until then `cairn "
           "undelete %s` lists %s and with a checkpoint brings it back, and `cairn gc --now %s` "
           "frees %s now, for good\n",
           name, waiting.at, marked->forgotten, plural(marked->forgotten),
           job->own->dry_run ? "would wait"
           : one             ? "waits"
                             : "wait",
           until, name, one ? "it" : "them", name, one ? "it" : "them");
}

static void tell_failure(const struct job *job, const char *name, int status,
                         const struct diag *diag)
{
    char whole[RUN_NAME_TEXT_MAX + DIAG_TEXT_MAX + 8];
    snprintf(whole, sizeof(whole), "%s: %s", name, diag_text(diag, status));
    if (job->cli->json) {
        cli_error(job->cli, status, err_exit_status(status), whole);
    } else { /* the run first: a mail is skimmed */
        struct shown room;
        fprintf(stderr, "cairn: %s: %s: %s\n", name, err_name(status),
                shown(&room, diag_text(diag, status)));
    }
}

/* Returns false if the next run would fail in the same way: an absent server is waited for once,
 * not once for each run. */
static bool forget_in(struct job *job, const struct run_name *name)
{
    struct source_request request = {0};
    struct diag diag = DIAG_INIT;
    char text[RUN_NAME_TEXT_MAX];
    run_name_format(name, text);
    job->run_count++;
    int status = source_use(job->cli->connection, name, &diag);
    status = status != 0 ? status : mark_call(job->cli, &job->mark, &request, &diag);
    const struct msg_marked *marked = &request.call.reply.u.marked;
    bool has_none = status == 0 && job->mark.by_policy && marked->policy_source == POLICY_NONE;
    if (has_none && job->cli->has_run) {
        status = diag_set(&diag, CAIRN_E_INVALID,
                          "no policy is given and none holds for the run, so nothing is forgotten. "
                          "Give a keep rule, or store a policy with `cairn policy set`");
    }
    if (status != 0) {
        tell_failure(job, text, status, &diag);
        job->first_status = job->first_status != 0 ? job->first_status : status;
        job->failed_count++;
    } else {
        job->refused_count += marked->refused_count;
        /* Refused: nothing of it is done. A run that its policy removes can be brought back. */
        if (by_name(job) ? marked->refused_count == 0 : !marked->removed) {
            job->names[job->name_count++] = *name;
        }
        if (by_name(job)) { /* what a policy spares is what it is for: the table says why */
            (void)mark_refusals(name, marked);
        }
    }
    if (job->cli->json) {
        show_json(job, text, marked, &diag);
    } else if (has_none && status == 0 && !job->cli->quiet) {
        printf("%s: no policy holds, so nothing is forgotten\n", text);
    } else if (status == 0 && !job->cli->quiet) {
        show_table(job, text, marked);
        show_waiting(job, text, marked);
    }
    engine_call_fini(&request.call);
    job->cancelled = status == CAIRN_E_CANCELLED;
    job->timed_out = status == CAIRN_E_TIMED_OUT ? job->timed_out + 1 : 0;
    return !job->cancelled && status != CAIRN_E_UNREACHABLE && job->timed_out < TIMED_OUT_MAX;
}

/* The status of the first failure if every run failed, and EXIT_PARTIAL if only some did. */
static int exit_status(const struct job *job)
{
    if (job->cancelled) {
        return EXIT_INTERRUPTED;
    }
    if (job->failed_count > 0 && job->failed_count == job->run_count) {
        return err_exit_status(job->first_status);
    }
    return job->failed_count > 0 || job->refused_count > 0 ? EXIT_PARTIAL : 0;
}

/* Reclaims everything that is forgotten in these runs. This also runs where nothing new was
 * forgotten, because --now frees the space of what was forgotten before, too. */
static int reclaim(struct job *job, struct diag *diag)
{
    struct reclaim what = {
        .dry_run = job->own->dry_run, .runs = job->names, .run_count = job->name_count};
    struct gc_info info;
    char text[GC_TEXT_MAX];
    if (!job->own->now || job->name_count == 0 || job->cancelled) {
        return 0;
    }
    int status = reclaim_now(job->cli, &what, &info, text, diag);
    if (status == 0 && job->cli->json) {
        maintenance_json_gc(&job->json, "gc", &info);
    } else if (status == 0 && !job->cli->quiet) {
        if (what.dry_run) {
            printf("of what was forgotten before, garbage collection would free:\n");
        }
        maintenance_show_gc(&info, false);
    }
    if (status == 0 && info.errors > 0) {
        status = diag_set(diag, info.code < 0 ? info.code : CAIRN_E_IO, "%s", info.text);
    }
    return status;
}

/* Reclaims what was forgotten, if that was asked for, and ends the report. */
static int finish(struct job *job, int status, struct diag *diag)
{
    if (status == 0) {
        status = reclaim(job, diag);
    }
    json_close(&job->json, '}');
    if (status == 0) {
        status = job->cli->json ? json_print(&job->json) : out_flush();
    }
    json_fini(&job->json);
    return status != 0 ? status : exit_status(job);
}

static int forget_all(struct job *job, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = source_runs(job->cli->connection, false, &names, &count, diag);
    json_begin(&job->json);
    json_bool(&job->json, "dry_run", job->own->dry_run);
    json_open(&job->json, "runs", '[');
    job->names = calloc(count + 1, sizeof(*job->names));
    if (status == 0 && !job->names) {
        status = diag_no_memory(diag, "the names of %zu runs", count);
    }
    bool goes_on = true;
    for (size_t i = 0; status == 0 && i < count; i++) {
        if (!is_wanted(job->own, &names[i])) {
            continue;
        }
        job->passed_count += !goes_on;
        goes_on = goes_on && forget_in(job, &names[i]);
    }
    free(names);
    if (job->passed_count > 0 && !job->cli->json) {
        fprintf(stderr, "cairn: %u run%s not examined\n", job->passed_count,
                job->passed_count == 1 ? " was" : "s were");
    }
    if (status == 0 && count == 0) { /* a new server: the policy is kept as it is */
        if (!job->cli->quiet && !job->cli->json) {
            fprintf(stderr, "cairn: there is no run yet, so nothing is forgotten\n");
        }
    } else if (status == 0 && job->run_count == 0) {
        status = diag_set(diag, CAIRN_E_NOT_FOUND, "no run matches; `cairn ls` lists the runs");
    }
    json_close(&job->json, ']');
    json_u64(&job->json, "passed_over", job->passed_count);
    status = finish(job, status, diag);
    free(job->names);
    return status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    struct run_name name;
    struct job job = {.cli = cli, .own = values, .names = &name};
    int status = prepare(&job, diag);
    if (status == 0) {
        status = mark_connect(cli, !job.own->dry_run, diag);
    }
    if (status != 0) {
        return status;
    }
    if (!cli->has_run) {
        return forget_all(&job, diag);
    }
    json_begin(&job.json);
    json_bool(&job.json, "dry_run", job.own->dry_run);
    json_open(&job.json, "runs", '[');
    (void)forget_in(&job, &cli->run);
    json_close(&job.json, ']');
    return finish(&job, 0, diag);
}

const struct command command_forget = {
    .name = "forget",
    .group = GROUP_KEEP,
    .summary = "forget checkpoints by a policy or by name",
    .details =
        "A checkpoint is kept if any rule keeps it, and each rule counts for itself, as in restic. "
        "A counting rule keeps the newest checkpoint of each hour, day, week, month or year (of "
        "UTC, or --time-zone), "
        "and the oldest of all while it has counts left; -1 or `unlimited` keeps all. Only good "
        "checkpoints of the lineage count, in the order in which they were committed. Whatever the "
        "rules say, these checkpoints stay: the newest good one, the last good ones below "
        "--keep-least, pinned ones, the base of an open save, one that is being restored, and the "
        "end of a branch that was superseded recently.\n\n--remove-idle is no such rule: it takes "
        "a whole run, with all that the rules would keep, if nothing in it is pinned or in use. As "
        "much time has to have been counted in cycles of garbage collection, not only by the wall "
        "clock. It cannot be combined with --now.\n\nA forgotten checkpoint leaves all lists "
        "at once. Garbage collection frees its space later, and until then `undelete` brings it "
        "back. The run's record keeps who forgot it and why. With --now everything that is "
        "forgotten in these runs, now or before, is reclaimed at once, as by `gc --now`, and "
        "cannot be brought back.\n\nWithout a keep rule and without the name of a checkpoint each "
        "run is decided by the policy that holds for it: the stored one, or that of the server's "
        "configuration; `cairn policy show RUN` names it. A run without one keeps everything."
        "\n\nWith --store the command opens the store for writing, under its lock, "
        "and ends with status 11 while a daemon is using the store; with --dry-run it only reads. "
        "A run for which the policy cannot be decided (all its checkpoints are damaged, none has a "
        "value of the metric, a clock is wrong) loses nothing. Such a run is named in one line on "
        "stderr, the other runs are processed, and the exit status is 3.",
    .example =
        "cairn forget lab/gpt --keep-last 3 --keep-daily 7 --dry-run\n"
        "cairn forget --project lab --keep-within 2d --keep-best 3 --metric loss --mode min\n"
        "cairn forget --all --dry-run\n"
        "cairn forget lab/gpt --keep-last 2 --now\n"
        "cairn forget lab/gpt 1200",
    .arguments = cli_checkpoint_arguments,
    .options = options,
    .options_bytes = sizeof(struct forget_options),
    .run = run};
