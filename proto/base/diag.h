/* SPDX-License-Identifier: Apache-2.0
 *
 * The context of a failure. It is filled where the failure is first seen: what was tried, on which
 * object, with which numbers, and what to do. Callers may add one line, and never replace it. Fixed
 * size, no allocation. Every function accepts a NULL diag.
 */
#ifndef CAIRN_BASE_DIAG_H
#define CAIRN_BASE_DIAG_H

#include "err.h"

enum { DIAG_TEXT_MAX = 504 };

/* One failure, or none. It holds no pointers, so it may be copied by assignment. */
struct diag {
    int code;                 /* 0 while nothing has failed */
    char text[DIAG_TEXT_MAX]; /* UTF-8, one line or a few, without a newline at the end */
};

#define DIAG_INIT ((struct diag){0})

/* Sets code and text if diag holds no failure yet, because the first failure is the one that
 * counts. Returns code, so that a function can end with `return diag_set(diag, CAIRN_E_IO, "write
 * %s: %s", ...)`. */
int diag_set(struct diag *diag, int code, const char *fmt, ...) PRINTF(3, 4);
/* Does the same with ": <strerror(errnum)>" appended, and with the code of err_from_errno. */
int diag_errno(struct diag *diag, int errnum, const char *fmt, ...) PRINTF(3, 4);
/* Sets NO_MEMORY, with a text that says that the memory for the named thing is missing, and what to
 * do. Returns NO_MEMORY. The format names the thing: diag_no_memory(diag, "a list of %zu runs",
 * count). */
int diag_no_memory(struct diag *diag, const char *fmt, ...) PRINTF(2, 3);
/* Puts "context: " in front of the text. Does nothing if no failure is set. */
void diag_add(struct diag *diag, const char *fmt, ...) PRINTF(2, 3);
void diag_clear(struct diag *diag);
/* Copies the failure of `from` into diag if diag holds none. Returns the code of `from`. */
int diag_copy(struct diag *diag, const struct diag *from);
/* Returns the text, or err_text(code) if no text was set. Borrowed from diag. */
const char *diag_text(const struct diag *diag, int code);

/* The static analyzer sees one file at a time. Here it learns that these functions never return
 * 0. */
#ifdef __clang_analyzer__
static inline int diag_is_failure(int code)
{
    if (code >= 0) {
        __builtin_unreachable();
    }
    return code;
}
#define diag_set(...)       diag_is_failure(diag_set(__VA_ARGS__))
#define diag_errno(...)     diag_is_failure(diag_errno(__VA_ARGS__))
#define diag_no_memory(...) diag_is_failure(diag_no_memory(__VA_ARGS__))
#endif

#endif
