/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line is taken as people write it, and every mistake is named, with the commands as
 * they are. Method: a table of lines; what became of them is seen through the option sets.
 */
#include "cli.h"

#include "support/unit_test.h"

enum { WORDS_MAX = 16 };

static int parse(const char *line, struct cli *cli, struct diag *diag)
{
    static char copy[256];
    char program[] = "cairn", *argv[WORDS_MAX + 1] = {program}, *save = NULL;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        assert_true(argc < WORDS_MAX);
        argv[argc++] = word;
    }
    return cli_parse(argc, argv, cli, diag);
}

static void good(const char *line, struct cli *cli, const char *command)
{
    struct diag diag = DIAG_INIT;
    if (parse(line, cli, &diag) != 0) {
        fail_msg("%s: %s", line, diag.text);
    }
    assert_string_equal(cli->command->name, command);
}

TEST(test_good_lines)
{
    struct cli cli;
    good("ls", &cli, "ls");
    assert_null(cli.run_text);
    assert_true(cli.source.deadline_ms == 10000);
    cli_fini(&cli);
    good("--json ls lab/gpt --limit=5 --all", &cli, "ls");
    assert_true(cli.json && options_given(&cli.own_set, "all"));
    assert_true(options_given(&cli.own_set, "limit") && !options_given(&cli.own_set, "superseded"));
    assert_string_equal(cli.run_text, "lab/gpt");
    cli_fini(&cli);
    good("restore lab/gpt 10@1 --to out --no-fallback", &cli, "restore");
    assert_string_equal(cli.selector_text, "10@1");
    assert_int_equal(cli.selector.kind, SELECT_EXACT);
    cli_fini(&cli);
    good("verify --read-data-subset 3/7 --timeout 5", &cli, "verify");
    assert_int_equal(cli.selector.kind, SELECT_LATEST);
    assert_true(cli.source.deadline_ms == 5000);
    cli_fini(&cli);
    good("annotate lab/gpt 7 --metric a=b=1.5 --metric x=-2 --tag t --remove-tag=u", &cli,
         "annotate");
    cli_fini(&cli);
    good("--version", &cli, "version");
    cli_fini(&cli);
    good("restore --help", &cli, "restore"); /* what is needed is not asked for */
    assert_true(cli.help);
    cli_fini(&cli);
    good("-q ls -a -- lab/gpt", &cli, "ls");
    assert_true(cli.quiet && options_given(&cli.own_set, "all"));
    assert_string_equal(cli.run_text, "lab/gpt");
    cli_fini(&cli);
}

/* What the command line names beats the environment: nobody reads another store than he asked for.
 */
TEST(test_environment_yields)
{
    struct cli cli;
    assert_int_equal(setenv("CAIRN_STORE", "dir:/other", 1), 0);
    good("ls", &cli, "ls");
    assert_string_equal(cli.source.store, "dir:/other");
    cli_fini(&cli);
    good("ls --server host:1", &cli, "ls");
    assert_null(cli.source.store);
    cli_fini(&cli);
    good("ls cairn://host:1/lab/gpt", &cli, "ls");
    assert_null(cli.source.store);
    cli_fini(&cli);
    good("ls cairn:///lab/gpt", &cli, "ls");
    assert_string_equal(cli.source.store, "dir:/other");
    cli_fini(&cli);
    good("ls --store dir:/flag", &cli, "ls");
    assert_string_equal(cli.source.store, "dir:/flag");
    cli_fini(&cli);
    assert_int_equal(unsetenv("CAIRN_STORE"), 0);
    assert_int_equal(parse("ls --store dir:/a --server host:1", &cli, NULL), CAIRN_E_INVALID);
    cli_fini(&cli);
}

TEST(test_bad_lines)
{
    static const char *const cases[][2] = {
        {"list", "'list' is not a command; see cairn --help"},
        {"lss", "'lss' is not a command; did you mean 'ls'?"},
        {"ls --stor dir:/a", "--stor is not an option of cairn ls; did you mean --store?"},
        {"ls --al", "--al is not an option of cairn ls; did you mean --all?"},
        {"ls --nonsense", "--nonsense is not an option of cairn ls"},
        {"ls -x", "-x is not an option of cairn ls"},
        {"ls -ax", "-ax is not an option of cairn ls"},
        {"ls --to out", "--to is not an option of cairn ls"},
        {"--all ls", "--all is not an option of cairn;"},
        {"ls --limit", "--limit needs N"},
        {"ls --limit=x", "it must be a number"},
        {"ls --limit=-1", "it must be a number"},
        {"ls --limit=4294967296", "too large"},
        {"ls --all=yes", "--all takes no value"},
        {"ls a/b c", "'c' is one argument too many"},
        {"ls a/b -- --all", "'--all' is one argument too many"},
        {"restore a/b latest more", "'more' is one argument too many"},
        {"restore a/b latest", "--to DIR is missing"},
        {"annotate a/b", "CHECKPOINT is missing"},
        {"show a/b two", "does not name a checkpoint"},
        {"version a/b", "'a/b' is one argument too many"},
        {"verify --read-data-subset 0/7", "1 <= N <= T"},
        {"verify --read-data-subset 8/7", "1 <= N <= T"},
        {"verify --read-data-subset 1", "1 <= N <= T"},
        {"verify --read-data-subset 1/99999999999", "1 <= N <= T"},
        {"ls --timeout 86401", "--timeout 86401 is too large"},
        {"ls --timeout 0", "--timeout 0 is too small"},
        {"annotate a/b 1 --metric loss", "NAME=VALUE"},
        {"annotate a/b 1 --metric =1", "NAME=VALUE"},
        {"annotate a/b 1 --metric loss=1x", "NAME=VALUE"},
        {"annotate a/b 1 --metric loss=", "NAME=VALUE"},
        {"annotate a/b 1 --metric loss=nan", "--metric 'loss=nan': NaN"},
        {"ls --tag x", "--tag is not an option of cairn ls"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct cli cli;
        struct diag diag = DIAG_INIT;
        int status = parse(cases[i][0], &cli, &diag);
        cli_fini(&cli);
        if (status != CAIRN_E_INVALID || !strstr(diag.text, cases[i][1])) {
            fail_msg("%s: %d '%s'", cases[i][0], status, diag.text);
        }
    }
}

/* Every option of every command has a name of its own among what the command takes, a help without
 * a full stop, and a preset that its own kind accepts; every option appears in the help. */
TEST(test_tables)
{
    for (size_t i = 0; commands[i]; i++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_non_null(out);
        cli_usage(out, commands[i]);
        cli_manual(out, commands[i]);
        assert_int_equal(fclose(out), 0);
        void *values = calloc(1, commands[i]->options_bytes + 1);
        struct option_set set = {.table = commands[i]->options, .values = values};
        assert_int_equal(options_init(&set, NULL), 0);
        for (const struct option *option = commands[i]->options; option && option->name; option++) {
            size_t length = strlen(option->name), help = strlen(option->help);
            char shown[80];
            assert_null(option_find(cli_options, length, option->name));
            assert_ptr_equal(option_find(commands[i]->options, length, option->name), option);
            assert_true(option->letter == 0 || !option_find_letter(cli_options, option->letter));
            assert_true(option->at < commands[i]->options_bytes);
            assert_true(help > 0 && option->help[help - 1] != '.');
            snprintf(shown, sizeof shown, "--%s", option->name);
            assert_non_null(strstr(text, shown));
        }
        assert_true(commands[i]->summary[0] != '\0' && commands[i]->details);
        free(values);
        free(text);
    }
}
