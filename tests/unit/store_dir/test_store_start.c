/* SPDX-License-Identifier: Apache-2.0
 *
 * A store opens only where its lock, identity and features allow it, removes at its start what is
 * its own to remove, leaves the rest, and is read-only beside a daemon (L21, L26, L27, D19, D20,
 * D23).
 *
 *     test_store_start DIRECTORY
 */
#include "store_files.h"

#include "base/check.h"
#include "hash/hash.h"
#include "store/dir/dir_private.h"
#include "store/store_record.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static void setup(struct bed *bed) { bed_init(bed, BED_DIR, unit_test_argument(1), 1); }

static void expect_refused(struct bed *bed, bool create, bool read_only, int code)
{
    struct diag diag = DIAG_INIT;
    int rc = bed_open(bed, create, read_only, &diag);
    if (rc != code) {
        fail_msg("%s instead of %s: %s", err_name(rc), err_name(code), diag.text);
    }
    assert_true(diag.text[0] != 0);
    assert_int_equal(diag.code, code);
}

#define BED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

BED_TEST(no_store_is_said)
{
    expect_refused(bed, false, false, CAIRN_E_NO_STORE);
    expect_refused(bed, false, true, CAIRN_E_NO_STORE);
    assert_false(files_has(bed, "lock")); /* looking left nothing */
    char path[sizeof(bed->path)];
    memcpy(path, bed->path, sizeof(path));
    strncat(bed->path, "/deeper", sizeof(bed->path) - strlen(bed->path) - 1);
    expect_refused(bed, false, false, CAIRN_E_NO_STORE);
    bed_open_ok(bed); /* made where there was no directory */
    bed_close(bed);
    memcpy(bed->path, path, sizeof(path));
}

BED_TEST(a_directory_in_use_is_refused)
{
    files_put(bed, "thesis.tex", 1, "x");
    expect_refused(bed, true, false, CAIRN_E_NOT_EMPTY);
    assert_false(files_has(bed, "lock"));
}

BED_TEST(a_second_daemon_is_refused)
{
    struct bed second = *bed;
    bed_open_ok(bed);
    expect_refused(&second, true, false, CAIRN_E_STORE_LOCKED);
    bed_close(bed);
    bed_open_ok(&second);
    bed_close(&second);
}

BED_TEST(another_store_is_refused)
{
    bed_open_ok(bed);
    struct uuid uuid = bed->store->caps.uuid, other = uuid;
    other.bytes[3] ^= 1;
    bed_close(bed);
    bed->expected_uuid = &other;
    expect_refused(bed, false, false, CAIRN_E_STORE_MISMATCH);
    bed->expected_uuid = &uuid;
    bed_open_ok(bed);
}

/* Adds an update to the store record by hand, as a newer version would: sets key to bits. */
static void set_feature(struct bed *bed, const char *key, uint64_t bits)
{
    struct store_file file;
    uint8_t value[8];
    char name[64];
    uint64_t version = 1;
    for (;; version++) {
        snprintf(name, sizeof(name), "store/%016llx.update", (unsigned long long)version + 1);
        if (!files_has(bed, name)) {
            break;
        }
    }
    snprintf(name, sizeof(name), "store/%016llx.update", (unsigned long long)version);
    files_read(bed, name, &file);
    struct sha256 last = sha256(file.bytes, file.data);
    store_u64(value, bits);
    struct record_change change = {key, false, {8, value}};
    struct record_update update = {0, 1, NULL, &change};
    struct buf buf;
    buf_init(&buf, FILES_BYTES_MAX);
    record_update_encode(&update, version + 1, last.bytes, &buf);
    assert_int_equal(buf_status(&buf), 0);
    snprintf(name, sizeof(name), "store/%016llx.update", (unsigned long long)version + 1);
    files_put(bed, name, buf.bytes, buf.data);
    buf_fini(&buf);
}

