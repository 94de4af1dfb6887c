/* SPDX-License-Identifier: Apache-2.0
 *
 * A record whose files are damaged or missing, and whose second place is missing too or older, is
 * never cut off silently, and what a snapshot covers is healed and noted (D11 to D18, L15, L16).
 * Method: every byte flipped, every length cut, every file removed. With both places:
 * test_store_places.c.
 *
 *     test_store_damage DIRECTORY
 */
#include "store_files.h"

#include "base/check.h"
#include "format/record.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void slurp(struct bed *bed, const char *name, struct store_file *ret)
{
    char path[FILES_PATH_BYTES];
    snprintf(path, sizeof(path), "runs/p/r/record/%s", name);
    files_read(bed, path, ret);
}

static void spill(const struct store_file *file, const uint8_t *data, size_t bytes)
{
    files_write(file->path, bytes, data);
}

/* A store with `updates` updates of p/r, and without copies. */
static void fill(struct bed *bed, unsigned updates)
{
    char path[FILES_PATH_BYTES];
    files_fill(bed, updates);
    files_path(bed, "copy", path);
    assert_true(bed_remove(path));
}

static void setup(struct bed *bed) { fill(bed, 11); } /* snapshots at 4 and 8 */

#define FILLED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

static void open_read_only(struct bed *bed)
{
    struct diag diag = DIAG_INIT;
    assert_int_equal(bed_open(bed, false, true, &diag), 0);
}

/* DAMAGED, and the file's name in the text. */
static void expect_damaged(struct bed *bed, const char *name)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = bed_run()};
    assert_int_equal(bed_do(bed, &req), CAIRN_E_DAMAGED);
    if (strstr(req.diag.text, name) == NULL) {
        fail_msg("\"%s\" does not name %s", req.diag.text, name);
    }
}

static void every_flip_and_cut(struct bed *bed, const char *name,
                               void (*expect)(struct bed *, const char *))
{
    struct store_file file;
    uint8_t changed[FILES_BYTES_MAX];
    slurp(bed, name, &file);
    for (size_t i = 0; i < file.bytes; i++) {
        memcpy(changed, file.data, file.bytes);
        changed[i] ^= (uint8_t)(1u << i % 8);
        spill(&file, changed, file.bytes);
        expect(bed, name);
        spill(&file, file.data, i); /* cut to i bytes */
        expect(bed, name);
    }
    memcpy(changed, file.data, file.bytes);
    changed[file.bytes] = 0;
    spill(&file, changed, file.bytes + 1); /* one byte too many */
    expect(bed, name);
    spill(&file, file.data, file.bytes);
}

static void expect_version_11(struct bed *bed, const char *name)
{
    assert_int_equal(bed_version(bed), 11);
    assert_true(bed_has(bed, "key", "11"));
}

/* Goal: the newest update and one in the middle: damage is never taken for a torn tail. */
FILLED_TEST(every_byte_of_an_update)
{
    open_read_only(bed);
    every_flip_and_cut(bed, "000000000000000b.update", expect_damaged);
    every_flip_and_cut(bed, "0000000000000009.update", expect_damaged);
    expect_version_11(bed, "");
}

/* Goal: a damaged newest snapshot costs nothing: the older one and the updates since carry the
 * record. */
FILLED_TEST(every_byte_of_a_snapshot)
{
    open_read_only(bed);
    every_flip_and_cut(bed, "0000000000000008.snapshot", expect_version_11);
}

FILLED_TEST(a_missing_update_is_named)
{
    struct store_file file;
    slurp(bed, "000000000000000a.update", &file);
    assert_int_equal(unlink(file.path), 0);
    bed_open_ok(bed);
    expect_damaged(bed, "000000000000000a.update");
    bed_close(bed);
    spill(&file, file.data, file.bytes);
    bed_open_ok(bed);
    expect_version_11(bed, "");
}

