/* SPDX-License-Identifier: Apache-2.0
 *
 * A record lies in two places, and a fault of the medium that hits one of them costs nothing (I1):
 * every file and every folder of both, for a run's record and for the store's, is flipped, cut,
 * emptied, removed, replaced or made unreadable, one at a time. Afterwards the record is whole, for
 * who only looks and for a daemon; every file is read, so what is not needed at present is told of
 * as well; and the store has made it good.
 *
 *     test_store_places DIRECTORY
 */
#include "store_files.h"

#include "base/check.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { UPDATES = 11, NAMES_MAX = 128, ROOM = 768 };

/* --- a vfs that does not read what it is told to ---------------------------------------------- */

static ino_t unreadable, above; /* 0: none. `above` is a folder */

static struct vfs_ops sick_ops;
static struct vfs sick = {.ops = &sick_ops};

static int sick_stat(struct vfs *vfs, vfs_fd dir, const char *name, struct vfs_stat *ret,
                     struct diag *diag)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
                   st.st_ino == unreadable
               ? diag_set(diag, CAIRN_E_IO, "%s: Input/output error", name)
               : vfs_posix()->ops->stat(vfs_posix(), dir, name, ret, diag);
}

static int sick_list(struct vfs *vfs, vfs_fd dir,
                     int (*each)(void *user, const char *name, enum vfs_kind kind), void *user,
                     struct diag *diag)
{
    struct stat st;
    return fstat(dir, &st) == 0 && (st.st_ino == unreadable || st.st_ino == above)
               ? diag_set(diag, CAIRN_E_IO, "list a folder: Input/output error")
               : vfs_posix()->ops->list(vfs_posix(), dir, each, user, diag);
}

/* --- a store and its files -------------------------------------------------------------------- */

static struct bed model; /* what each case begins with */

static void begin(struct bed *bed)
{
    bed_init(bed, BED_DIR, unit_test_argument(1), 1);
    bed->snapshot_every = 4;
    sick_ops = *vfs_posix()->ops;
    sick_ops.stat = sick_stat;
    sick_ops.list = sick_list;
    bed->vfs = &sick;
    unreadable = above = 0;
}

/* p/r with eleven updates, snapshots at 4 and 8 and a copy; closed. */
static int fill_model(void **state)
{
    struct bed *bed = &model;
    begin(bed);
    bed_open_ok(bed);
    for (unsigned i = 1; i <= UPDATES; i++) {
        bed_number(bed, "key", i);
    }
    bed_reopen(bed); /* the store's record has a second copy by now */
    assert_int_equal(bed_version(bed), UPDATES);
    bed_close(bed);
    return 0;
}

static int end_model(void **state)
{
    bed_fini(&model);
    return 0;
}

static char copy_to[ROOM];

static int copy_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    char to[2 * ROOM];
    uint8_t data[8192];
    snprintf(to, sizeof(to), "%s%s", copy_to, path + strlen(model.path));
    if (flag == FTW_D) {
        assert_true(path[strlen(model.path)] == 0 || mkdir(to, 0700) == 0);
        return 0;
    }
    FILE *in = fopen(path, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    size_t bytes = fread(data, 1, sizeof(data), in);
    assert_true(bytes == (size_t)st->st_size && fwrite(data, 1, bytes, out) == bytes);
    fclose(in);
    fclose(out);
    return 0;
}

static void fill(struct bed *bed)
{
    begin(bed);
    snprintf(copy_to, sizeof(copy_to), "%s", bed->path);
    assert_int_equal(nftw(model.path, copy_one, 16, FTW_PHYS), 0);
}

#define FILLED_TEST(name) FIXTURE_TEST(name, fill, bed_fini, struct bed, bed)

static struct {
    size_t root_bytes, count;
    char paths[NAMES_MAX][ROOM];
    bool are_folders[NAMES_MAX];
} seen;

