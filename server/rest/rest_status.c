/* SPDX-License-Identifier: Apache-2.0
 *
 * /status: the daemon, its store, its health, its upkeep, and when the store will be full.
 */
#include "rest/rest_private.h"

#include "base/check.h"
#include "store/store.h"

static void write_daemon(const struct rest_call *call)
{
    const struct metrics_source *source = call->source->metrics;
    struct json *json = call->json;
    struct server_stats stats = {0};
    if (source->server) {
        server_stats(source->server, &stats);
    }
    json_open(json, "daemon", '{');
    json_str(json, "version", CAIRN_VERSION);
    json_wall(json, "started_at", source->begun_wall_ns);
    json_str(json, "addresses", call->source->addresses);
    json_u64(json, "connections", stats.sessions);
    json_u64(json, "bytes_in", stats.bytes_in);
    json_u64(json, "bytes_out", stats.bytes_out);
    json_u64(json, "buffers_free", stats.buffers_free);
    json_u64(json, "buffers_total", stats.buffers_total);
    json_close(json, '}');
}

static void write_store(const struct rest_call *call)
{
    const struct metrics_usage *usage = call->source->usage;
    const struct store_caps *caps = &catalog_store(call->catalog)->caps;
    struct json *json = call->json;
    char uuid[33];
    CHECK(call->catalog != NULL);
    hex_encode(sizeof(caps->uuid), &caps->uuid, uuid);
    json_open(json, "store", '{');
    json_str(json, "backend", caps->name);
    json_str(json, "url", caps->url[0] != '\0' ? caps->url : NULL);
    json_str(json, "uuid", uuid);
    json_bool(json, "shared", caps->shared);
    json_bool(json, "answers", usage->status == 0);
    json_bool(json, "read_only", caps->read_only || usage->usage.read_only);
    json_u64(json, "total_bytes", usage->usage.total_bytes);
    json_u64(json, "free_bytes", usage->usage.free_bytes);
    json_close(json, '}');
}

static void write_totals(const struct rest_call *call)
{
    struct catalog_totals totals;
    struct json *json = call->json;
    catalog_totals(call->catalog, &totals);
    json_open(json, "totals", '{');
    json_u64(json, "runs", totals.runs);
    json_u64(json, "runs_unreadable", totals.runs_unreadable);
    json_u64(json, "saves_open", totals.saves_open);
    json_u64(json, "verified", totals.checkpoints[HEALTH_VERIFIED]);
    json_u64(json, "suspect", totals.checkpoints[HEALTH_SUSPECT]);
    json_u64(json, "damaged", totals.checkpoints[HEALTH_DAMAGED]);
    json_u64(json, "forgotten", totals.forgotten.count);
    json_u64(json, "forgotten_bytes", totals.forgotten.bytes);
    json_close(json, '}');
}

static void write_finding(struct json *json, const struct scrub_finding *finding)
{
    json_open(json, NULL, '{');
    rest_json_run_name(json, &finding->run);
    json_ckpt_id(json, finding->id);
    json_str(json, "health", health_name(finding->health));
    json_wall(json, "at", finding->wall_ns);
    json_str(json, "text", finding->text);
    json_close(json, '}');
}

static void write_scrub(struct json *json, const struct scrub *scrub)
{
    struct scrub_status status;
    scrub_status(scrub, &status);
    json_open(json, "scrub", '{');
    json_bool(json, "running", status.running);
    json_bool(json, "yielding", status.yielding);
    json_bool(json, "on_other_daemon", status.waiting);
    json_u64(json, "every_ms", status.every_ms);
    json_u64(json, "rate_bytes_per_s", status.rate);
    json_wall(json, "began_at", status.begun_wall_ns);
    json_wall(json, "ended_at", status.ended_wall_ns);
    json_u64(json, "bytes", status.bytes);
    json_u64(json, "checkpoints", status.ckpts);
    json_u64(json, "findings", status.findings);
    json_open(json, "recent", '[');
    for (uint32_t i = 0; i < status.recent_count; i++) {
        write_finding(json, status.recent[i]);
    }
    json_close(json, ']');
    json_close(json, '}');
}

