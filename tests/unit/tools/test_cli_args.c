/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the command line as people write it, and every mistake by name. Method: a table of lines
 * against commands of the test's own, which take options by the letters that cli_args.c knows.
 */
#include "cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const struct command commands[] = {{"ls", "[RUN]", "lists", "aSl", NULL, NULL},
                                   {"verify", "[RUN [SELECTOR]]", "checks", "dD", NULL, NULL},
                                   {"restore", "RUN SELECTOR", "writes", "tf", NULL, NULL},
                                   {"annotate", "RUN SELECTOR", "notes", "n", NULL, NULL},
                                   {"version", "", "says", "", NULL, NULL},
                                   {NULL, NULL, NULL, NULL, NULL, NULL}};

enum { WORDS_MAX = 12 };

static int parse(const char *line, struct cli *cli, const struct command **command,
                 struct diag *diag)
{
    static char copy[256];
    char program[] = "cairn", *argv[WORDS_MAX + 1] = {program}, *save = NULL;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        assert_true(argc < WORDS_MAX);
        argv[argc++] = word;
    }
    return cli_parse(argc, argv, cli, command, diag);
}

static void test_good_lines(void **state)
{
    (void)state;
    struct cli cli;
    const struct command *command;
    assert_int_equal(parse("ls", &cli, &command, NULL), 0);
    assert_string_equal(command->name, "ls");
    assert_null(cli.run_text);
    assert_true(cli.source.deadline_ms == 10000);
    assert_int_equal(parse("--json ls lab/gpt --limit=5 --all", &cli, &command, NULL), 0);
    assert_true(cli.json && cli.all && cli.limit == 5);
    assert_string_equal(cli.run_text, "lab/gpt");
    assert_int_equal(parse("restore lab/gpt 10@1 --to out --no-fallback", &cli, &command, NULL), 0);
    assert_string_equal(cli.selector_text, "10@1");
    assert_string_equal(cli.to, "out");
    assert_true(cli.no_fallback);
    assert_int_equal(parse("verify --read-data-subset 3/7 --timeout 5", &cli, &command, NULL), 0);
    assert_true(cli.subset_n == 3 && cli.subset_t == 7 && cli.source.deadline_ms == 5000);
    assert_int_equal(
        parse("annotate lab/gpt 7 --metric a=b=1.5 --metric x=-2 --tag t --remove-tag=u", &cli,
              &command, NULL),
        0);
    assert_int_equal(cli.metric_count, 2);
    assert_string_equal(cli.metrics[0].name, "a=b");
    assert_true(cli.metrics[0].value == 1.5 && cli.metrics[1].value == -2);
    assert_true(cli.tag_count == 1 && cli.removed_tag_count == 1);
    assert_string_equal(cli.tags[0], "t");
    assert_string_equal(cli.removed_tags[0], "u");
    assert_int_equal(parse("--version", &cli, &command, NULL), 0);
    assert_string_equal(command->name, "version");
    assert_int_equal(parse("restore --help", &cli, &command, NULL), 0);
    assert_true(cli.help);
}

/* What the command line names beats the environment: nobody reads another store than he asked for.
 */
static void test_environment_yields(void **state)
{
    (void)state;
    struct cli cli;
    const struct command *command;
    assert_int_equal(setenv("CAIRN_STORE", "dir:/other", 1), 0);
    assert_int_equal(parse("ls", &cli, &command, NULL), 0);
    assert_string_equal(cli.source.store, "dir:/other");
    assert_int_equal(parse("ls --server host:1", &cli, &command, NULL), 0);
    assert_null(cli.source.store);
    assert_int_equal(parse("ls cairn://host:1/lab/gpt", &cli, &command, NULL), 0);
    assert_null(cli.source.store);
    assert_int_equal(parse("ls cairn:///lab/gpt", &cli, &command, NULL), 0);
    assert_string_equal(cli.source.store, "dir:/other");
    assert_int_equal(unsetenv("CAIRN_STORE"), 0);
    assert_int_equal(parse("ls --store dir:/a --server host:1", &cli, &command, NULL),
                     CAIRN_E_INVALID);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"list", "'list' is no command"},
        {"ls --nonsense", "--nonsense is no option of cairn ls"},
        {"ls --to out", "--to is no option of cairn ls"},
        {"ls --limit", "--limit wants N"},
        {"ls --limit=x", "a number is wanted"},
        {"ls --limit=-1", "a number is wanted"},
        {"ls --all=yes", "--all takes no value"},
        {"ls a/b c", "'c' is too much"},
        {"restore a/b latest more", "'more' is too much"},
        {"version a/b", "'a/b' is too much"},
        {"verify --read-data-subset 0/7", "1 <= N <= T"},
        {"verify --read-data-subset 8/7", "1 <= N <= T"},
        {"verify --read-data-subset 1", "1 <= N <= T"},
        {"verify --read-data-subset 1/99999999999", "1 <= N <= T"},
        {"ls --timeout 86401", "a number is wanted"},
        {"annotate a/b 1 --metric loss", "NAME=VALUE"},
        {"annotate a/b 1 --metric =1", "NAME=VALUE"},
        {"annotate a/b 1 --metric loss=1x", "NAME=VALUE"},
        {"annotate a/b 1 --metric loss=", "NAME=VALUE"},
        {"annotate a/b 1 --metric loss=nan", "NaN"},
        {"ls --tag x", "--tag is no option of cairn ls"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct cli cli;
        const struct command *command;
        struct diag diag = DIAG_INIT;
        int status = parse(cases[i][0], &cli, &command, &diag);
        if (status != CAIRN_E_INVALID || !strstr(diag.text, cases[i][1])) {
            fail_msg("%s: %d '%s'", cases[i][0], status, diag.text);
        }
    }
}

static void test_environment(void **state)
{
    (void)state;
    struct cli cli;
    const struct command *command;
    setenv("CAIRN_STORE", "dir:/env", 1);
    assert_int_equal(parse("ls", &cli, &command, NULL), 0);
    assert_string_equal(cli.source.store, "dir:/env");
    assert_int_equal(parse("ls --store dir:/flag", &cli, &command, NULL), 0);
    assert_string_equal(cli.source.store, "dir:/flag");
    unsetenv("CAIRN_STORE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_lines),
        cmocka_unit_test(test_environment_yields),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
