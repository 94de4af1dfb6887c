/* SPDX-License-Identifier: Apache-2.0
 *
 * The main function of a cmocka program: runs what unit_test.h entered, in the order of the file's
 * lines, which is not that in which the compiler starts them.
 */
#include "unit_test.h"

static struct unit_test *first;
static CMFixtureFunction group_setup, group_teardown;
static char **arguments;
static int argument_count;

const char *unit_test_argument(int number)
{
    return number < argument_count ? arguments[number] : "";
}

void *unit_test_fixture(size_t bytes)
{
    void *fixture = calloc(1, bytes);
    assert_non_null(fixture);
    return fixture;
}

void unit_test_add(struct unit_test *test)
{
    struct unit_test **at = &first;
    while (*at != NULL && (*at)->line <= test->line) {
        at = &(*at)->next;
    }
    test->next = *at;
    *at = test;
}

void unit_test_group(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    group_setup = setup;
    group_teardown = teardown;
}

int main(int argc, char **argv)
{
    size_t count = 0;
    argument_count = argc;
    arguments = argv;
    for (struct unit_test *test = first; test != NULL; test = test->next) {
        count++;
    }
    struct CMUnitTest *tests = count > 0 ? calloc(count, sizeof *tests) : NULL;
    if (tests == NULL) {
        return 1;
    }
    count = 0;
    for (struct unit_test *test = first; test != NULL; test = test->next) {
        tests[count++] = test->test;
    }
    int failed = _cmocka_run_group_tests(argv[0], tests, count, group_setup, group_teardown);
    free(tests);
    return failed;
}
