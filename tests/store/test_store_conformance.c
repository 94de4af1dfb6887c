/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kind of store keeps each promise of store.h: memory, dir (in a new directory of DIRECTORY),
 * dir-sim, rados (on a fake cluster) and ceph (CEPH_CONF, CAIRN_CEPH_POOL). Usage:
 * test_store_conformance KIND [DIRECTORY]
 */
#include "store_bed.h"

#include "base/check.h"

#include <stdio.h>

static void setup(struct bed *bed)
{
    bed_init(bed, bed_kind_parse(unit_test_argument(1)), unit_test_argument(2), 1);
    bed_open_ok(bed);
}

/* --- objects ---------------------------------------------------------------------------------- */

#define BED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

/* Goal: what is not sealed is seen by nobody. */
BED_TEST(unsealed_objects_are_invisible)
{
    struct object_id id = bed_object(5, 0, 1);
    uint64_t bytes;
    uint8_t *data = bed_bytes(4096, 0);
    assert_int_equal(bed_create(bed, id, 8192), 0);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), 0);
    assert_int_equal(bed_stat(bed, id, &bytes), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_read(bed, id, 0, 4096, data), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_delete(bed, id), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_count_objects(bed, 5), 0);
    assert_int_equal(bed_seal(bed, id), 0);
    assert_int_equal(bed_check_object(bed, id, 4096, 1), 0);
    assert_int_equal(bed_count_objects(bed, 5), 1);
    free(data);
}

/* Goal: an id is used once, before and after its seal. */
BED_TEST(a_second_create_is_refused)
{
    struct object_id id = bed_object(5, 0, 1);
    assert_int_equal(bed_create(bed, id, 4096), 0);
    assert_int_equal(bed_create(bed, id, 4096), CAIRN_E_EXISTS);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), 0);
    assert_int_equal(bed_seal(bed, id), 0);
    assert_int_equal(bed_create(bed, id, 4096), CAIRN_E_EXISTS);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_EXISTS);
    assert_int_equal(bed_write(bed, id, 0, 4096, 2), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_check_object(bed, id, 4096, 1), 0);
}

/* Goal: sealed objects outlive a restart, unsealed ones do not, and leave nothing. */
BED_TEST(a_seal_outlives_a_restart)
{
    struct object_id sealed = bed_object(5, 0, 1), open = bed_object(5, 1, 1);
    uint64_t bytes;
    assert_int_equal(bed_put_object(bed, sealed, 65536, 1), 0);
    assert_int_equal(bed_create(bed, open, 8192), 0);
    assert_int_equal(bed_write(bed, open, 0, 4096, 2), 0);
    bed_reopen(bed);
    assert_int_equal(bed_check_object(bed, sealed, 65536, 1), 0);
    assert_int_equal(bed_stat(bed, open, &bytes), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_seal(bed, open), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_create(bed, open, 4096), 0);
    assert_int_equal(bed_abort(bed, open), 0);
}

/* Goal: writes in any order come out in place, and a hole reads as zeros. */
BED_TEST(writes_may_come_in_any_order)
{
    struct object_id id = bed_object(5, 0, 1);
    uint8_t *first = bed_bytes(4096, 1), *third = bed_bytes(8192, 3), *data = bed_bytes(16384, 9);
    assert_int_equal(bed_create(bed, id, MIB(1)), 0);
    assert_int_equal(bed_write(bed, id, 8192, 8192, 3), 0);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), 0);
    assert_int_equal(bed_seal(bed, id), 0);
    assert_int_equal(bed_read(bed, id, 0, 16384, data), 0);
    assert_memory_equal(data, first, 4096);
    for (size_t i = 4096; i < 8192; i++) {
        assert_int_equal(data[i], 0);
    }
    assert_memory_equal(data + 8192, third, 8192);
    free(first);
    free(third);
    free(data);
}

struct range {
    uint64_t offset;
    size_t bytes;
};

/* data: a byte longer than the range; expected: what the object holds from its start. */
static void read_range(struct bed *bed, const struct range *range, uint8_t *data,
                       const uint8_t *expected)
{
    data[range->bytes] = 0x5a;
    assert_int_equal(bed_read(bed, bed_object(5, 0, 1), range->offset, range->bytes, data), 0);
    assert_memory_equal(data, expected + range->offset, range->bytes);
    assert_int_equal(data[range->bytes], 0x5a);
}

