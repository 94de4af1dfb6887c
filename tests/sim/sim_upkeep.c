/* SPDX-License-Identifier: Apache-2.0
 *
 * See sim_upkeep.h. At the end: everything that is reachable from the record, found by reading the
 * object tables of all parts, against everything that the store lists. One thread.
 */
#include "sim_upkeep.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "gc/gc.h"
#include "reader/part_table.h"
#include "scrub/scrub.h"
#include "sim_daemon.h"
#include "sim_operator.h"

enum { CYCLES = 6, STORE_MS = 20000, REST_MS = 12000 };

struct sim_upkeep {
    struct scene *scene;
    struct sim_host *host;
    struct catalog *catalog;
    struct gc *gc;
    struct scrub *scrub;
    unsigned cycles; /* that are to follow at once */
    void (*closed)(void *user);
    void *closed_user;
};

/* --- life ------------------------------------------------------------------------- */

static void on_found(void *user, const struct scrub_finding *finding)
{
    const struct sim_upkeep *upkeep = user;
    /* A record that a failing store does not give is told as well, and the dead read nothing. */
    bool is_honest =
        sim_is_dead(upkeep->host) || (finding->id.term == 0 && upkeep->scene->disk_was_harmed);
    if (!upkeep->scene->medium_was_harmed && !is_honest) {
        scene_fail(upkeep->scene, "I1: scrub finds %" PRIu64 "@%" PRIu64 " damaged: %s",
                   finding->id.step, finding->id.term, finding->text);
    }
}

static void on_collected(void *user)
{
    struct sim_upkeep *upkeep = user;
    struct gc_status status;
    gc_status(upkeep->gc, &status);
    scene_tell(upkeep->scene,
               "gc of %s: pass %" PRIu64 ": %" PRIu64 " reclaimed, %" PRIu64 " objects, %" PRIu64
               " small things, %" PRIu64 " for the next pass, %" PRIu64 " errors %s",
               sim_host_name(upkeep->host), status.pass, status.reclaimed, status.objects,
               status.smalls, status.kept, status.errors, status.text);
    if (upkeep->cycles > 0 && gc_cycle(upkeep->gc, false)) {
        upkeep->cycles--;
    }
}

struct sim_upkeep *upkeep_new(struct scene *scene, struct sim_host *host, struct catalog *catalog)
{
    struct sim_upkeep *upkeep = calloc(1, sizeof *upkeep);
    CHECK(upkeep);
    *upkeep = (struct sim_upkeep){.scene = scene, .host = host, .catalog = catalog};
    struct gc_options gc = {.loop = sim_loop(host),
                            .catalog = catalog,
                            .thread = sim_waiting_pool(host),
                            .every_ms = scene->calm ? 0 : scene->gc_every_ms,
                            .keep_cycles = UPKEEP_KEEP_CYCLES,
                            .lease_cycles = scene->calm ? 1 : 0,
                            .actor = "gc",
                            .ended = on_collected,
                            .user = upkeep};
    struct scrub_options scrub = {.loop = sim_loop(host),
                                  .catalog = catalog,
                                  .thread = sim_waiting_pool(host),
                                  .every_ms = scene->calm ? 0 : scene->scrub_every_ms,
                                  .save_ms = 200,
                                  .found = on_found,
                                  .user = upkeep};
    CHECK(gc_new(&gc, &upkeep->gc) == 0);
    CHECK(scrub_new(&scrub, &upkeep->scrub) == 0);
    return upkeep;
}

static void on_gc_closed(void *user)
{
    struct sim_upkeep *upkeep = user;
    void (*closed)(void *user) = upkeep->closed;
    void *closed_user = upkeep->closed_user;
    free(upkeep);
    closed(closed_user);
}

static void on_scrub_closed(void *user)
{
    struct sim_upkeep *upkeep = user;
    gc_close(upkeep->gc, on_gc_closed, upkeep);
}

void upkeep_close(struct sim_upkeep *upkeep, void (*closed)(void *user), void *user)
{
    upkeep->closed = closed;
    upkeep->closed_user = user;
    operator_lose(upkeep->scene->op, upkeep);
    scrub_close(upkeep->scrub, on_scrub_closed, upkeep);
}

struct catalog *upkeep_catalog(struct sim_upkeep *upkeep) { return upkeep->catalog; }
void upkeep_collect(struct sim_upkeep *upkeep) { (void)gc_now(upkeep->gc, false); }

