/* SPDX-License-Identifier: Apache-2.0
 *
 * ENTER notes down what is not noted yet, also what it could not note down before or what was taken
 * out since, and nothing twice; an entry that many need is made once. Method: the store on a fake
 * cluster that counts; and the table of what is known alone.
 */
#include "store/store_bed.h"

#include "base/check.h"
#include "store/rados/rados_small.h"

#include <errno.h>
#include <pthread.h>

enum { OBJECTS = 16 };

static struct store_name names[3];

static int enter(struct bed *bed, size_t count)
{
    struct store_req req = {
        .op = STORE_ENTER, .run = bed_run(), .id = {1, 5}, .names = names, .name_count = count};
    names[0] = bed_name(5, STORE_PART, 0, 1);
    names[1] = bed_name(5, STORE_PAGE, 0, 1);
    names[2] = bed_name(5, STORE_MANIFEST, 0, 1);
    return bed_do(bed, &req);
}

static size_t count_smalls(struct bed *bed)
{
    struct store_req req = {.op = STORE_LIST_SMALL, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &req), 0);
    free(req.ret_smalls);
    return req.ret_count;
}

static size_t count_ckpts(struct bed *bed)
{
    struct store_req req = {.op = STORE_LIST_CKPTS, .run = bed_run()};
    assert_int_equal(bed_do(bed, &req), 0);
    free(req.ret_ckpts);
    return req.ret_count;
}

#define BED_TEST(name) FIXTURE_TEST(name, bed_setup_rados, bed_fini, struct bed, bed)

BED_TEST(entered_ahead_costs_nothing_later)
{
    uint64_t calls = fake_medium_calls(bed->cluster);
    assert_int_equal(enter(bed, 0), 0);
    assert_int_equal(fake_medium_calls(bed->cluster), calls += 1);
    assert_int_equal(bed_create(bed, bed_object(5, 0, 1), 4096), 0); /* and makes its index */
    assert_int_equal(fake_medium_calls(bed->cluster), calls += 1);
    assert_int_equal(enter(bed, 3), 0);
    assert_int_equal(fake_medium_calls(bed->cluster), calls += 1);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(bed_publish(bed, names[i], 1000, 1), 0);
        assert_int_equal(fake_medium_calls(bed->cluster), calls += 1);
    }
    assert_int_equal(enter(bed, 3), 0);
    assert_int_equal(fake_medium_calls(bed->cluster), calls);
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 1, 1), 1000, 1), 0);
    assert_int_equal(fake_medium_calls(bed->cluster), calls += 2); /* nobody entered it ahead */
    assert_int_equal(count_smalls(bed), 4);
    assert_int_equal(bed_abort(bed, bed_object(5, 0, 1)), 0);
}

/* An entry that a full, silent or late cluster did not make is made by who needs it. */
BED_TEST(a_hint_that_failed_does_no_harm)
{
    for (unsigned fault = 0; fault < FAKE_FAULTS; fault++) {
        struct fake_plan plan = {.seed = 1, .later_max = 1000, .error = ENOSPC};
        plan.percent[fault] = 100;
        for (unsigned well = 0; well < 2; well++) { /* neither, then only the checkpoint's */
            if (well > 0) {
                assert_int_equal(enter(bed, 0), 0);
            }
            fake_medium_plan(bed->cluster, &plan);
            assert_int_not_equal(enter(bed, 3), 0);
            fake_medium_plan(bed->cluster, NULL);
            assert_int_equal(bed_publish(bed, names[0], 1000, 1), 0);
            fake_medium_settle(bed->cluster);
            assert_in_range(count_smalls(bed), 1, 3);
            assert_int_equal(count_ckpts(bed), 1);
            assert_int_equal(bed_delete_small(bed, names[0]), 0);
            for (size_t i = 1; i < ARRAY_LEN(names); i++) {
                assert_int_equal(bed_delete_small(bed, names[i]), CAIRN_E_NOT_FOUND);
            }
            assert_int_equal(count_smalls(bed), 0);
            bed_reopen(bed);
        }
    }
}

/* What garbage collection took out of a list is entered anew by who makes it after all. */
BED_TEST(what_was_taken_out_is_entered_anew)
{
    struct store_req sweep = {.op = STORE_SWEEP, .run = bed_run(), .id = {1, 5}, .for_good = true};
    assert_int_equal(enter(bed, 3), 0);
    assert_int_equal(count_smalls(bed), 3);
    assert_int_equal(bed_delete_small(bed, names[0]), CAIRN_E_NOT_FOUND);
    assert_int_equal(count_smalls(bed), 2);
    assert_int_equal(bed_publish(bed, names[0], 1000, 1), 0);
    assert_int_equal(count_smalls(bed), 3);
    assert_int_equal(bed_delete_small(bed, names[0]), 0);
    for (size_t i = 1; i < ARRAY_LEN(names); i++) {
        assert_int_equal(bed_delete_small(bed, names[i]), CAIRN_E_NOT_FOUND);
    }
    assert_int_equal(bed_do(bed, &sweep), 0);
    assert_int_equal(count_ckpts(bed), 0);
    assert_int_equal(bed_publish(bed, names[2], 1000, 1), 0);
    assert_int_equal(count_smalls(bed), 1);
    assert_int_equal(count_ckpts(bed), 1);
}

