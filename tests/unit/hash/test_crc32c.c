/* SPDX-License-Identifier: Apache-2.0
 *
 * The checksum is CRC-32C as RFC 3720 has it. Method: the RFC's vectors; a bitwise reference over
 * all lengths and alignments; continuation at every split.
 */
#include "hash/hash.h"
#include "support/unit_test.h"

/* The definition, bit by bit: reflected polynomial 0x82f63b78. */
static uint32_t reference_crc32c(size_t bytes, const uint8_t *data)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0u - (crc & 1)));
        }
    }
    return ~crc;
}

TEST(test_known_vectors)
{
    uint8_t data[32];
    assert_int_equal(crc32c(0, 9, "123456789"), 0xe3069283);
    assert_int_equal(crc32c(0, 0, NULL), 0);
    memset(data, 0, sizeof(data));
    assert_int_equal(crc32c(0, sizeof(data), data), 0x8a9136aa);
    memset(data, 0xff, sizeof(data));
    assert_int_equal(crc32c(0, sizeof(data), data), 0x62a8ab43);
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)i;
    }
    assert_int_equal(crc32c(0, sizeof(data), data), 0x46dd794e);
}

TEST(test_all_lengths_and_alignments)
{
    _Alignas(64) uint8_t data[700];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 131 + i / 7);
    }
    for (size_t start = 0; start < 16; start++) {
        for (size_t bytes = 0; bytes <= 600; bytes++) {
            assert_int_equal(crc32c(0, bytes, data + start), reference_crc32c(bytes, data + start));
        }
    }
}

TEST(test_continues_at_any_split)
{
    uint8_t data[300];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i ^ 0x5a);
    }
    uint32_t whole = crc32c(0, sizeof(data), data);
    for (size_t split = 0; split <= sizeof(data); split++) {
        uint32_t crc = crc32c(0, split, data);
        assert_int_equal(crc32c(crc, sizeof(data) - split, data + split), whole);
    }
}