/* Goal: READ gives exactly the range, at any offset and length, into aligned memory and other. */
BED_TEST(reads_take_any_range)
{
    struct object_id id = bed_object(5, 0, 1);
    enum { BYTES = 700 << 10 };
    static const struct range ranges[] = {{0, BYTES},
                                          {0, 1},
                                          {4095, 2},
                                          {4096, 4096},
                                          {1, 4096},
                                          {BYTES - 1, 1},
                                          {0, 0},
                                          {BYTES, 0},
                                          {5, BYTES - 5},
                                          {262143, 3},
                                          {262144, 262144},
                                          {100, 262144},
                                          {BYTES - 4096, 4096},
                                          {4096, 400001},
                                          {0, BYTES - 1},
                                          {8192, 4095}};
    uint8_t *expected = bed_bytes(BYTES, 1);
    assert_int_equal(bed_put_object(bed, id, BYTES, 1), 0);
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        size_t room = (size_t)round_up_u64(ranges[i].bytes + 2, LIMIT_ALIGN_BYTES);
        uint8_t *data = aligned_alloc(LIMIT_ALIGN_BYTES, room);
        assert_non_null(data);
        read_range(bed, &ranges[i], data, expected);
        read_range(bed, &ranges[i], data + 1, expected);
        free(data);
    }
    free(expected);
}

/* Goal: a range that the object does not have is DAMAGED, never short or zeros. */
BED_TEST(reads_beyond_the_end_are_refused)
{
    struct object_id id = bed_object(5, 0, 1);
    uint8_t *data = bed_bytes(16384, 9);
    assert_int_equal(bed_put_object(bed, id, 8192, 1), 0);
    assert_int_equal(bed_read(bed, id, 8192, 1, data), CAIRN_E_DAMAGED);
    assert_int_equal(bed_read(bed, id, 4096, 8192, data), CAIRN_E_DAMAGED);
    assert_int_equal(bed_read(bed, id, UINT64_MAX - 10, 4096, data), CAIRN_E_DAMAGED);
    assert_int_equal(bed_read(bed, bed_object(5, 0, 2), 0, 1, data), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_read_to_end(bed, id, 4096, 4096, data), 0);
    assert_int_equal(bed_read_to_end(bed, id, 0, 4096, data), CAIRN_E_DAMAGED); /* it goes on */
    free(data);
}

/* Goal: writes that are not aligned or exceed the announced size are refused; the object stays
 * good. */
BED_TEST(bad_writes_are_refused)
{
    struct object_id id = bed_object(5, 0, 1);
    assert_int_equal(bed_create(bed, id, 0), CAIRN_E_INVALID);
    assert_int_equal(bed_create(bed, id, (uint64_t)LIMIT_OBJECT_BYTES + 1), CAIRN_E_INVALID);
    assert_int_equal(bed_create(bed, id, 8192), 0);
    assert_int_equal(bed_write(bed, id, 1, 4096, 1), CAIRN_E_INVALID);
    assert_int_equal(bed_write(bed, id, 0, 100, 1), CAIRN_E_INVALID);
    assert_int_equal(bed_write(bed, id, 8192, 4096, 1), CAIRN_E_INVALID);
    assert_int_equal(bed_write(bed, id, UINT64_MAX - 4095, 4096, 1), CAIRN_E_INVALID);
    assert_int_equal(bed_write(bed, bed_object(5, 0, 2), 0, 4096, 1), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), 0);
    assert_int_equal(bed_seal(bed, id), 0);
    assert_int_equal(bed_check_object(bed, id, 4096, 1), 0);
}

/* Goal: ABORT drops what is unsealed, and only that. */
BED_TEST(abort_drops_only_unsealed)
{
    struct object_id id = bed_object(5, 0, 1);
    assert_int_equal(bed_abort(bed, id), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_create(bed, id, 4096), 0);
    assert_int_equal(bed_abort(bed, id), 0);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_put_object(bed, id, 4096, 1), 0);
    assert_int_equal(bed_abort(bed, id), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_check_object(bed, id, 4096, 1), 0);
}

