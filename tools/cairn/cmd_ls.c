/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn ls: the runs, or the checkpoints of one.
 */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_SCRATCH_MAX = 1 << 30, NOTE_TEXT_BYTES = 100 };

static int list_runs(struct cli *cli, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = source_runs(cli->connection, &names, &count, diag);
    if (status != 0) {
        return status;
    }
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_open(&json, "runs", '[');
    for (size_t i = 0; i < count; i++) {
        char name[RUN_NAME_TEXT_MAX];
        run_name_format(&names[i], name);
        json_str(&json, NULL, name);
        if (!cli->json) {
            printf("%s\n", name);
        }
    }
    json_close(&json, ']');
    json_close(&json, '}');
    if (cli->json) {
        status = json_print(&json);
    } else if (count == 0) {
        fprintf(stderr, "cairn: no runs\n");
    }
    json_fini(&json);
    free(names);
    return status;
}

void json_info(struct json *json, const char *name, const struct ckpt_info *info)
{
    char time[40], sha[65];
    format_time(info->wall_ns, sizeof(time), time);
    hex_encode(sizeof(info->manifest_sha256), &info->manifest_sha256, sha);
    json_open(json, name, '{');
    json_u64(json, "step", info->id.step);
    json_u64(json, "term", info->id.term);
    json_str(json, "state", state_name(info->state));
    json_str(json, "health", info->state == CKPT_COMMITTED ? health_name(info->health) : NULL);
    json_u64(json, "sequence", info->seq);
    json_str(json, "committed_at", info->state == CKPT_COMMITTED ? time : NULL);
    json_u64(json, "world_size", info->world_size);
    json_u64(json, "plain_bytes", info->plain_bytes);
    json_u64(json, "stored_bytes", info->stored_bytes);
    json_bool(json, "latest", info->is_latest);
    json_bool(json, "on_lineage", info->on_lineage);
    json_u64(json, "parent_term", info->parent.term);
    json_u64(json, "parent_step", info->parent.step);
    json_u64(json, "sealed_ranks", info->sealed_count);
    json_str(json, "manifest_sha256", info->state == CKPT_COMMITTED ? sha : NULL);
    json_str(json, "text", info->text && info->text[0] ? info->text : NULL);
    json_u64(json, "note_version", info->note_version);
    json_open(json, "tags", '[');
    for (uint32_t i = 0; i < info->tag_count; i++) {
        json_str(json, NULL, info->tags[i]);
    }
    json_close(json, ']');
    json_open(json, "metrics", '{');
    for (uint32_t i = 0; i < info->metric_count; i++) {
        json_f64(json, info->metrics[i].name, info->metrics[i].value);
    }
    json_close(json, '}');
    json_close(json, '}');
}

static bool is_shown(const struct cli *cli, const struct ckpt_info *info)
{
    if (info->state == CKPT_ABORTED) {
        return cli->all;
    }
    return info->state != CKPT_COMMITTED || info->on_lineage || cli->superseded || cli->json;
}

/* "best, keep; loss=0.25", cut where it would not fit on a line. */
static void format_note(const struct ckpt_info *info, size_t size, char *ret)
{
    size_t at = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < info->tag_count + info->metric_count; i++) {
        uint32_t metric = i - info->tag_count;
        const char *between = i == 0 ? "" : i == info->tag_count ? "; " : ", ";
        char item[200];
        if (i < info->tag_count) {
            snprintf(item, sizeof(item), "%s", info->tags[i]);
        } else {
            snprintf(item, sizeof(item), "%s=%g", info->metrics[metric].name,
                     info->metrics[metric].value);
        }
        int n = snprintf(ret + at, size - at, "%s%s", between, item);
        if (n < 0 || (size_t)n + 4 >= size - at) {
            snprintf(ret + at, size - at, "...");
            return;
        }
        at += (size_t)n;
    }
}

