/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn top: saves on their way through a server, rank by rank, again and again: a screen on a
 * terminal, a JSON document a line elsewhere.
 */
#include "cli.h"
#include "condition.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { STUCK_MS = 5000, SCREEN_ROWS = 24, HEAD_ROWS = 4 };

struct top_options {
    uint64_t every_ms, count;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN, .optional = true}, {0}};

static const struct option options[] = {{"every", "DURATION", "time between two updates",
                                         OPTION_AT_DURATION(struct top_options, every_ms),
                                         .preset = "1s", .min = 100, .max = 3600000},
                                        {"count", "N", "end after N updates; 0 means never",
                                         OPTION_AT_COUNT(struct top_options, count), .preset = "0"},
                                        {0}};

struct rank_row { /* sorted by run, checkpoint, rank */
    struct msg_progress_row row;
    double received_rate, durable_rate; /* bytes a second since the last look, or since it began */
    bool straggles;
};

struct sample {
    size_t count;
    struct rank_row *rows;
    uint64_t at_ms;
    bool more;
};

static int compare(const void *a, const void *b)
{
    const struct msg_progress_row *x = &((const struct rank_row *)a)->row,
                                  *y = &((const struct rank_row *)b)->row;
    int order = run_name_compare(&x->run, &y->run);
    order = order != 0 ? order : ckpt_id_compare(x->id, y->id);
    return order != 0 ? order : compare_u64(x->rank, y->rank);
}

static bool same_save(const struct rank_row *a, const struct rank_row *b)
{
    return run_name_equal(&a->row.run, &b->row.run) && ckpt_id_equal(a->row.id, b->row.id);
}

/* --- one look --- */

static int ask(struct cli *cli, struct sample *ret, struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_PROGRESS,
                         .u.progress = {.project = cli->has_run ? cli->run.project : ""}}};
    int status = source_call(cli->connection, &request, diag);
    const struct msg_progress_reply *reply = &request.call.reply.u.progress_reply;
    *ret = (struct sample){.at_ms = loop_now_ms(source_loop(cli->connection))};
    if (status == 0) {
        ret->more = reply->more;
        ret->rows = calloc(reply->count + 1, sizeof(*ret->rows));
        status = ret->rows ? 0 : diag_no_memory(diag, "the table of saves in flight");
    }
    for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
        if (!cli->has_run || strcmp(reply->rows[i].run.run, cli->run.run) == 0) {
            ret->rows[ret->count++].row = reply->rows[i];
        }
    }
    engine_call_fini(&request.call);
    if (status == 0 && ret->count > 1) {
        qsort(ret->rows, ret->count, sizeof(*ret->rows), compare);
    }
    return status;
}

static void rate(const struct sample *before, struct sample *now)
{
    for (size_t i = 0; i < now->count; i++) {
        struct rank_row *rank = &now->rows[i];
        const struct rank_row *old =
            array_find(rank, before->rows, before->count, sizeof(*rank), compare);
        bool goes_on = old && old->row.received_bytes <= rank->row.received_bytes &&
                       old->row.durable_bytes <= rank->row.durable_bytes;
        uint64_t ms = goes_on ? now->at_ms - before->at_ms : rank->row.age_ms;
        double seconds = (double)max_u64(ms, 1) / 1000;
        uint64_t received = goes_on ? old->row.received_bytes : 0;
        uint64_t durable = goes_on ? old->row.durable_bytes : 0;
        rank->received_rate = (double)(rank->row.received_bytes - received) / seconds;
        rank->durable_rate = (double)(rank->row.durable_bytes - durable) / seconds;
    }
}

/* Of one save: less than half of the median is durable, or nothing came for a while. What was
 * handed over waits for nobody. */
static int judge(struct rank_row *ranks, size_t count, struct diag *diag)
{
    CHECK(count > 0);
    uint64_t *durable = calloc(count, sizeof(*durable));
    if (!durable) {
        return diag_no_memory(diag, "the table of saves in flight");
    }
    for (size_t i = 0; i < count; i++) {
        durable[i] = ranks[i].row.durable_bytes;
    }
    qsort(durable, count, sizeof(*durable), order_u64);
    for (size_t i = 0; i < count; i++) {
        const struct msg_progress_row *row = &ranks[i].row;
        ranks[i].straggles = row->durable_bytes * 2 < durable[count / 2] ||
                             (row->quiet_ms > STUCK_MS && !row->handed_over &&
                              row->durable_bytes < row->received_bytes) ||
                             (!row->connected && !row->handed_over);
    }
    free(durable);
    return 0;
}

static size_t save_end(const struct sample *look, size_t first)
{
    size_t end = first;
    while (end < look->count && same_save(&look->rows[first], &look->rows[end])) {
        end++;
    }
    return end;
}

/* --- JSON --- */

static void json_rank(struct json *json, const struct rank_row *rank)
{
    json_open(json, NULL, '{');
    json_u64(json, "rank", rank->row.rank);
    json_u64(json, "received_bytes", rank->row.received_bytes);
    json_u64(json, "durable_bytes", rank->row.durable_bytes);
    json_f64(json, "received_bytes_per_s", rank->received_rate);
    json_f64(json, "durable_bytes_per_s", rank->durable_rate);
    json_u64(json, "age_ms", rank->row.age_ms);
    json_u64(json, "quiet_ms", rank->row.quiet_ms);
    json_bool(json, "connected", rank->row.connected);
    json_bool(json, "handed_over", rank->row.handed_over);
    json_bool(json, "straggles", rank->straggles);
    json_close(json, '}');
}

