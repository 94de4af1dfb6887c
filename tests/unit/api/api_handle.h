/* SPDX-License-Identifier: Apache-2.0
 *
 * A handle over the fake engine, for tests of what cairn.h promises of one.
 */
#ifndef CAIRN_TESTS_UNIT_API_API_HANDLE_H
#define CAIRN_TESTS_UNIT_API_API_HANDLE_H

#include "cairn.h"
#include "fake_engine.h"
#include "support/unit_test.h"

extern const char url[];

cairn_t *open_default(void);
/* Waits for all that is in flight, which must end well. */
void close_well(cairn_t *cairn);
/* Waits for the end, which must be good, and frees the op. */
void end_well(cairn_op_t *op);

/* FIXED_TEST(name) { ... } begins with the script's default. HANDLE_TEST lends the test a handle,
 * too, which is closed after it. */
#define FIXED_TEST(name) SETUP_TEST(name, fake_reset, unit_test_nothing)
#define HANDLE_TEST(name)                                                             \
    static void name(cairn_t *cairn);                                                 \
    static void name##_run(void **state) { name(*state); }                            \
    UNIT_TEST_ENDS(name, (fake_reset(), *state = open_default()), close_well(*state)) \
    static void name(cairn_t *cairn)

#endif
