/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn policy: shows the retention policies, and sets or removes one of the store's. The server
 * checks a policy before it stores it, so a wrong one changes nothing. One thread.
 */
#include "mark.h"
#include "rules.h"

#include "exit_status.h"

#include "base/digits.h"
#include "base/glob.h"
#include "policy/policy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct policy_options {
    const char *verb, *what;
    struct rule_texts rules;
};

static const struct argument arguments[] = {
    {"set|show|remove", .kind = ARGUMENT_TEXT, .at = offsetof(struct policy_options, verb)},
    {"PATTERN", .kind = ARGUMENT_TEXT, .at = offsetof(struct policy_options, what),
     .optional = true},
    {0}};

static const struct option options[] = {RULE_OPTIONS(struct policy_options), {0}};

/* ---- showing ---- */

static void row_text(const struct msg_policy_row *row, char ret[DIAG_TEXT_MAX])
{
    if (row->code != 0) {
        snprintf(ret, DIAG_TEXT_MAX, "cannot be used: %s: %s", err_name(row->code), row->text);
    } else {
        snprintf(ret, DIAG_TEXT_MAX, "%s", row->policy);
    }
}

static void json_row(struct json *json, const struct msg_policy_row *row, bool holds)
{
    json_open(json, NULL, '{');
    json_str(json, "pattern", row->pattern[0] != '\0' ? row->pattern : NULL);
    json_str(json, "from", policy_source_name(row->source));
    json_str(json, "policy", row->policy);
    json_open(json, "options", '[');
    for (uint32_t i = 0; i < row->option_count; i++) {
        json_open(json, NULL, '{');
        json_str(json, "name", row->options[i].name);
        json_str(json, "value", row->options[i].value);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_wall(json, "set_at", row->wall_ns);
    json_str(json, "actor", row->actor[0] != '\0' ? row->actor : NULL);
    json_bool(json, "holds", holds);
    json_str(json, "error", row->code != 0 ? row->text : NULL);
    json_close(json, '}');
}

static int show_json(const struct policy_options *own, const struct msg_policy_reply *reply)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "run", strcmp(own->verb, "show") == 0 ? own->what : NULL);
    json_u64(&json, "interval_ms", reply->interval_ms);
    json_open(&json, "policies", '[');
    for (uint32_t i = 0; i < reply->count; i++) {
        json_row(&json, &reply->rows[i], reply->chosen == i + 1);
    }
    json_close(&json, ']');
    return json_end(&json);
}

/* Says who applies the policies. */
static void show_interval(const struct cli *cli, const struct msg_policy_reply *reply)
{
    if (reply->interval_ms > 0) {
        printf("cairnd applies the policies every %" PRIu64 " s\n", reply->interval_ms / 1000);
    } else if (!cli->source.store) {
        printf("this cairnd applies no policy by itself: set [retention] interval, or run `cairn "
               "forget --all` from a timer\n");
    }
}

static void show_table(const struct msg_policy_reply *reply)
{
    static const char *const titles[] = {"PATTERN", "FROM", "POLICY", "SET", "WHO"};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    for (uint32_t i = 0; table != NULL && i < reply->count; i++) {
        const struct msg_policy_row *row = &reply->rows[i];
        char text[DIAG_TEXT_MAX];
        row_text(row, text);
        table_row(table, (const char *const[]){row->pattern[0] != '\0' ? row->pattern
                                               : row->code != 0        ? "?"
                                                                       : "(all other runs)",
                                               policy_source_name(row->source), text,
                                               row->wall_ns != 0 ? time_text(row->wall_ns).at : "-",
                                               row->actor[0] != '\0' ? row->actor : "-"});
    }
    if (table != NULL && reply->count > 0) {
        table_print(table, stdout);
    } else {
        printf("no policy is stored; everything is kept\n");
    }
    table_free(table);
}

/* Says which policy holds for a run. */
static void show_run(const char *run, const struct msg_policy_reply *reply)
{
    char text[DIAG_TEXT_MAX];
    struct shown pattern, policy, actor;
    if (reply->chosen == 0) {
        printf("%s: no policy holds; everything is kept\n", run);
        return;
    }
    const struct msg_policy_row *row = &reply->rows[reply->chosen - 1];
    row_text(row, text);
    if (row->code != 0 && row->pattern[0] == '\0') { /* of any runs, or it may be lost */
        printf("%s: the stored policies %s\n", run, shown(&policy, text));
        return;
    }
    struct text time = time_text(row->wall_ns);
    printf("%s: the %s policy %s holds: %s\n", run, policy_source_name(row->source),
           row->pattern[0] != '\0' ? shown(&pattern, row->pattern) : "for all other runs",
           shown(&policy, text));
    if (row->source == POLICY_STORED && row->code == 0) {
        printf("set %s by %s\n", time.at, shown(&actor, row->actor));
    }
}

static int show(const struct cli *cli, const struct policy_options *own,
                const struct msg_policy_reply *reply)
{
    if (strcmp(own->verb, "show") == 0 && own->what != NULL) {
        show_run(own->what, reply);
        return out_flush();
    }
    if (strcmp(own->verb, "show") == 0) {
        show_table(reply);
    } else {
        struct shown pattern;
        printf("%s: the policy is %s\n", shown(&pattern, own->what),
               strcmp(own->verb, "set") == 0 ? "stored" : "removed");
    }
    if (strcmp(own->verb, "remove") != 0) {
        show_interval(cli, reply);
    }
    return out_flush();
}

