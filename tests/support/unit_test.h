/* SPDX-License-Identifier: Apache-2.0
 *
 * What every cmocka program includes: cmocka with the headers that it needs, and tests that enter
 * themselves into their program, so that a test that is written is a test that runs. The program
 * runs its tests in the order of the file.
 */
#ifndef CAIRN_TESTS_SUPPORT_UNIT_TEST_H
#define CAIRN_TESTS_SUPPORT_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __clang_analyzer__ /* it does not see that an assertion that fails never returns */
#define _fail(...)                       __builtin_trap()
#define _assert_true(is, ...)            ((is) ? (void)0 : __builtin_trap())
#define _assert_int_equal(a, b, ...)     _assert_true((a) == (b))
#define _assert_int_not_equal(a, b, ...) _assert_true((a) != (b))
#endif

struct unit_test {
    struct CMUnitTest test;
    int line;
    struct unit_test *next;
};

/* An argument of the program, from 1 on; "" if there is none. */
const char *unit_test_argument(int number);
void *unit_test_fixture(size_t bytes);
static inline void unit_test_nothing(void) {}
void unit_test_add(struct unit_test *test);
void unit_test_group(CMFixtureFunction setup, CMFixtureFunction teardown);

/* TEST(name) { ... } is a test that needs nothing. FIXTURE_TEST(name, setup, teardown, struct rig,
 * rig) { ... } is one with a fixture of its own, which is zeroed memory between the two functions
 * and lent to the test: void setup(struct rig *rig). SETUP_TEST(name, setup, teardown) { ... } is
 * one whose fixture is in the file's own variables. */
#define TEST(name) SETUP_TEST(name, unit_test_nothing, unit_test_nothing)
#define SETUP_TEST(name, setup, teardown)            \
    static void name(void);                          \
    static void name##_run(void **state) { name(); } \
    UNIT_TEST_ENDS(name, setup(), teardown())        \
    static void name(void)
#define FIXTURE_TEST(name, setup, teardown, type, variable)               \
    UNIT_TEST_BODY(name, type *variable)                                  \
    UNIT_TEST_ENDS(name, setup(*state = unit_test_fixture(sizeof(type))), \
                   (teardown(*state), free(*state)))                      \
    static void name(type *variable)
#define UNIT_TEST_ENDS(name, begin, end)                       \
    static int name##_begin(void **state) { return begin, 0; } \
    static int name##_end(void **state) { return end, 0; }     \
    UNIT_TEST_ROW(name##_row, #name, name##_run, name##_begin, name##_end, NULL)

/* The two parts of a test that runs several times, each time from another initial *state. */
#define UNIT_TEST_BODY(name, parameter) \
    static void name(parameter);        \
    static void name##_run(void **state) { name(*state); }
#define UNIT_TEST_ROW(row, text, run, setup, teardown, initial)                            \
    static struct unit_test row = {{text, run, setup, teardown, initial}, __LINE__, NULL}; \
    __attribute__((constructor)) static void row##_add(void) { unit_test_add(&row); }

/* What runs before the first and after the last test of the program. */
#define UNIT_TEST_GROUP(setup, teardown) \
    __attribute__((constructor)) static void group_add(void) { unit_test_group(setup, teardown); }

#endif
