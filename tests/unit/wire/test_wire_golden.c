/* SPDX-License-Identifier: Apache-2.0
 *
 * What an older version sent is understood, and what it understood is still what we send. Method:
 * the frames of tests/golden/wire-v1 against the samples of the same seed, both ways. A failure
 * here means that an old peer breaks: see PROTOCOL.md 8 for what may change.
 */
#include "sample.h"
#include "support/golden_file.h"
#include "support/unit_test.h"
#include "wire/frame.h"

static void check_type(uint32_t type, unsigned grown)
{
    char name[64];
    sample_golden_name(type, grown, sizeof(name), name);
    struct buf golden = golden_read(CAIRN_GOLDEN, name);
    struct scratch scratch;
    scratch_init(&scratch, MIB(4));
    struct sample sample = {.state = type, .scratch = &scratch, .grown = grown};
    struct msg msg, decoded;
    uint32_t payload_bytes;
    sample_make(&sample, type, &msg, &payload_bytes);
    struct buf now, text, decoded_text;
    buf_init(&now, MIB(1));
    buf_init(&text, MIB(1));
    buf_init(&decoded_text, MIB(1));
    sample_frame(&msg, 7, type, payload_bytes, &now);
    if (now.bytes != golden.bytes || memcmp(now.data, golden.data, golden.bytes) != 0) {
        fail_msg("%s is sent in other bytes than before", msg_name(type));
    }
    struct frame frame;
    assert_int_equal(
        frame_decode(golden.data, LIMIT_MESSAGE_BYTES, LIMIT_CHUNK_BYTES, &frame, NULL), 0);
    assert_int_equal(frame.type, type);
    assert_int_equal(frame.stream, 7);
    assert_int_equal(frame.sequence, type);
    assert_int_equal(frame.payload_bytes, payload_bytes);
    assert_int_equal(FRAME_HEADER_BYTES + frame.message_bytes, golden.bytes);
    assert_int_equal(frame_check(golden.data, &frame, golden.data + FRAME_HEADER_BYTES, NULL), 0);
    assert_int_equal(msg_decode(type, frame.message_bytes, golden.data + FRAME_HEADER_BYTES,
                                &scratch, &decoded, NULL),
                     0);
    sample_dump(&msg, &text);
    sample_dump(&decoded, &decoded_text);
    assert_int_equal(text.bytes, decoded_text.bytes);
    assert_memory_equal(text.data, decoded_text.data, text.bytes);
    buf_fini(&golden);
    buf_fini(&now);
    buf_fini(&text);
    buf_fini(&decoded_text);
    scratch_fini(&scratch);
}

static void test_golden_frames_hold_both_ways(void **state)
{
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        for (unsigned grown = 0; grown <= sample_growths(SAMPLE_TYPES[i]); grown++) {
            check_type(SAMPLE_TYPES[i], grown);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden_frames_hold_both_ways),
};

UNIT_TEST_MAIN(tests)
