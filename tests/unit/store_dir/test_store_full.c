/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk that is full refuses by name and loses nothing, and the store goes on when there is room
 * again (D06, D07, L2, L18, L19). Method: on a real, small ext4 in a loop device blocks and inodes
 * run out at each step in turn. Needs root; without it the test says so and is skipped.
 *
 *     test_store_full DIRECTORY
 */
#include "store/store_bed.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char image[600], mounted[600];
static bool is_mounted;

/* Runs a program, quietly; true when it succeeded. */
static bool command(const char *program, const char *const *arguments)
{
    char *argv[12] = {(char *)(uintptr_t)program};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1;
    for (size_t i = 0; i < 10 && arguments[i] != NULL; i++) {
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&pid, program, &actions, NULL, argv, environ) == 0) {
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    posix_spawn_file_actions_destroy(&actions);
    return status == 0;
}

#define COMMAND(program, ...) command(program, (const char *const[]){__VA_ARGS__, NULL})

static bool make_disk(const char *directory, const char *inodes)
{
    mkdir(directory, 0700);
    snprintf(image, sizeof(image), "%s/full-%ld.img", directory, (long)getpid());
    snprintf(mounted, sizeof(mounted), "%s/full-%ld", directory, (long)getpid());
    int fd = open(image, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    bool is_made = fd >= 0 && ftruncate(fd, 24 << 20) == 0;
    close(fd);
    if (geteuid() != 0 || !is_made) {
        return false;
    }
    mkdir(mounted, 0700);
    is_mounted = COMMAND("mkfs.ext4", "-q", "-F", "-m", "0", "-N", inodes, image) &&
                 COMMAND("mount", "-o", "loop", image, mounted);
    return is_mounted;
}

static void drop_disk(void)
{
    assert_true(COMMAND("umount", mounted));
    is_mounted = false;
    rmdir(mounted);
    unlink(image);
}

/* After a failed test, whose store is still open. */
static void clean_up(void)
{
    if (is_mounted) {
        is_mounted = false;
        assert_true(COMMAND("umount", "-l", mounted));
        assert_int_equal(rmdir(mounted) | unlink(image), 0);
    }
}

/* A store on the small disk. */
static bool begin(struct bed *bed, const char *inodes)
{
    if (!make_disk(unit_test_argument(1), inodes)) {
        rmdir(mounted);
        unlink(image);
        print_message(
            "no loop-mounted disk here (needs root, mkfs.ext4, a loop device): skipped\n");
        return false;
    }
    bed_init(bed, BED_DIR, mounted, 1);
    bed->snapshot_every = 4;
    bed_open_ok(bed);
    return true;
}

static void end(struct bed *bed)
{
    bed_fini(bed);
    drop_disk();
}

/* Takes all free bytes but `left`. */
static void fill_disk(off_t left)
{
    char path[700];
    static char block[65536];
    snprintf(path, sizeof(path), "%s/ballast", mounted);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_true(fd >= 0);
    size_t step = sizeof(block);
    while (step >= 512) {
        if (write(fd, block, step) < (ssize_t)step) {
            step /= 2;
        }
    }
    struct stat st;
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(ftruncate(fd, st.st_size > left ? st.st_size - left : 0), 0);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void expect_done_or_full(int rc)
{
    if (rc != 0 && rc != CAIRN_E_NO_SPACE) {
        fail_msg("%s", err_name(rc));
    }
}

#define FIXED_TEST(name) SETUP_TEST(name, unit_test_nothing, clean_up)

FIXED_TEST(blocks_run_out_at_each_step)
{
    struct bed bed;
    unsigned full = 0, done = 0;
    char value[16], was[16] = "";
    if (!begin(&bed, "2000")) {
        skip();
    }
    assert_int_equal(bed_put_object(&bed, bed_object(1, 0, 1), 65536, 1), 0);
    assert_int_equal(bed_publish(&bed, bed_name(1, STORE_PART, 0, 1), 9000, 1), 0);
    for (uint32_t i = 0; i < 48; i++) {
        fill_disk((off_t)i * 4096);
        int rcs[3] = {bed_put_object(&bed, bed_object(2 + i, 0, 1), 65536, 2),
                      bed_publish(&bed, bed_name(2 + i, STORE_PART, 0, 1), 9000, 2), 0};
        snprintf(value, sizeof(value), "%u", i);
        struct bed_change change = {"k", value, true, was[0] != 0 ? was : NULL};
        rcs[2] = bed_update(&bed, &change, NULL);
        if (rcs[2] == 0) {
            memcpy(was, value, sizeof(was));
        }
        for (size_t k = 0; k < 3; k++) {
            expect_done_or_full(rcs[k]);
            full += rcs[k] != 0;
            done += rcs[k] == 0;
        }
        assert_true(bed_has(&bed, "k", was[0] != 0 ? was : NULL));
        assert_int_equal(bed_check_object(&bed, bed_object(1, 0, 1), 65536, 1), 0);
        assert_int_equal(bed_check_small(&bed, bed_name(1, STORE_PART, 0, 1), 9000, 1), 0);
        assert_int_equal(bed_check_object(&bed, bed_object(2 + i, 0, 1), 65536, 2),
                         rcs[0] == 0 ? 0 : CAIRN_E_NOT_FOUND);
        if (rcs[0] == 0) { /* deleting needs no space */
            assert_int_equal(bed_delete(&bed, bed_object(2 + i, 0, 1)), 0);
        }
    }
    print_message("%u steps refused, %u done\n", full, done);
    assert_true(full > 5 && done > 5);
    end(&bed);
}

FIXED_TEST(inodes_run_out)
{
    struct bed bed;
    uint32_t made = 0;
    if (!begin(&bed, "64")) {
        skip();
    }
    assert_int_equal(bed_put_object(&bed, bed_object(1, 0, 1), 4096, 1), 0);
    int rc = 0;
    while (rc == 0 && made < 200) {
        rc = bed_publish(&bed, bed_name(1, STORE_PART, made, 1), 100, made);
        made += rc == 0;
    }
    assert_int_equal(rc, CAIRN_E_NO_SPACE);
    assert_int_equal(bed_create(&bed, bed_object(1, 0, 2), 4096), CAIRN_E_NO_SPACE);
    assert_int_equal(bed_create(&bed, bed_object(9, 0, 2), 4096), CAIRN_E_NO_SPACE); /* mkdir */
    for (uint32_t i = 0; i < made; i++) {
        assert_int_equal(bed_check_small(&bed, bed_name(1, STORE_PART, i, 1), 100, i), 0);
    }
    assert_int_equal(bed_delete_small(&bed, bed_name(1, STORE_PART, 0, 1)), 0);
    assert_int_equal(bed_publish(&bed, bed_name(1, STORE_PART, 0, 2), 100, 1), 0);
    end(&bed);
}

/* Goal (L19): the reserve is refused to objects, not to what finishes a save. */
FIXED_TEST(the_reserve_is_kept)
{
    struct bed bed;
    if (!begin(&bed, "2000")) {
        skip();
    }
    bed.reserve_bytes = UINT64_C(1) << 40;
    bed_reopen(&bed);
    assert_int_equal(bed_create(&bed, bed_object(1, 0, 1), 4096), CAIRN_E_NO_SPACE);
    assert_int_equal(bed_publish(&bed, bed_name(1, STORE_PART, 0, 1), 9000, 1), 0);
    assert_int_equal(bed_set(&bed, "k", "v"), 0);
    bed.reserve_bytes = 1 << 20;
    bed_reopen(&bed);
    assert_int_equal(bed_create(&bed, bed_object(1, 0, 1), 100 << 20), CAIRN_E_NO_SPACE);
    assert_int_equal(bed_put_object(&bed, bed_object(1, 0, 1), 4096, 1), 0);
    end(&bed);
}

/* Goal: the same of inodes: the last ones are the record's, or nothing could be forgotten. */
FIXED_TEST(inodes_are_kept_too)
{
    struct bed bed;
    uint32_t made = 0;
    struct store_req probe = {.op = STORE_PROBE}, again = {.op = STORE_PROBE};
    if (!begin(&bed, "200")) {
        skip();
    }
    bed.reserve_bytes = 1 << 20;
    bed_reopen(&bed);
    assert_int_equal(bed_do(&bed, &probe), 0);
    int rc = 0;
    while (rc == 0 && made < 400) {
        rc = bed_put_object(&bed, bed_object(1, 0, made + 1), 4096, made);
        made += rc == 0;
    }
    assert_int_equal(rc, CAIRN_E_NO_SPACE);
    assert_int_equal(bed_do(&bed, &again), CAIRN_E_NO_SPACE);
    assert_non_null(strstr(again.diag.text, "inodes"));
    assert_int_equal(bed_set(&bed, "k", "v"), 0);
    assert_int_equal(bed_publish(&bed, bed_name(1, STORE_PART, 0, 1), 9000, 1), 0);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(bed_delete(&bed, bed_object(1, 0, i + 1)), 0);
    }
    assert_int_equal(bed_put_object(&bed, bed_object(1, 0, made + 1), 4096, 1), 0);
    end(&bed);
}

/* Goal: a file system that is mounted read-only, as ext4 is after an error, is served: who opens it
 * to write reads, is told so, and changes nothing; also one that became so below a running store.
 */
FIXED_TEST(a_read_only_file_system_is_served)
{
    struct bed bed;
    struct store_req usage = {.op = STORE_USAGE}, list = {.op = STORE_LIST_RUNS};
    if (!begin(&bed, "2000")) {
        skip();
    }
    assert_int_equal(bed_put_object(&bed, bed_object(1, 0, 1), 65536, 1), 0);
    assert_int_equal(bed_set(&bed, "k", "v"), 0);
    bed_reopen(&bed);
    assert_true(COMMAND("mount", "-o", "remount,abort", mounted)); /* as after an error */
    assert_true(bed_has(&bed, "k", "v"));                          /* read only now */
    assert_int_not_equal(bed_set(&bed, "k", "v"), 0);
    assert_true(bed_has(&bed, "k", "v"));
    assert_int_equal(bed_check_object(&bed, bed_object(1, 0, 1), 65536, 1), 0);
    bed_close(&bed);
    bed_open_ok(&bed);
    assert_true(bed.store->caps.read_only);
    assert_non_null(strstr(bed.store->caps.read_only_why, "read-only"));
    assert_true(bed_has(&bed, "k", "v"));
    assert_int_equal(bed_set(&bed, "k", "v"), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_check_object(&bed, bed_object(1, 0, 1), 65536, 1), 0);
    assert_int_equal(bed_do(&bed, &list), 0);
    assert_int_equal(list.ret_count, 1);
    free(list.ret_runs);
    assert_int_equal(bed_do(&bed, &usage), 0);
    assert_true(usage.ret_usage.read_only);
    assert_non_null(strstr(usage.ret_usage.detail, "read-only"));
    end(&bed);
}