static void write_gc(struct json *json, const struct gc *gc)
{
    struct gc_status status;
    gc_status(gc, &status);
    json_open(json, "gc", '{');
    json_bool(json, "running", status.running);
    json_bool(json, "on_other_daemon", status.waiting);
    json_u64(json, "every_ms", status.every_ms);
    json_u64(json, "keep_cycles", status.keep_cycles);
    json_wall(json, "began_at", status.begun_wall_ns);
    json_wall(json, "ended_at", status.ended_wall_ns);
    json_u64(json, "reclaimed_checkpoints", status.reclaimed_total);
    json_u64(json, "reclaimed_bytes", status.bytes_total);
    json_u64(json, "waiting_checkpoints", status.forgotten);
    json_u64(json, "waiting_bytes", status.forgotten_bytes);
    json_wall(json, "next_reclaim_at", status.first_wall_ns);
    json_str(json, "error", status.code != 0 ? status.text : NULL);
    json_close(json, '}');
}

static void write_retention(struct json *json, const struct retain *retain)
{
    struct retain_status status;
    retain_status(retain, &status);
    json_open(json, "retention", '{');
    json_u64(json, "rounds", status.rounds);
    json_u64(json, "errors", status.errors);
    json_wall(json, "last_good_at", status.good_wall_ns);
    json_close(json, '}');
}

/* Writes when the store will be full if it goes on as in the last days. The rate is what commits
 * stored less what was reclaimed, from the first of these days or the first commit on. */
static void write_capacity(const struct rest_call *call, int64_t now_ns)
{
    const struct metrics_usage *usage = call->source->usage;
    struct rest_flow flow = {0};
    struct run_overview run = {.name = &(struct run_name){.project = ""}};
    struct json *json = call->json;
    while (catalog_next_overview(call->catalog, run.name, &run)) {
        rest_flow_add(&run, now_ns, &flow);
    }
    int64_t window_ns = (int64_t)(day_of(now_ns) - RUN_DAYS + 1) * DAY_NS;
    int64_t from_ns = flow.first_wall_ns > window_ns ? flow.first_wall_ns : window_ns;
    double days = (double)(now_ns - from_ns) / (double)DAY_NS;
    double net = (double)flow.written_bytes - (double)flow.reclaimed_bytes;
    /* Within the first hour nobody can tell a rate. */
    bool is_known = flow.saves > 1 && days > 1.0 / 24;
    double rate = is_known ? net / days : 0;
    double left_days = rate > 0 ? (double)usage->usage.free_bytes / rate : 0;
    bool fills = usage->status == 0 && rate > 0 && left_days < 3650;
    json_open(json, "capacity", '{');
    json_wall(json, "since", flow.saves > 0 ? from_ns : 0);
    json_u64(json, "saves", flow.saves);
    json_u64(json, "written_bytes", flow.written_bytes);
    json_u64(json, "reclaimed_bytes", flow.reclaimed_bytes);
    json_bool(json, "is_known", is_known);
    json_f64(json, "net_bytes_per_day", rate);
    json_wall(json, "full_at", fills ? now_ns + (int64_t)(left_days * (double)DAY_NS) : 0);
    json_close(json, '}');
}

int rest_status(struct rest_call *call, struct diag *diag)
{
    const struct metrics_source *source = call->source->metrics;
    (void)diag;
    write_daemon(call);
    rest_json_health(call->json, &call->source->usage->health);
    if (!call->catalog) {
        return 0;
    }
    json_u64(call->json, "changes", catalog_changes(call->catalog));
    write_store(call);
    write_totals(call);
    if (source->scrub) {
        write_scrub(call->json, source->scrub);
    }
    if (source->gc) {
        write_gc(call->json, source->gc);
    }
    if (source->retain) {
        write_retention(call->json, source->retain);
    }
    write_capacity(call, loop_wall_ns(source->loop));
    return 0;
}
