/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics: see metrics.h. Labels come from tables in this file and from the names of runs, at most
 * METRICS_RUNS_MAX of them; never from a step, a rank or a tensor. A counter is written as 0 before
 * its first event, and a time as 0 before it has come. What the store could not tell is left out,
 * and cairn_scrape_success says so.
 */
#include "obs/metrics.h"

#include "base/check.h"
#include "base/log.h"

#include <string.h>

/* Returns the unit at the end of a name, or "". */
static const char *unit_of(const char *name)
{
    static const char *const units[] = {"bytes", "seconds"};
    const char *end = strrchr(name, '_');
    for (size_t i = 0; end && i < ARRAY_LEN(units); i++) {
        if (strcmp(end + 1, units[i]) == 0) {
            return units[i];
        }
    }
    return "";
}

static void begin(struct expose *expose, enum family_kind kind, const char *name, const char *help)
{
    struct family family = {.name = name, .kind = kind, .unit = unit_of(name), .help = help};
    expose_family(expose, &family);
}

static void gauge(struct expose *expose, const char *name, const char *help, uint64_t value)
{
    begin(expose, FAMILY_GAUGE, name, help);
    expose_u64(expose, value);
}

static void counter(struct expose *expose, const char *name, const char *help, uint64_t value)
{
    begin(expose, FAMILY_COUNTER, name, help);
    expose_u64(expose, value);
}

static void moment(struct expose *expose, const char *name, const char *help, int64_t wall_ns)
{
    begin(expose, FAMILY_GAUGE, name, help);
    expose_wall(expose, wall_ns);
}

static void labelled(struct expose *expose, const char *label, const char *text, uint64_t value)
{
    expose_label(expose, label, text);
    expose_u64(expose, value);
}

static void durations(struct expose *expose, const char *name, const char *help,
                      const struct histogram *histogram)
{
    begin(expose, FAMILY_HISTOGRAM, name, help);
    expose_histogram(expose, histogram);
}

/* Writes one series for every error of the table, from the beginning; an error that is not in it
 * counts as UNKNOWN. */
static void errors(struct expose *expose, const char *name, const char *help,
                   const struct err_tally *tally)
{
    begin(expose, FAMILY_COUNTER, name, help);
    for (int slot = 0; slot <= ERR_COUNT; slot++) {
        labelled(expose, "error", err_name(-slot), tally->counts[slot]);
    }
}

/* --- the families ----------------------------------------------------------------------------- */

/* Writes the families about saves and restores. */
static void write_saves(const struct run_counts *counts, struct expose *expose)
{
    begin(expose, FAMILY_COUNTER, "cairn_checkpoints", "Saves that have ended, by result.");
    labelled(expose, "result", "committed", counts->saves_committed);
    labelled(expose, "result", "failed", counts->saves_failed);
    counter(expose, "cairn_checkpoints_opened", "Saves that were opened.", counts->saves_opened);
    errors(expose, "cairn_checkpoint_failures", "Saves that failed, by error.", &counts->failures);
    counter(expose, "cairn_checkpoint_plain_bytes",
            "Bytes of state in the committed checkpoints, before encoding.", counts->plain_bytes);
    counter(expose, "cairn_checkpoint_stored_bytes",
            "Bytes that the committed checkpoints added to the store.", counts->stored_bytes);
    durations(expose, "cairn_checkpoint_duration_seconds",
              "Time from the opening of a committed save to its commit.", &counts->save_durations);
    durations(expose, "cairn_checkpoint_stall_seconds",
              "Time that a save blocked training, as reported by rank 0 with the next save.",
              &counts->blocked);
    durations(expose, "cairn_checkpoint_stage_seconds",
              "Time from the call of a save until the state was copied, as reported by rank 0 with "
              "the next save.",
              &counts->staged);
    durations(expose, "cairn_checkpoint_persist_seconds",
              "Time from the call of a save until the checkpoint was durable, as reported by rank "
              "0 with the next save.",
              &counts->persisted);
    durations(expose, "cairn_checkpoint_transfer_seconds",
              "Time from the first payload of a rank of a save until its whole part was here.",
              &counts->phases[PHASE_TRANSFER]);
    durations(expose, "cairn_checkpoint_commit_seconds",
              "Time from the seal of a save's last rank to its commit.",
              &counts->phases[PHASE_COMMIT]);
    durations(expose, "cairn_restore_duration_seconds",
              "Time of a restore by all ranks, from rank 0's request until all had reported.",
              &counts->phases[PHASE_RESTORE]);
    begin(expose, FAMILY_COUNTER, "cairn_restores",
          "Restores by all ranks that have ended, by result.");
    labelled(expose, "result", "done", counts->restores_done);
    labelled(expose, "result", "failed", counts->restores_failed);
}