/* Goal: LIST is sorted by (rank, writer, sequence) and holds one checkpoint's objects alone. */
BED_TEST(lists_are_sorted)
{
    static const struct object_id ids[] = {
        {1, 5, 7, 10, 0}, {1, 5, 9, 2, 0},          {1, 5, 7, 2, 11}, {1, 5, 7, 2, 9},
        {1, 5, 0, 0, 0},  {1, 5, UINT64_MAX, 2, 0}, {2, 5, 7, 2, 9},  {1, 6, 7, 2, 9},
    };
    static const size_t order[] = {4, 3, 2, 1, 5, 0};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        assert_int_equal(bed_put_object(bed, ids[i], 4096, (unsigned)i), 0);
    }
    struct store_req req = {.op = STORE_LIST_OBJECTS, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(req.ret_count, ARRAY_LEN(order));
    for (size_t i = 0; i < req.ret_count; i++) {
        assert_true(object_id_equal(&req.ret_objects[i], &ids[order[i]]));
    }
    free(req.ret_objects);
    assert_int_equal(bed_count_objects(bed, 77), 0);
}

/* Goal: gc finds every checkpoint of which anything is stored, and every small thing of one; what
 * is not sealed, and other runs, are not listed. */
BED_TEST(what_is_stored_is_listed)
{
    struct store_req ckpts = {.op = STORE_LIST_CKPTS, .run = bed_run()};
    assert_int_equal(bed_do(bed, &ckpts), 0);
    assert_int_equal(ckpts.ret_count, 0);
    free(ckpts.ret_ckpts);
    const struct store_name names[] = {
        bed_name(5, STORE_MANIFEST, 0, 9), bed_name(5, STORE_PART, 2, 7),
        bed_name(5, STORE_PART, 11, 7),    bed_name(5, STORE_PART, 11, 8),
        bed_name(5, STORE_PAGE, 1, 7),
    };
    for (size_t i = ARRAY_LEN(names); i-- > 0;) {
        assert_int_equal(bed_publish(bed, names[i], 100, (unsigned)i), 0);
    }
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 4096, 1), 0);
    assert_int_equal(bed_put_object(bed, bed_object(3, 0, 1), 4096, 1), 0);
    assert_int_equal(bed_put_object(bed, (struct object_id){2, 1, 7, 0, 1}, 4096, 1), 0);
    bed_reopen(bed);
    ckpts = (struct store_req){.op = STORE_LIST_CKPTS, .run = bed_run()};
    assert_int_equal(bed_do(bed, &ckpts), 0);
    static const struct ckpt_id expected[] = {{1, 3}, {1, 5}, {2, 1}};
    assert_int_equal(ckpts.ret_count, ARRAY_LEN(expected));
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_true(ckpt_id_equal(ckpts.ret_ckpts[i], expected[i]));
    }
    free(ckpts.ret_ckpts);
    assert_int_equal(bed_delete_small(bed, names[3]), 0);
    struct store_req smalls = {.op = STORE_LIST_SMALL, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &smalls), 0);
    static const size_t order[] = {0, 1, 2, 4};
    assert_int_equal(smalls.ret_count, ARRAY_LEN(order));
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        assert_int_equal(smalls.ret_smalls[i].kind, names[order[i]].kind);
        assert_int_equal(smalls.ret_smalls[i].number, names[order[i]].number);
        assert_int_equal(smalls.ret_smalls[i].tag, names[order[i]].tag);
        assert_true(ckpt_id_equal(smalls.ret_smalls[i].id, names[order[i]].id));
        assert_int_equal(bed_delete_small(bed, smalls.ret_smalls[i]), 0);
    }
    free(smalls.ret_smalls);
    smalls = (struct store_req){.op = STORE_LIST_SMALL, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &smalls), 0);
    assert_int_equal(smalls.ret_count, 0);
    free(smalls.ret_smalls);
}

