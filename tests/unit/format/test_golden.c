/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that were ever written stay readable, and the same struct gives the same bytes. Method: the
 * files of tests/golden/v1 against the fixtures, both ways. A failure here means that old
 * checkpoints break: raise the format's version instead of changing a file.
 */
#include <stdio.h>

#include "fixtures.h"
#include "support/golden_file.h"
#include "support/unit_test.h"

static struct buf golden_bytes(const char *fixture)
{
    char name[256];
    snprintf(name, sizeof name, "%s.bin", fixture);
    return golden_read(CAIRN_GOLDEN, name);
}

static void assert_same(const char *name, const struct buf *a, const struct buf *b)
{
    if (a->bytes != b->bytes) {
        fail_msg("%s: %zu bytes, not %zu", name, a->bytes, b->bytes);
    }
    for (size_t i = 0; i < a->bytes; i++) {
        if (a->data[i] != b->data[i]) {
            fail_msg("%s: byte %zu is %02x, not %02x", name, i, a->data[i], b->data[i]);
        }
    }
}

TEST(test_fixtures_encode_to_the_golden_files)
{
    for (size_t i = 0; i < fixture_count; i++) {
        struct buf golden = golden_bytes(fixtures[i].name), now = fixture_bytes(&fixtures[i]);
        assert_same(fixtures[i].name, &now, &golden);
        buf_fini(&golden);
        buf_fini(&now);
    }
}

TEST(test_golden_files_decode_and_encode_to_themselves)
{
    for (size_t i = 0; i < fixture_count; i++) {
        struct buf golden = golden_bytes(fixtures[i].name), again;
        struct scratch scratch;
        struct diag diag = DIAG_INIT;
        buf_init(&again, MIB(8));
        scratch_init(&scratch, MIB(8));
        int rc = fixtures[i].recode(golden.bytes, golden.data, &scratch, &again, &diag);
        if (rc != 0) {
            fail_msg("%s: %s", fixtures[i].name, diag_text(&diag, rc));
        }
        assert_same(fixtures[i].name, &again, &golden);
        scratch_fini(&scratch);
        buf_fini(&again);
        buf_fini(&golden);
    }
}
