/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry of a scrub is read as it was written, and every cut and every changed byte is refused
 * or means what it says. Method: the golden file both ways.
 */
#include "scrub/entry_scrub.h"

#include "base/buf.h"
#include "support/golden_file.h"
#include "support/unit_test.h"

static const struct entry_scrub entry = {.pass = 2,
                                         .state = SCRUB_RUNNING,
                                         .begun_wall_ns = 80,
                                         .ended_wall_ns = 70,
                                         .run = {"lab", "gpt"},
                                         .seq = 9,
                                         .rank = 1,
                                         .objects = 3,
                                         .found = 1,
                                         .bytes = 81,
                                         .ckpts = 82,
                                         .findings = 83};

TEST(test_golden)
{
    struct buf golden = golden_read(CAIRN_GOLDEN, "entry_scrub.bin"), buf;
    buf_init(&buf, 4096);
    entry_scrub_encode(&entry, &buf);
    assert_int_equal(buf_status(&buf), 0);
    assert_int_equal(buf.bytes, golden.bytes);
    assert_memory_equal(buf.data, golden.data, golden.bytes);
    struct entry_scrub read;
    struct record_value value = {golden.bytes, golden.data};
    assert_int_equal(entry_scrub_decode(value, &read, NULL), 0);
    assert_string_equal(read.run.run, "gpt");
    assert_int_equal(read.seq, 9);
    assert_int_equal(read.findings, 83);
    buf_fini(&golden);
    buf_fini(&buf);
}

TEST(test_damage)
{
    struct entry_scrub read;
    struct buf buf, again;
    buf_init(&buf, 4096);
    buf_init(&again, 4096);
    entry_scrub_encode(&entry, &buf);
    for (size_t bytes = 0; bytes < buf.bytes; bytes++) {
        struct record_value value = {bytes, buf.data};
        assert_int_equal(entry_scrub_decode(value, &read, NULL), CAIRN_E_FORMAT);
    }
    for (size_t i = 0; i < buf.bytes * 256; i++) {
        uint8_t was = buf.data[i / 256];
        buf.data[i / 256] = (uint8_t)i;
        struct record_value value = {buf.bytes, buf.data};
        if (entry_scrub_decode(value, &read, NULL) == 0) {
            buf_reset(&again);
            entry_scrub_encode(&read, &again);
            assert_int_equal(again.bytes, buf.bytes);
            assert_memory_equal(again.data, buf.data, buf.bytes);
        }
        buf.data[i / 256] = was;
    }
    buf_fini(&buf);
    buf_fini(&again);
}