/* Goal: asked for what the medium holds, a record and a small thing come as they were written. */
BED_TEST(the_medium_can_be_asked)
{
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    struct bed_change set = {"k", "one", false, NULL};
    uint64_t version = 0;
    assert_int_equal(bed_publish(bed, name, 5000, 1), 0);
    assert_int_equal(bed_update(bed, &set, &version), 0);
    struct store_req fetch = {.op = STORE_FETCH, .name = name, .from_medium = true};
    assert_int_equal(bed_do(bed, &fetch), 0);
    uint8_t *expected = bed_bytes(5000, 1);
    assert_int_equal(fetch.ret_bytes, 5000);
    assert_memory_equal(fetch.ret_data, expected, 5000);
    free(fetch.ret_data);
    static const struct {
        uint64_t offset, bytes, got;
    } ranges[] = {{0, 1, 1}, {100, 4000, 4000}, {4990, 100, 10}, {6000, 5, 0}};
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        struct store_req range = {
            .op = STORE_FETCH, .name = name, .offset = ranges[i].offset, .bytes = ranges[i].bytes};
        assert_int_equal(bed_do(bed, &range), 0);
        assert_int_equal(range.ret_bytes, ranges[i].got);
        if (ranges[i].got > 0) {
            assert_memory_equal(range.ret_data, expected + ranges[i].offset, ranges[i].got);
        }
        free(range.ret_data);
    }
    free(expected);
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run(), .from_medium = true};
    assert_int_equal(bed_do(bed, &get), 0);
    assert_int_equal(record_version(get.ret_record), version);
    assert_int_equal(get.ret_lost_from + get.ret_file_count, 0); /* whole, so nothing is cut off */
    record_free(get.ret_record);
    struct store_req cut = {.op = STORE_RECORD_CUT, .run = bed_run(), .file = {.version = 1}};
    assert_int_equal(bed_do(bed, &cut), bed->store->caps.record_files || bed->store->caps.shared
                                            ? CAIRN_E_CONFLICT
                                            : CAIRN_E_UNSUPPORTED);
}

/* Goal: who has the record need not be given it again, and is never kept from a newer one. */
BED_TEST(a_known_record_is_left_out)
{
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run(), .known_version = 1};
    for (uint64_t version = 1; version <= 2; version++) {
        assert_int_equal(bed_update(bed, &(struct bed_change){.key = "a", .value = "1"}, NULL), 0);
        get.ret_record = NULL;
        assert_int_equal(bed_do(bed, &get), 0);
        bool is_left_out = get.ret_record == NULL;
        assert_true(is_left_out ? version == 1 : record_version(get.ret_record) == version);
        record_free(get.ret_record);
    }
}

BED_TEST(deleted_objects_are_gone)
{
    struct object_id id = bed_object(5, 0, 1), other = bed_object(5, 0, 2);
    assert_int_equal(bed_put_object(bed, id, 4096, 1), 0);
    assert_int_equal(bed_put_object(bed, other, 4096, 2), 0);
    assert_int_equal(bed_delete(bed, id), 0);
    assert_int_equal(bed_delete(bed, id), CAIRN_E_NOT_FOUND);
    bed_reopen(bed);
    assert_int_equal(bed_count_objects(bed, 5), 1);
    assert_int_equal(bed_delete(bed, other), 0);
    assert_int_equal(bed_count_objects(bed, 5), 0);
    /* and the checkpoint's place can be used again */
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 3), 4096, 3), 0);
    assert_int_equal(bed_check_object(bed, bed_object(5, 0, 3), 4096, 3), 0);
}

/* Goal: a probe says that saves can be made, any number of times, and leaves nothing behind. */
BED_TEST(probes_leave_nothing)
{
    for (unsigned i = 0; i < 3; i++) {
        struct store_req req = {.op = STORE_PROBE};
        assert_int_equal(bed_do(bed, &req), 0);
    }
    bed_reopen(bed);
    struct store_req runs = {.op = STORE_LIST_RUNS};
    assert_int_equal(bed_do(bed, &runs), 0);
    assert_int_equal(runs.ret_count, 0);
    free(runs.ret_runs);
}

static int exchange(struct bed *bed, struct object_id id, struct object_id with)
{
    struct store_req req = {
        .op = STORE_EXCHANGE, .run = bed_run(), .object = id, .with_object = with};
    return bed_do(bed, &req);
}

static int exchange_small(struct bed *bed, struct store_name name, uint64_t tag)
{
    struct store_req req = {.op = STORE_EXCHANGE, .name = name, .with_tag = tag};
    return bed_do(bed, &req);
}

/* Goal: what was repaired gets the name of what is damaged, which has the other name afterwards;
 * what is gone is put back; what is not sealed takes no part. */
