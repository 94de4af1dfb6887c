/* SPDX-License-Identifier: Apache-2.0
 *
 * The seals of a save and the reports of a restore share updates of the record: with thousands of
 * ranks there are no more updates than the time asks for, through one daemon and through two on one
 * store. Method: versions of the record count updates.
 */
#include "run_rig.h"

#include <stdio.h>

#include "base/check.h"
#include "support/unit_test.h"

enum { SPREAD_MS = 1000, DAEMONS_MAX = 2, OPEN_ID = 77 };

struct crowd;

struct sealer { /* a rank */
    struct crowd *crowd;
    struct run_req req;
    struct event_seal seal;
    struct run *run;
};

struct crowd {
    struct rig rig;
    struct ckpt_id id;
    struct sealer *ranks;
    struct catalog *second; /* another daemon's; NULL where there is only one */
    struct run *runs[DAEMONS_MAX];
    uint32_t world, left;
    bool all;
};

static void on_sealed(struct run_req *req)
{
    struct sealer *sealer = container_of(req, struct sealer, req);
    assert_int_equal(req->status, 0);
    sealer->crowd->all = --sealer->crowd->left == 0;
}

static void submit(void *user)
{
    struct sealer *sealer = user;
    sealer->req = (struct run_req){.done = on_sealed};
    sealer->req.event =
        (struct event){.kind = EVENT_SEAL,
                       .id = sealer->crowd->id,
                       .u.seal = {.open_id = OPEN_ID, .count = 1, .items = &sealer->seal}};
    run_submit(sealer->run, &sealer->req);
}

static uint64_t version_of(struct rig *rig)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = rig->name};
    rig_store(rig, &req);
    uint64_t version = record_version(req.ret_record);
    record_free(req.ret_record);
    return version;
}

static struct crowd *crowd_new(uint32_t world, unsigned daemons)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    assert_non_null(crowd);
    crowd->world = crowd->left = world;
    crowd->ranks = calloc(world, sizeof(*crowd->ranks));
    assert_non_null(crowd->ranks);
    rig_init(&crowd->rig);
    crowd->rig.options.poll_ms = daemons > 1 ? 100 : 0;
    rig_start(&crowd->rig);
    return crowd;
}

/* The run is there: the other daemons open it, and each rank is at one of them. */
static void crowd_join(struct crowd *crowd, unsigned daemons)
{
    crowd->runs[0] = crowd->runs[1] = crowd->rig.run;
    if (daemons > 1) {
        crowd->second = rig_catalog_new(&crowd->rig);
        crowd->runs[1] = catalog_run(crowd->second, &crowd->rig.name);
    }
    for (uint32_t i = 0; i < crowd->world; i++) {
        crowd->ranks[i] =
            (struct sealer){.crowd = crowd, .run = crowd->runs[i % DAEMONS_MAX], .seal.rank = i};
    }
}

/* The first `count` ranks act within SPREAD_MS; the updates that this made until all were answered.
 */
static uint64_t crowd_act(struct crowd *crowd, uint32_t count, void (*act)(void *user))
{
    uint64_t before = version_of(&crowd->rig);
    crowd->left = count;
    for (uint32_t i = 0; i < count; i++) {
        sim_at_us(crowd->rig.sim, sim_below(crowd->rig.sim, SPREAD_MS * 1000), act,
                  &crowd->ranks[i]);
    }
    if (count > 0) {
        rig_until(&crowd->rig, &crowd->all);
    }
    return version_of(&crowd->rig) - before;
}

static void crowd_free(struct crowd *crowd)
{
    if (crowd->second) {
        rig_catalog_close(&crowd->rig, crowd->second);
    }
    rig_fini(&crowd->rig);
    free(crowd->ranks);
    free(crowd);
}

/* Of all ranks but the last, so that nothing is finished: the updates that their seals made. */
static uint64_t count_updates(uint32_t world, unsigned daemons)
{
    struct crowd *crowd = crowd_new(world, daemons);
    assert_int_equal(rig_open(&crowd->rig, 5, world, OPEN_ID, &crowd->id), 0);
    crowd_join(crowd, daemons);
    for (uint32_t i = 0; i < world; i++) {
        crowd->ranks[i].seal.entry =
            (struct entry_seal){.open_id = OPEN_ID, .writer = i + 1, .part_bytes = 1};
    }
    uint64_t count = crowd_act(crowd, world - 1, submit);
    crowd_free(crowd);
    return count;
}

