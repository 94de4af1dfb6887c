/* SPDX-License-Identifier: Apache-2.0
 *
 * What every cmocka program includes: cmocka with the headers that it needs, and a main function.
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

/* The main function of a program that runs the tests of this table. */
#define UNIT_TEST_MAIN(tests) \
    int main(void) { return cmocka_run_group_tests(tests, NULL, NULL); }

#endif