static int note_name(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    const char *name = path + seen.root_bytes;
    bool is_folder = flag == FTW_D || flag == FTW_DP;
    bool is_record = strncmp(name, "/store", 6) == 0 ||
                     strncmp(name, "/runs/p/r/record", 16) == 0 || strncmp(name, "/copy", 5) == 0;
    if (is_record) {
        assert_true(seen.count < NAMES_MAX);
        seen.are_folders[seen.count] = is_folder;
        snprintf(seen.paths[seen.count++], ROOM, "%s", name);
    }
    return 0;
}

static void list_names(struct bed *bed)
{
    seen.count = 0;
    seen.root_bytes = strlen(bed->path);
    assert_int_equal(nftw(bed->path, note_name, 16, FTW_PHYS), 0);
    assert_true(seen.count > 15);
}

/* --- the faults ------------------------------------------------------------------------------- */

static bool change_bytes(const char *path, size_t flipped, size_t cut_to)
{
    struct store_file file;
    files_read_path(path, &file);
    if (flipped < file.bytes) {
        file.data[flipped] ^= 4;
    }
    if (flipped < file.bytes || cut_to < file.bytes) {
        files_write(path, cut_to < file.bytes ? cut_to : file.bytes, file.data);
        return true;
    }
    return false;
}

enum fault { FLIP, CUT, EMPTY, REMOVE, REPLACE, UNREADABLE, FAULTS };

/* False where that cannot be done to it. */
static bool hit(const char *path, bool is_folder, enum fault fault)
{
    struct stat st;
    switch (fault) {
    case FLIP:
        return !is_folder && change_bytes(path, 37, SIZE_MAX);
    case CUT:
        return !is_folder && change_bytes(path, SIZE_MAX, 41);
    case EMPTY:
        if (is_folder) {
            (void)bed_remove(path);
            return mkdir(path, 0700) == 0;
        }
        return change_bytes(path, SIZE_MAX, 0);
    case REMOVE:
        return bed_remove(path);
    case REPLACE:
        (void)bed_remove(path);
        files_write(path, 0, "");
        return is_folder;
    case UNREADABLE:
        assert_int_equal(stat(path, &st), 0);
        unreadable = st.st_ino;
        return true;
    case FAULTS:
        break;
    }
    return false;
}

/* --- what is promised ------------------------------------------------------------------------- */

static void expect_whole(struct bed *bed, const char *what, const char *name)
{
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run()};
    int rc = bed_do(bed, &get);
    if (rc != 0 || record_version(get.ret_record) != UPDATES || get.ret_lost_from != 0) {
        fail_msg("%s of %s: %s", what, name, rc ? diag_text(&get.diag, rc) : "another record");
    }
    struct record_value value;
    assert_true(record_get(get.ret_record, "key", &value));
    assert_memory_equal(value.data, "11", 2);
    record_free(get.ret_record);
}

/* How many damaged files of the record of this run from_medium tells of. */
static size_t told(struct bed *bed)
{
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run(), .from_medium = true};
    assert_int_equal(bed_do(bed, &get), 0);
    record_free(get.ret_record);
    assert_true((get.ret_file_count > 0) == (get.diag.code != 0));
    return get.ret_file_count;
}

/* A folder of the first place that cannot be listed may hold what the copy has not got: that is the
 * one case in which somebody has to say that it may go on. */
static bool is_for_the_operator(const char *name, bool is_folder, enum fault fault)
{
    return fault == UNREADABLE && is_folder && strcmp(name, "/runs/p/r/record") == 0;
}

/* What is told of a record whose run's folder cannot be listed either: no command reaches it. */
static void run_folder_is_unreadable(struct bed *bed)
{
    struct store_req get = {
        .op = STORE_RECORD_GET, .run = bed_run(), .take_prefix = true, .from_medium = true};
    char path[2 * ROOM];
    struct stat st;
    snprintf(path, sizeof(path), "%s/runs/p/r", bed->path);
    assert_int_equal(stat(path, &st), 0);
    above = st.st_ino;
    assert_int_equal(bed_do(bed, &get), 0);
    record_free(get.ret_record);
    above = 0;
    assert_true(get.ret_lost_from != 0 && get.ret_is_unreadable);
    assert_non_null(strstr(get.diag.text, "check the disk"));
}