/* Says which policy holds now for the runs whose policy was removed. */
static int show_heirs(struct cli *cli, const char *pattern, struct diag *diag)
{
    enum { HEIRS_MAX = 10 };
    struct run_name *names = NULL;
    size_t count = 0, matching = 0;
    int status = source_runs(cli->connection, false, &names, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct run_name_text name = run_name_text(&names[i]);
        if (!glob_matches(pattern, name.at) || ++matching > HEIRS_MAX) {
            continue;
        }
        struct source_request request = {
            .call.request = {.type = MSG_POLICY,
                             .u.policy = {.kind = MSG_POLICY_SHOW, .run = names[i]}}};
        status = source_call(cli->connection, &request, diag);
        if (status == 0) {
            show_run(name.at, &request.call.reply.u.policy_reply);
        }
        engine_call_fini(&request.call);
    }
    if (matching > HEIRS_MAX) {
        printf("%zu more run%s; `cairn policy show RUN` names the policy of one\n",
               matching - HEIRS_MAX, plural(matching - HEIRS_MAX));
    }
    free(names);
    return status != 0 ? status : out_flush();
}

/* A policy that cannot be used is an answer, but no good one. */
static int exit_status(const struct policy_options *own, const struct msg_policy_reply *reply)
{
    bool one = strcmp(own->verb, "show") == 0 && own->what != NULL;
    for (uint32_t i = 0; i < reply->count; i++) {
        if (reply->rows[i].code != 0 && (!one || reply->chosen == i + 1)) {
            return one ? err_exit_status(reply->rows[i].code) : EXIT_PARTIAL;
        }
    }
    return 0;
}

/* ---- asking ---- */

static int prepare(const struct policy_options *own, struct msg_policy *ret, struct diag *diag)
{
    bool sets = strcmp(own->verb, "set") == 0, removes = strcmp(own->verb, "remove") == 0;
    if (!sets && !removes && strcmp(own->verb, "show") != 0) {
        return diag_set(diag, CAIRN_E_INVALID, "cairn policy cannot '%s'; give set, show or remove",
                        own->verb);
    }
    if ((sets || removes) && own->what == NULL) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no runs are named: give a pattern of project/run, such as 'lab/*'; '*' "
                        "means all runs");
    }
    if (sets && ret->option_count == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "`cairn policy set` needs the rules of the policy, and none is given: give "
                        "at least one, such as --keep-last 3, or --remove-idle 90d");
    }
    if (!sets && ret->option_count > 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--%s has no meaning for `cairn policy %s`; keep rules are for `cairn "
                        "policy set`",
                        ret->options[0].name, own->verb);
    }
    ret->kind = sets ? MSG_POLICY_SET : removes ? MSG_POLICY_REMOVE : MSG_POLICY_SHOW;
    ret->pattern = sets || removes ? own->what : "";
    return ret->pattern != own->what && own->what != NULL
               ? run_name_parse(own->what, &ret->run, diag)
               : 0;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct policy_options *own = values;
    struct msg_mark_option rules[MSG_MARK_OPTIONS_MAX];
    char actor[MARK_ACTOR_BYTES];
    struct msg_policy asked = {
        .options = rules, .option_count = rules_take(&own->rules, rules), .actor = actor};
    mark_actor(actor);
    int status = prepare(own, &asked, diag);
    status = status != 0 ? status : mark_connect(cli, asked.kind != MSG_POLICY_SHOW, diag);
    struct source_request request = {.call.request = {.type = MSG_POLICY, .u.policy = asked}};
    if (status != 0) {
        return status;
    }
    status = source_call(cli->connection, &request, diag);
    if (status == 0) {
        const struct msg_policy_reply *reply = &request.call.reply.u.policy_reply;
        status = cli->json ? show_json(own, reply) : cli->quiet ? 0 : show(cli, own, reply);
        status = status != 0 || asked.kind != MSG_POLICY_SHOW ? status : exit_status(own, reply);
    }
    engine_call_fini(&request.call);
    if (status == 0 && asked.kind == MSG_POLICY_REMOVE && !cli->json && !cli->quiet) {
        status = show_heirs(cli, own->what, diag);
    }
    return status;
}

const struct command command_policy = {
    .name = "policy",
    .group = GROUP_KEEP,
    .summary = "retention policies that the store keeps: set, show, remove",
    .details =
        "A policy is stored once, for the runs that match PATTERN (lab/gpt, lab/*, *), with the "
        "options of `cairn forget`. `cairn forget RUN` and `cairn forget --all` without rules "
        "apply it, and so does every daemon of the store whose [retention] interval is set.\n\nOne "
        "policy holds for a run, whole: the stored one whose PATTERN is the run's name; otherwise, "
        "of the stored ones that match, the one with the most characters before its first `*`, `?` "
        "or `[` (lab/gpt-* goes before lab/*, and both before */gpt-large; of equal ones the "
        "longest, then the first by the order of their bytes); otherwise a section of the daemon's "
        "configuration. A run "
        "without any keeps everything. `show RUN` names the policy of a run and where it is from; "
        "`cairn forget RUN --dry-run` shows what it would do.\n\n`set` replaces the policy of the "
        "same pattern and begins nothing by itself. What is no policy is refused, and nothing is "
        "changed. A stored policy that cannot be read forgets nothing until it is set again, and "
        "where "
        "one may be lost with a damaged record of the store, none is followed until the next `set` "
        "or `remove`. Who "
        "set or removed a policy is in `cairn log`. Whoever may forget may set a policy.\n\nWith "
        "--store the command opens the store itself and knows no configuration; `set` and `remove` "
        "do it under the store's lock, and end with status 11 while a daemon is using it.",
    .example = "cairn policy set 'lab/*' --keep-last 3 --keep-daily 7\n"
               "cairn policy show lab/gpt\n"
               "cairn policy remove 'lab/*'",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct policy_options),
    .run = run};
