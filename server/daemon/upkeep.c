/* SPDX-License-Identifier: Apache-2.0
 *
 * upkeep: see upkeep.h. It closes one part after the other: scrub, repair, gc, then their
 * duties.
 */
#include "daemon/upkeep.h"

#include "base/check.h"
#include "base/log.h"
#include "daemon/duty.h"
#include "daemon/peers.h"
#include "gc/gc.h"
#include "repair/repair.h"
#include "scrub/scrub.h"
#include "store/open/store_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The most damaged checkpoints that wait for a repair. Further ones wait for the next scrub. */
enum { UPKEEP_DAMAGED_MAX = 32 };

struct damaged {
    struct run_name run;
    struct ckpt_id id;
};

struct upkeep {
    struct upkeep_options options;
    struct duty scrub_duty, gc_duty;
    struct peers peers;
    struct scrub *scrub;
    struct work_pool *scrub_thread, *gc_thread;
    struct gc *gc;
    struct repair *repair;
    struct damaged damaged[UPKEEP_DAMAGED_MAX];
    unsigned damaged_count;
    bool closing;
    uint64_t load; /* the server's last answer */
    void (*closed)(void *user);
    void *closed_user;
};

/* Returns how many bytes clients have moved so far; scrubbing keeps its pace by it. */
static uint64_t load_of(void *user)
{
    struct upkeep *upkeep = user;
    struct server_stats stats;
    if (!upkeep->closing) {
        server_stats(upkeep->options.server, &stats);
        upkeep->load = stats.bytes_in + stats.bytes_out;
    }
    return upkeep->load;
}

static bool may_scrub(void *user) { return duty_is_ours(&((struct upkeep *)user)->scrub_duty); }
static bool may_collect(void *user) { return duty_is_ours(&((struct upkeep *)user)->gc_duty); }
static const char *scrubber(void *user)
{
    return duty_holder(&((struct upkeep *)user)->scrub_duty);
}
static const char *collector(void *user) { return duty_holder(&((struct upkeep *)user)->gc_duty); }

/* --- the log ---------------------------------------------------------------------------------- */

static void on_found(void *user, const struct scrub_finding *finding)
{
    (void)user;
    LOG(LOG_ERROR, "scrub", "damage", ls("run", run_name_text(&finding->run).at),
        ls("ckpt", finding->id.term != 0 ? ckpt_id_text(finding->id).at : ""),
        ls("health", finding->health == HEALTH_SUSPECT ? "suspect" : "damaged"),
        ls("what", finding->text));
}

static void on_healed(void *user, const struct run_name *name, struct ckpt_id ckpt)
{
    (void)user;
    LOG(LOG_INFO, "scrub", "every byte of the checkpoint is good again",
        ls("run", run_name_text(name).at), ls("ckpt", ckpt_id_text(ckpt).at));
}

/* Called when a scrub pass begins or ends. */
static void on_turned(void *user, bool began)
{
    struct upkeep *upkeep = user;
    struct scrub_status status;
    if (!upkeep->scrub) {
        return;
    }
    scrub_status(upkeep->scrub, &status);
    LOG(LOG_INFO, "scrub",
        began ? "a scrub pass begins or continues" : "the scrub pass has ended or is paused",
        lu("pass", status.pass), lu("ckpts", status.ckpts), lu("bytes", status.bytes),
        lu("findings", status.findings), lu("errors", status.errors_total));
}

static bool wants_room(int code) { return code == CAIRN_E_NO_SPACE || code == CAIRN_E_QUOTA; }

static uint64_t refusals_of(void *user, uint64_t *ret_bytes)
{
    struct upkeep *upkeep = user;
    struct store_state state;
    upkeep->options.store_state(upkeep->options.store_user, &state);
    bool is_full = state.word == STORE_REFUSING && wants_room(state.refusal.code);
    *ret_bytes = is_full ? state.wanted_bytes : 0;
    return is_full ? state.refusals_total : 0;
}

void upkeep_press(struct upkeep *upkeep)
{
    if (upkeep->gc && !upkeep->closing) {
        gc_press(upkeep->gc, NULL, 0);
    }
}

/* Logs a reclaimed checkpoint. Each is logged, because nothing brings it back from here on. */
static void on_reclaimed(void *user, const struct run_name *name, struct ckpt_id ckpt,
                         const struct gc_reclaim *why)
{
    (void)user;
    LOG(LOG_INFO, "gc", "reclaimed", ls("run", run_name_text(name).at),
        ls("ckpt", ckpt_id_text(ckpt).at), ls("by", why->actor), ls("why", why->reason));
}