/* Tails are named before they are made, whatever was entered ahead. */
BED_TEST(tails_are_named_all_the_same)
{
    assert_int_equal(enter(bed, 3), 0);
    uint64_t calls = fake_medium_calls(bed->cluster);
    assert_int_equal(bed_publish(bed, names[0], 5 << 20, 1), 0);
    assert_int_equal(fake_medium_calls(bed->cluster) - calls, 4); /* named, tail, head, settled */
}

BED_TEST(many_who_need_an_entry_make_it_once)
{
    static struct store_req reqs[OBJECTS];
    uint64_t calls = fake_medium_calls(bed->cluster);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        reqs[i] = (struct store_req){
            .op = STORE_CREATE, .run = bed_run(), .object = bed_object(5, i, 1), .bytes = 4096};
    }
    bed_do_all(bed, OBJECTS, reqs);
    for (size_t i = 0; i < OBJECTS; i++) {
        assert_int_equal(reqs[i].status, 0);
    }
    assert_int_equal(fake_medium_calls(bed->cluster) - calls, OBJECTS + 1);
}

/* --- the table alone -------------------------------------------------------------------------- */

static struct rados_store *store_new(void)
{
    struct rados_store *store = calloc(1, sizeof(*store));
    assert_non_null(store);
    assert_int_equal(pthread_mutex_init(&store->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&store->known_changed, NULL), 0);
    atomic_store(&store->now_ms, 1000000);
    return store;
}

static void store_free(struct rados_store *store)
{
    pthread_cond_destroy(&store->known_changed);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

TEST(knowledge_ends)
{
    struct rados_store *store = store_new();
    const struct store_name name = bed_name(5, STORE_PART, 0, 1),
                            other = bed_name(5, STORE_PART, 0, 2);
    struct rados_known *mine = rados_known_try(store, &name);
    assert_non_null(mine);
    assert_null(rados_known_try(store, &name)); /* somebody is at it */
    rados_known_end(store, mine, true);
    assert_true(rados_known_is(store, &name));
    assert_false(rados_known_is(store, &other));
    assert_null(rados_known_try(store, &name));
    atomic_fetch_add(&store->now_ms, RADOS_AHEAD_MS);
    assert_false(rados_known_is(store, &name));
    mine = rados_known_try(store, &name);
    assert_non_null(mine);
    rados_known_drop(store, &name.run, name.id); /* taken out while it was entered */
    rados_known_end(store, mine, true);
    assert_false(rados_known_is(store, &name));
    store_free(store);
}

/* A full table forgets nothing that a hint entered for the sake of another hint. */
TEST(room_is_bounded)
{
    struct rados_store *store = store_new();
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    struct rados_known *mine = NULL;
    for (; name.number < RADOS_KNOWN_MAX; name.number++) {
        mine = rados_known_try(store, &name);
        assert_non_null(mine);
        if (name.number > 0) { /* the first one takes long */
            rados_known_end(store, mine, true);
        }
    }
    assert_null(rados_known_try(store, &name));
    assert_false(rados_known_begin(store, &name, &mine));
    assert_non_null(mine);
    rados_known_end(store, mine, true);
    assert_true(rados_known_is(store, &name));
    store_free(store);
}

struct waiter {
    struct rados_store *store;
    struct store_name name;
    bool is_known;
};

static void *wait_for_it(void *user)
{
    struct waiter *waiter = user;
    waiter->is_known = rados_known_is(waiter->store, &waiter->name);
    return NULL;
}

TEST(who_waits_learns_how_it_went)
{
    for (unsigned well = 0; well < 2; well++) {
        struct rados_store *store = store_new();
        struct waiter waiters[4];
        pthread_t threads[4];
        struct store_name name = bed_name(5, STORE_PART, 0, 1);
        struct rados_known *mine = rados_known_try(store, &name);
        assert_non_null(mine);
        for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
            waiters[i] = (struct waiter){.store = store, .name = name, .is_known = well == 0};
            assert_int_equal(pthread_create(&threads[i], NULL, wait_for_it, &waiters[i]), 0);
        }
        rados_known_end(store, mine, well > 0);
        for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(waiters[i].is_known, well > 0);
        }
        store_free(store);
    }
}
