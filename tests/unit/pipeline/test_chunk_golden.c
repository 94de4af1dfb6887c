/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored bytes that were ever written stay readable. Method: the files chunk_*.bin of
 * tests/golden/v1 are opened and compared with the plain bytes they were made of; those without a
 * zstd frame are also written again. A failure here means that old checkpoints break.
 */
#include "chunk_fixtures.h"

#include <stdio.h>

#include "pipeline/chunk.h"
#include "support/golden_file.h"
#include "support/unit_test.h"

static struct buf golden_bytes(const char *fixture)
{
    char name[256];
    snprintf(name, sizeof name, "%s.bin", fixture);
    return golden_read(CAIRN_GOLDEN, name);
}

TEST(golden_chunks_open_to_their_plain_bytes)
{
    for (size_t i = 0; i < chunk_fixture_count; i++) {
        const struct chunk_fixture *fixture = &chunk_fixtures[i];
        struct buf golden = golden_bytes(fixture->name);
        struct envelope envelope;
        struct diag diag = DIAG_INIT;
        uint8_t *plain = malloc(fixture->bytes), *back = malloc(fixture->bytes);
        assert_int_equal(envelope_decode(golden.data, &envelope, NULL), 0);
        assert_int_equal(envelope.encoding, fixture->encoding);
        assert_int_equal(envelope.element_bytes, fixture->element_bytes);
        assert_int_equal(envelope.plain_bytes, fixture->bytes);
        assert_int_equal(envelope.stored_bytes, golden.bytes - ENVELOPE_BYTES);
        int rc = chunk_open(&envelope, golden.data + ENVELOPE_BYTES, fixture->bytes, back, &diag);
        if (rc != 0) {
            fail_msg("%s: %s", fixture->name, diag_text(&diag, rc));
        }
        chunk_fixture_plain(fixture, plain);
        assert_memory_equal(back, plain, fixture->bytes);
        free(plain);
        free(back);
        buf_fini(&golden);
    }
}

TEST(chunks_without_frames_are_written_the_same)
{
    unsigned compared = 0;
    for (size_t i = 0; i < chunk_fixture_count; i++) {
        if (!chunk_fixtures[i].has_frame) {
            struct buf golden = golden_bytes(chunk_fixtures[i].name);
            struct buf now = chunk_fixture_bytes(&chunk_fixtures[i]);
            assert_int_equal(now.bytes, golden.bytes);
            assert_memory_equal(now.data, golden.data, golden.bytes);
            buf_fini(&golden);
            buf_fini(&now);
            compared++;
        }
    }
    assert_int_equal(compared, 2);
}

/* Goal: the example that FORMAT.md prints is the file. */
TEST(the_example_of_the_format_is_the_file)
{
    static const uint8_t example[] = {2, 0,    0, 0,    5, 0, 0,    0, 5,    0, 0, 0,
                                      1, 0xfe, 3, 0xfc, 5, 0, 0xff, 0, 0xff, 0, 7};
    struct buf golden = golden_bytes("chunk_planes_i16");
    assert_int_equal(golden.bytes, ENVELOPE_BYTES + sizeof example);
    assert_memory_equal(golden.data + ENVELOPE_BYTES, example, sizeof example);
    buf_fini(&golden);
}
