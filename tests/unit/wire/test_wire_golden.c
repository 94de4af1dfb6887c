/* SPDX-License-Identifier: Apache-2.0
 *
 * What an older version sent is understood, and what it understood is still what we send. Method:
 * each frame of tests/golden/wire-v1 (NAME.bin) decodes to the fields that are stored beside it as
 * text (NAME.txt), and these are encoded to the same bytes. A failure here means that an old peer
 * breaks: see PROTOCOL.md 8 for what may change.
 */
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

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

/* Returns the texts of all golden frames of the type, with a NUL at the end. */
static struct buf golden_texts(uint32_t type)
{
    struct buf texts;
    buf_init(&texts, MIB(1));
    for (unsigned grown = 0;; grown++) {
        char stem[60], name[64], path[4096];
        sample_golden_name(type, grown, sizeof(stem), stem);
        snprintf(name, sizeof(name), "%s.txt", stem);
        snprintf(path, sizeof(path), "%s/%s", CAIRN_GOLDEN, name);
        if (access(path, F_OK) != 0) {
            break;
        }
        struct buf text = golden_read(CAIRN_GOLDEN, name);
        buf_put(&texts, text.bytes, text.data);
        buf_fini(&text);
    }
    buf_put_u8(&texts, 0);
    assert_int_equal(buf_status(&texts), 0);
    return texts;
}

TEST(test_every_message_has_a_golden_frame)
{
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        check_frame(SAMPLE_TYPES[i], msg_name(SAMPLE_TYPES[i]));
    }
}

/* Fails unless each field of the text stands in one of the golden texts as well. */
static void check_fields(const struct buf *text, const struct buf *golden, uint32_t type)
{
    const char *line = (const char *)text->data, *next;
    for (; (next = strchr(line, '\n')) != NULL; line = next + 1) {
        char field[80];
        size_t bytes = strcspn(line, "=\n");
        if (line[bytes] == '=') {
            snprintf(field, sizeof(field), "\n%.*s=", (int)bytes, line);
            if (strstr((const char *)golden->data, field) == NULL) {
                fail_msg("no golden frame has the field %.*s of %s: make_golden_wire "
                         "tests/golden/wire-v1 %s",
                         (int)bytes, line, msg_name(type), msg_name(type));
            }
        }
    }
}

/* Goal: a message that grows gets a frame that holds the new field. Method: samples, in which each
 * field is drawn sooner or later. */
TEST(test_every_field_is_in_a_golden_frame)
{
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        struct buf golden = golden_texts(SAMPLE_TYPES[i]);
        for (uint64_t seed = 1; seed <= 32; seed++) {
            struct scratch scratch;
            struct buf text;
            struct msg msg;
            uint32_t payload_bytes;
            scratch_init(&scratch, MIB(4));
            buf_init(&text, MIB(1));
            struct sample sample = {.state = seed, .scratch = &scratch};
            sample_make(&sample, SAMPLE_TYPES[i], &msg, &payload_bytes);
            sample_dump(&msg, &text);
            buf_put_u8(&text, 0);
            assert_int_equal(buf_status(&text), 0);
            check_fields(&text, &golden, SAMPLE_TYPES[i]);
            buf_fini(&text);
            scratch_fini(&scratch);
        }
        buf_fini(&golden);
    }
}
