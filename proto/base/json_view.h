/* SPDX-License-Identifier: Apache-2.0
 *
 * json_view: looks into a JSON text without copying it: for short answers of other programs (a Ceph
 * monitor), bounded by the text that holds them. What is not as it should be is simply not found.
 * No recursion. Pure.
 */
#ifndef CAIRN_BASE_JSON_VIEW_H
#define CAIRN_BASE_JSON_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_view { /* one value; borrowed from the text. at NULL: none */
    const char *at;
    size_t bytes;
};

/* The value that the text begins with; none when it is cut. */
struct json_view json_view_of(size_t bytes, const char *text);
/* The member of an object; none when there is no such member, or it is no object. */
struct json_view json_view_member(struct json_view object, const char *name);
/* Item by item: begin with io_item->at NULL; false behind the last, and for what is no array. */
bool json_view_next(struct json_view array, struct json_view *io_item);
/* Member by member of an object, in the same way; *ret_name is a string with its quotes. */
bool json_view_next_member(struct json_view object, struct json_view *ret_name,
                           struct json_view *io_value);

bool json_view_u64(struct json_view value, uint64_t *ret); /* a whole number >= 0 */
bool json_view_f64(struct json_view value, double *ret);
bool json_view_is_true(struct json_view value);
/* A string without its quotes, cut at size - 1; \uXXXX and control characters become '?'. "" when
 * it is none. */
void json_view_text(struct json_view value, size_t size, char *ret);
/* Is it the string `text`, written without escapes? */
bool json_view_is(struct json_view value, const char *text);

#endif
