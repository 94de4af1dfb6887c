/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan records come back whole, and a damaged one never does. Method: random records; every bit
 * flipped.
 */
#include "base/buf.h"
#include "hash/hash.h"
#include "sample.h"
#include "support/unit_test.h"

TEST(test_records_come_back)
{
    struct sample sample = {.state = 11};
    for (unsigned i = 0; i < 2000; i++) {
        struct plan_read read, ret;
        uint8_t bytes[PLAN_READ_BYTES], again[PLAN_READ_BYTES];
        struct diag diag = DIAG_INIT;
        sample_plan_read(&sample, &read);
        plan_read_encode(&read, bytes);
        if (plan_read_decode(bytes, &ret, &diag) != 0) {
            fail_msg("%s", diag.text);
        }
        assert_int_equal(ret.want, read.want);
        assert_true(object_id_equal(&ret.object, &read.object));
        assert_true(ret.offset == read.offset && ret.stored_bytes == read.stored_bytes);
        assert_true(ret.plain_bytes == read.plain_bytes && ret.stored_crc == read.stored_crc);
        assert_true(ret.encoding == read.encoding && ret.digest_alg == read.digest_alg);
        assert_memory_equal(&ret.digest, &read.digest, sizeof(ret.digest));
        assert_true(box_equal(&ret.cell, &read.cell));
        assert_true(ret.blob_offset == read.blob_offset);
        plan_read_encode(&ret, again);
        assert_memory_equal(again, bytes, sizeof(bytes));
    }
}

TEST(test_every_flipped_bit_is_detected)
{
    struct sample sample = {.state = 12};
    struct plan_read read, ret;
    uint8_t bytes[PLAN_READ_BYTES];
    sample_plan_read(&sample, &read);
    plan_read_encode(&read, bytes);
    for (size_t bit = 0; bit < sizeof(bytes) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(plan_read_decode(bytes, &ret, NULL), CAIRN_E_PROTOCOL);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* With a good crc over bad contents: what a hostile server could send. */
TEST(test_bad_contents_are_refused)
{
    static const struct {
        size_t at;
        uint8_t value;
    } BAD[] = {{4, 9}, {5, 0}, {6, 9}, {7, 1}, {34, 1}, {45, 1}, {60, 1}, {111, 0xff}, {240, 1}};
    struct sample sample = {.state = 13};
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        struct plan_read read, ret;
        uint8_t bytes[PLAN_READ_BYTES];
        sample_plan_read(&sample, &read);
        read.object.rank = 5;
        plan_read_encode(&read, bytes);
        bytes[BAD[i].at] = BAD[i].value;
        store_u32(bytes + 252, crc32c(0, 252, bytes));
        if (plan_read_decode(bytes, &ret, NULL) == 0) {
            fail_msg("byte %zu = %#x was accepted", BAD[i].at, BAD[i].value);
        }
    }
}
