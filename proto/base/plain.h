/* SPDX-License-Identifier: Apache-2.0
 *
 * plain: text that somebody else wrote (names, tags, reasons, a peer's errors), in a form that a
 * terminal and a line of a log show and do not obey. What has an effect of its own is written as
 * JSON escapes it: control characters, line ends, marks that turn the direction of writing, and
 * bytes that are no UTF-8. Pure; any thread.
 */
#ifndef CAIRN_BASE_PLAIN_H
#define CAIRN_BASE_PLAIN_H

#include <stddef.h>

enum { PLAIN_ESCAPE_BYTES = 8 };

/* Bytes of the character at text, which is not at its end. ret_escape: how it is written instead,
 * "\u001b"; "" where it stands for itself. */
size_t plain_next(const char *text, char ret_escape[PLAIN_ESCAPE_BYTES]);
/* The whole text, or as many whole characters as fit and "..."; size is 4 at least. Returns ret.
 */
const char *plain_copy(const char *text, size_t size, char *ret);

#endif