BED_TEST(things_exchange_their_names)
{
    struct object_id a = bed_object(5, 0, 1), b = bed_object(5, 0, 2), c = bed_object(5, 0, 3);
    struct store_name one = bed_name(5, STORE_PART, 0, 1), two = bed_name(5, STORE_PART, 0, 2);
    assert_int_equal(bed_put_object(bed, a, 8192, 1), 0);
    assert_int_equal(bed_put_object(bed, b, 4096, 2), 0);
    assert_int_equal(bed_publish(bed, one, 3000, 3), 0);
    assert_int_equal(bed_publish(bed, two, 5000, 4), 0);
    if (!bed->store->caps.exchanges) {
        assert_int_equal(exchange(bed, a, b), CAIRN_E_UNSUPPORTED);
        assert_int_equal(exchange_small(bed, one, 2), CAIRN_E_UNSUPPORTED);
        return;
    }
    assert_int_equal(exchange(bed, a, b), 0);
    assert_int_equal(exchange_small(bed, one, 2), 0);
    bed_reopen(bed);
    assert_int_equal(bed_check_object(bed, a, 4096, 2), 0);
    assert_int_equal(bed_check_object(bed, b, 8192, 1), 0);
    assert_int_equal(bed_check_small(bed, one, 5000, 4), 0);
    assert_int_equal(bed_check_small(bed, two, 3000, 3), 0);
    assert_int_equal(exchange(bed, c, b), 0); /* c is not there: b gets its name */
    assert_int_equal(bed_check_object(bed, c, 8192, 1), 0);
    assert_int_equal(bed_count_objects(bed, 5), 2);
    assert_int_equal(bed_delete_small(bed, one), 0);
    assert_int_equal(exchange_small(bed, one, 2), 0);
    assert_int_equal(bed_check_small(bed, one, 3000, 3), 0);
    assert_int_equal(exchange(bed, a, b), CAIRN_E_NOT_FOUND);
    assert_int_equal(exchange_small(bed, one, 9), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_create(bed, b, 4096), 0);
    assert_int_not_equal(exchange(bed, a, b), 0); /* not sealed */
    assert_int_not_equal(exchange(bed, b, a), 0);
    assert_int_equal(bed_abort(bed, b), 0);
    assert_int_equal(bed_check_object(bed, a, 4096, 2), 0);
}

/* Goal: a sweep takes nothing that is sealed, and the checkpoint's place can be used after it. */
BED_TEST(sweeps_leave_what_is_sealed)
{
    struct object_id id = bed_object(5, 0, 1), other = bed_object(5, 0, 2);
    struct store_req req = {.op = STORE_SWEEP, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(req.ret_count, 0);
    assert_int_equal(bed_put_object(bed, id, 8192, 1), 0);
    assert_int_equal(bed_create(bed, other, 4096), 0);
    assert_int_equal(bed_write(bed, other, 0, 4096, 2), 0);
    bed_reopen(bed);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(bed_do(bed, &req), 0);
    }
    assert_int_equal(req.ret_count, 0);
    assert_int_equal(bed_check_object(bed, id, 8192, 1), 0);
    assert_int_equal(bed_count_objects(bed, 5), 1);
    assert_int_equal(bed_delete(bed, id), 0);
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(bed_put_object(bed, other, 4096, 2), 0);
    assert_int_equal(bed_check_object(bed, other, 4096, 2), 0);
}

static bool is_listed(struct bed *bed, uint64_t step)
{
    struct store_req req = {.op = STORE_LIST_CKPTS, .run = bed_run()};
    bool found = false;
    assert_int_equal(bed_do(bed, &req), 0);
    for (size_t i = 0; i < req.ret_count; i++) {
        found = found || req.ret_ckpts[i].step == step;
    }
    free(req.ret_ckpts);
    return found;
}

/* Goal: the list forgets what is gone of what nobody writes any more; who writes is on it again. */
BED_TEST(what_is_gone_for_good_is_not_listed)
{
    struct object_id id = bed_object(5, 0, 1);
    struct store_name part = bed_name(5, STORE_PART, 0, 1);
    struct store_req req = {.op = STORE_SWEEP, .run = bed_run(), .id = {1, 5}, .for_good = true};
    for (unsigned i = 0; i < 2; i++) {
        struct store_req hint = {.op = STORE_ENTER, .run = bed_run(), .id = {1, 5}};
        assert_int_equal(bed_do(bed, &hint), 0);
        assert_int_equal(bed_put_object(bed, id, 8192, 1), 0);
        assert_int_equal(bed_publish(bed, part, 100, 1), 0);
        assert_int_equal(bed_delete(bed, id), 0);
        assert_int_equal(bed_do(bed, &req), 0);
        assert_true(is_listed(bed, 5));
        assert_int_equal(bed_check_small(bed, part, 100, 1), 0);
        assert_int_equal(bed_delete_small(bed, part), 0);
        assert_int_equal(bed_do(bed, &req), 0);
        assert_false(is_listed(bed, 5));
        id.sequence++;
        part.tag++;
    }
}