void upkeep_hurry(struct sim_upkeep *upkeep)
{
    upkeep->cycles = gc_cycle(upkeep->gc, false) ? UPKEEP_KEEP_CYCLES - 1 : UPKEEP_KEEP_CYCLES;
}

static bool has_collected(struct scene *scene)
{
    struct gc_status status;
    gc_status(daemon_care(scene, 0)->gc, &status);
    return !status.running;
}

void upkeep_cycle(struct scene *scene)
{
    scene_await(scene, has_collected, STORE_MS, "the end of a pass of gc");
    CHECK(gc_cycle(daemon_care(scene, 0)->gc, false));
    scene_await(scene, has_collected, STORE_MS, "a cycle of gc");
}

/* --- what there is ---------------------------------------------------------------- */

struct kept { /* a commit of the record */
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t world_size;
    bool reclaimed;
};

static struct inspection { /* one at a time */
    struct scene *scene;
    struct run_snapshot_req snapshot;
    struct store_req req;
    bool done;
    struct kept *kept;
    size_t kept_count, object_count, object_cap;
    struct object_id *objects; /* reachable */
    uint64_t found;            /* of them, in the store */
    char said[GC_TEXT_MAX];    /* by the last pass */
} inspection;

static const struct run_name the_run = {"sim", "run"};

static bool is_done(struct scene *scene)
{
    (void)scene;
    return inspection.done;
}

/* Who forgot what, and who reclaimed it, is in the chain. */
static void check_audit(const struct state_commit *commit)
{
    const struct ckpt_id id = commit->entry.id;
    struct scene *scene = inspection.scene;
    if (operator_knows_gone(scene->op, id) != commit->forgotten &&
        !(commit->forgotten && operator_may_miss(scene->op, id))) {
        scene_fail(scene,
                   "I9: the record says that %" PRIu64 "@%" PRIu64 " is %s, the operator "
                   "was told otherwise",
                   id.step, id.term, commit->forgotten ? "forgotten" : "there");
    }
    if (commit->forgotten && (!commit->mark || strcmp(commit->mark->actor, "an operator") != 0 ||
                              commit->mark->reason[0] == '\0')) {
        scene_fail(scene, "no record of who forgot %" PRIu64 "@%" PRIu64 " and why", id.step,
                   id.term);
    }
}

static void on_snapshot(struct run_snapshot_req *req)
{
    const struct run_state *state = req->state;
    inspection.done = true;
    if (req->status != 0) {
        scene_fail(inspection.scene, "the record cannot be read: %s", req->diag.text);
    }
    if (state->open_count > 0) {
        scene_fail(inspection.scene, "I7: the opening of %" PRIu64 "@%" PRIu64 " stays",
                   state->opens[0].id.step, state->opens[0].id.term);
    }
    inspection.kept = calloc(state->commit_count + 1, sizeof *inspection.kept);
    CHECK(inspection.kept);
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        check_audit(commit);
        inspection.kept[inspection.kept_count++] =
            (struct kept){.id = commit->entry.id,
                          .open_id = commit->entry.open_id,
                          .world_size = commit->entry.world_size,
                          .reclaimed = commit->reclaimed};
    }
}

static void on_store(struct store_req *req)
{
    (void)req;
    inspection.done = true;
}

static void ask_store(struct store_req req, const char *what)
{
    struct scene *scene = inspection.scene;
    inspection.done = false;
    inspection.req = req;
    inspection.req.run = the_run;
    inspection.req.done = on_store;
    store_submit(catalog_store(daemon_care(scene, 0)->catalog), &inspection.req);
    scene_await(scene, is_done, STORE_MS, what);
    if (inspection.req.status != 0) {
        scene_fail(scene, "I1: %s: %s: %s", what, err_name(inspection.req.status),
                   inspection.req.diag.text);
    }
}

static void add_tables_of(const struct kept *kept)
{
    for (uint32_t rank = 0; rank < kept->world_size; rank++) {
        struct part_table table;
        struct diag diag = DIAG_INIT;
        ask_store((struct store_req){.op = STORE_FETCH,
                                     .name = {.run = the_run,
                                              .id = kept->id,
                                              .kind = STORE_PART,
                                              .number = rank,
                                              .tag = kept->open_id}},
                  "a part of a checkpoint that was not reclaimed");
        const uint8_t *data = inspection.req.ret_data;
        int status = part_table_begin(inspection.req.ret_bytes, data, &table, &diag);
        CHECK(status == 0);
        inspection.objects =
            realloc(inspection.objects, (inspection.object_count + table.object_count + 1) *
                                            sizeof *inspection.objects);
        CHECK(inspection.objects);
        status = part_table_read(&table, data, data + table.crcs_offset,
                                 inspection.objects + inspection.object_count, &diag);
        CHECK(status == 0);
        inspection.object_count += table.object_count;
        free(inspection.req.ret_data);
    }
}

