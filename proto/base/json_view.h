/* SPDX-License-Identifier: Apache-2.0
 *
 * json_view: looks into a JSON text without copying it. It is only for what a Ceph monitor answers:
 * a report grows with the cluster to a hundred megabytes and more, and a parsed tree would take ten
 * times as much in the daemon; and older monitors write numbers that a strict parser refuses (nan,
 * 2^64 - 1). A view is bounded by the text that holds it. A value that is not as expected is simply
 * not found. No recursion. Pure.
 */
#ifndef CAIRN_BASE_JSON_VIEW_H
#define CAIRN_BASE_JSON_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_view { /* one value, borrowed from the text; `at` is NULL if there is none */
    const char *at;
    size_t bytes;
};

/* Returns the value that the text begins with, or none if the text ends inside it. */
struct json_view json_view_of(size_t bytes, const char *text);
/* Returns the member of an object, or none if it has no such member or is no object. */
struct json_view json_view_member(struct json_view object, const char *name);
/* Moves to the next item of an array. Begin with io_item->at NULL. Returns false after the last
 * item, and for a value that is no array. */
bool json_view_next(struct json_view array, struct json_view *io_item);
/* Moves to the next member of an object, in the same way. *ret_name is a string with its quotes. */
bool json_view_next_member(struct json_view object, struct json_view *ret_name,
                           struct json_view *io_value);

/* Returns the item of the array whose member `key` is `name`, or none. */
struct json_view json_view_named(struct json_view array, const char *key, const char *name);
bool json_view_u64(struct json_view value, uint64_t *ret); /* a whole number >= 0 */
/* Returns the number of a member, or 0 if it is no whole number >= 0. */
static inline uint64_t json_view_count(struct json_view object, const char *name)
{
    uint64_t value = 0;
    return json_view_u64(json_view_member(object, name), &value) ? value : 0;
}
bool json_view_f64(struct json_view value, double *ret);
bool json_view_is_true(struct json_view value);
/* Writes a string without its quotes, cut at size - 1 bytes. \uXXXX and control characters become
 * '?'. Writes "" if the value is no string. */
void json_view_text(struct json_view value, size_t size, char *ret);
/* Returns whether the value is the string `text`, written without escapes. */
bool json_view_is(struct json_view value, const char *text);

#endif