/* Writes how often each node gave notice. Their number is bounded, so that the answer stays small.
 */
static void write_notices(const struct node_notices *notices, struct expose *expose)
{
    begin(expose, FAMILY_COUNTER, "cairn_node_notices",
          "Notices of `cairn run --watch` that a node fails, by node; without a label those of "
          "nodes behind the first 64.");
    expose_u64(expose, notices->unnamed);
    for (size_t i = 0; i < notices->count; i++) {
        labelled(expose, "node", notices->nodes[i].node, notices->nodes[i].notices);
    }
}

/* Writes the families about updates and readings of records. */
static void write_records(const struct run_counts *counts, struct expose *expose)
{
    counter(expose, "cairn_record_updates", "Updates of runs' records that succeeded.",
            counts->updates);
    counter(expose, "cairn_record_conflicts",
            "Updates of runs' records that lost a race with another update and were repeated.",
            counts->conflicts);
    counter(expose, "cairn_record_unknown_outcomes",
            "Updates of runs' records of which the store did not say whether they took effect.",
            counts->unknown_outcomes);
    counter(expose, "cairn_record_update_errors",
            "Updates of runs' records that the store refused.", counts->update_errors);
    counter(expose, "cairn_record_loads", "Runs' records that were read.", counts->loads);
    counter(expose, "cairn_record_load_errors", "Runs' records that could not be read.",
            counts->load_errors);
}

/* Writes the families about all runs: how many there are, their open saves and their
 * checkpoints. */
static void write_totals(const struct metrics_source *source, struct expose *expose)
{
    struct catalog_totals totals;
    catalog_totals(source->catalog, &totals);
    gauge(expose, "cairn_runs", "Runs in the store.", totals.runs);
    gauge(expose, "cairn_runs_unreadable", "Runs whose record could not be read.",
          totals.runs_unreadable);
    gauge(expose, "cairn_inflight_checkpoints", "Saves that are open now.", totals.saves_open);
    begin(expose, FAMILY_GAUGE, "cairn_inflight_oldest_seconds", "Age of the oldest open save.");
    expose_ms(expose, totals.oldest_open_ms);
    begin(expose, FAMILY_GAUGE, "cairn_listed_checkpoints", "Listed checkpoints, by health.");
    labelled(expose, "health", "verified", totals.checkpoints[HEALTH_VERIFIED]);
    labelled(expose, "health", "suspect", totals.checkpoints[HEALTH_SUSPECT]);
    labelled(expose, "health", "damaged", totals.checkpoints[HEALTH_DAMAGED]);
    gauge(expose, "cairn_forgotten_checkpoints",
          "Forgotten checkpoints that can still be brought back.", totals.forgotten.count);
}

/* Writes the newest commit of each live run. Their number is bounded, so that the answer stays
 * small. */