BED_TEST(unknown_features_are_heeded)
{
    bed_open_ok(bed);
    assert_int_equal(bed_set(bed, "k", "v"), 0);
    bed_close(bed);
    set_feature(bed, "compat", 1u << 5); /* may be ignored */
    bed_open_ok(bed);
    assert_false(bed->store->caps.read_only);
    bed_close(bed);
    set_feature(bed, "ro-compat", 1u << 5); /* may be read */
    bed_open_ok(bed);
    assert_true(bed->store->caps.read_only);
    assert_int_equal(bed_set(bed, "k", "v"), CAIRN_E_READ_ONLY);
    assert_true(bed_has(bed, "k", "v"));
    bed_close(bed);
    set_feature(bed, "incompat", 1u << 5); /* may not be touched */
    expect_refused(bed, false, false, CAIRN_E_STORE_FEATURES);
    expect_refused(bed, false, true, CAIRN_E_STORE_FEATURES);
}

/* Returns whether the store's record says that entries of it may be lost. */
static bool says_lost(struct bed *bed)
{
    struct store_req get = {.op = STORE_RECORD_GET};
    struct record_value value;
    assert_int_equal(bed_do(bed, &get), 0);
    bool says = record_get(get.ret_record, STORE_RECORD_LOST, &value);
    record_free(get.ret_record);
    return says;
}

/* Goal: an end of the store's record that is lost costs neither the store nor an epoch that is
 * given twice; what lay there is kept, and the record says that entries may be lost. */
BED_TEST(a_lost_end_of_the_store_record_is_gone_on_from)
{
    bed_open_ok(bed);
    struct store_caps before = bed->store->caps;
    assert_false(says_lost(bed));
    bed_close(bed);
    files_put(bed, "store/0000000000000009.update", 7, "garbage");
    bed_open_ok(bed);
    assert_true(says_lost(bed));
    assert_memory_equal(&bed->store->caps.uuid, &before.uuid, sizeof(before.uuid));
    assert_true(bed->store->caps.epoch >
                before.epoch + 1000); /* some of them may have been given */
    assert_true(files_has(bed, "quarantine/store+0000000000000009.update"));
    before = bed->store->caps;
    bed_reopen(bed);
    assert_int_equal(bed->store->caps.epoch, before.epoch + 1);
    assert_true(says_lost(bed));
}

/* Goal: where neither place has anything whole nothing is made up, and the way out is said. */
BED_TEST(a_store_record_beyond_help_is_named)
{
    static const char *const names[] = {
        "store/0000000000000001.update", "store/0000000000000002.update",
        "store/0000000000000002.snapshot", "copy/store/0000000000000002.snapshot"};
    bed_open_ok(bed);
    bed_close(bed);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_true(files_has(bed, names[i]));
        files_put(bed, names[i], 7, "garbage");
    }
    expect_refused(bed, true, false, CAIRN_E_DAMAGED);
    expect_refused(bed, false, true, CAIRN_E_DAMAGED);
}

/* Goal: either place alone holds the store's identity, also where the other has gone. */
BED_TEST(one_place_of_the_store_record_is_enough)
{
    static const char *const names[] = {"store", "copy"};
    bed_open_ok(bed);
    struct store_caps before = bed->store->caps;
    bed_close(bed);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char from[FILES_PATH_BYTES], to[FILES_PATH_BYTES + 8];
        files_path(bed, names[i], from);
        snprintf(to, sizeof(to), "%s.gone", from);
        struct diag diag = DIAG_INIT;
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(bed_open(bed, false, true, &diag), 0); /* also for who only looks */
        assert_memory_equal(&bed->store->caps.uuid, &before.uuid, sizeof(before.uuid));
        bed_close(bed);
        assert_false(files_has(bed, names[i]));
        bed_open_ok(bed);
        assert_memory_equal(&bed->store->caps.uuid, &before.uuid, sizeof(before.uuid));
        assert_int_equal(bed->store->caps.epoch, before.epoch + 1 + i);
        bed_close(bed);
        assert_true(files_has(bed, names[i]));
    }
}

