/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells whether a function breaks a CHECK. What the function held at that moment leaks; keep such
 * functions small, or free it afterwards.
 */
#ifndef CAIRN_TESTS_SUPPORT_CHECK_TRAP_H
#define CAIRN_TESTS_SUPPORT_CHECK_TRAP_H

#include <stdbool.h>

/* Calls function(user) and returns whether a CHECK was broken in it, on this thread. */
bool check_breaks(void (*function)(void *user), void *user);
/* The text of the check that was broken last; "" when none was. */
const char *check_last_broken(void);

#endif