/* Goal (D15, D16): a file with another's content, or an old one's, is whole and yet refused. */
FILLED_TEST(a_misplaced_update_is_refused)
{
    struct store_file nine, ten;
    slurp(bed, "0000000000000009.update", &nine);
    slurp(bed, "000000000000000a.update", &ten);
    spill(&ten, nine.data, nine.bytes);
    bed_open_ok(bed);
    expect_damaged(bed, "000000000000000a.update");
    bed_close(bed);
    /* A proper update of the right number that does not follow the one before it. */
    const uint8_t previous[32] = {1};
    struct record_change change = {"key", false, {2, (const uint8_t *)"10"}};
    struct record_update update = {0, 1, NULL, &change};
    struct buf buf;
    buf_init(&buf, 4096);
    record_update_encode(&update, 10, previous, &buf);
    assert_int_equal(buf_status(&buf), 0);
    spill(&ten, buf.data, buf.bytes);
    buf_fini(&buf);
    bed_open_ok(bed);
    expect_damaged(bed, "000000000000000a.update");
}

static void expect_note(struct bed *bed, const char *what)
{
    struct store_req req = {.op = STORE_USAGE};
    assert_int_equal(bed_do(bed, &req), 0);
    if (strstr(req.ret_usage.detail, what) == NULL) {
        fail_msg("\"%s\" does not speak of %s", req.ret_usage.detail, what);
    }
}

/* Goal: covered damage goes to quarantine and is noted; the record goes on, also past the next
 * snapshots. */
TEST(covered_damage_is_quarantined)
{
    static const char *const names[] = {"0000000000000008.snapshot", "0000000000000004.snapshot",
                                        "0000000000000006.update"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct bed bed;
        struct store_file file;
        char moved[128];
        fill(&bed, 11);
        slurp(&bed, names[i], &file);
        file.data[40] ^= 1;
        spill(&file, file.data, file.bytes);
        bed_open_ok(&bed);
        expect_version_11(&bed, "");
        expect_note(&bed, "damage that the second copy covers");
        snprintf(moved, sizeof(moved), "quarantine/runs+p+r+record+%s", names[i]);
        assert_true(files_has(&bed, moved));
        for (unsigned v = 12; v <= 30; v++) {
            bed_number(&bed, "key", v);
            if (v % 3 == 0) {
                bed_reopen(&bed);
            }
        }
        assert_int_equal(bed_version(&bed), 30);
        assert_true(files_has(&bed, moved));
        bed_fini(&bed);
    }
}

/* Goal: without a snapshot that covers it, damage stops the record and moves nothing. */
FILLED_TEST(uncovered_damage_stays_in_place)
{
    struct store_file newer, older;
    slurp(bed, "0000000000000008.snapshot", &newer);
    slurp(bed, "0000000000000004.snapshot", &older);
    newer.data[40] ^= 1;
    older.data[40] ^= 1;
    spill(&newer, newer.data, newer.bytes);
    spill(&older, older.data, older.bytes);
    bed_open_ok(bed);
    expect_damaged(bed, "0000000000000001.update");
    assert_int_equal(bed_set(bed, "key", "12"), CAIRN_E_DAMAGED);
    bed_close(bed);
    assert_true(files_has(bed, "runs/p/r/record/0000000000000008.snapshot"));
    newer.data[40] ^= 1;
    spill(&newer, newer.data, newer.bytes);
    bed_open_ok(bed);
    expect_version_11(bed, "");
}

/* Goal: two snapshots and the updates since the older one stay, no more. */
TEST(old_updates_are_compacted)
{
    struct bed bed;
    fill(&bed, 23); /* snapshots at 16 and 20 */
    assert_false(files_has(&bed, "runs/p/r/record/000000000000000c.snapshot"));
    assert_true(files_has(&bed, "runs/p/r/record/0000000000000010.snapshot"));
    assert_true(files_has(&bed, "runs/p/r/record/0000000000000014.snapshot"));
    assert_false(files_has(&bed, "runs/p/r/record/0000000000000010.update"));
    assert_true(files_has(&bed, "runs/p/r/record/0000000000000011.update"));
    assert_true(files_has(&bed, "runs/p/r/record/0000000000000017.update"));
    bed_fini(&bed);
}