static void ask_the_operator(struct bed *bed)
{
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run(), .take_prefix = true};
    run_folder_is_unreadable(bed);
    assert_int_equal(bed_do(bed, &get), 0);
    assert_false(get.ret_is_unreadable);
    assert_int_equal(record_version(get.ret_record), UPDATES);
    record_free(get.ret_record);
    assert_int_not_equal(bed_set(bed, "key", "12"), 0);
    struct store_req cut = {
        .op = STORE_RECORD_CUT, .run = bed_run(), .file = {.version = get.ret_lost_from}};
    assert_int_equal(bed_do(bed, &cut), 0);
    assert_true(bed_has(bed, "key", "11"));
    assert_int_equal(bed_set(bed, "key", "12"), 0);
    bed_reopen(bed);
    assert_true(bed_has(bed, "key", "12"));
}

static void live_with(const char *name, bool is_folder, enum fault fault)
{
    static const char *const words[] = {"a flip",  "a cut",     "emptying",
                                        "removal", "replacing", "unreadability"};
    struct bed bed;
    struct diag diag = DIAG_INIT;
    char path[2 * ROOM];
    fill(&bed);
    snprintf(path, sizeof(path), "%s%s", bed.path, name);
    if (!hit(path, is_folder, fault)) {
        bed_fini(&bed);
        return;
    }
    if (is_for_the_operator(name, is_folder, fault)) {
        bed_open_ok(&bed);
        ask_the_operator(&bed);
        bed_fini(&bed);
        return;
    }
    if (bed_open(&bed, false, true, &diag) != 0) { /* who only looks */
        fail_msg("%s of %s: %s", words[fault], name, diag.text);
    }
    expect_whole(&bed, words[fault], name);
    bool is_run = strstr(name, "/p/r/record/") != NULL;
    bool is_seen = is_run && (fault == FLIP || fault == CUT || fault == EMPTY ||
                              (fault == UNREADABLE && !is_folder));
    if (is_seen && told(&bed) == 0) {
        fail_msg("%s of %s is not told of", words[fault], name);
    }
    bed_close(&bed);
    if (bed_open(&bed, false, false, &diag) != 0) { /* a daemon */
        fail_msg("%s of %s: %s", words[fault], name, diag.text);
    }
    expect_whole(&bed, words[fault], name);
    unreadable = 0;
    if (told(&bed) != 0) {
        fail_msg("%s of %s is not made good", words[fault], name);
    }
    bed_number(&bed, "key", UPDATES + 1);
    bed_reopen(&bed);
    assert_true(bed_has(&bed, "key", "12"));
    assert_int_equal(bed_version(&bed), UPDATES + 1);
    bed_fini(&bed);
}

TEST(every_name_and_every_fault)
{
    struct bed bed;
    unsigned cases = 0;
    fill(&bed);
    list_names(&bed);
    bed_fini(&bed);
    for (size_t i = 0; i < seen.count; i++) {
        for (enum fault fault = FLIP; fault < FAULTS; fault++, cases++) {
            live_with(seen.paths[i], seen.are_folders[i], fault);
        }
    }
    print_message("%zu names, %u cases\n", seen.count, cases);
}