static void write_runs(const struct metrics_source *source, struct expose *expose)
{
    struct run_totals runs[METRICS_RUNS_MAX];
    int64_t since_ns = loop_wall_ns(source->loop) - METRICS_RUN_HOURS * INT64_C(3600000000000);
    size_t live = catalog_live_runs(source->catalog, since_ns, METRICS_RUNS_MAX, runs);
    size_t count = live < METRICS_RUNS_MAX ? live : METRICS_RUNS_MAX;
    gauge(expose, "cairn_live_runs",
          "Runs that are saving or have saved within two days; at most 256 of them have series of "
          "their own.",
          live);
    begin(expose, FAMILY_GAUGE, "cairn_checkpoint_last_commit_timestamp_seconds",
          "Time of the last commit of a live run.");
    for (size_t i = 0; i < count; i++) {
        struct run_name_text name = run_name_text(runs[i].name); /* lent until expose_wall() */
        expose_label(expose, "run", name.at);
        expose_wall(expose, runs[i].commit_wall_ns);
    }
    begin(expose, FAMILY_GAUGE, "cairn_checkpoint_last_step",
          "Step of the last commit of a live run.");
    for (size_t i = 0; i < count; i++) {
        labelled(expose, "run", run_name_text(runs[i].name).at, runs[i].commit_step);
    }
    begin(expose, FAMILY_GAUGE, "cairn_run_ranks",
          "Ranks of a live run that are connected to this server.");
    for (size_t i = 0; i < count; i++) {
        labelled(expose, "run", run_name_text(runs[i].name).at, runs[i].ranks);
    }
}

/* Writes what each project stores. Their number is bounded, so that the answer stays small. */
static void write_projects(const struct metrics_source *source, struct expose *expose)
{
    struct project_totals projects[METRICS_PROJECTS_MAX];
    size_t count = 0;
    for (size_t at = 0; count < METRICS_PROJECTS_MAX; count++) {
        if (!catalog_next_project(source->catalog, &at, &projects[count])) {
            break;
        }
    }
    begin(
        expose, FAMILY_GAUGE, "cairn_project_stored_bytes",
        "Bytes that the checkpoints of a project have added to the store, forgotten ones included; "
        "at most 256 projects have series.");
    for (size_t i = 0; i < count; i++) {
        labelled(expose, "project", projects[i].project, projects[i].stored_bytes);
    }
    begin(expose, FAMILY_GAUGE, "cairn_project_forgotten_bytes",
          "Upper bound of the bytes that garbage collection can reclaim from the forgotten "
          "checkpoints of a project.");
    for (size_t i = 0; i < count; i++) {
        labelled(expose, "project", projects[i].project, projects[i].forgotten.bytes);
    }
}

static void write_server(const struct server *server, struct expose *expose)
{
    struct server_stats stats;
    server_stats(server, &stats);
    gauge(expose, "cairn_clients_connected", "Open connections of ranks and viewers.",
          stats.sessions);
    counter(expose, "cairn_ingest_bytes", "Bytes of payload that clients sent or handed over.",
            stats.bytes_in);
    counter(
        expose, "cairn_ingest_mapped_bytes",
        "Bytes of that payload that were read from arenas which clients on this host handed over.",
        stats.bytes_mapped);
    counter(expose, "cairn_restore_bytes", "Bytes of payload that clients read.", stats.bytes_out);
    gauge(expose, "cairn_requests_open", "Requests of clients that have no answer yet.",
          stats.requests);
    gauge(expose, "cairn_buffers_waiting",
          "Connections that wait for a free payload buffer, to send or to read.",
          stats.buffer_waits);
    gauge(expose, "cairn_buffers_free", "Bytes of payload buffers that are free.",
          stats.buffers_free);
    gauge(expose, "cairn_buffers_limit", "Bytes of all payload buffers.", stats.buffers_total);
}

/* Writes the families about scrub. */
static void write_scrub(const struct scrub *scrub, struct expose *expose)
{
    struct scrub_status status;
    scrub_status(scrub, &status);
    moment(expose, "cairn_scrub_last_completed_timestamp_seconds",
           "Time at which the last complete scrub ended, or 0 if none has.", status.ended_wall_ns);
    gauge(expose, "cairn_scrub_running", "1 while a scrub is running.", status.running);
    gauge(expose, "cairn_scrub_pass_bytes", "Bytes read by the current scrub, or by the last one.",
          status.bytes);
    gauge(expose, "cairn_scrub_pass_findings",
          "Damaged items found by the current scrub, or by the last one.", status.findings);
    counter(expose, "cairn_scrub_bytes", "Bytes read by scrubs.", status.bytes_total);
    counter(expose, "cairn_scrub_checkpoints", "Checkpoints that scrubs have read.",
            status.ckpts_total);
    counter(expose, "cairn_scrub_findings", "Damaged items that scrubs have found.",
            status.findings_total);
    counter(expose, "cairn_scrub_healed", "Damaged checkpoints that scrubs have found whole again.",
            status.healed_total);
    counter(expose, "cairn_scrub_errors",
            "Reads of scrubs that failed for another reason than damage.", status.errors_total);
}

