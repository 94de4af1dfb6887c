/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8: what is a character in text from outside, and where such text may be cut.
 */
#ifndef CAIRN_BASE_UTF8_H
#define CAIRN_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

enum { UTF8_BYTES_MAX = 4 }; /* of one character */

/* Returns the bytes of the well-formed character at text, or 0 if there is none. Overlong forms,
 * surrogates and numbers above U+10FFFF are not well-formed. A NUL is a character and part of
 * no other, so that a text that ends with one may be said to be longer. */
size_t utf8_length(size_t bytes, const void *text);
bool utf8_is_valid(size_t bytes, const void *text); /* any length, NUL allowed */
/* Returns the bytes of a text that was cut without an incomplete character at its end. */
size_t utf8_trim(size_t bytes, const char *text);

#endif