/* Goal: several writes of an object in flight at once. */
BED_TEST(writes_may_be_parallel)
{
    struct object_id id = bed_object(5, 0, 1);
    enum { COUNT = 16, BYTES = 64 << 10 };
    static struct store_req reqs[COUNT];
    assert_int_equal(bed_create(bed, id, COUNT * BYTES), 0);
    uint8_t *all = bed_bytes(COUNT * BYTES, 1);
    for (size_t i = 0; i < COUNT; i++) {
        reqs[i] = (struct store_req){.op = STORE_WRITE, .run = bed_run(), .object = id};
        reqs[i].offset = i * BYTES;
        reqs[i].bytes = BYTES;
        reqs[i].data = all + i * BYTES;
    }
    bed_do_all(bed, COUNT, reqs);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(reqs[i].status, 0);
    }
    free(all);
    assert_int_equal(bed_seal(bed, id), 0);
    assert_int_equal(bed_check_object(bed, id, COUNT * BYTES, 1), 0);
}

/* --- small things ----------------------------------------------------------------------------- */

BED_TEST(publishing_never_replaces)
{
    struct store_name name = bed_name(5, STORE_PART, 3, 0xfeed);
    assert_int_equal(bed_check_small(bed, name, 1000, 1), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_publish(bed, name, 1000, 1), 0);
    assert_int_equal(bed_publish(bed, name, 1000, 2), CAIRN_E_EXISTS);
    assert_int_equal(bed_publish(bed, name, 1000, 1), CAIRN_E_EXISTS);
    assert_int_equal(bed_check_small(bed, name, 1000, 1), 0);
    bed_reopen(bed);
    assert_int_equal(bed_check_small(bed, name, 1000, 1), 0);
    assert_int_equal(bed_publish(bed, name, 1000, 2), CAIRN_E_EXISTS);
}

/* Goal: kind, number and tag each tell names apart; any length is kept. */
BED_TEST(small_things_are_told_apart)
{
    const struct store_name names[] = {
        bed_name(5, STORE_MANIFEST, 0, 1), bed_name(5, STORE_MANIFEST, 0, 2),
        bed_name(5, STORE_PART, 1, 1),     bed_name(5, STORE_PART, 11, 1),
        bed_name(5, STORE_PAGE, 1, 1),     bed_name(6, STORE_PAGE, 1, 1),
    };
    static const size_t bytes[] = {1, 4095, 4096, 4097, 0, 300000};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(bed_publish(bed, names[i], bytes[i], (unsigned)i), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(bed_check_small(bed, names[i], bytes[i], (unsigned)i), 0);
    }
    assert_int_equal(bed_delete_small(bed, names[0]), 0);
    assert_int_equal(bed_delete_small(bed, names[0]), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_check_small(bed, names[0], 1, 0), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_check_small(bed, names[1], 4095, 1), 0);
    assert_int_equal(bed_publish(bed, names[0], 7, 9), 0);
}

/* --- records ---------------------------------------------------------------------------------- */

BED_TEST(an_absent_record_is_empty)
{
    struct record *record;
    assert_int_equal(bed_record(bed, &record), 0);
    assert_int_equal(record_version(record), 0);
    assert_int_equal(record_count(record), 0);
    record_free(record);
    struct store_req req = {.op = STORE_LIST_RUNS};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(req.ret_count, 0); /* looking made nothing */
    free(req.ret_runs);
}

BED_TEST(guards_decide)
{
    uint64_t version = 0;
    struct bed_change add = {"k", "one", true, NULL}, wrong = {"k", "two", true, "zero"};
    struct bed_change right = {"k", "two", true, "one"}, drop = {"k", NULL, true, "two"};
    assert_int_equal(bed_update(bed, &add, &version), 0);
    assert_int_equal(version, 1);
    assert_int_equal(bed_update(bed, &add, &version), CAIRN_E_CONFLICT);
    assert_int_equal(bed_update(bed, &wrong, &version), CAIRN_E_CONFLICT);
    assert_true(bed_has(bed, "k", "one"));
    assert_int_equal(bed_version(bed), 1);
    assert_int_equal(bed_update(bed, &right, &version), 0);
    assert_int_equal(version, 2);
    bed_reopen(bed);
    assert_true(bed_has(bed, "k", "two"));
    assert_int_equal(bed_update(bed, &drop, &version), 0);
    assert_int_equal(version, 3);
    assert_true(bed_has(bed, "k", NULL));
}

