/* SPDX-License-Identifier: Apache-2.0
 *
 * Every refusal of a cluster has a name and a remedy, a write that failed voids its object, and
 * what is sealed is whole, on a cluster that loses answers and lands things late.
 */
#include "store/store_bed.h"

#include "base/check.h"

#include <errno.h>

static void refuse(struct bed *bed, int error)
{
    const struct fake_plan plan = {.seed = 1, .percent = {[FAKE_REFUSED] = 100}, .error = error};
    fake_medium_plan(bed->cluster, error != 0 ? &plan : NULL);
}

#define BED_TEST(name) FIXTURE_TEST(name, bed_setup_rados, bed_fini, struct bed, bed)

BED_TEST(refusals_are_named)
{
    static const struct {
        int error, code;
        const char *word;
    } cases[] = {{ENOSPC, CAIRN_E_NO_SPACE, "add OSDs"},
                 {EDQUOT, CAIRN_E_QUOTA, "set-quota"},
                 {EACCES, CAIRN_E_DENIED, "make-user"},
                 {EPERM, CAIRN_E_DENIED, "make-user"},
                 {ESHUTDOWN, CAIRN_E_DENIED, "blocklist"},
                 {EOPNOTSUPP, CAIRN_E_UNSUPPORTED, "replicated pool"},
                 {EIO, CAIRN_E_IO, ""},
                 {ETIMEDOUT, CAIRN_E_TIMED_OUT, "ceph health"}}; /* before anything is made */
    struct object_id id = bed_object(5, 0, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct store_req req = {.op = STORE_PUBLISH,
                                .name = bed_name(5, STORE_PART, 0, i),
                                .bytes = 4,
                                .data = (uint8_t[4]){1, 2, 3, 4}};
        refuse(bed, cases[i].error);
        assert_int_equal(bed_do(bed, &req), cases[i].code);
        assert_non_null(strstr(req.diag.text, cases[i].word));
        assert_int_equal(bed_create(bed, id, 4096), cases[i].code);
        refuse(bed, 0);
        assert_int_equal(bed_abort(bed, id), CAIRN_E_NOT_FOUND); /* not begun */
    }
}

BED_TEST(a_failed_write_voids_the_object)
{
    struct object_id id = bed_object(5, 0, 1);
    assert_int_equal(bed_create(bed, id, 16384), 0);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), 0);
    refuse(bed, EDQUOT);
    assert_int_equal(bed_write(bed, id, 4096, 4096, 2), CAIRN_E_QUOTA);
    refuse(bed, 0);
    assert_int_equal(bed_write(bed, id, 8192, 4096, 3), CAIRN_E_IO);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_IO);
    assert_int_equal(bed_abort(bed, id), 0);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 2), 8192, 4), 0);
    assert_int_equal(bed_count_objects(bed, 5), 1);
}

BED_TEST(a_full_cluster_says_so)
{
    fake_medium_capacity(bed->cluster, 64 << 10);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 32 << 10, 1), 0);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 2), 64 << 10, 2), CAIRN_E_NO_SPACE);
    assert_int_equal(bed_delete(bed, bed_object(5, 0, 1)), 0); /* deleting needs no space */
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 3), 32 << 10, 3), 0);
}

/* Goal: an erasure-coded pool for metadata is refused by name when the store is opened. */
BED_TEST(keys_need_a_replicated_pool)
{
    struct diag diag = DIAG_INIT;
    bed_close(bed);
    fake_medium_erasure_coded_meta(bed->cluster, true);
    assert_int_equal(bed_open(bed, true, false, &diag), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(diag.text, "replicated pool"));
    fake_medium_erasure_coded_meta(bed->cluster, false);
}

/* Goal: an abort leaves nothing in either pool. */
BED_TEST(an_abort_leaves_nothing)
{
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 4096, 1), 0);
    size_t before = fake_medium_objects(bed->cluster);
    for (unsigned i = 0; i < 10; i++) {
        struct object_id id = bed_object(5, 0, 2 + i);
        assert_int_equal(bed_create(bed, id, MIB(16)), 0);
        assert_int_equal(bed_write(bed, id, 0, MIB(9), i), 0); /* three pieces */
        assert_int_equal(bed_abort(bed, id), 0);
    }
    assert_int_equal(fake_medium_objects(bed->cluster), before);
}

