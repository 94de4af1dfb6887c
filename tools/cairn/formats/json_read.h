/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read: a strict reader of JSON texts (RFC 8259) of other programs: one value, UTF-8, no
 * duplicate keys in small objects, depth bounded. Pure.
 */
#ifndef CAIRN_TOOLS_JSON_READ_H
#define CAIRN_TOOLS_JSON_READ_H

#include "base/diag.h"
#include "base/scratch.h"

#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_node {
    enum json_kind kind;
    const char *key;      /* in an object; NUL-terminated, holds no NUL */
    const char *text;     /* STRING, as key; NUMBER: as written */
    bool truth, is_whole; /* NUMBER: an integer from 0 to 2^64-1 without fraction or exponent */
    uint64_t whole;
    size_t count;
    struct json_node *first, *next; /* children in order; sibling */
};

/* FORMAT with the byte; TOO_LARGE: nested deeper than 32; NO_MEMORY. All from scratch. */
int MUST_USE json_read(size_t bytes, const char *text, struct scratch *scratch,
                       const struct json_node **ret, struct diag *diag);
const struct json_node *json_get(const struct json_node *object, const char *key); /* or NULL */

#endif
