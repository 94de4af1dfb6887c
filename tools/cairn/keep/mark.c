/* SPDX-License-Identifier: Apache-2.0
 *
 * See mark.h.
 */
#include "mark.h"

#include "base/check.h"
#include "core/retention.h"

#include <pwd.h>
#include <unistd.h>

enum { EXIT_PARTIAL = 3, REASONS_BYTES = 512 };

void mark_actor(char ret[MARK_ACTOR_BYTES])
{
    char host[65] = "";
    const struct passwd *user = getpwuid(getuid());
    if (gethostname(host, sizeof(host) - 1) != 0) {
        host[0] = '\0';
    }
    if (user != NULL) {
        snprintf(ret, MARK_ACTOR_BYTES, "%.31s@%.31s", user->pw_name, host);
    } else {
        snprintf(ret, MARK_ACTOR_BYTES, "uid %u@%.31s", (unsigned)getuid(), host);
    }
}

int mark_connect(struct cli *cli, bool writes, struct diag *diag)
{
    cli->source.writable = writes;
    return cli_connect(cli, false, diag);
}

static int ask(struct cli *cli, const struct msg_mark *mark, struct source_request *request,
               struct diag *diag)
{
    *request = (struct source_request){.call.request = {.type = MSG_MARK, .u.mark = *mark}};
    return source_call(cli->connection, request, diag);
}

/* Resolves the names of checkpoints to what they mean now. */
static int resolve(struct cli *cli, const struct msg_mark *mark, struct selector *ret,
                   uint32_t *ret_count, struct diag *diag)
{
    struct source_request request;
    struct msg_mark dry = *mark;
    dry.dry_run = true;
    int status = ask(cli, &dry, &request, diag);
    const struct msg_marked *marked = &request.call.reply.u.marked;
    if (status == 0 && marked->record_count > mark->selector_count) {
        status = diag_set(diag, CAIRN_E_PROTOCOL,
                          "%u checkpoints were named, and the server answers with %u",
                          mark->selector_count, marked->record_count);
    }
    *ret_count = status == 0 ? marked->record_count : 0;
    for (uint32_t i = 0; i < *ret_count; i++) {
        ret[i] = (struct selector){SELECT_EXACT, marked->records[i].id};
    }
    engine_call_fini(&request.call);
    return status;
}

int mark_call(struct cli *cli, const struct msg_mark *mark, struct source_request *request,
              struct diag *diag)
{
    struct selector exact[OPTION_TEXTS_MAX + 1];
    struct msg_mark asked = *mark;
    bool by_name = false;
    CHECK(mark->selector_count <= ARRAY_LEN(exact));
    for (uint32_t i = 0; i < mark->selector_count; i++) {
        by_name = by_name || mark->selectors[i].kind != SELECT_EXACT;
    }
    *request = (struct source_request){.source = NULL};
    if (by_name && !mark->dry_run) {
        int status = resolve(cli, mark, exact, &asked.selector_count, diag);
        asked.selectors = exact;
        if (status != 0) {
            return status;
        }
    }
    return ask(cli, &asked, request, diag);
}

const char *mark_action(const struct msg_mark_record *record, const char *done)
{
    return record->outcome == MARK_DONE      ? done
           : record->outcome == MARK_ALREADY ? "unchanged"
           : record->outcome == MARK_KEPT    ? "keep"
                                             : "refused";
}

static void reasons_of(const struct msg_mark_record *record, char ret[REASONS_BYTES])
{
    retention_reasons_text((enum mark_outcome)record->outcome, record->reasons, REASONS_BYTES, ret);
}

void mark_json(struct json *json, const struct msg_marked *marked, const char *done,
               const char *why)
{
    json_u64(json, done, marked->done_count);
    json_u64(json, "refused", marked->refused_count);
    json_u64(json, "total", marked->total_count);
    json_open(json, "checkpoints", '[');
    for (uint32_t i = 0; i < marked->record_count; i++) {
        const struct msg_mark_record *record = &marked->records[i];
        char reasons[REASONS_BYTES];
        reasons_of(record, reasons);
        json_open(json, NULL, '{');
        json_ckpt_id(json, record->id);
        json_wall(json, "committed_at", record->wall_ns);
        json_str(json, "action", mark_action(record, done));
        json_str(json, "reasons", why && record->outcome == MARK_DONE ? why : reasons);
        json_close(json, '}');
    }
    json_close(json, ']');
}

int mark_refusals(const struct run_name *run, const struct msg_marked *marked)
{
    for (uint32_t i = 0; i < marked->record_count; i++) {
        const struct msg_mark_record *record = &marked->records[i];
        if (record->outcome != MARK_DONE && record->outcome != MARK_ALREADY &&
            record->outcome != MARK_KEPT) {
            fprintf(stderr, "cairn: %s %s %s\n", run_name_text(run).at, ckpt_id_text(record->id).at,
                    mark_outcome_text((enum mark_outcome)record->outcome));
        }
    }
    return marked->refused_count > 0 ? EXIT_PARTIAL : 0;
}

static int show(const struct cli *cli, const struct mark_words *words,
                const struct msg_marked *marked)
{
    struct run_name_text name = run_name_text(&cli->run);
    if (cli->json) {
        struct json json;
        json_begin(&json);
        json_str(&json, "run", name.at);
        json_bool(&json, "dry_run", words->dry_run);
        mark_json(&json, marked, words->done, NULL);
        return json_end(&json);
    }
    for (uint32_t i = 0; i < marked->record_count && !cli->quiet; i++) {
        if (marked->records[i].outcome <= MARK_ALREADY) {
            printf("%s %s (%s): %s\n", name.at, ckpt_id_text(marked->records[i].id).at,
                   time_text(marked->records[i].wall_ns).at,
                   mark_action(&marked->records[i], words->said ? words->said : words->done));
        }
    }
    return out_flush();
}

int mark_run(struct cli *cli, const struct mark_words *words, struct diag *diag)
{
    char actor[MARK_ACTOR_BYTES];
    struct source_request request = {0};
    struct msg_mark mark = {.kind = words->kind,
                            .dry_run = words->dry_run,
                            .all = words->all,
                            .selector_count = cli->selector_text ? 1 : 0,
                            .selectors = &cli->selector,
                            .actor = actor,
                            .reason = words->reason ? words->reason : ""};
    mark_actor(actor);
    int status = mark_connect(cli, !words->dry_run, diag);
    if (status == 0 && !cli->has_run) {
        status = diag_set(diag, CAIRN_E_INVALID, "no run is named; `cairn ls` lists the runs");
    }
    if (status == 0) {
        status = mark_call(cli, &mark, &request, diag);
    }
    if (status == 0) {
        status = show(cli, words, &request.call.reply.u.marked);
    }
    if (status == 0) {
        status = mark_refusals(&cli->run, &request.call.reply.u.marked);
    }
    engine_call_fini(&request.call);
    return status;
}