/* Goal (D23): links and pipes in the store's way are refused, and nothing behind a link is touched.
 */
BED_TEST(planted_links_are_refused)
{
    struct object_id id = bed_object(5, 0, 1);
    char path[FILES_PATH_BYTES], outside[FILES_PATH_BYTES];
    uint64_t bytes;
    bed_open_ok(bed);
    assert_int_equal(bed_put_object(bed, id, 4096, 1), 0);
    files_path(bed, "outside", outside);
    assert_int_equal(mkdir(outside, 0700), 0);

    files_path(bed, "runs/p/r/objects/1-5/0-0000000000000abc-1", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    uint8_t *data = bed_bytes(4096, 0);
    assert_int_equal(bed_stat(bed, id, &bytes), CAIRN_E_DAMAGED);
    assert_int_equal(bed_read(bed, id, 0, 4096, data), CAIRN_E_DAMAGED);
    free(data);
    struct store_req list = {.op = STORE_LIST_OBJECTS, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &list), CAIRN_E_DAMAGED);
    assert_int_equal(bed_create(bed, id, 4096), CAIRN_E_EXISTS); /* not through it either */

    files_path(bed, "runs/p/r/checkpoints", path);
    assert_int_equal(mkdir(path, 0700), 0);
    files_path(bed, "runs/p/r/checkpoints/1-6", path);
    assert_int_equal(symlink(outside, path), 0);
    assert_int_not_equal(bed_publish(bed, bed_name(6, STORE_PART, 0, 1), 10, 1), 0);
    files_path(bed, "runs/q", path);
    assert_int_equal(symlink(outside, path), 0);
    struct store_req update = {.op = STORE_LIST_RUNS};
    assert_int_equal(bed_do(bed, &update), 0);
    free(update.ret_runs);

    files_path(bed, "runs/p/r/checkpoints/1-7", path);
    assert_int_equal(mkdir(path, 0700), 0);
    files_path(bed, "runs/p/r/checkpoints/1-7/part-0-0000000000000001", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(bed_check_small(bed, bed_name(7, STORE_PART, 0, 1), 1, 1), CAIRN_E_DAMAGED);

    assert_int_equal(bed_set(bed, "k", "v"), 0);
    files_path(bed, "runs/p/r/record/0000000000000002.update", path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    bed_reopen(bed);
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run()};
    assert_int_equal(bed_do(bed, &get), CAIRN_E_DAMAGED);
    files_path(bed, "outside/part-0-0000000000000001", path);
    assert_int_not_equal(access(path, F_OK), 0);
}

BED_TEST(a_link_for_a_lock_is_refused)
{
    char path[FILES_PATH_BYTES];
    bed_open_ok(bed);
    bed_close(bed);
    files_path(bed, "lock", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/tmp", path), 0);
    expect_refused(bed, false, false, CAIRN_E_IO);
}

/* Goal (D19): a store that everybody may write is refused, not repaired. */
BED_TEST(a_store_open_to_all_is_refused)
{
    struct stat st;
    bed_open_ok(bed);
    bed_close(bed);
    assert_int_equal(chmod(bed->path, 0777), 0);
    expect_refused(bed, false, false, CAIRN_E_DENIED);
    assert_int_equal(stat(bed->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0777);
}

static int check_mode(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    bool is_lock = kind == FTW_F && strcmp(path + at->base, "lock") == 0;
    mode_t mode = kind == FTW_D ? 0700 : 0440;
    if (!is_lock && (st->st_mode & 07777) != mode) {
        fail_msg("%s has mode %o, not %o", path, st->st_mode & 07777, mode);
    }
    return 0;
}

/* Goal (L27): nobody changes a finished file by mistake, and nobody else looks into a directory.
 * Method: every file and directory of a store with a record, an object and a part. */
BED_TEST(finished_files_are_read_only)
{
    bed_open_ok(bed);
    assert_int_equal(bed_set(bed, "k", "v"), 0);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 4096, 1), 0);
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 0, 1), 10, 1), 0);
    bed_close(bed);
    assert_int_equal(nftw(bed->path, check_mode, 16, FTW_PHYS), 0);
}

