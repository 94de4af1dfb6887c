/* SPDX-License-Identifier: Apache-2.0
 *
 * A damaged file of a record is replaced by a copy only where the files around it prove the copy:
 * each damaged or missing update and snapshot by its own bytes, never by bytes of a history that
 * went another way, and never where nothing speaks for them.
 *
 *     test_store_mend DIRECTORY
 */
#include "store_files.h"

#include "base/check.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void slurp(struct bed *bed, const struct record_file *which, struct store_file *ret)
{
    char name[64];
    snprintf(name, sizeof(name), "runs/p/r/record/%016llx.%s", (unsigned long long)which->version,
             which->is_snapshot ? "snapshot" : "update");
    files_read(bed, name, ret);
}

/* With that the second places go, which would put it right by themselves. */
static void spill(const struct store_file *file, size_t flipped)
{
    char copies[FILES_PATH_BYTES];
    struct store_file changed = *file;
    memcpy(copies, file->path, sizeof(copies));
    char *runs = strstr(copies, "/runs/");
    assert_non_null(runs);
    memcpy(runs, "/copy", sizeof("/copy"));
    (void)bed_remove(copies); /* if it is there */
    if (flipped < changed.bytes) {
        changed.data[flipped] ^= 1;
    }
    files_write(file->path, changed.bytes, changed.data);
}

static void setup(struct bed *bed) { files_fill(bed, 11); } /* snapshots at 4 and 8 */

#define FILLED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

/* Another store, whose update `other` sets another value; closed. */
static void fill_fork(struct bed *fork, unsigned snapshot_every, unsigned other)
{
    bed_init(fork, BED_DIR, unit_test_argument(1), 2);
    fork->snapshot_every = snapshot_every;
    bed_open_ok(fork);
    for (unsigned i = 1; i <= 11; i++) {
        bed_number(fork, "key", i == other ? 100 * i : i);
    }
    bed_close(fork);
}

static int mend(struct bed *bed, const struct record_file *which, struct store_file *copy)
{
    struct store_req req = {.op = STORE_RECORD_MEND,
                            .run = bed_run(),
                            .file = *which,
                            .bytes = copy ? copy->bytes : 0,
                            .data = copy ? copy->data : NULL};
    return bed_do(bed, &req);
}

/* Is this among those with which the record could be read on? */
static bool is_asked_for(struct bed *bed, const struct record_file *which)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = bed_run(), .from_medium = true};
    bool found = false;
    int status = bed_do(bed, &req);
    record_free(req.ret_record);
    for (size_t i = 0; status != 0 && i < STORE_RECORD_FILES_MAX; i++) {
        found = found || (req.ret_files[i].version == which->version &&
                          req.ret_files[i].is_snapshot == which->is_snapshot);
    }
    assert_true(status == 0 || req.ret_version == 11);
    return found;
}

static const struct record_file nine = {.version = 9}, ten = {.version = 10},
                                last = {.version = 11, .is_last = true},
                                newer = {.version = 8, .is_snapshot = true},
                                older = {.version = 4, .is_snapshot = true};

/* Goal: every damaged byte of an update, and its absence, is put right by the copy; another one's
 * bytes, cut ones and damaged ones are refused; what is whole is not touched. */
TEST(updates)
{
    static const struct record_file *const files[] = {&nine, &ten, &last};
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        struct bed bed;
        struct store_file good, other;
        setup(&bed);
        slurp(&bed, files[f], &good);
        slurp(&bed, files[(f + 1) % 3], &other);
        bed_open_ok(&bed);
        assert_int_equal(mend(&bed, files[f], &good), CAIRN_E_CONFLICT); /* it is whole */
        bed_close(&bed);
        for (size_t at = 0; at < good.bytes; at += 7) {
            spill(&good, at);
            bed_open_ok(&bed);
            assert_true(is_asked_for(&bed, files[f]));
            struct store_file bad = good;
            bad.data[at] ^= 2;
            assert_int_not_equal(mend(&bed, files[f], &bad), 0);
            assert_int_not_equal(mend(&bed, files[f], &other), 0);
            assert_true(is_asked_for(&bed, files[f]));
            assert_int_equal(mend(&bed, files[f], &good), 0);
            assert_int_equal(bed_version(&bed), 11);
            assert_true(bed_has(&bed, "key", "11"));
            bed_close(&bed);
        }
        if (files[f] != &last) { /* of a last one that is missing nobody knows */
            spill(&good, SIZE_MAX);
            assert_int_equal(unlink(good.path), 0);
            bed_open_ok(&bed);
            assert_true(is_asked_for(&bed, files[f]));
            assert_int_equal(mend(&bed, files[f], &good), 0);
            assert_int_equal(bed_version(&bed), 11);
        }
        bed_fini(&bed);
    }
}

/* Goal: the last update has only the one before it as a witness: it is taken when the caller
 * answers for it, and not without; nor is one that follows another history. */
