/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest is XXH3-128 in canonical bytes, the same by every way to it. Method: published values;
 * one-shot, stream and the joint pass compared over lengths and splits; a fault loop.
 */
#include "hash/hash.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

static void fill(size_t bytes, uint8_t *data)
{
    uint32_t x = 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (uint8_t)(x >> 24);
    }
}

static void expect_hex(struct xxh128 digest, const char *expected)
{
    char hex[33];
    hex_encode(sizeof(digest.bytes), digest.bytes, hex);
    assert_string_equal(hex, expected);
}

/* Values as `xxhsum -H2` prints them. */
TEST(test_known_vectors)
{
    expect_hex(xxh3_128(0, NULL), "99aa06d3014798d86001c324468d497f");
    expect_hex(xxh3_128(9, "123456789"), "33119477ede5dcd5e9716427681d5860");
    uint8_t *zeros = calloc(1, 1 << 20);
    assert_non_null(zeros);
    expect_hex(xxh3_128(1 << 20, zeros), "b6ef17a3448492b6918780b90550bf34");
    free(zeros);
}

TEST(test_every_way_gives_the_same)
{
    static const size_t lengths[] = {0,   1,     16,    17,    128,    129,    240,
                                     241, 65535, 65536, 65537, 131072, 200001, 1 << 20};
    uint8_t *data = malloc(1 << 20);
    uint8_t *copy = malloc(1 << 20);
    assert_non_null(data);
    assert_non_null(copy);
    fill(1 << 20, data);
    struct xxh3_stream *stream = xxh3_stream_new();
    assert_non_null(stream);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct xxh128 once = xxh3_128(lengths[i], data);
        struct xxh128 both;
        uint32_t crc = 0;
        hash_both(lengths[i], data, &both, &crc);
        assert_memory_equal(once.bytes, both.bytes, 16);
        assert_int_equal(crc, crc32c(0, lengths[i], data));

        struct xxh128 copied;
        memset(copy, 0, 1 << 20);
        hash_both_copy(lengths[i], data, copy, &copied, &crc);
        assert_memory_equal(once.bytes, copied.bytes, 16);
        assert_int_equal(crc, crc32c(0, lengths[i], data));
        assert_memory_equal(copy, data, lengths[i]);
        assert_true(lengths[i] == 1 << 20 || copy[lengths[i]] == 0);

        xxh3_stream_reset(stream);
        size_t split = lengths[i] / 3;
        xxh3_stream_add(stream, split, data);
        xxh3_stream_add(stream, 0, NULL);
        xxh3_stream_add(stream, lengths[i] - split, data + split);
        struct xxh128 streamed = xxh3_stream_digest(stream);
        assert_memory_equal(once.bytes, streamed.bytes, 16);
    }
    xxh3_stream_free(stream);
    xxh3_stream_free(NULL);
    free(copy);
    free(data);
}

TEST(test_one_bit_changes_it)
{
    uint8_t data[600];
    fill(sizeof(data), data);
    struct xxh128 before = xxh3_128(sizeof(data), data);
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] ^= 1;
        struct xxh128 after = xxh3_128(sizeof(data), data);
        assert_memory_not_equal(before.bytes, after.bytes, 16);
        data[i] ^= 1;
    }
}

TEST(test_failed_allocation_is_null)
{
    alloc_fault_at(1);
    struct xxh3_stream *stream = xxh3_stream_new();
    assert_true(alloc_fault_hit());
    assert_null(stream);
}