/* Goal (D20): directories that vanish are an error, and are not made anew behind the operator's
 * back. */
BED_TEST(a_vanished_directory_is_an_error)
{
    struct object_id id = bed_object(5, 0, 1);
    char from[FILES_PATH_BYTES], to[FILES_PATH_BYTES];
    bed_open_ok(bed);
    assert_int_equal(bed_create(bed, id, 8192), 0);
    assert_int_equal(bed_write(bed, id, 0, 8192, 1), 0);
    files_path(bed, "runs", from);
    files_path(bed, "elsewhere", to);
    assert_int_equal(rename(from, to), 0);
    assert_int_not_equal(bed_seal(bed, id), 0);
    assert_int_not_equal(bed_create(bed, bed_object(5, 0, 2), 4096), 0);
    assert_false(files_has(bed, "runs"));
}

BED_TEST(temporaries_of_older_epochs_go)
{
    bed_open_ok(bed);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 4096, 1), 0);
    assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, 0, 1), 10, 1), 0);
    bed_close(bed);
    static const char *const old[] = {"store", "runs/p/r/objects/1-5", "runs/p/r/checkpoints/1-5"};
    char name[200];
    for (size_t i = 0; i < ARRAY_LEN(old); i++) {
        snprintf(name, sizeof(name), "%s/.tmp-0000000000000001-00000000000000aa", old[i]);
        files_put(bed, name, 1, "x");
    }
    files_put(bed, "runs/p/r/objects/1-5/.tmp-00000000000000ff-00000000000000aa", 1, "x");
    files_put(bed, "store/.tmp-1-00000000000000aa", 1, "x"); /* a probe of an earlier version */
    bed_open_ok(bed);
    for (size_t i = 0; i < ARRAY_LEN(old); i++) {
        snprintf(name, sizeof(name), "%s/.tmp-0000000000000001-00000000000000aa", old[i]);
        assert_false(files_has(bed, name));
    }
    /* of a newer epoch: somebody else is at work here; it is left and noted */
    assert_true(files_has(bed, "runs/p/r/objects/1-5/.tmp-00000000000000ff-00000000000000aa"));
    assert_false(files_has(bed, "store/.tmp-1-00000000000000aa"));
    struct store_req req = {.op = STORE_USAGE};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_non_null(strstr(req.ret_usage.detail, "newer epoch"));
    assert_int_equal(bed_check_object(bed, bed_object(5, 0, 1), 4096, 1), 0);
    assert_int_equal(bed_count_objects(bed, 5), 1);
}

/* Goal: a run whose folders are something else keeps no other from being served; it is listed, so
 * that its own error is told to who asks for it. */
BED_TEST(a_run_that_cannot_be_read_is_alone)
{
    struct bed_change change = {"k", "one", true, NULL};
    struct store_req list = {.op = STORE_LIST_RUNS}, usage = {.op = STORE_USAGE};
    struct store_req get = {.op = STORE_RECORD_GET, .run = {"p", "bad"}};
    char path[FILES_PATH_BYTES];
    bed_open_ok(bed);
    assert_int_equal(bed_update(bed, &change, NULL), 0);
    bed_close(bed);
    files_path(bed, "runs/p/bad", path);
    assert_int_equal(mkdir(path, 0700), 0);
    files_put(bed, "runs/p/bad/record", 1, "x");
    files_put(bed, "runs/p/bad/objects", 1, "x");
    bed_open_ok(bed);
    assert_true(bed_has(bed, "k", "one"));
    assert_int_equal(bed_do(bed, &list), 0);
    assert_int_equal(list.ret_count, 2);
    assert_string_equal(list.ret_runs[0].run, "bad");
    free(list.ret_runs);
    assert_int_equal(bed_do(bed, &get), CAIRN_E_DAMAGED); /* final: nobody tries again */
    assert_non_null(strstr(get.diag.text, "p/bad"));
    assert_int_equal(bed_do(bed, &usage), 0);
    assert_true(usage.ret_usage.detail[0] != 0);
}

