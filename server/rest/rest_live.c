/* SPDX-License-Identifier: Apache-2.0
 *
 * /live: the saves that are under way, rank by rank, the ranks that are furthest behind first; and
 * the number that says whether anything else has changed. A page asks this every few seconds.
 */
#include "rest/rest_private.h"

#include "base/check.h"
#include "ingest/ingest.h"

#include <stdlib.h>
#include <string.h>

/* RANKS_VISITED_MAX: of all saves together, after which no other save follows. */
enum { RANKS_VISITED_MAX = 1 << 17 };
enum { SAVES_MAX = 64, RANKS_PRESET = 64, RANKS_MAX = 4096 };

struct rows {
    struct ingest_row *rows;
    size_t count, cap;
};

static void count_row(void *user, const struct ingest_row *row)
{
    struct rows *rows = user;
    (void)row;
    rows->cap++;
}

static void collect(void *user, const struct ingest_row *row)
{
    struct rows *rows = user;
    CHECK(rows->count < rows->cap);
    rows->rows[rows->count++] = *row;
}

static int compare(const void *a, const void *b)
{
    const struct ingest_row *left = a, *right = b;
    if (left->durable_bytes != right->durable_bytes) {
        return left->durable_bytes < right->durable_bytes ? -1 : 1;
    }
    return compare_u64(left->rank, right->rank);
}

/* Gives the ranks of a save that have not sealed their part, the furthest behind first; those that
 * have not come have no run. Returns NULL if there is no memory. */
static struct ingest_row *behind_of(const struct run_overview *run, const struct state_open *open,
                                    const struct rows *rows, size_t *ret_count)
{
    size_t world = open->world_size, count = 0;
    CHECK(world > 0);
    struct ingest_row *ranks = calloc(world + 1, sizeof(*ranks));
    bool *is_sealed = calloc(world + 1, sizeof(*is_sealed));
    for (size_t i = 0; is_sealed && i < run->state->seal_count; i++) {
        const struct state_seal *seal = &run->state->seals[i];
        if (ckpt_id_equal(seal->id, open->id) && !seal->orphan && seal->rank < world) {
            is_sealed[seal->rank] = true;
        }
    }
    for (size_t i = 0; ranks && i < world; i++) {
        ranks[i].rank = (uint32_t)i;
    }
    for (size_t i = 0; ranks && i < rows->count; i++) {
        const struct ingest_row *row = &rows->rows[i];
        if (row->rank < world && ckpt_id_equal(row->id, open->id) &&
            run_name_equal(row->run, run->name)) {
            ranks[row->rank] = *row;
        }
    }
    for (size_t i = 0; ranks && is_sealed && i < world; i++) {
        if (!is_sealed[i]) {
            ranks[count++] = ranks[i];
        }
    }
    if (ranks && is_sealed) {
        qsort(ranks, count, sizeof(*ranks), compare);
    } else {
        free(ranks);
        ranks = NULL;
    }
    free(is_sealed);
    CHECK(count <= world);
    *ret_count = count;
    return ranks;
}

static void write_rank(struct json *json, const struct ingest_row *row)
{
    json_open(json, NULL, '{');
    json_u64(json, "rank", row->rank);
    json_bool(json, "has_come", row->run != NULL);
    json_bool(json, "connected", row->connected);
    json_bool(json, "handed_over", row->handed_over);
    json_u64(json, "received_bytes", row->received_bytes);
    json_u64(json, "durable_bytes", row->durable_bytes);
    json_u64(json, "age_ms", row->age_ms);
    json_u64(json, "quiet_ms", row->quiet_ms);
    json_close(json, '}');
}

