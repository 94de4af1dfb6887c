/* SPDX-License-Identifier: Apache-2.0
 *
 * A CHECK handler that jumps back out of the broken code.
 */
#include "support/check_trap.h"

#include <setjmp.h>

#include "base/check.h"

static _Thread_local jmp_buf trap;
static _Thread_local const char *last_broken = "";

static void trap_handler(const char *file, int line, const char *what)
{
    (void)file;
    (void)line;
    last_broken = what;
    longjmp(trap, 1);
}

bool check_breaks(void (*function)(void *user), void *user)
{
    last_broken = "";
    if (setjmp(trap) != 0) {
        check_set_handler(NULL);
        return true;
    }
    check_set_handler(trap_handler);
    function(user);
    check_set_handler(NULL);
    return false;
}

const char *check_last_broken(void) { return last_broken; }
