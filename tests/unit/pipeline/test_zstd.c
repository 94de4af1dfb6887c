/* SPDX-License-Identifier: Apache-2.0
 *
 * Data comes back exactly; frames that lie about their size, are cut, doubled, skippable or bombs
 * are refused.
 */
#include "pipeline/zstd_frame.h"

#include "chunk_fixtures.h"
#include "support/unit_test.h"

enum { BYTES = 20000, CAP = 40000 };

struct frame_of {
    uint8_t plain[BYTES], stored[CAP];
    size_t bytes;
};

static struct frame_of *encoded(void)
{
    struct frame_of *frame = calloc(1, sizeof *frame);
    for (size_t i = 0; i < BYTES; i++) {
        frame->plain[i] = (uint8_t)(i % 97 * (i / 997));
    }
    struct zstd_room room = {.cap = CAP, .data = frame->stored};
    assert_int_equal(chunk_fixture_zstd(3, BYTES, frame->plain, &room), 0);
    frame->bytes = room.bytes;
    return frame;
}

TEST(round_trip_is_exact)
{
    struct frame_of *frame = encoded();
    uint8_t *back = malloc(BYTES);
    assert_int_equal(zstd_decode(frame->bytes, frame->stored, BYTES, back, NULL), 0);
    assert_memory_equal(back, frame->plain, BYTES);
    free(back);
    free(frame);
}

TEST(other_lengths_are_refused)
{
    struct frame_of *frame = encoded();
    uint8_t *back = malloc(BYTES + 1);
    assert_int_equal(zstd_decode(frame->bytes, frame->stored, BYTES - 1, back, NULL),
                     CAIRN_E_FORMAT);
    assert_int_equal(zstd_decode(frame->bytes, frame->stored, BYTES + 1, back, NULL),
                     CAIRN_E_FORMAT);
    assert_int_equal(zstd_decode(0, frame->stored, BYTES, back, NULL), CAIRN_E_FORMAT);
    for (size_t cut = 1; cut < frame->bytes; cut += 7) {
        uint8_t *exact = malloc(cut); /* so that a read beyond is found */
        memcpy(exact, frame->stored, cut);
        assert_int_equal(zstd_decode(cut, exact, BYTES, back, NULL), CAIRN_E_FORMAT);
        free(exact);
    }
    memcpy(frame->stored + frame->bytes, frame->stored, 100);
    assert_int_equal(zstd_decode(frame->bytes + 100, frame->stored, BYTES, back, NULL),
                     CAIRN_E_FORMAT);
    free(back);
    free(frame);
}

/* Goal: a changed frame never decodes to other bytes. Method: flip a bit of each byte; the frame
 * has its own checksum. */
TEST(changed_frames_are_refused)
{
    struct frame_of *frame = encoded();
    uint8_t *back = malloc(BYTES);
    for (size_t i = 0; i < frame->bytes; i++) {
        frame->stored[i] ^= 4;
        if (zstd_decode(frame->bytes, frame->stored, BYTES, back, NULL) == 0) {
            assert_memory_equal(back, frame->plain, BYTES);
        }
        frame->stored[i] ^= 4;
    }
    free(back);
    free(frame);
}

/* Goal: a frame far above the ratio is not opened. That none is made: zeros_keep_to_the_ratio. */
TEST(bombs_are_not_opened)
{
    enum { ZEROS = 4 << 20 };
    uint8_t *zeros = calloc(1, ZEROS), *stored = malloc(ZEROS);
    struct zstd_room room = {.cap = ZEROS, .data = stored};
    assert_int_equal(chunk_fixture_zstd(3, ZEROS, zeros, &room), 0);
    assert_true(room.bytes < zstd_stored_bytes_min(ZEROS));
    assert_int_equal(zstd_decode(room.bytes, stored, ZEROS, zeros, NULL), CAIRN_E_FORMAT);
    free(zeros);
    free(stored);
}

TEST(skippable_frames_are_refused)
{
    uint8_t skippable[16] = {0x50, 0x2a, 0x4d, 0x18, 8}, plain[16];
    assert_int_equal(zstd_decode(sizeof skippable, skippable, 8, plain, NULL), CAIRN_E_FORMAT);
}

TEST(what_does_not_fit_is_told)
{
    uint8_t plain[1000], stored[1000];
    struct zstd_room room = {.cap = 20, .data = stored};
    for (size_t i = 0; i < sizeof plain; i++) {
        plain[i] = (uint8_t)(i * i * 31 + i * 17 / 3);
    }
    assert_int_equal(chunk_fixture_zstd(3, sizeof plain, plain, &room), CAIRN_E_TOO_LARGE);
}