/* Logs the end of a garbage collection, loudly only if it has removed something or met errors. */
static void on_collected(void *user)
{
    struct upkeep *upkeep = user;
    struct gc_status status;
    gc_status(upkeep->gc, &status);
    bool nothing = status.objects + status.smalls + status.reclaimed + status.errors == 0;
    LOG(status.errors > 0 ? LOG_WARN
        : nothing         ? LOG_DEBUG
                          : LOG_INFO,
        "gc",
        status.dry_run ? "a dry run of garbage collection has ended and removed nothing"
                       : "a pass of garbage collection has ended",
        lu("runs", status.runs), lu("ckpts", status.ckpts), lu("reclaimed", status.reclaimed),
        lu("objects", status.objects), lu("small", status.smalls), lu("bytes", status.bytes),
        lu("table_bytes", status.bytes_read), lu("errors", status.errors),
        ls("err", status.text[0] != '\0' ? status.text : NULL));
}

/* --- repair ----------------------------------------------------------------------------------- */

/* Begins the repair of the next damaged checkpoint on the list, unless one runs. */
static void repair_next(struct upkeep *upkeep)
{
    while (upkeep->damaged_count > 0 && !upkeep->closing && !repair_is_running(upkeep->repair)) {
        struct damaged next = upkeep->damaged[0];
        struct diag diag = DIAG_INIT;
        upkeep->damaged_count--;
        CHECK(upkeep->damaged_count < UPKEEP_DAMAGED_MAX);
        memmove(&upkeep->damaged[0], &upkeep->damaged[1],
                upkeep->damaged_count * sizeof(upkeep->damaged[0]));
        int status = repair_begin(upkeep->repair, &next.run, next.id, "cairnd", &diag);
        if (status != 0) {
            LOG(LOG_ERROR, "repair", "a repair cannot begin", ls("err", diag_text(&diag, status)));
        }
    }
}

static void on_damaged(void *user, const struct run_name *run, struct ckpt_id id)
{
    struct upkeep *upkeep = user;
    const struct store_caps *caps = &catalog_store(upkeep->options.catalog)->caps;
    /* A record has its second copy in the store itself, so it is mended without being
     * configured. */
    bool may =
        id.term == 0 ? caps->record_files : caps->exchanges && upkeep->options.config->scrub_repair;
    if (may && upkeep->damaged_count < UPKEEP_DAMAGED_MAX) {
        upkeep->damaged[upkeep->damaged_count++] = (struct damaged){*run, id};
        repair_next(upkeep);
    }
}

/* Logs each line of a repair and its result, and begins the next one. */
static void on_repaired(void *user, const struct repair_status *status)
{
    struct upkeep *upkeep = user;
    struct run_name_text run = run_name_text(&status->run);
    struct ckpt_id_text id = {""}; /* stays so for the record */
    if (status->id.term != 0) {
        id = ckpt_id_text(status->id);
    }
    for (uint32_t i = 0; i < status->line_count; i++) {
        bool mended = status->lines[i].mended;
        LOG(mended ? LOG_WARN : LOG_ERROR, "repair",
            mended ? "repaired" : "a damaged checkpoint or record could not be repaired",
            ls("run", run.at), ls("ckpt", id.at), ls("what", status->lines[i].text));
    }
    LOG(status->left > 0 || status->code != 0 ? LOG_ERROR : LOG_INFO, "repair", "ended",
        ls("run", run.at), ls("ckpt", id.at), lu("mended", status->mended),
        lu("left", status->left), lu("bytes", status->bytes_read),
        ls("health", status->healed ? "verified again" : NULL),
        ls("err", status->code != 0 ? status->text : NULL));
    repair_next(upkeep);
}

/* Opens the store from which broken chunks are copied, which may wait for a cluster. On the
 * repair's thread. */
static int open_mirror(void *user, struct loop *loop, struct work_pool *pool, struct store **ret,
                       struct diag *diag)
{
    const struct upkeep *upkeep = user;
    struct store_open_options options = {.loop = loop,
                                         .pool = pool,
                                         .url = upkeep->options.config->scrub_repair_from,
                                         .read_only = true};
    int status = store_open(&options, ret, diag);
    if (status != 0) {
        diag_add(diag, "[scrub] repair-from: %s", options.url);
    }
    return status;
}

