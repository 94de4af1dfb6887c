/* SPDX-License-Identifier: Apache-2.0
 *
 * Writers stop at max and at the first failed allocation, readers at the end of their input, both
 * for good. Method: written sequences read back; each length cut by one; a fault loop.
 */
#include "base/buf.h"
#include "base/check.h"
#include "support/alloc_fault.h"
#include "support/check_trap.h"
#include "support/unit_test.h"

static void put_all(struct buf *buf)
{
    buf_put_u8(buf, 0x01);
    buf_put_u16(buf, 0x0203);
    buf_put_u32(buf, 0x04050607);
    buf_put_u64(buf, UINT64_C(0x08090a0b0c0d0e0f));
    buf_put(buf, 3, "abc");
    buf_put_zero(buf, 6);
    buf_printf(buf, "%s=%d", "n", 7);
}

enum { PUT_ALL_BYTES = 27 };

TEST(test_sequence_is_read_back)
{
    struct buf buf;
    buf_init(&buf, 1024);
    put_all(&buf);
    assert_int_equal(buf_status(&buf), 0);
    assert_int_equal(buf.bytes, PUT_ALL_BYTES);
    assert_int_equal(buf.data[1], 0x03); /* little-endian */

    struct cur cur;
    char text[4] = "";
    cur_init(&cur, buf.bytes, buf.data);
    assert_int_equal(cur_u8(&cur), 0x01);
    assert_int_equal(cur_u16(&cur), 0x0203);
    assert_int_equal(cur_u32(&cur), 0x04050607);
    assert_true(cur_u64(&cur) == UINT64_C(0x08090a0b0c0d0e0f));
    cur_copy(&cur, 3, text);
    assert_string_equal(text, "abc");
    cur_zeros(&cur, 6);
    assert_int_equal(cur_left(&cur), 3);
    assert_int_equal(cur_finish(&cur), CAIRN_E_FORMAT); /* bytes are left over */
    assert_memory_equal(cur_bytes(&cur, 3), "n=7", 3);
    assert_int_equal(cur_finish(&cur), 0);
    buf_fini(&buf);
}

/* Every max below what is needed gives TOO_LARGE, and never more bytes than max. */
TEST(test_max_is_kept)
{
    for (size_t max = 0; max <= PUT_ALL_BYTES; max++) {
        struct buf buf;
        buf_init(&buf, max);
        put_all(&buf);
        assert_int_equal(buf_status(&buf), max < PUT_ALL_BYTES ? CAIRN_E_TOO_LARGE : 0);
        assert_true(buf.bytes <= max);
        size_t bytes = buf.bytes;
        buf_put_zero(&buf, 0);
        assert_int_equal(buf.bytes, bytes);
        buf_fini(&buf);
    }
}

TEST(test_growth_keeps_the_contents)
{
    struct buf buf;
    buf_init(&buf, 100000);
    for (uint32_t i = 0; i < 25000; i++) {
        buf_put_u32(&buf, i);
    }
    assert_int_equal(buf_status(&buf), 0);
    for (uint32_t i = 0; i < 25000; i++) {
        assert_int_equal(load_u32(buf.data + 4 * i), i);
    }
    buf_put_u8(&buf, 1);
    assert_int_equal(buf_status(&buf), CAIRN_E_TOO_LARGE);
    buf_reset(&buf);
    assert_int_equal(buf_status(&buf), 0);
    assert_int_equal(buf.bytes, 0);
    buf_fini(&buf);
}

TEST(test_failed_allocation_is_sticky)
{
    for (unsigned n = 1;; n++) {
        struct buf buf;
        buf_init(&buf, 100000);
        alloc_fault_at(n);
        for (uint32_t i = 0; i < 1000; i++) {
            buf_put_u64(&buf, i);
        }
        buf_printf(&buf, "%u", n);
        if (!alloc_fault_hit()) {
            assert_true(n > 2);
            assert_int_equal(buf_status(&buf), 0);
            buf_fini(&buf);
            break;
        }
        assert_int_equal(buf_status(&buf), CAIRN_E_NO_MEMORY);
        buf_fini(&buf);
    }
}

TEST(test_take_moves_the_bytes)
{
    struct buf buf;
    size_t bytes;
    buf_init(&buf, 16);
    buf_put(&buf, 5, "hello");
    uint8_t *data = buf_take(&buf, &bytes);
    assert_int_equal(bytes, 5);
    assert_memory_equal(data, "hello", 5);
    assert_null(buf.data);
    assert_int_equal(buf.bytes, 0);
    free(data);
    buf_fini(&buf);
    buf_fini(NULL);
}

static void patch_outside(void *user)
{
    struct buf *buf = user;
    buf_patch_u32(buf, 5, 0);
}

TEST(test_patch_stays_inside)
{
    struct buf buf;
    buf_init(&buf, 64);
    buf_put_zero(&buf, 8);
    buf_patch_u32(&buf, 4, 0xaabbccdd);
    assert_int_equal(load_u32(buf.data + 4), 0xaabbccdd);
    buf_patch_u64(&buf, 0, 5);
    assert_true(load_u64(buf.data) == 5);
    assert_true(check_breaks(patch_outside, &buf));
    buf_fini(&buf);
}

/* Reads that pass the end give zeros, and so does every later one. */
TEST(test_reader_fails_for_good)
{
    static const uint8_t data[] = {1, 2, 3, 4, 5, 6, 7};
    struct cur cur;
    uint8_t copy[8];
    cur_init(&cur, sizeof(data), data);
    assert_true(cur_u64(&cur) == 0);
    assert_int_equal(cur_u8(&cur), 0);
    assert_null(cur_bytes(&cur, 0));
    memset(copy, 0xff, sizeof(copy));
    cur_copy(&cur, sizeof(copy), copy);
    for (size_t i = 0; i < sizeof(copy); i++) {
        assert_int_equal(copy[i], 0);
    }
    cur_seek(&cur, 0);
    assert_int_equal(cur_left(&cur), 0);
    assert_int_equal(cur_finish(&cur), CAIRN_E_FORMAT);
}

TEST(test_reader_of_nothing)
{
    struct cur cur;
    cur_init(&cur, 0, NULL);
    assert_non_null(cur_bytes(&cur, 0));
    assert_int_equal(cur_finish(&cur), 0);
    assert_null(cur_bytes(&cur, SIZE_MAX));
    assert_int_equal(cur_finish(&cur), CAIRN_E_FORMAT);
}

TEST(test_padding_must_be_zero)
{
    for (size_t dirty = 0; dirty < 8; dirty++) {
        uint8_t data[8] = {0};
        struct cur cur;
        data[dirty] = 1;
        cur_init(&cur, sizeof(data), data);
        cur_zeros(&cur, sizeof(data));
        assert_int_equal(cur_finish(&cur), CAIRN_E_FORMAT);
    }
}

TEST(test_seek_is_bounded)
{
    static const uint8_t data[] = {1, 2, 3};
    struct cur cur;
    cur_init(&cur, sizeof(data), data);
    cur_seek(&cur, 2);
    assert_int_equal(cur_u8(&cur), 3);
    cur_seek(&cur, 3);
    assert_int_equal(cur_finish(&cur), 0);
    cur_seek(&cur, 4);
    assert_int_equal(cur_finish(&cur), CAIRN_E_FORMAT);
}