static int compare_objects(const void *a, const void *b) { return object_id_compare(a, b); }

static void count_objects(struct ckpt_id id)
{
    ask_store((struct store_req){.op = STORE_LIST_OBJECTS, .id = id}, "the list of objects");
    for (size_t i = 0; i < inspection.req.ret_count; i++) {
        const struct object_id *object = &inspection.req.ret_objects[i];
        if (inspection.object_count == 0 ||
            !bsearch(object, inspection.objects, inspection.object_count, sizeof *object,
                     compare_objects)) {
            scene_fail(inspection.scene,
                       "after %u cycles an object of %" PRIu64 "@%" PRIu64
                       " is there that nobody refers to%s%s",
                       CYCLES, id.step, id.term, inspection.said[0] ? "; gc: " : "",
                       inspection.said);
        }
        inspection.found++;
    }
    free(inspection.req.ret_objects);
}

static void count_smalls(struct ckpt_id id)
{
    ask_store((struct store_req){.op = STORE_LIST_SMALL, .id = id}, "the list of small things");
    for (size_t i = 0; i < inspection.req.ret_count; i++) {
        bool is_wanted = false;
        for (size_t k = 0; k < inspection.kept_count; k++) {
            const struct kept *kept = &inspection.kept[k];
            is_wanted = is_wanted || (!kept->reclaimed && ckpt_id_equal(kept->id, id) &&
                                      kept->open_id == inspection.req.ret_smalls[i].tag);
        }
        if (!is_wanted) {
            scene_fail(inspection.scene,
                       "after %u cycles a part, page or manifest of %" PRIu64 "@%" PRIu64
                       " is there that belongs to no checkpoint%s%s",
                       CYCLES, id.step, id.term, inspection.said[0] ? "; gc: " : "",
                       inspection.said);
        }
    }
    free(inspection.req.ret_smalls);
}

/* Each of them once: a chunk of many checkpoints has one object. */
static void sort_objects(void)
{
    size_t kept = 0;
    if (inspection.object_count > 0) {
        qsort(inspection.objects, inspection.object_count, sizeof *inspection.objects,
              compare_objects);
    }
    for (size_t i = 0; i < inspection.object_count; i++) {
        if (i == 0 || compare_objects(&inspection.objects[i], &inspection.objects[i - 1]) != 0) {
            inspection.objects[kept++] = inspection.objects[i];
        }
    }
    inspection.object_count = kept;
}

static void read_record(struct scene *scene)
{
    struct run *run = catalog_run(daemon_care(scene, 0)->catalog, &the_run);
    inspection.snapshot = (struct run_snapshot_req){.done = on_snapshot};
    run_snapshot(run, &inspection.snapshot);
    scene_await(scene, is_done, STORE_MS, "a look at the record");
    catalog_release(run);
}

void upkeep_check_space(struct scene *scene)
{
    sim_run_for(scene->sim, REST_MS); /* what was open ends by its deadline */
    for (unsigned i = 0; i < CYCLES; i++) {
        upkeep_cycle(scene);
    }
    struct gc_status status;
    inspection = (struct inspection){.scene = scene};
    gc_status(daemon_care(scene, 0)->gc, &status);
    memcpy(inspection.said, status.text, sizeof(inspection.said));
    read_record(scene);
    for (size_t i = 0; i < inspection.kept_count; i++) {
        if (!inspection.kept[i].reclaimed) {
            add_tables_of(&inspection.kept[i]);
        }
    }
    sort_objects();
    ask_store((struct store_req){.op = STORE_LIST_CKPTS}, "the list of checkpoints");
    struct ckpt_id *ids = inspection.req.ret_ckpts;
    size_t count = inspection.req.ret_count;
    for (size_t i = 0; i < count; i++) {
        count_objects(ids[i]);
        count_smalls(ids[i]);
    }
    if (inspection.found != inspection.object_count) {
        scene_fail(scene, "I6: %zu objects are referred to, %" PRIu64 " of them are there",
                   inspection.object_count, inspection.found);
    }
    free(ids);
    free(inspection.kept);
    free(inspection.objects);
}
