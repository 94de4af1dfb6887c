/* SPDX-License-Identifier: Apache-2.0
 *
 * Context of a failure: filled where the failure is first seen (what was tried, on which object,
 * with which numbers, and the remedy where there is one). Callers may add one line, never replace.
 * Fixed size, no allocation; a NULL diag is always accepted.
 */
#ifndef CAIRN_BASE_DIAG_H
#define CAIRN_BASE_DIAG_H

#include "err.h"

enum { DIAG_TEXT_MAX = 504 };

struct diag {
    int code;                 /* 0 while nothing failed */
    char text[DIAG_TEXT_MAX]; /* UTF-8, one line or a few, no trailing newline */
};

#define DIAG_INIT ((struct diag){0})

/* Sets code and text if diag holds no failure yet (the first failure wins); returns code, so that
 * `return diag_set(diag, CAIRN_E_IO, "write %s: %s", ...)` is the usual last line. */
int diag_set(struct diag *diag, int code, const char *fmt, ...) PRINTF(3, 4);
/* The same with ": <strerror(errnum)>" appended and the code from err_from_errno. */
int diag_errno(struct diag *diag, int errnum, const char *fmt, ...) PRINTF(3, 4);
/* Puts "context: " in front of the text; no effect when no failure is set. */
void diag_add(struct diag *diag, const char *fmt, ...) PRINTF(2, 3);
void diag_clear(struct diag *diag);
/* Copies from's failure into diag if diag holds none. Returns from's code. */
int diag_copy(struct diag *diag, const struct diag *from);
/* The text, or err_text(code) where no text was set. Borrowed from diag. */
const char *diag_text(const struct diag *diag, int code);

/* The static analyzer sees one file at a time: here it learns that the two never return 0. */
#ifdef __clang_analyzer__
static inline int diag_is_failure(int code)
{
    if (code >= 0) {
        __builtin_unreachable();
    }
    return code;
}
#define diag_set(...)   diag_is_failure(diag_set(__VA_ARGS__))
#define diag_errno(...) diag_is_failure(diag_errno(__VA_ARGS__))
#endif

#endif