/* Writes the families about garbage collection. */
static void write_gc(const struct gc *gc, struct expose *expose)
{
    struct gc_status status;
    gc_status(gc, &status);
    moment(expose, "cairn_gc_last_completed_timestamp_seconds",
           "Time at which the last garbage collection ended, or 0 if none has.",
           status.ended_wall_ns);
    gauge(expose, "cairn_gc_running", "1 while a garbage collection is running.", status.running);
    gauge(expose, "cairn_gc_pass_table_bytes",
          "Object tables read by the current garbage collection, or by the last one.",
          status.bytes_read);
    counter(expose, "cairn_gc_passes", "Garbage collections that have begun.", status.pass);
    counter(expose, "cairn_gc_reclaimed_checkpoints",
            "Forgotten checkpoints whose space was reclaimed for good.", status.reclaimed_total);
    counter(expose, "cairn_gc_removed_objects", "Objects that were removed.", status.objects_total);
    counter(expose, "cairn_gc_removed_smalls", "Parts, pages and manifests that were removed.",
            status.smalls_total);
    counter(expose, "cairn_gc_reclaimed_bytes", "Bytes of the removed objects.",
            status.bytes_total);
    counter(expose, "cairn_gc_errors", "Reads and removals of garbage collection that failed.",
            status.errors_total);
}

/* Writes the families about retention. */
static void write_retention(const struct metrics_source *source, const struct run_counts *counts,
                            struct expose *expose)
{
    struct retain_status status;
    counter(expose, "cairn_retention_forgotten_checkpoints",
            "Checkpoints that were forgotten, by policy or by name.", counts->forgotten);
    counter(expose, "cairn_retention_undeleted_checkpoints",
            "Forgotten checkpoints that were brought back.", counts->undeleted);
    if (!source->retain) {
        return; /* retention runs from cron, on another host perhaps */
    }
    retain_status(source->retain, &status);
    moment(expose, "cairn_retention_last_success_timestamp_seconds",
           "Time at which this server last applied its retention policies to all runs, or 0 if it "
           "has not.",
           status.good_wall_ns);
    counter(expose, "cairn_retention_errors",
            "Runs to which a retention policy could not be applied.", status.errors);
}

/* The label of each operation. */
static const char *const op_names[] = {
    [STORE_ENTER] = "enter",
    [STORE_CREATE] = "create",
    [STORE_WRITE] = "write",
    [STORE_SEAL] = "seal",
    [STORE_ABORT] = "abort",
    [STORE_READ] = "read",
    [STORE_STAT] = "stat",
    [STORE_LIST_OBJECTS] = "list_objects",
    [STORE_DELETE_OBJECT] = "delete_object",
    [STORE_PUBLISH] = "publish",
    [STORE_FETCH] = "fetch",
    [STORE_DELETE_SMALL] = "delete_small",
    [STORE_EXCHANGE] = "exchange",
    [STORE_LIST_SMALL] = "list_small",
    [STORE_LIST_CKPTS] = "list_checkpoints",
    [STORE_LIST_RUNS] = "list_runs",
    [STORE_RECORD_GET] = "record_get",
    [STORE_RECORD_UPDATE] = "record_update",
    [STORE_RECORD_FILE] = "record_file",
    [STORE_RECORD_MEND] = "record_mend",
    [STORE_RECORD_CUT] = "record_cut",
    [STORE_USAGE] = "usage",
    [STORE_PROBE] = "probe",
    [STORE_SWEEP] = "sweep",
};
_Static_assert(ARRAY_LEN(op_names) == STORE_OP_COUNT, "every operation has a label");