static int print_json(const struct sample *look)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "message_type", "top");
    json_bool(&json, "more", look->more);
    json_open(&json, "saves", '[');
    for (size_t first = 0; first < look->count;) {
        const struct msg_progress_row *row = &look->rows[first].row;
        json_open(&json, NULL, '{');
        json_str(&json, "run", run_name_text(&row->run).at);
        json_ckpt_id(&json, row->id);
        json_u64(&json, "world_size", row->world_size);
        json_open(&json, "ranks", '[');
        for (size_t end = save_end(look, first); first < end; first++) {
            json_rank(&json, &look->rows[first]);
        }
        json_close(&json, ']');
        json_close(&json, '}');
    }
    json_close(&json, ']');
    return json_end(&json);
}

/* --- the screen --- */

static size_t screen_rows(void)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > HEAD_ROWS;
    return known ? size.ws_row : SCREEN_ROWS;
}

static void add_rank(struct table *table, const struct rank_row *rank)
{
    char number[24], age[24];
    snprintf(number, sizeof(number), rank->row.world_size > 0 ? "%u/%u" : "%u", rank->row.rank,
             rank->row.world_size);
    snprintf(age, sizeof(age), "%" PRIu64 ".%" PRIu64 " s", rank->row.age_ms / 1000,
             rank->row.age_ms % 1000 / 100);
    table_row(table,
              (const char *const[]){run_name_text(&rank->row.run).at, ckpt_id_text(rank->row.id).at,
                                    number, bytes_text(rank->row.received_bytes).at,
                                    bytes_text((uint64_t)rank->received_rate).at,
                                    bytes_text(rank->row.durable_bytes).at,
                                    bytes_text((uint64_t)rank->durable_rate).at, age,
                                    rank->row.handed_over  ? "handed over"
                                    : !rank->row.connected ? "GONE"
                                    : rank->straggles      ? "SLOW"
                                                           : ""});
}

/* Who holds the others up comes first; what does not fit is counted. */
static int print_screen(const struct sample *look)
{
    static const char *const titles[] = {"RUN",      "CHECKPOINT", ">RANK", ">RECEIVED", ">PER S",
                                         ">DURABLE", ">PER S",     ">AGE",  ""};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    bool terminal = cli_stdout_is_terminal();
    size_t room = terminal ? screen_rows() - HEAD_ROWS : SIZE_MAX, shown = 0, stragglers = 0;
    for (size_t i = 0; i < look->count; i++) {
        stragglers += look->rows[i].straggles;
    }
    for (int slow = 1; table && slow >= 0; slow--) {
        for (size_t i = 0; i < look->count && shown < room; i++) {
            if (look->rows[i].straggles == (slow == 1)) {
                add_rank(table, &look->rows[i]);
                shown++;
            }
        }
    }
    printf("%s%zu rank%s saving, %zu hold%s the others up\n\n", terminal ? "\033[H\033[J" : "",
           look->count, look->count == 1 ? " is" : "s are", stragglers, stragglers == 1 ? "s" : "");
    if (table && look->count > 0) {
        table_print(table, stdout);
    }
    if (shown < look->count || look->more) {
        printf("... %zu%s more\n", look->count - shown, look->more ? " and" : "");
    }
    table_free(table);
    return out_flush();
}

static int show(const struct cli *cli, struct sample *look, struct diag *diag)
{
    int status = 0;
    for (size_t first = 0; status == 0 && first < look->count;) {
        size_t end = save_end(look, first);
        status = judge(&look->rows[first], end - first, diag);
        first = end;
    }
    if (status != 0) {
        return status;
    }
    return cli->json ? print_json(look) : print_screen(look);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct top_options *own = values;
    struct sample before = {0};
    if (cli->source.store) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a store without a server receives no saves; ask the server (--server)");
    }
    int status = cli_connect(cli, false, diag);
    for (uint64_t looks = 1; status == 0; looks++) {
        struct sample now = {0};
        status = ask(cli, &now, diag);
        if (status == 0) {
            rate(&before, &now);
            status = show(cli, &now, diag);
        }
        free(before.rows);
        before = now;
        if (status != 0 || looks == own->count) {
            break;
        }
        status = condition_pause(cli, own->every_ms, diag);
    }
    free(before.rows);
    return status;
}

const struct command command_top = {
    .name = "top",
    .group = GROUP_LOOK,
    .summary = "watch saves in flight, rank by rank, with rates and stragglers",
    .details =
        "The command shows the saves of the server that it asks; with several servers on one "
        "cluster, each shows only what goes through it. Bytes are stored bytes. A rank is SLOW if "
        "it has less than half as many durable bytes as the median rank, or if nothing came from "
        "it for 5 seconds. It is GONE if its connection is, and the server cannot finish its part "
        "alone. With --json each update is one line with a JSON document. The command ends with an "
        "interrupt (status 130), or after --count updates.",
    .example = "cairn top lab/gpt\ncairn top --count 1 --json | jq .saves",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct top_options),
    .run = run};