/* Goal: parts larger than an operation may be, and what a crash between tails and head leaves. */
BED_TEST(large_parts_have_tails)
{
    static const size_t bytes[] = {0,
                                   1,
                                   (64 << 10) - 1,
                                   64 << 10,
                                   (64 << 10) + 1,
                                   (4 << 20) - 1,
                                   4 << 20,
                                   (4 << 20) + 1,
                                   (20 << 20) + 5,
                                   40 << 20};
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 99, 1), 1, 1), 0); /* the lists */
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++) {
        struct store_name name = bed_name(5, STORE_PART, (uint32_t)i, 1);
        size_t before = fake_medium_objects(bed->cluster);
        assert_int_equal(bed_publish(bed, name, bytes[i], (unsigned)i), 0);
        assert_int_equal(bed_publish(bed, name, bytes[i], 99), CAIRN_E_EXISTS);
        assert_int_equal(bed_check_small(bed, name, bytes[i], (unsigned)i), 0);
        assert_int_equal(bed_delete_small(bed, name), 0);
        assert_int_equal(fake_medium_objects(bed->cluster), before);
    }
}

/* Goal: a manifest costs one round trip, and what is removed is not read. */
BED_TEST(small_things_cost_little)
{
    struct store_name manifest = bed_name(5, STORE_MANIFEST, 0, 1);
    struct store_name part = bed_name(5, STORE_PART, 0, 1);
    assert_int_equal(bed_publish(bed, manifest, 64 << 10, 1), 0);
    assert_int_equal(bed_publish(bed, part, 3 << 20, 2), 0);
    uint64_t calls = fake_medium_calls(bed->cluster);
    assert_int_equal(bed_check_small(bed, manifest, 64 << 10, 1), 0);
    assert_int_equal(fake_medium_calls(bed->cluster) - calls, 1);
    uint64_t bytes = fake_medium_read_bytes(bed->cluster);
    assert_int_equal(bed_check_small(bed, part, 3 << 20, 2), 0);
    assert_in_range(fake_medium_read_bytes(bed->cluster) - bytes, 3 << 20, (3 << 20) + 64);
    bytes = fake_medium_read_bytes(bed->cluster);
    assert_int_equal(bed_delete_small(bed, part), 0);
    assert_in_range(fake_medium_read_bytes(bed->cluster) - bytes, 1, 64);
}

/* Goal: whatever is lost, unanswered or late: an object that is sealed is whole. */
BED_TEST(what_is_sealed_is_whole)
{
    unsigned sealed = 0;
    for (unsigned i = 0; i < 200; i++) {
        struct object_id id = bed_object(5, 0, i);
        const struct fake_plan plan = {
            .seed = i,
            .percent = {[FAKE_LOST] = 3, [FAKE_UNANSWERED] = 3, [FAKE_LATE] = 4},
            .later_max = 20};
        fake_medium_plan(bed->cluster, &plan);
        int rc = bed_create(bed, id, 65536);
        if (rc == 0) {
            rc = bed_write(bed, id, 0, 16384, i);
            rc = rc != 0 ? rc : bed_write(bed, id, 16384, 49152, i + 1);
            rc = rc != 0 ? rc : bed_seal(bed, id);
        }
        fake_medium_plan(bed->cluster, NULL);
        fake_medium_settle(bed->cluster);
        uint64_t bytes;
        int found = bed_stat(bed, id, &bytes);
        assert_true(found == 0 || found == CAIRN_E_NOT_FOUND);
        assert_true(rc != 0 || found == 0);
        assert_true(found != 0 || rc == 0 || rc == CAIRN_E_OUTCOME_UNKNOWN);
        if (found == 0) {
            uint8_t *data = bed_bytes(65536, 0), *first = bed_bytes(16384, i),
                    *second = bed_bytes(49152, i + 1);
            assert_int_equal(bytes, 65536);
            assert_int_equal(bed_read(bed, id, 0, 65536, data), 0);
            assert_memory_equal(data, first, 16384);
            assert_memory_equal(data + 16384, second, 49152);
            free(data);
            free(first);
            free(second);
            sealed++;
        }
    }
    assert_in_range(sealed, 100, 199);
    assert_int_equal(bed_count_objects(bed, 5), sealed);
}
