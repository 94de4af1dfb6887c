/* SPDX-License-Identifier: Apache-2.0
 *
 * What an older version sent is understood, and what it understood is still what we send. Method:
 * each frame of tests/golden/wire-v1 (NAME.bin) decodes to the fields that are stored beside it as
 * text (NAME.txt), and these are encoded to the same bytes. A failure here means that an old peer
 * breaks: see PROTOCOL.md 8 for what may change.
 */
#include <dirent.h>
#include <stdio.h>

#include "sample.h"
#include "support/golden_file.h"
#include "support/unit_test.h"
#include "wire/frame.h"

static void check_text(const struct msg *msg, const char *stem)
{
    char name[64];
    struct buf text;
    snprintf(name, sizeof(name), "%s.txt", stem);
    struct buf stored = golden_read(CAIRN_GOLDEN, name);
    buf_init(&text, MIB(1));
    sample_dump(msg, &text);
    assert_int_equal(buf_status(&text), 0);
    if (text.bytes != stored.bytes || memcmp(text.data, stored.data, text.bytes) != 0) {
        fail_msg("%s.bin has other fields than %s:\n%.*s", stem, name, (int)text.bytes,
                 (char *)text.data);
    }
    buf_fini(&text);
    buf_fini(&stored);
}

static void check_frame(uint32_t type, const char *stem)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.bin", stem);
    struct buf golden = golden_read(CAIRN_GOLDEN, name), now;
    struct scratch scratch;
    scratch_init(&scratch, MIB(4));
    struct msg msg;
    struct frame frame;
    assert_int_equal(
        frame_decode(golden.data, LIMIT_MESSAGE_BYTES, LIMIT_CHUNK_BYTES, &frame, NULL), 0);
    assert_int_equal(frame.type, type);
    assert_int_equal(frame.stream, 7);
    assert_int_equal(frame.sequence, type);
    assert_int_equal(FRAME_HEADER_BYTES + frame.message_bytes, golden.bytes);
    assert_int_equal(frame_check(golden.data, &frame, golden.data + FRAME_HEADER_BYTES, NULL), 0);
    assert_int_equal(msg_decode(type, frame.message_bytes, golden.data + FRAME_HEADER_BYTES,
                                &scratch, &msg, NULL),
                     0);
    assert_int_equal(msg_check_payload(&msg, frame.payload_bytes, NULL), 0);
    check_text(&msg, stem);
    buf_init(&now, MIB(1));
    sample_frame(&msg, 7, type, frame.payload_bytes, &now);
    if (now.bytes != golden.bytes || memcmp(now.data, golden.data, golden.bytes) != 0) {
        fail_msg("%s is sent in other bytes than before", stem);
    }
    buf_fini(&golden);
    buf_fini(&now);
    scratch_fini(&scratch);
}

/* The type that a golden frame is named for: "SEAL", "SEAL.grown2". */
static uint32_t type_of(const char *stem)
{
    size_t bytes = strcspn(stem, ".");
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        const char *name = msg_name(SAMPLE_TYPES[i]);
        if (strlen(name) == bytes && strncmp(name, stem, bytes) == 0) {
            return SAMPLE_TYPES[i];
        }
    }
    fail_msg("%s is no message", stem);
    return 0;
}

TEST(test_golden_frames_hold_both_ways)
{
    DIR *folder = opendir(CAIRN_GOLDEN);
    assert_non_null(folder);
    size_t frames = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char stem[64];
        size_t bytes = strlen(entry->d_name);
        if (entry->d_name[0] != '.') { /* its frame by its text, and its text by its frame */
            assert_in_range(bytes, 5, sizeof(stem) - 1);
            snprintf(stem, sizeof(stem), "%.*s", (int)bytes - 4, entry->d_name);
            check_frame(type_of(stem), stem);
            frames++;
        }
    }
    closedir(folder);
    assert_true(frames > SAMPLE_TYPE_COUNT);
}

TEST(test_every_message_has_a_golden_frame)
{
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        check_frame(SAMPLE_TYPES[i], msg_name(SAMPLE_TYPES[i]));
    }
}