/* Goal: each bit of the copy is under its check: a flip anywhere is told of, and never believed. */
FILLED_TEST(every_byte_of_a_copy)
{
    struct diag diag = DIAG_INIT;
    char path[2 * ROOM], kept[2 * ROOM];
    snprintf(path, sizeof(path), "%s/copy/runs/p/r/record/000000000000000b.snapshot", bed->path);
    snprintf(kept, sizeof(kept), "%s/kept", bed->path);
    assert_int_equal(bed_open(bed, false, true, &diag), 0);
    for (size_t i = 0;; i++) {
        assert_int_equal(link(path, kept), 0);
        bool is_flipped = change_bytes(path, i, SIZE_MAX);
        if (is_flipped) {
            expect_whole(bed, "a flip", path);
            assert_int_equal(told(bed), 1);
        }
        assert_int_equal(rename(kept, path), 0);
        unlink(kept); /* where both were one file rename leaves it */
        if (!is_flipped) {
            break;
        }
    }
}

/* Goal: a first place that was rolled back is brought forward again, so no version is given twice.
 */
FILLED_TEST(a_rolled_back_place)
{
    char path[2 * ROOM];
    for (unsigned i = 9; i <= UPDATES; i++) {
        snprintf(path, sizeof(path), "%s/runs/p/r/record/%016x.update", bed->path, i);
        assert_int_equal(unlink(path), 0);
    }
    bed_open_ok(bed);
    expect_whole(bed, "rolling back", "the record");
    assert_int_equal(told(bed), 0);
    bed_number(bed, "key", UPDATES + 1);
    assert_int_equal(bed_version(bed), UPDATES + 1);
}

/* Goal: a copy of another history is never believed, whatever its number. */
TEST(a_copy_of_another_history)
{
    struct bed bed, other;
    char from[2 * ROOM], to[2 * ROOM];
    fill(&bed);
    bed_init(&other, BED_DIR, unit_test_argument(1), 2);
    bed_open_ok(&other);
    for (unsigned i = 1; i <= UPDATES; i++) {
        bed_number(&other, "key", 100 + i);
    }
    bed_close(&other);
    snprintf(from, sizeof(from), "%s/copy/runs/p/r/record/000000000000000b.snapshot", other.path);
    snprintf(to, sizeof(to), "%s/copy/runs/p/r/record/000000000000000b.snapshot", bed.path);
    assert_int_equal(rename(from, to), 0);
    bed_open_ok(&bed);
    expect_whole(&bed, "another history", "the copy");
    assert_int_equal(told(&bed), 0);
    bed_fini(&bed);
    bed_fini(&other);
}

/* --- an end that is lost ---------------------------------------------------------------------- */

static void damage(struct bed *bed, const char *name)
{
    char path[2 * ROOM];
    snprintf(path, sizeof(path), "%s/%s", bed->path, name);
    assert_true(change_bytes(path, 37, SIZE_MAX));
}

/* Goal: a record whose end both places lost can be read as far as it goes by who asks for that, and
 * by nobody else; takes no update; and goes on after the operator's word, beyond every number that
 * there was, with what is left of the rest in quarantine. */
FILLED_TEST(a_lost_end)
{
    char path[2 * ROOM];
    damage(bed, "runs/p/r/record/000000000000000a.update");
    damage(bed, "copy/runs/p/r/record/000000000000000b.snapshot");
    bed_open_ok(bed);
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run()};
    assert_int_equal(bed_do(bed, &get), CAIRN_E_DAMAGED);
    assert_int_equal(get.ret_lost_from, 10);
    assert_null(get.ret_record);
    get = (struct store_req){.op = STORE_RECORD_GET, .run = bed_run(), .take_prefix = true};
    assert_int_equal(bed_do(bed, &get), 0);
    assert_int_equal(get.ret_lost_from, 10);
    assert_int_equal(record_version(get.ret_record), 9);
    assert_non_null(strstr(get.diag.text, "000000000000000a.update"));
    record_free(get.ret_record);
    assert_int_equal(bed_set(bed, "key", "x"), CAIRN_E_DAMAGED);
    struct store_req mend = {.op = STORE_RECORD_MEND, .run = bed_run()};
    assert_int_equal(bed_do(bed, &mend), CAIRN_E_NOT_FOUND);
    struct store_req cut = {.op = STORE_RECORD_CUT, .run = bed_run(), .file = {.version = 9}};
    assert_int_equal(bed_do(bed, &cut), CAIRN_E_CONFLICT);
    cut = (struct store_req){.op = STORE_RECORD_CUT, .run = bed_run(), .file = {.version = 10}};
    assert_int_equal(bed_do(bed, &cut), 0);
    assert_true(cut.ret_version > UPDATES);
    assert_true(bed_has(bed, "key", "9"));
    snprintf(path, sizeof(path), "%s/quarantine/runs+p+r+record+000000000000000b.update",
             bed->path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(bed_set(bed, "key", "x"), 0);
    bed_reopen(bed);
    assert_true(bed_has(bed, "key", "x"));
    assert_int_equal(told(bed), 0);
}