/* Goal: all changes or none, decided by all guards. */
BED_TEST(updates_are_atomic)
{
    const uint8_t one[] = "1", two[] = "2";
    struct record_change changes[] = {{"a", false, {1, one}}, {"b", false, {1, one}}};
    struct record_guard guards[] = {{"a", true, {0, NULL}}, {"c", false, {1, two}}};
    struct record_update update = {2, 2, guards, changes};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .run = bed_run(), .update = &update};
    assert_int_equal(bed_do(bed, &req), CAIRN_E_CONFLICT);
    assert_int_equal(bed_version(bed), 0);
    update.guard_count = 1;
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(req.ret_version, 1);
    assert_true(bed_has(bed, "a", "1"));
    assert_true(bed_has(bed, "b", "1"));
}

/* Goal: an update that is no proper one changes nothing, now and after a restart. */
BED_TEST(improper_updates_change_nothing)
{
    struct bed_change good = {"k", "v", false, NULL}, no_key = {"", "v", false, NULL};
    assert_int_equal(bed_update(bed, &good, NULL), 0);
    assert_int_equal(bed_update(bed, &no_key, NULL), CAIRN_E_INVALID);
    uint8_t *huge = calloc(1, LIMIT_RECORD_VALUE_BYTES + 1);
    assert_non_null(huge);
    struct record_change change = {"k", false, {LIMIT_RECORD_VALUE_BYTES + 1, huge}};
    struct record_update update = {0, 1, NULL, &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .run = bed_run(), .update = &update};
    assert_int_equal(bed_do(bed, &req), CAIRN_E_TOO_LARGE);
    free(huge);
    assert_true(bed_has(bed, "k", "v"));
    bed_reopen(bed);
    assert_true(bed_has(bed, "k", "v"));
    assert_int_equal(bed_version(bed), 1);
}

/* Goal: versions go up by one, across snapshots and restarts; every state is what was written. */
BED_TEST(versions_count_updates)
{
    char key[16], value[16];
    bed->snapshot_every = 4;
    bed_reopen(bed);
    for (unsigned i = 1; i <= 50; i++) {
        uint64_t version = 0;
        snprintf(key, sizeof(key), "k%u", i % 7);
        snprintf(value, sizeof(value), "%u", i);
        struct bed_change change = {key, value, false, NULL};
        assert_int_equal(bed_update(bed, &change, &version), 0);
        assert_int_equal(version, i);
        if (i % 5 == 0) {
            bed_reopen(bed);
        }
        assert_int_equal(bed_version(bed), i);
        assert_true(bed_has(bed, key, value));
    }
    for (unsigned i = 44; i <= 50; i++) {
        snprintf(key, sizeof(key), "k%u", i % 7);
        snprintf(value, sizeof(value), "%u", i);
        assert_true(bed_has(bed, key, value));
    }
}

/* Goal: a record of 10,000 entries is no trouble: 200 updates of it in seconds. */
BED_TEST(large_records_work)
{
    enum { ENTRIES = 10000, BATCH = 50 };
    static char keys[BATCH][32];
    struct record_change changes[BATCH];
    uint64_t begin_ns = loop_now_ns(bed->loop);
    for (unsigned i = 0; i < ENTRIES; i += BATCH) {
        for (unsigned k = 0; k < BATCH; k++) {
            snprintf(keys[k], sizeof(keys[k]), "seal/%08u", (i + k) * 7919 % ENTRIES);
            changes[k] = (struct record_change){keys[k], false, {31, (const uint8_t *)keys[k]}};
        }
        struct record_update update = {0, BATCH, NULL, changes};
        struct store_req req = {.op = STORE_RECORD_UPDATE, .run = bed_run(), .update = &update};
        assert_int_equal(bed_do(bed, &req), 0);
    }
    bed_reopen(bed);
    struct record *record;
    assert_int_equal(bed_record(bed, &record), 0);
    assert_int_equal(record_count(record), ENTRIES);
    record_free(record);
    uint64_t ms = (loop_now_ns(bed->loop) - begin_ns) / 1000000;
    print_message("10,000 entries in 200 updates and a restart: %llu ms\n", (unsigned long long)ms);
    assert_true(ms < 240000); /* under a sanitizer, on a busy machine: 30 s */
}