static int write_save(const struct rest_call *call, const struct run_overview *run,
                      const struct state_open *open, const struct rows *rows, uint64_t most)
{
    const struct run_state *state = run->state;
    struct json *json = call->json;
    size_t behind = 0;
    struct ingest_row *ranks = behind_of(run, open, rows, &behind);
    uint64_t now_ms = loop_now_ms(call->source->metrics->loop);
    uint64_t opened_ms = run_opened_ms(call->catalog, run->name, open->id);
    if (!ranks) {
        return CAIRN_E_NO_MEMORY;
    }
    CHECK(opened_ms <= now_ms);
    CHECK(open->sealed_count <= open->world_size);
    json_open(json, NULL, '{');
    rest_json_run_name(json, run->name);
    json_ckpt_id(json, open->id);
    json_u64(json, "age_ms", opened_ms != 0 ? now_ms - opened_ms : 0);
    json_u64(json, "deadline_ms", open->entry.deadline_ms);
    json_u64(json, "world_size", open->world_size);
    json_u64(json, "sealed_ranks", open->sealed_count);
    json_u64(json, "last_plain_bytes",
             state->commit_count > 0 ? state->commits[state->commit_count - 1].entry.plain_bytes
                                     : 0);
    json_u64(json, "ranks_behind", behind);
    json_open(json, "ranks", '[');
    /* The ranks of the save with which a page ends may have a page of their own. */
    for (size_t i = 0; i < behind && i < most && json->buf.bytes / 2 < REST_PAGE_BYTES; i++) {
        write_rank(json, &ranks[i]);
    }
    json_close(json, ']');
    json_close(json, '}');
    free(ranks);
    return 0;
}

static int write_saves(const struct rest_call *call, uint64_t most, const struct rows *rows)
{
    const char *project = rest_arg(call->request, "project");
    struct run_overview run = {.name = &(struct run_name){.project = ""}};
    size_t count = 0, visited = 0;
    bool more = false;
    int status = 0;
    json_open(call->json, "saves", '[');
    while (status == 0 && !more && catalog_next_overview(call->catalog, run.name, &run)) {
        bool is_meant = !project || strcmp(project, run.name->project) == 0;
        size_t opens = run.state && is_meant ? run.state->open_count : 0;
        for (size_t i = 0; status == 0 && !more && i < opens; i++) {
            more = count == SAVES_MAX || visited >= RANKS_VISITED_MAX ||
                   call->json->buf.bytes >= REST_PAGE_BYTES;
            if (!more) {
                status = write_save(call, &run, &run.state->opens[i], rows, most);
                visited += run.state->opens[i].world_size;
                count++;
            }
        }
    }
    json_close(call->json, ']');
    json_bool(call->json, "more", more);
    return status;
}

static void write_counts(const struct rest_call *call)
{
    const struct run_counts *counts = catalog_counts(call->catalog);
    struct server_stats stats;
    CHECK(call->source->metrics->server != NULL); /* it is there before the catalogue */
    server_stats(call->source->metrics->server, &stats);
    json_open(call->json, "counts", '{');
    json_u64(call->json, "saves_committed", counts->saves_committed);
    json_u64(call->json, "saves_failed", counts->saves_failed);
    json_u64(call->json, "restores_done", counts->restores_done);
    json_u64(call->json, "restores_failed", counts->restores_failed);
    json_u64(call->json, "connections", stats.sessions);
    json_u64(call->json, "bytes_in", stats.bytes_in);
    json_u64(call->json, "bytes_out", stats.bytes_out);
    json_close(call->json, '}');
}

int rest_live(struct rest_call *call, struct diag *diag)
{
    struct rows rows = {.count = 0};
    uint64_t most = 0;
    struct rest_range range = {.preset = RANKS_PRESET, .least = 0, .most = RANKS_MAX};
    int status = rest_arg_u64(call->request, "ranks", range, &most, diag);
    if (status != 0) {
        return status;
    }
    server_progress(call->source->metrics->server, count_row, &rows);
    rows.rows = calloc(rows.cap + 1, sizeof(*rows.rows));
    if (!rows.rows) {
        return diag_no_memory(diag, "the saves under way");
    }
    server_progress(call->source->metrics->server, collect, &rows);
    catalog_overviews_refresh(call->catalog);
    json_wall(call->json, "started_at", call->source->metrics->begun_wall_ns);
    json_u64(call->json, "changes", catalog_changes(call->catalog));
    rest_json_health(call->json, &call->source->usage->health);
    write_counts(call);
    status = write_saves(call, most, &rows);
    free(rows.rows);
    return status != 0 ? diag_no_memory(diag, "the saves under way") : 0;
}