TEST(the_last_update)
{
    struct bed bed, fork;
    struct store_file good, forked;
    struct record_file unanswered = {.version = 11};
    setup(&bed);
    slurp(&bed, &last, &good);
    setup(&fork);
    bed_open_ok(&fork);
    bed_number(&fork, "key", 99);
    bed_close(&fork);
    struct record_file twelve = {.version = 12};
    slurp(&fork, &twelve, &forked);
    spill(&good, 50);
    bed_open_ok(&bed);
    assert_int_equal(mend(&bed, &unanswered, &good), CAIRN_E_NOT_FOUND);
    assert_int_equal(mend(&bed, &last, &forked), CAIRN_E_DAMAGED); /* it holds version 12 */
    assert_int_equal(mend(&bed, &last, &good), 0);
    assert_int_equal(bed_version(&bed), 11);
    bed_fini(&bed);
    bed_fini(&fork);
}

/* Goal: a history that went another way gives no copies. */
TEST(another_history)
{
    struct bed bed, fork;
    struct store_file good, forked;
    setup(&bed);
    fill_fork(&fork, 0, 9);
    slurp(&bed, &ten, &good);
    slurp(&fork, &ten, &forked); /* the same change, after another update 9 */
    spill(&good, 50);
    bed_open_ok(&bed);
    assert_int_equal(mend(&bed, &ten, &forked), CAIRN_E_CONFLICT);
    bed_close(&bed);
    spill(&good, SIZE_MAX);
    slurp(&bed, &last, &good);
    slurp(&fork, &last, &forked);
    spill(&good, 50);
    bed_open_ok(&bed);
    assert_int_equal(mend(&bed, &last, &forked), CAIRN_E_CONFLICT);
    assert_true(is_asked_for(&bed, &last));
    bed_fini(&bed);
    bed_fini(&fork);
}

/* Goal: what the store has read of the record speaks for the last update, before any copy. */
TEST(a_last_update_that_was_read)
{
    struct bed bed, fork;
    struct store_file good, forked;
    setup(&bed);
    slurp(&bed, &last, &good);
    fill_fork(&fork, 4, 11); /* it follows what is here */
    slurp(&fork, &last, &forked);
    bed_open_ok(&bed);
    assert_int_equal(bed_version(&bed), 11); /* reads it */
    spill(&good, 50);
    assert_int_equal(mend(&bed, &last, &forked), CAIRN_E_CONFLICT);
    assert_int_equal(mend(&bed, &last, &good), 0);
    bed_number(&bed, "key", 12);
    bed_reopen(&bed);
    assert_int_equal(bed_version(&bed), 12);
    bed_fini(&bed);
    bed_fini(&fork);
}

/* Goal: of two neighbours the later one is proven first, and then proves the other. */
FILLED_TEST(neighbours)
{
    struct store_file first, second;
    slurp(bed, &nine, &first);
    slurp(bed, &ten, &second);
    spill(&first, 50);
    spill(&second, 50);
    bed_open_ok(bed);
    assert_int_equal(mend(bed, &nine, &first), CAIRN_E_NOT_FOUND);
    assert_int_equal(mend(bed, &ten, &second), 0);
    assert_int_equal(mend(bed, &nine, &first), 0);
    assert_int_equal(bed_version(bed), 11);
}

/* Goal: with both snapshots damaged either is asked for, and either will do. */
TEST(snapshots)
{
    static const struct record_file *const files[] = {&newer, &older};
    for (size_t f = 0; f < 2; f++) {
        struct bed bed;
        struct store_file both[2];
        setup(&bed);
        for (size_t i = 0; i < 2; i++) {
            slurp(&bed, files[i], &both[i]);
            spill(&both[i], 50);
        }
        bed_open_ok(&bed);
        assert_true(is_asked_for(&bed, &newer));
        assert_true(is_asked_for(&bed, &older));
        assert_int_equal(mend(&bed, files[f], &both[1 - f]), CAIRN_E_DAMAGED);
        assert_int_equal(mend(&bed, files[f], &both[f]), 0);
        assert_int_equal(bed_version(&bed), 11);
        bed_fini(&bed);
    }
}

/* Goal: a store that has read the record writes what it holds, and the damage is covered. */
FILLED_TEST(from_memory)
{
    struct store_file good;
    slurp(bed, &ten, &good);
    bed_open_ok(bed);
    assert_int_equal(mend(bed, &ten, NULL), 0); /* nothing is wrong with it */
    assert_int_equal(bed_version(bed), 11);     /* reads it */
    spill(&good, 50);
    assert_true(is_asked_for(bed, &ten));
    assert_int_equal(mend(bed, &ten, NULL), 0);
    assert_false(is_asked_for(bed, &ten));
    bed_reopen(bed);
    assert_int_equal(bed_version(bed), 11);
    bed_number(bed, "key", 12);
    assert_int_equal(bed_version(bed), 12);
}

/* Goal: a record as a whole takes the place of none. */
FILLED_TEST(a_whole_record)
{
    static const struct record_file whole = {.version = 8, .is_snapshot = true, .is_last = true};
    struct store_file good;
    slurp(bed, &newer, &good);
    bed_open_ok(bed);
    assert_int_equal(mend(bed, &whole, &good), CAIRN_E_CONFLICT);
    bed_close(bed);
}