/* Goal: beside a daemon a reader needs no lock, changes nothing, and follows the record as it is
 * compacted. */
BED_TEST(a_reader_follows_a_daemon)
{
    struct bed reader = *bed;
    struct diag diag = DIAG_INIT;
    char value[16];
    bed->snapshot_every = 3;
    bed_open_ok(bed);
    assert_int_equal(bed_open(&reader, false, true, &diag), 0);
    assert_int_equal(reader.store->caps.epoch, bed->store->caps.epoch);
    assert_memory_equal(&reader.store->caps.uuid, &bed->store->caps.uuid, 16);
    assert_int_equal(bed_create(bed, bed_object(5, 0, 1), 8192), 0);
    assert_int_equal(bed_count_objects(&reader, 5), 0);
    for (unsigned i = 1; i <= 20; i++) {
        snprintf(value, sizeof(value), "%u", i);
        struct bed_change change = {"k", value, false, NULL};
        assert_int_equal(bed_update(bed, &change, NULL), 0);
        assert_true(bed_has(&reader, "k", value));
        assert_int_equal(bed_version(&reader), i);
    }
    assert_int_equal(bed_write(bed, bed_object(5, 0, 1), 0, 4096, 1), 0);
    assert_int_equal(bed_seal(bed, bed_object(5, 0, 1)), 0);
    assert_int_equal(bed_check_object(&reader, bed_object(5, 0, 1), 4096, 1), 0);
    bed_close(&reader);
}

/* Goal (L26): a file system that loses what it holds is refused. */
BED_TEST(tmpfs_is_refused_unless_forced)
{
    struct statfs fs;
    char path[sizeof(bed->path)];
    if (statfs("/dev/shm", &fs) != 0 || fs.f_type != 0x01021994 || access("/dev/shm", W_OK) != 0) {
        print_message("no tmpfs at /dev/shm\n");
        skip();
    }
    memcpy(path, bed->path, sizeof(path));
    snprintf(bed->path, sizeof(bed->path), "/dev/shm/cairn-XXXXXX");
    assert_non_null(mkdtemp(bed->path));
    bed->is_not_forced = true;
    struct diag diag = DIAG_INIT;
    int rc = bed_open(bed, true, false, &diag);
    bool was_untouched = rmdir(bed->path) == 0;
    memcpy(bed->path, path, sizeof(path));
    assert_int_equal(rc, CAIRN_E_UNSUPPORTED);
    assert_true(was_untouched);
}

/* Goal: whoever asks for runs that are not there costs the store no memory that stays. */
BED_TEST(missing_runs_leave_nothing)
{
    bed_open_ok(bed);
    for (unsigned i = 0; i < 1000; i++) {
        struct store_req req = {.op = STORE_RECORD_GET};
        snprintf(req.run.project, sizeof(req.run.project), "p");
        snprintf(req.run.run, sizeof(req.run.run), "missing-%u", i);
        assert_int_equal(bed_do(bed, &req), 0);
        assert_int_equal(record_version(req.ret_record), 0);
        record_free(req.ret_record);
    }
    const struct dir_store *store = dir_of(bed->store);
    for (size_t i = 0; i < DIR_RUN_BUCKETS; i++) {
        const struct dir_run *run = store->runs[i];
        assert_true(run == NULL || run->name.project[0] == 0); /* the store's own record */
        assert_true(run == NULL || run->next == NULL);
    }
}
