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

/* Of all ranks but the last, so that nothing is finished: the updates that their seals made. */
static uint64_t count_updates(uint32_t world, unsigned daemons)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    struct catalog *second = NULL;
    struct run *runs[DAEMONS_MAX];
    assert_non_null(crowd);
    crowd->world = world;
    crowd->left = world - 1;
    rig_init(&crowd->rig);
    crowd->rig.options.poll_ms = daemons > 1 ? 100 : 0;
    rig_start(&crowd->rig);
    runs[0] = runs[1] = crowd->rig.run;
    assert_int_equal(rig_open(&crowd->rig, 5, world, OPEN_ID, &crowd->id), 0);
    if (daemons > 1) {
        second = rig_catalog_new(&crowd->rig);
        runs[1] = catalog_run(second, &crowd->rig.name);
    }
    uint64_t before = version_of(&crowd->rig);
    crowd->ranks = calloc(world, sizeof(*crowd->ranks));
    assert_non_null(crowd->ranks);
    for (uint32_t i = 0; i + 1 < world; i++) {
        struct sealer *sealer = &crowd->ranks[i];
        sealer->crowd = crowd;
        sealer->run = runs[i % DAEMONS_MAX];
        sealer->seal = (struct event_seal){
            .rank = i, .entry = {.open_id = OPEN_ID, .writer = i + 1, .part_bytes = 1}};
        sim_at_us(crowd->rig.sim, sim_below(crowd->rig.sim, SPREAD_MS * 1000), submit, sealer);
    }
    if (world > 1) {
        rig_until(&crowd->rig, &crowd->all);
    }
    uint64_t count = version_of(&crowd->rig) - before;
    if (second) {
        rig_catalog_close(&crowd->rig, second);
    }
    rig_fini(&crowd->rig);
    free(crowd->ranks);
    free(crowd);
    return count;
}

/* Goal: never more updates than seals, and for thousands of ranks no more than the time asks for.
 */
static void updates_grow_slower_than_ranks(void **state)
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

/* All ranks report, and all of them are told that all did: the updates that this made. */
static uint64_t count_reports(uint32_t world, unsigned daemons)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    struct catalog *second = NULL;
    struct run *runs[DAEMONS_MAX];
    struct verdict begun;
    assert_non_null(crowd);
    crowd->world = crowd->left = world;
    rig_init(&crowd->rig);
    crowd->rig.options.poll_ms = daemons > 1 ? 100 : 0;
    rig_start(&crowd->rig);
    runs[0] = runs[1] = crowd->rig.run;
    crowd->id = rig_save(&crowd->rig, 5, 2, crowd->rig.lists);
    if (daemons > 1) {
        second = rig_catalog_new(&crowd->rig);
        runs[1] = catalog_run(second, &crowd->rig.name);
    }
    struct event begin = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = {.token = {{9}}, .world_size = world},
                                      .selector = {.kind = SELECT_LATEST}}};
    assert_int_equal(rig_event(&crowd->rig, runs[0], &begin, &begun), 0);
    uint64_t before = version_of(&crowd->rig);
    crowd->ranks = calloc(world, sizeof(*crowd->ranks));
    assert_non_null(crowd->ranks);
    for (uint32_t i = 0; i < world; i++) {
        struct sealer *rank = &crowd->ranks[i];
        rank->crowd = crowd;
        rank->run = runs[i % DAEMONS_MAX];
        rank->seal.rank = i;
        sim_at_us(crowd->rig.sim, sim_below(crowd->rig.sim, SPREAD_MS * 1000), report, rank);
    }
    rig_until(&crowd->rig, &crowd->all);
    uint64_t count = version_of(&crowd->rig) - before;
    if (second) {
        rig_catalog_close(&crowd->rig, second);
    }
    rig_fini(&crowd->rig);
    free(crowd->ranks);
    free(crowd);
    return count;
}

static void reports_share_updates(void **state)
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
static void a_refused_report_is_not_the_others(void **state)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    struct verdict begun, verdict;
    assert_non_null(crowd);
    crowd->world = crowd->left = 3;
    rig_init(&crowd->rig);
    rig_start(&crowd->rig);
    crowd->id = rig_save(&crowd->rig, 5, 2, crowd->rig.lists);
    struct event begin = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = {.token = {{9}}, .world_size = 3},
                                      .selector = {.kind = SELECT_LATEST}}};
    assert_int_equal(rig_event(&crowd->rig, crowd->rig.run, &begin, &begun), 0);
    crowd->ranks = calloc(3, sizeof(*crowd->ranks));
    assert_non_null(crowd->ranks);
    for (uint32_t i = 0; i < 3; i++) {
        crowd->ranks[i] = (struct sealer){.crowd = crowd, .run = crowd->rig.run};
        crowd->ranks[i].seal.rank = i;
        report(&crowd->ranks[i]);
    }
    struct event stranger = {.kind = EVENT_RESTORE_REPORT,
                             .id = crowd->id,
                             .u.report.from = {.token = {{9}}, .rank = 3, .world_size = 3}};
    assert_int_equal(rig_event(&crowd->rig, crowd->rig.run, &stranger, &verdict), CAIRN_E_INVALID);
    if (!crowd->all) {
        rig_until(&crowd->rig, &crowd->all);
    }
    rig_fini(&crowd->rig);
    free(crowd->ranks);
    free(crowd);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(updates_grow_slower_than_ranks),
                                          cmocka_unit_test(reports_share_updates),
                                          cmocka_unit_test(a_refused_report_is_not_the_others)};

UNIT_TEST_MAIN(tests)
