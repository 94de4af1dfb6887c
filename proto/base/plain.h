/* SPDX-License-Identifier: Apache-2.0
 *
 * plain: makes text that somebody else wrote (names, tags, reasons, a peer's errors) safe to print
 * on a terminal or in a line of a log. Characters that would act instead of being shown (control
 * characters, line ends, marks that change the direction of writing, bytes that are not UTF-8) are
 * written as JSON escapes them. Pure; any thread.
 */
#ifndef CAIRN_BASE_PLAIN_H
#define CAIRN_BASE_PLAIN_H

#include <stddef.h>

enum { PLAIN_ESCAPE_BYTES = 8 };

/* Returns the length in bytes of the character at text, which must not be at its end. ret_escape
 * becomes the text to print in its place, such as "\u001b", or "" if it is printed as it is. */
size_t plain_next(const char *text, char ret_escape[PLAIN_ESCAPE_BYTES]);
/* Copies the text, or as many whole characters as fit and "...", into ret. size is at least 4.
 * Returns ret. */
const char *plain_copy(const char *text, size_t size, char *ret);

#endif
