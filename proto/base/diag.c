/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a failure in a fixed buffer. Invariants: the first failure is kept; the text always
 * ends with a NUL, and a text that is too long is cut between UTF-8 characters. Any thread, one at
 * a time.
 */
#include "base/diag.h"

#include "base/check.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The analyzer's macros are for callers, not for the definitions here. */
#undef diag_set
#undef diag_errno
#undef diag_no_memory

static void diag_printf(struct diag *diag, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Removes an incomplete UTF-8 character from the end of a text that was cut. */
static void diag_trim(char *text) { text[utf8_trim(strlen(text), text)] = '\0'; }

static void diag_printf(struct diag *diag, const char *fmt, va_list args)
{
    int length = vsnprintf(diag->text, sizeof(diag->text), fmt, args);
    if (length < 0) { /* an invalid multibyte string; the code is set all the same */
        diag->text[0] = '\0';
    } else if ((size_t)length >= sizeof(diag->text)) {
        diag_trim(diag->text);
    }
}

int diag_set(struct diag *diag, int code, const char *fmt, ...)
{
    CHECK(code < 0);
    CHECK(fmt != NULL);
    if (diag != NULL && diag->code == 0) {
        va_list args;
        va_start(args, fmt);
        diag->code = code;
        diag_printf(diag, fmt, args);
        va_end(args);
    }
    return code;
}

int diag_errno(struct diag *diag, int errnum, const char *fmt, ...)
{
    int code = err_from_errno(errnum);
    CHECK(fmt != NULL);
    if (diag != NULL && diag->code == 0) {
        va_list args;
        va_start(args, fmt);
        diag->code = code;
        diag_printf(diag, fmt, args);
        va_end(args);

        char scratch[128];
        size_t at = strlen(diag->text);
        int length = snprintf(diag->text + at, sizeof(diag->text) - at, ": %s",
                              strerror_r(errnum, scratch, sizeof(scratch)));
        if (length < 0 || (size_t)length >= sizeof(diag->text) - at) {
            diag_trim(diag->text);
        }
    }
    return code;
}

int diag_no_memory(struct diag *diag, const char *fmt, ...)
{
    char thing[160];
    va_list args;
    CHECK(fmt != NULL);
    va_start(args, fmt);
    int length = vsnprintf(thing, sizeof(thing), fmt, args);
    va_end(args);
    if (length >= (int)sizeof(thing)) {
        diag_trim(thing);
    }
    return diag_set(diag, CAIRN_E_NO_MEMORY,
                    "there is not enough memory for %s; free memory on this host, or raise the "
                    "limit of this process, "
                    "then try again",
                    length < 0 ? "this" : thing);
}

void diag_add(struct diag *diag, const char *fmt, ...)
{
    CHECK(fmt != NULL);
    if (diag == NULL || diag->code == 0) {
        return;
    }
    char cause[DIAG_TEXT_MAX];
    memcpy(cause, diag->text, sizeof(cause));

    va_list args;
    va_start(args, fmt);
    diag_printf(diag, fmt, args);
    va_end(args);

    size_t at = strlen(diag->text);
    const char *text = cause[0] != '\0' ? cause : err_text(diag->code);
    int length = snprintf(diag->text + at, sizeof(diag->text) - at, ": %s", text);
    if (length < 0 || (size_t)length >= sizeof(diag->text) - at) {
        diag_trim(diag->text);
    }
}

void diag_clear(struct diag *diag)
{
    if (diag != NULL) {
        diag->code = 0;
        diag->text[0] = '\0';
    }
}

int diag_copy(struct diag *diag, const struct diag *from)
{
    if (diag != NULL && diag->code == 0 && from->code != 0) {
        *diag = *from;
    }
    return from->code;
}

const char *diag_text(const struct diag *diag, int code)
{
    if (diag != NULL && diag->code != 0 && diag->text[0] != '\0') {
        return diag->text;
    }
    return err_text(diag != NULL && diag->code != 0 ? diag->code : code);
}
