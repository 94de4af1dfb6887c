/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens when a CHECK breaks: the thread's handler is called, else a line goes to stderr and
 * the process aborts. Invariant: control never returns to the broken code, whatever the handler
 * does. Any thread.
 */
#include "base/check.h"

#include <stdio.h>

/* One for each thread, so that libcairn's loop thread can die alone while the trainer's threads
 * stay as they were. */
static _Thread_local check_handler check_thread_handler;

check_handler check_set_handler(check_handler handler)
{
    check_handler previous = check_thread_handler;
    check_thread_handler = handler;
    return previous;
}

_Noreturn void check_failed(const char *file, int line, const char *what)
{
    check_handler handler = check_thread_handler;
    check_thread_handler = NULL; /* a check broken inside the handler aborts */
    if (handler != NULL) {
        handler(file, line, what);
    }
    fprintf(stderr, "cairn: the assertion at %s:%d failed: %s\n", file, line, what);
    abort();
}
