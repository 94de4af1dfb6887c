/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing that is stored is read wrongly when it is damaged. Method: of every fixture each single
 * bit flipped, each truncation, bytes added; and random bytes behind a good checksum, which must
 * give an error or decode to exactly themselves.
 */
#include "base/check.h"
#include "fixtures.h"
#include "hash/hash.h"
#include "support/unit_test.h"

/* Decodes from an exact heap copy, so that the sanitizer sees a read past the end. *ret_same: what
 * was decoded encodes to the same bytes again. */
static int recode(const struct fixture *fixture, size_t bytes, const uint8_t *data, bool *ret_same)
{
    struct scratch scratch;
    struct buf again;
    struct diag diag = DIAG_INIT;
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    scratch_init(&scratch, MIB(4));
    buf_init(&again, MIB(8));
    int rc = fixture->recode(bytes, copy, &scratch, &again, &diag);
    if (rc != 0 && diag.code != 0) {
        assert_int_equal(diag.code, rc);
    }
    *ret_same = rc == 0 && again.bytes == bytes && memcmp(again.data, data, bytes) == 0;
    scratch_fini(&scratch);
    buf_fini(&again);
    free(copy);
    return rc;
}

TEST(test_every_flipped_bit_is_found)
{
    for (size_t i = 0; i < fixture_count; i++) {
        struct buf bytes = fixture_bytes(&fixtures[i]);
        bool same = false;
        for (size_t bit = 0; bit < bytes.bytes * 8; bit++) {
            bytes.data[bit / 8] = (uint8_t)(bytes.data[bit / 8] ^ 1u << bit % 8);
            int rc = recode(&fixtures[i], bytes.bytes, bytes.data, &same);
            if (fixtures[i].has_checksum ? rc == 0 : rc == 0 && !same) {
                fail_msg("%s: bit %zu of byte %zu flipped was not found", fixtures[i].name, bit % 8,
                         bit / 8);
            }
            bytes.data[bit / 8] = (uint8_t)(bytes.data[bit / 8] ^ 1u << bit % 8);
        }
        assert_int_equal(recode(&fixtures[i], bytes.bytes, bytes.data, &same), 0);
        assert_true(same);
        buf_fini(&bytes);
    }
}

TEST(test_every_truncation_and_every_added_byte_is_found)
{
    for (size_t i = 0; i < fixture_count; i++) {
        struct buf bytes = fixture_bytes(&fixtures[i]);
        bool same = false;
        size_t whole = bytes.bytes;
        for (size_t cut = 0; cut < whole; cut++) {
            if (recode(&fixtures[i], cut, bytes.data, &same) == 0) {
                fail_msg("%s cut to %zu of %zu bytes was not found", fixtures[i].name, cut, whole);
            }
        }
        buf_put_u8(&bytes, 0);
        assert_int_equal(buf_status(&bytes), 0);
        if (recode(&fixtures[i], whole + 1, bytes.data, &same) == 0) {
            fail_msg("%s with a byte behind its end was not found", fixtures[i].name);
        }
        buf_fini(&bytes);
    }
}

/* Makes the checksums of a thing right again, so that the checks behind them are reached. */
static void reseal(const struct fixture *fixture, struct buf *bytes)
{
    uint8_t *data = bytes->data;
    if (strcmp(fixture->name, "envelope") == 0) {
        store_u32(data + 92, crc32c(0, 92, data));
    } else if (strcmp(fixture->name, "object_footer") == 0) {
        uint8_t *trailer = data + bytes->bytes - OBJECT_TRAILER_BYTES;
        for (size_t i = 0; i < 3; i++) {
            store_u32(data + i * 96 + 92, crc32c(0, 92, data + i * 96));
        }
        store_u32(trailer + 60, crc32c(0, bytes->bytes - OBJECT_TRAILER_BYTES, data));
        store_u32(trailer + 124, crc32c(0, 124, trailer));
    } else if (strcmp(fixture->name, "tree") == 0) {
        store_u32(data + 16, crc32c(0, bytes->bytes - 20, data + 20));
    } else if (strncmp(fixture->name, "part_", 5) == 0) {
        store_u32(data + 16, crc32c(crc32c(0, 16, data), 236, data + 20));
        store_u32(data + bytes->bytes - 8, crc32c(0, bytes->bytes - 8, data));
        store_u32(data + bytes->bytes - 4, crc32c(0, 4, data + bytes->bytes - 8));
    } else if (fixture->has_checksum) {
        store_u32(data + 16, crc32c(crc32c(0, 16, data), bytes->bytes - 20, data + 20));
    }
}

/* One field (1, 2, 4 or 8 bytes) replaced by something nasty, checksums made good. */
TEST(test_hostile_fields_behind_good_checksums)
{
    static const uint64_t nasty[] = {0,
                                     1,
                                     2,
                                     0x7f,
                                     0x80,
                                     0xff,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     INT64_MAX,
                                     UINT64_MAX,
                                     UINT64_C(1) << 63,
                                     UINT64_C(1) << 40};
    for (size_t i = 0; i < fixture_count; i++) {
        struct buf good = fixture_bytes(&fixtures[i]), bytes = fixture_bytes(&fixtures[i]);
        for (size_t at = 0; at < good.bytes; at++) {
            size_t width = (size_t)1 << at % 4;
            for (size_t v = 0; v < ARRAY_LEN(nasty); v++) {
                size_t n = width < good.bytes - at ? width : good.bytes - at;
                bool same = false;
                memcpy(bytes.data, good.data, good.bytes);
                memcpy(bytes.data + at, &nasty[v], n);
                reseal(&fixtures[i], &bytes);
                int rc = recode(&fixtures[i], bytes.bytes, bytes.data, &same);
                if (rc == 0 && !same) {
                    fail_msg("%s: byte %zu set to %llx decodes to something else", fixtures[i].name,
                             at, (unsigned long long)nasty[v]);
                }
            }
        }
        buf_fini(&good);
        buf_fini(&bytes);
    }
}

TEST(test_random_damage_behind_good_checksums)
{
    struct prng prng = prng_init("random_damage", 20260101);
    for (unsigned round = 0; round < 20000; round++) {
        const struct fixture *fixture = &fixtures[prng_below(&prng, fixture_count)];
        struct buf bytes = fixture_bytes(fixture);
        bool same = false;
        for (uint64_t hits = 1 + prng_below(&prng, 6); hits > 0; hits--) {
            bytes.data[prng_below(&prng, bytes.bytes)] = (uint8_t)prng_next(&prng);
        }
        reseal(fixture, &bytes);
        int rc = recode(fixture, bytes.bytes, bytes.data, &same);
        if (rc == 0 && !same) {
            fail_msg("round %u: %s decodes to something else", round, fixture->name);
        }
        buf_fini(&bytes);
    }
}