/* Goal: never more updates than seals, and for thousands of ranks no more than the time asks for.
 */
TEST(updates_grow_slower_than_ranks)
{
    static const uint32_t worlds[] = {1, 16, 256, 4096};
    for (unsigned daemons = 1; daemons <= DAEMONS_MAX; daemons++) {
        for (size_t i = 0; i < ARRAY_LEN(worlds); i++) {
            uint64_t count = count_updates(worlds[i], daemons);
            printf("%4u ranks, %u daemons: %llu updates\n", worlds[i], daemons,
                   (unsigned long long)count);
            assert_true(count <= worlds[i] - 1);
            assert_true(count <= daemons * (SPREAD_MS / 20 + 2));
        }
    }
}

/* --- reports of a restore --------------------------------------------------------------------- */

static void on_reported(struct run_req *req)
{
    struct sealer *rank = container_of(req, struct sealer, req);
    assert_int_equal(req->status, 0);
    assert_true(verdict_restore(&req->verdict)->done);
    assert_true(ckpt_id_equal(req->verdict.id, rank->crowd->id));
    rank->crowd->all = --rank->crowd->left == 0;
}

static void report(void *user)
{
    struct sealer *rank = user;
    rank->req = (struct run_req){.done = on_reported, .wait_ms = 30000};
    rank->req.event = (struct event){.kind = EVENT_RESTORE_REPORT,
                                     .id = rank->crowd->id,
                                     .u.report.from = {.token = {{9}},
                                                       .rank = rank->seal.rank,
                                                       .world_size = rank->crowd->world}};
    run_submit(rank->run, &rank->req);
}

static void begin_restore(struct crowd *crowd)
{
    struct verdict begun;
    struct event begin = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = {.token = {{9}}, .world_size = crowd->world},
                                      .selector = {.kind = SELECT_LATEST}}};
    assert_int_equal(rig_event(&crowd->rig, crowd->rig.run, &begin, &begun), 0);
}

/* All ranks report, and all of them are told that all did: the updates that this made. */
static uint64_t count_reports(uint32_t world, unsigned daemons)
{
    struct crowd *crowd = crowd_new(world, daemons);
    crowd->id = rig_save(&crowd->rig, 5, 2, crowd->rig.lists);
    crowd_join(crowd, daemons);
    begin_restore(crowd);
    uint64_t count = crowd_act(crowd, world, report);
    crowd_free(crowd);
    return count;
}

TEST(reports_share_updates)
{
    static const uint32_t worlds[] = {1, 16, 256, 4096};
    for (unsigned daemons = 1; daemons <= DAEMONS_MAX; daemons++) {
        for (size_t i = 0; i < ARRAY_LEN(worlds); i++) {
            uint64_t count = count_reports(worlds[i], daemons);
            printf("%4u ranks restore, %u daemons: %llu updates\n", worlds[i], daemons,
                   (unsigned long long)count);
            assert_true(count <= worlds[i]);
            assert_true(count <= daemons * (SPREAD_MS / 20 + 2));
        }
    }
}

/* One that is not of the world is refused alone; damage ends the try of those who wait. */
TEST(a_refused_report_is_not_the_others)
{
    struct crowd *crowd = crowd_new(3, 1);
    struct verdict verdict;
    crowd->id = rig_save(&crowd->rig, 5, 2, crowd->rig.lists);
    crowd_join(crowd, 1);
    begin_restore(crowd);
    for (uint32_t i = 0; i < 3; i++) {
        report(&crowd->ranks[i]);
    }
    struct event stranger = {.kind = EVENT_RESTORE_REPORT,
                             .id = crowd->id,
                             .u.report.from = {.token = {{9}}, .rank = 3, .world_size = 3}};
    assert_int_equal(rig_event(&crowd->rig, crowd->rig.run, &stranger, &verdict), CAIRN_E_INVALID);
    if (!crowd->all) {
        rig_until(&crowd->rig, &crowd->all);
    }
    crowd_free(crowd);
}
