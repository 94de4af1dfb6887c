/* SPDX-License-Identifier: Apache-2.0
 *
 * A restore writes beside what is there and never over it. Method: a folder of the test's own.
 */
#include "target.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/unit_test.h"

static char dir[64];

static const char *at(const char *name)
{
    static _Thread_local char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static bool exists(const char *name) { return access(at(name), F_OK) == 0; }

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/cairn-target-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void teardown(void)
{
    static const char *const files[] = {"out/a", "out/b", "out", "out.partial/a", "out.partial"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        remove(at(files[i]));
    }
    assert_int_equal(rmdir(dir), 0);
}

static void put(struct target *target, const char *name)
{
    int fd = -1;
    struct target_piece piece = {.name = name, .offset = 2, .bytes = 3, .data = "xyz"};
    assert_int_equal(target_create(target, name, &fd, NULL), 0);
    assert_int_equal(target_write(fd, &piece, NULL), 0);
    assert_int_equal(target_close(fd, name, 0, NULL), 0);
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_commit_makes_it_whole)
{
    struct target target;
    struct stat stat_buf;
    char path[300];
    snprintf(path, sizeof path, "%s///", at("out"));
    assert_int_equal(target_begin(path, &target, NULL), 0);
    put(&target, "a");
    assert_false(exists("out"));
    assert_true(exists("out.partial/a"));
    assert_int_equal(target_commit(&target, NULL), 0);
    assert_true(exists("out/a"));
    assert_false(exists("out.partial"));
    assert_int_equal(stat(at("out/a"), &stat_buf), 0);
    assert_int_equal(stat_buf.st_size, 5);
    assert_int_equal(stat_buf.st_mode & 0777, 0600);
}

FIXED_TEST(test_an_empty_directory_is_replaced)
{
    struct target target;
    assert_int_equal(mkdir(at("out"), 0700), 0);
    assert_int_equal(target_begin(at("out"), &target, NULL), 0);
    put(&target, "a");
    assert_int_equal(target_commit(&target, NULL), 0);
    assert_true(exists("out/a"));
}

FIXED_TEST(test_what_is_there_stays)
{
    struct target target, second;
    struct diag diag = DIAG_INIT;
    assert_int_equal(mkdir(at("out"), 0700), 0);
    assert_int_equal(target_begin(at("out"), &target, NULL), 0);
    assert_int_equal(target_begin(at("out"), &second, &diag), CAIRN_E_EXISTS);
    assert_non_null(strstr(diag.text, "out.partial"));
    put(&target, "a");
    int fd = open(at("out/b"), O_CREAT | O_WRONLY, 0600); /* somebody else, meanwhile */
    close(fd);
    assert_int_not_equal(target_commit(&target, NULL), 0);
    assert_true(exists("out/b"));
    target_abort(&target); /* nor does ours, for which there is no place */
    assert_false(exists("out.partial"));
    assert_int_equal(target_begin(at("out"), &second, &diag), CAIRN_E_NOT_EMPTY);
    int twice = -1;
    assert_int_equal(remove(at("out/b")), 0);
    assert_int_equal(target_begin(at("out"), &target, NULL), 0);
    put(&target, "a");
    assert_int_not_equal(target_create(&target, "a", &twice, NULL), 0);
    target_abort(&target);
}

FIXED_TEST(test_abort_leaves_nothing)
{
    struct target target;
    assert_int_equal(target_begin(at("out"), &target, NULL), 0);
    put(&target, "a");
    target_abort(&target);
    target_abort(&target); /* harmless */
    assert_false(exists("out"));
    assert_false(exists("out.partial"));
}

TEST(test_names_cannot_leave_the_directory)
{
    char name[32];
    static const char *const cases[][2] = {
        {"plain-Name_1.x=2", "plain-Name_1.x=2"},
        {"../../etc/passwd", "_._.._etc_passwd"},
        {".hidden", "_hidden"},
        {"/abs", "_abs"},
        {"a b\n\xc3\xa4", "a_b___"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        target_name(cases[i][0], sizeof name, name);
        if (i != 1) {
            assert_string_equal(name, cases[i][1]);
        }
        assert_null(strchr(name, '/'));
        assert_int_not_equal(name[0], '.');
    }
}
