/* SPDX-License-Identifier: Apache-2.0
 *
 * No damaged or foreign frame passes. Method: every bit of a frame flipped, every truncation,
 * limits.
 */
#include "sample.h"
#include "support/unit_test.h"
#include "wire/frame.h"

enum { MESSAGE_MAX = 1 << 20, PAYLOAD_MAX = 4 << 20 };

/* The whole check of a receiver; 0 only for an intact frame of exactly these bytes. */
static int check(size_t bytes, const uint8_t *data)
{
    struct frame frame;
    if (bytes < FRAME_HEADER_BYTES) {
        return CAIRN_E_ENDED;
    }
    int status = frame_decode(data, MESSAGE_MAX, PAYLOAD_MAX, &frame, NULL);
    if (status != 0) {
        return status;
    }
    if (bytes != (size_t)FRAME_HEADER_BYTES + frame.message_bytes) {
        return CAIRN_E_ENDED;
    }
    return frame_check(data, &frame, data + FRAME_HEADER_BYTES, NULL);
}

static void make(struct buf *buf)
{
    struct msg msg = {.type = MSG_WANT, .u.want = {.buffers = 300}};
    buf_init(buf, 4096);
    sample_frame(&msg, 0x01020304, 0x1122334455667788, 0, buf);
    assert_int_equal(buf_status(buf), 0);
}

TEST(test_header_has_the_documented_layout)
{
    struct buf buf;
    make(&buf);
    static const uint8_t EXPECTED[28] = {'C',  'R',  'N',  '1',  1,    0,    22,   0,
                                         4,    3,    2,    1,    3,    0,    0,    0,
                                         0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    assert_memory_equal(buf.data, EXPECTED, sizeof(EXPECTED));
    assert_int_equal(buf.bytes, 35);
    assert_int_equal(check(buf.bytes, buf.data), 0);
    buf_fini(&buf);
}

TEST(test_every_flipped_bit_is_detected)
{
    struct buf buf;
    make(&buf);
    for (size_t bit = 0; bit < buf.bytes * 8; bit++) {
        buf.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (check(buf.bytes, buf.data) == 0) {
            fail_msg("bit %zu flipped, and nobody saw it", bit);
        }
        buf.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(check(buf.bytes, buf.data), 0);
    buf_fini(&buf);
}

TEST(test_every_truncation_is_detected)
{
    struct buf buf;
    make(&buf);
    for (size_t bytes = 0; bytes < buf.bytes; bytes++) {
        assert_int_not_equal(check(bytes, buf.data), 0);
    }
    buf_fini(&buf);
}

TEST(test_lengths_above_the_limits_are_refused)
{
    struct frame frame = {.type = MSG_DATA,
                          .sequence = 1,
                          .message_bytes = 100,
                          .payload_bytes = 200},
                 ret;
    uint8_t header[FRAME_HEADER_BYTES], message[100] = {0};
    frame_encode(&frame, message, header);
    assert_int_equal(frame_decode(header, 100, 200, &ret, NULL), 0);
    assert_int_equal(frame_decode(header, 99, 200, &ret, NULL), CAIRN_E_TOO_LARGE);
    assert_int_equal(frame_decode(header, 100, 199, &ret, NULL), CAIRN_E_TOO_LARGE);
}

TEST(test_foreign_bytes_and_versions_have_their_own_error)
{
    struct frame ret;
    struct diag diag = DIAG_INIT;
    const char http[FRAME_HEADER_BYTES + 1] = "GET / HTTP/1.1\r\nHost: example..\r\n";
    assert_int_equal(frame_decode((const uint8_t *)http, 100, 100, &ret, &diag), CAIRN_E_PROTOCOL);
    assert_non_null(strstr(diag.text, "TLS"));
    struct buf buf;
    make(&buf);
    buf.data[4] = 2;
    assert_int_equal(frame_decode(buf.data, 100, 100, &ret, NULL), CAIRN_E_VERSION);
    buf_fini(&buf);
}