/* Goal: what a daemon holds in memory mends both places, and so does either place for the other. */
FILLED_TEST(mending)
{
    struct store_req mend = {.op = STORE_RECORD_MEND, .run = bed_run()};
    bed_open_ok(bed);
    assert_int_equal(bed_version(bed), UPDATES); /* it is held */
    damage(bed, "runs/p/r/record/000000000000000b.update");
    damage(bed, "runs/p/r/record/0000000000000004.snapshot");
    damage(bed, "copy/runs/p/r/record/000000000000000b.snapshot");
    struct store_req look = {.op = STORE_RECORD_GET, .run = bed_run(), .from_medium = true};
    assert_int_equal(bed_do(bed, &look), CAIRN_E_DAMAGED);
    assert_non_null(strstr(look.diag.text, "nothing is lost: this server knows the record"));
    assert_int_equal(bed_do(bed, &mend), 0);
    assert_int_equal(told(bed), 0);
    bed_reopen(bed);
    expect_whole(bed, "two faults", "both places");
    damage(bed, "copy/runs/p/r/record/000000000000000b.snapshot");
    assert_int_equal(told(bed), 1);
    assert_int_equal(bed_do(bed, &mend), 0);
    assert_int_equal(told(bed), 0);
}

/* Goal: an old store, which has no second places, gets them when it is opened. */
FILLED_TEST(an_old_store_gets_copies)
{
    char path[2 * ROOM];
    struct stat st;
    snprintf(path, sizeof(path), "%s/copy", bed->path);
    assert_true(bed_remove(path));
    bed_open_ok(bed);
    expect_whole(bed, "age", "the store");
    bed_close(bed);
    snprintf(path, sizeof(path), "%s/copy/runs/p/r/record/000000000000000b.snapshot", bed->path);
    assert_int_equal(stat(path, &st), 0);
}

/* Goal: a run of which anything is left is listed: its record, a copy of it, or its checkpoints. */
TEST(a_run_is_listed_for_whatever_is_left)
{
    static const char *const gone[] = {"runs/p/r/record", "copy", "runs"};
    for (unsigned i = 0; i < 8; i++) {
        struct bed bed;
        char path[2 * ROOM];
        fill(&bed);
        bed_open_ok(&bed);
        assert_int_equal(bed_publish(&bed, bed_name(5, STORE_MANIFEST, 0, 1), 10, 1), 0);
        bed_close(&bed);
        for (unsigned k = 0; k < ARRAY_LEN(gone); k++) {
            snprintf(path, sizeof(path), "%s/%s", bed.path, gone[k]);
            if ((i >> k & 1) != 0) {
                (void)bed_remove(path);
            }
        }
        bed_open_ok(&bed);
        struct store_req list = {.op = STORE_LIST_RUNS};
        assert_int_equal(bed_do(&bed, &list), 0);
        assert_int_equal(list.ret_count, (i & 6) == 6 ? 0 : 1);
        free(list.ret_runs);
        bed_fini(&bed);
    }
}

UNIT_TEST_GROUP(fill_model, end_model)
