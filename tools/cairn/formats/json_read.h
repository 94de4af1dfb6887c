/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read: strict reading of JSON texts of other programs (RFC 8259) by jansson: one value,
 * UTF-8, no NUL in a string, no key twice in an object. Depth and memory are bounded before jansson
 * sees the text. Pure.
 */
#ifndef CAIRN_TOOLS_JSON_READ_H
#define CAIRN_TOOLS_JSON_READ_H

#include "base/diag.h"

#include <jansson.h>
#include <stddef.h>

/* Parses the text; *ret is the caller's, who frees it with json_decref(). FORMAT: the text is no
 * JSON, or holds an integer that 64 bits with a sign cannot; the diag names the line and the byte.
 * TOO_LARGE: it is nested deeper than 32, or has more than 16 million values. NO_MEMORY. */
int MUST_USE json_read(size_t bytes, const char *text, json_t **ret, struct diag *diag);

#endif