/* Returns the wait of a repair, which shares its rate with scrub. */
static uint64_t repair_wait_ms(void *user)
{
    struct upkeep *upkeep = user;
    return upkeep->scrub ? scrub_wait_ms(upkeep->scrub) : 0;
}

static void on_repair_moved(void *user, uint64_t bytes)
{
    struct upkeep *upkeep = user;
    if (upkeep->scrub) {
        scrub_moved(upkeep->scrub, bytes);
    }
}

/* Makes the repair, with the mirror of the configuration if there is one. */
static int start_repair(struct upkeep *upkeep, struct diag *diag)
{
    const struct config *config = upkeep->options.config;
    bool mirror = config->scrub_repair_from[0] != '\0';
    struct repair_options options = {
        .loop = upkeep->options.loop,
        .catalog = upkeep->options.catalog,
        .open_mirror = mirror ? open_mirror : NULL,
        .mirror_threads = mirror ? store_url_threads_min(config->scrub_repair_from) + 1 : 0,
        .mirror = config->scrub_repair_from,
        .wait_ms = repair_wait_ms,
        .moved = on_repair_moved,
        .ended = on_repaired,
        .user = upkeep};
    return repair_new(&options, &upkeep->repair, diag);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_duty(struct duty *duty, bool is_ours)
{
    LOG(LOG_DEBUG, "daemon",
        is_ours ? "this daemon has taken over a maintenance task of the store"
                : "another daemon has taken over a maintenance task of the store",
        ls("duty", duty->key));
}

/* Starts the duties of scrub and gc, and tells the other daemons of this one. They see it as
 * host:pid. */
static void start_duties(struct upkeep *upkeep)
{
    char host[48] = "", label[PEERS_NAME_MAX], addresses[DUTY_LABEL_MAX - PEERS_NAME_MAX];
    if (gethostname(host, sizeof(host) - 1) != 0) {
        host[0] = '\0';
    }
    snprintf(label, sizeof(label), "%s:%d", host, (int)getpid());
    struct duty_options options = {.loop = upkeep->options.loop,
                                   .store = catalog_store(upkeep->options.catalog),
                                   .name = "scrub",
                                   .label = label,
                                   .changed = on_duty};
    duty_init(&upkeep->scrub_duty, &options);
    options.name = "gc";
    duty_init(&upkeep->gc_duty, &options);
    listeners_addresses(upkeep->options.listeners, upkeep->options.config, sizeof(addresses),
                        addresses);
    struct peers_options peers = {.loop = options.loop,
                                  .store = options.store,
                                  .server = upkeep->options.server,
                                  .name = label,
                                  .addresses = addresses};
    peers_start(&upkeep->peers, &peers);
    duty_start(&upkeep->scrub_duty);
    duty_start(&upkeep->gc_duty);
}

int upkeep_new(const struct upkeep_options *options, struct upkeep **ret, struct diag *diag)
{
    const struct config *config = options->config;
    struct upkeep *upkeep = calloc(1, sizeof(*upkeep));
    if (!upkeep) {
        return diag_no_memory(diag, "scrub and garbage collection");
    }
    upkeep->options = *options;
    *ret = upkeep;
    start_duties(upkeep);
    int status = work_threads_new(options->loop, 1, "cairn-scrub", &upkeep->scrub_thread, diag);
    if (status == 0) {
        status = work_threads_new(options->loop, 1, "cairn-gc", &upkeep->gc_thread, diag);
    }
    status = status != 0 ? status : start_repair(upkeep, diag);
    if (status != 0) {
        return status;
    }
    struct scrub_options scrub = {.loop = options->loop,
                                  .catalog = options->catalog,
                                  .thread = upkeep->scrub_thread,
                                  .every_ms = config->scrub_every_ms,
                                  .rate = config->scrub_rate,
                                  .load = load_of,
                                  .may_run = may_scrub,
                                  .holder = scrubber,
                                  .found = on_found,
                                  .healed = on_healed,
                                  .damaged = on_damaged,
                                  .turned = on_turned,
                                  .user = upkeep};
    struct gc_options gc = {.loop = options->loop,
                            .catalog = options->catalog,
                            .thread = upkeep->gc_thread,
                            .every_ms = config->gc_every_ms,
                            .keep_cycles = config->gc_keep_cycles,
                            .lease_cycles = config->gc_lease_cycles,
                            .actor = "cairnd",
                            .load = load_of,
                            .may_run = may_collect,
                            .holder = collector,
                            .pressure = config->gc_pressure,
                            .quotas = &config->quotas,
                            .refusals = refusals_of,
                            .reclaimed = on_reclaimed,
                            .ended = on_collected,
                            .user = upkeep};
    if (scrub_new(&scrub, &upkeep->scrub) != 0 || gc_new(&gc, &upkeep->gc) != 0) {
        return diag_no_memory(diag, "scrub and garbage collection");
    }
    server_set_maintenance(options->server, upkeep->scrub, upkeep->gc);
    server_set_repair(options->server, upkeep->repair);
    return 0;
}

void upkeep_reload(struct upkeep *upkeep)
{
    const struct config *config = upkeep->options.config;
    scrub_set_every(upkeep->scrub, config->scrub_every_ms);
    scrub_set_rate(upkeep->scrub, config->scrub_rate);
    gc_set_schedule(upkeep->gc, config->gc_every_ms, config->gc_keep_cycles,
                    config->gc_lease_cycles);
    gc_set_pressure(upkeep->gc, config->gc_pressure);
}

const struct scrub *upkeep_scrub(const struct upkeep *upkeep) { return upkeep->scrub; }
const struct gc *upkeep_gc(const struct upkeep *upkeep) { return upkeep->gc; }

static void on_peers_stopped(struct peers *peers)
{
    struct upkeep *upkeep = container_of(peers, struct upkeep, peers);
    CHECK(upkeep->closing);
    CHECK(upkeep->scrub == NULL);
    CHECK(upkeep->repair == NULL);
    CHECK(upkeep->gc == NULL);
    void (*closed)(void *user) = upkeep->closed;
    void *user = upkeep->closed_user;
    work_threads_free(upkeep->scrub_thread);
    work_threads_free(upkeep->gc_thread);
    free(upkeep);
    closed(user);
}

static void on_gc_duty_stopped(struct duty *duty)
{
    peers_stop(&container_of(duty, struct upkeep, gc_duty)->peers, on_peers_stopped);
}

static void on_scrub_duty_stopped(struct duty *duty)
{
    struct upkeep *upkeep = container_of(duty, struct upkeep, scrub_duty);
    duty_stop(&upkeep->gc_duty, on_gc_duty_stopped);
}

static void on_gc_closed(void *user)
{
    struct upkeep *upkeep = user;
    upkeep->gc = NULL;
    duty_stop(&upkeep->scrub_duty, on_scrub_duty_stopped);
}

static void on_repair_closed(void *user)
{
    struct upkeep *upkeep = user;
    upkeep->repair = NULL;
    if (upkeep->gc) {
        gc_close(upkeep->gc, on_gc_closed, upkeep);
    } else {
        on_gc_closed(upkeep);
    }
}

static void on_scrub_closed(void *user)
{
    struct upkeep *upkeep = user;
    upkeep->scrub = NULL;
    if (upkeep->repair) {
        repair_close(upkeep->repair, on_repair_closed, upkeep);
    } else {
        on_repair_closed(upkeep);
    }
}

void upkeep_close(struct upkeep *upkeep, void (*done)(void *user), void *user)
{
    CHECK(!upkeep->closing);
    CHECK(done != NULL);
    (void)load_of(upkeep); /* asks the server for the last time */
    server_set_maintenance(upkeep->options.server, NULL, NULL);
    server_set_repair(upkeep->options.server, NULL);
    peers_hide(&upkeep->peers);
    upkeep->closing = true;
    upkeep->closed = done;
    upkeep->closed_user = user;
    if (upkeep->scrub) {
        scrub_close(upkeep->scrub, on_scrub_closed, upkeep);
    } else {
        on_scrub_closed(upkeep);
    }
}

void upkeep_log_retention(void *user, const struct run_name *run, int status,
                          const struct diag *diag, const struct verdict_marks *marks)
{
    char name[RUN_NAME_TEXT_MAX] = "";
    (void)user;
    if (run) {
        run_name_format(run, name);
    }
    if (status != 0) {
        LOG(LOG_WARN, "retention",
            "the retention policy forgot nothing, because it could not be decided", ls("run", name),
            ls("err", diag_text(diag, status)));
    } else if (marks->removed || marks->done_count > 0) {
        LOG(LOG_INFO, "retention",
            marks->removed ? "the retention policy removed an idle run"
                           : "the retention policy forgot checkpoints",
            ls("run", name), lu("checkpoints", marks->done_count), ls("why", marks->why));
    }
}