/* Writes the families about the store: bytes, errors, and the durations of each operation. */
static void write_store(const struct metrics_source *source, struct expose *expose)
{
    const struct store_counts *counts = source->store;
    const char *backend = catalog_store(source->catalog)->caps.name;
    counter(expose, "cairn_write_bytes", "Bytes written to the store.", counts->bytes_written);
    counter(expose, "cairn_read_bytes", "Bytes read from the store.", counts->bytes_read);
    errors(expose, "cairn_backend_errors", "Store operations that failed, by error.",
           &counts->errors);
    gauge(expose, "cairn_backend_operations_running",
          "Store operations that are waiting or running.", counts->running);
    begin(expose, FAMILY_HISTOGRAM, "cairn_backend_op_duration_seconds",
          "Time of store operations, including those that failed.");
    for (size_t op = 0; op < STORE_OP_COUNT; op++) {
        expose_label(expose, "backend", backend);
        expose_label(expose, "op", op_names[op]);
        expose_histogram(expose, &counts->durations[op]);
    }
}

static void write_usage(const struct metrics_usage *usage, struct expose *expose)
{
    bool up = usage->status == 0;
    gauge(expose, "cairn_backend_up", "1 if the store answered this scrape.", up);
    if (up) {
        gauge(expose, "cairn_backend_read_only", "1 if the store takes no saves.",
              usage->usage.read_only);
        gauge(expose, "cairn_backend_size_bytes", "Size of the store's medium in bytes.",
              usage->usage.total_bytes);
        gauge(expose, "cairn_backend_free_bytes", "Free bytes on the store's medium.",
              usage->usage.free_bytes);
    }
    gauge(expose, "cairn_scrape_success", "1 if all metrics of this scrape could be collected.",
          up);
}

static void write_health(const struct metrics_usage *usage, struct expose *expose)
{
    static const enum server_health words[] = {SERVER_GREEN, SERVER_YELLOW, SERVER_RED};
    begin(expose, FAMILY_GAUGE, "cairn_health",
          "1 for the word that is the server's health; red means that saves are refused.");
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        labelled(expose, "word", server_health_name(words[i]), usage->health.word == words[i]);
    }
    begin(expose, FAMILY_GAUGE, "cairn_store_wait_seconds",
          "Time for which the server has been waiting for its store, or 0 if the store is open.");
    expose_ms(expose, usage->waits_ms);
}

void metrics_write(const struct metrics_source *source, const struct metrics_usage *usage,
                   struct expose *expose)
{
    begin(expose, FAMILY_INFO, "cairn_build", "1 for the version of the server.");
    expose_label(expose, "version", CAIRN_VERSION);
    expose_u64(expose, 1);
    moment(expose, "cairn_start_timestamp_seconds", "Time at which the server started.",
           source->begun_wall_ns);
    counter(expose, "cairn_log_dropped_lines", "Lines of the log that could not be written.",
            log_dropped());
    if (source->certificate_ends_s != 0) {
        moment(expose, "cairn_certificate_expiry_timestamp_seconds",
               "Time at which the server's certificate expires.",
               source->certificate_ends_s * INT64_C(1000000000));
    }
    write_health(usage, expose);
    if (!source->catalog) {
        write_usage(usage, expose);
        return;
    }
    CHECK(source->server != NULL);
    CHECK(source->store != NULL);
    const struct run_counts *counts = catalog_counts(source->catalog);
    write_saves(counts, expose);
    write_notices(&counts->notices, expose);
    write_totals(source, expose);
    write_runs(source, expose);
    write_projects(source, expose);
    write_records(counts, expose);
    write_server(source->server, expose);
    if (source->scrub) {
        write_scrub(source->scrub, expose);
    }
    if (source->gc) {
        write_gc(source->gc, expose);
    }
    write_retention(source, counts, expose);
    write_store(source, expose);
    write_usage(usage, expose);
}