BED_TEST(runs_are_listed_sorted)
{
    static const char *const names[] = {"b/x", "a/z", "a/y", "a-b/c", "a/y0"};
    static const char *const sorted[] = {"a/y", "a/y0", "a/z", "a-b/c", "b/x"};
    const uint8_t one[] = "1";
    struct record_change change = {"k", false, {1, one}};
    struct record_update update = {0, 1, NULL, &change};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct store_req req = {.op = STORE_RECORD_UPDATE, .update = &update};
        assert_int_equal(run_name_parse(names[i], &req.run, NULL), 0);
        assert_int_equal(bed_do(bed, &req), 0);
    }
    bed_reopen(bed);
    struct store_req req = {.op = STORE_LIST_RUNS};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(req.ret_count, ARRAY_LEN(sorted));
    for (size_t i = 0; i < req.ret_count; i++) {
        char text[RUN_NAME_TEXT_MAX];
        run_name_format(&req.ret_runs[i], text);
        assert_string_equal(text, sorted[i]);
    }
    free(req.ret_runs);
}

/* --- the store -------------------------------------------------------------------------------- */

/* Goal: the store's own record takes updates like a run's, keeps them, and is no run. */
BED_TEST(the_stores_own_record_takes_updates)
{
    const uint8_t one[] = "1", two[] = "2";
    struct record_change change = {"duty/test", false, {1, one}};
    struct record_guard guard = {"duty/test", true, {0, NULL}};
    struct record_update update = {1, 1, &guard, &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .update = &update};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_int_equal(bed_do(bed, &req), CAIRN_E_CONFLICT);
    bed_reopen(bed);
    guard = (struct record_guard){"duty/test", false, {1, one}};
    change.value.data = two;
    assert_int_equal(bed_do(bed, &req), 0);
    struct store_req get = {.op = STORE_RECORD_GET}, list = {.op = STORE_LIST_RUNS};
    struct record_value value;
    assert_int_equal(bed_do(bed, &get), 0);
    assert_true(record_get(get.ret_record, "duty/test", &value));
    assert_memory_equal(value.data, two, 1);
    record_free(get.ret_record);
    assert_int_equal(bed_do(bed, &list), 0);
    assert_int_equal(list.ret_count, 0);
    free(list.ret_runs);
}

BED_TEST(each_start_has_a_new_epoch)
{
    struct store_caps before = bed->store->caps;
    bed_reopen(bed);
    assert_true(bed->store->caps.epoch > before.epoch);
    assert_memory_equal(&bed->store->caps.uuid, &before.uuid, sizeof(before.uuid));
    assert_int_equal(before.align_bytes, LIMIT_ALIGN_BYTES);
    struct store_req req = {.op = STORE_USAGE};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_false(req.ret_usage.read_only);
}

/* Goal: a store opened for reading shows what is there and refuses every change. */
BED_TEST(read_only_refuses_changes)
{
    struct object_id id = bed_object(5, 0, 1);
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    struct diag diag = DIAG_INIT;
    if (bed->kind == BED_MEMORY) {
        skip(); /* memory has no such form */
    }
    assert_int_equal(bed_put_object(bed, id, 8192, 1), 0);
    assert_int_equal(bed_publish(bed, name, 100, 2), 0);
    assert_int_equal(bed_set(bed, "k", "v"), 0);
    bed_close(bed);
    assert_int_equal(bed_open(bed, false, true, &diag), 0);
    assert_true(bed->store->caps.read_only);
    assert_int_equal(bed_create(bed, bed_object(5, 0, 2), 4096), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_delete(bed, id), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 1, 1), 10, 1), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_delete_small(bed, name), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_set(bed, "k", "v"), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_check_object(bed, id, 8192, 1), 0);
    assert_int_equal(bed_check_small(bed, name, 100, 2), 0);
    assert_true(bed_has(bed, "k", "v"));
    assert_int_equal(bed_count_objects(bed, 5), 1);
}