static void add_row(struct table *table, const struct ckpt_info *info)
{
    char id[48], bytes[32], time[40], ranks[32], parent[48] = "-", state[64], note[NOTE_TEXT_BYTES];
    format_ckpt(info->id, sizeof(id), id);
    format_bytes(info->plain_bytes, sizeof(bytes), bytes);
    format_time(info->wall_ns, sizeof(time), time);
    if (info->parent.term != 0) {
        format_ckpt(info->parent, sizeof(parent), parent);
    }
    snprintf(ranks, sizeof(ranks), "%u", info->world_size);
    snprintf(state, sizeof(state), "%s%s",
             info->state == CKPT_COMMITTED ? health_name(info->health) : state_name(info->state),
             info->state == CKPT_COMMITTED && !info->on_lineage ? ", superseded" : "");
    bool committed = info->state == CKPT_COMMITTED;
    format_note(info, sizeof(note), note);
    table_row(table,
              (const char *const[]){info->is_latest ? "*" : "", id, state, committed ? bytes : "-",
                                    ranks, parent, time, committed ? note : info->text});
}

static int print_list(struct cli *cli, size_t count, const struct ckpt_info *infos)
{
    static const char *const titles[] = {"",       "CHECKPOINT", "STATE",     ">SIZE",
                                         ">RANKS", "PARENT",     "COMMITTED", ""};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    size_t shown = 0, hidden = 0;
    for (size_t i = 0; table && i < count && (cli->limit == 0 || shown < cli->limit); i++) {
        if (is_shown(cli, &infos[i])) {
            add_row(table, &infos[i]);
            shown++;
        } else {
            hidden++;
        }
    }
    if (table && shown > 0) {
        table_print(table, stdout);
    } else {
        fprintf(stderr, "cairn: no checkpoints\n");
    }
    if (hidden > 0) {
        fprintf(stderr, "cairn: %zu more with --superseded or --all\n", hidden);
    }
    table_free(table);
    return out_flush();
}

static int print_json(struct cli *cli, size_t count, const struct ckpt_info *infos)
{
    struct json json;
    char name[RUN_NAME_TEXT_MAX];
    run_name_format(&cli->run, name);
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_str(&json, "run", name);
    json_open(&json, "checkpoints", '[');
    for (size_t i = 0, shown = 0; i < count && (cli->limit == 0 || shown < cli->limit); i++) {
        if (is_shown(cli, &infos[i])) {
            json_info(&json, NULL, &infos[i]);
            shown++;
        }
    }
    json_close(&json, ']');
    json_close(&json, '}');
    int status = json_print(&json);
    json_fini(&json);
    return status;
}

int command_ls(struct cli *cli, struct diag *diag)
{
    int status = cli_connect(cli, false, diag);
    if (status != 0) {
        return status;
    }
    if (!cli->has_run) {
        return list_runs(cli, diag);
    }
    struct scratch scratch;
    struct ckpt_info *infos = NULL;
    size_t count = 0;
    scratch_init(&scratch, LIST_SCRATCH_MAX);
    status = cli_list(cli, &scratch, &count, &infos, diag);
    if (status == 0 && count == 0) {
        status = cli_check_run(cli, diag);
    }
    if (status == 0) {
        status = cli->json ? print_json(cli, count, infos) : print_list(cli, count, infos);
    }
    scratch_fini(&scratch);
    return status;
}

int command_status(struct cli *cli, struct diag *diag)
{
    if (!cli->run_text || !cli->selector_text || cli->selector.kind != SELECT_EXACT) {
        return diag_set(diag, CAIRN_E_INVALID, "cairn status RUN STEP@TERM: which save?");
    }
    int status = cli_connect(cli, true, diag);
    struct source_request request = {
        .call.request = {.type = MSG_STATUS, .u.status = {.id = cli->selector.id}}};
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        const struct ckpt_info *info = &request.call.reply.u.status_reply.info;
        struct json json;
        json_init(&json);
        json_open(&json, NULL, '{');
        json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
        json_info(&json, "checkpoint", info);
        json_close(&json, '}');
        if (cli->json) {
            status = json_print(&json);
        } else {
            printf("%" PRIu64 "@%" PRIu64 ": %s%s%s\n", info->id.step, info->id.term,
                   state_name(info->state), info->text && info->text[0] ? ": " : "",
                   info->text ? info->text : "");
        }
        json_fini(&json);
        if (status == 0 && info->state == CKPT_NONE) {
            status = err_exit_status(CAIRN_E_NOT_FOUND);
        }
    }
    engine_call_fini(&request.call);
    return status;
}
