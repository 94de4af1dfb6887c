/* SPDX-License-Identifier: Apache-2.0
 *
 * glob: names chosen by patterns, as a shell does it. `*` matches any characters (also `.` and
 * `/`), `?` one character, `[abc]` and `[a-z]` one of a set, `[!a-z]` one not in it, `[[]` a
 * bracket itself. A pattern that is equal to the name matches it, whatever it holds: "w[0]" matches
 * that name too. Pure.
 */
#ifndef CAIRN_BASE_GLOB_H
#define CAIRN_BASE_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Returns whether the pattern matches the whole name; both are UTF-8. It takes at most as many
 * steps as pattern length times name length, whatever the pattern. */
bool glob_matches(const char *pattern, const char *name);
/* Returns whether one of the patterns matches. A count of 0 matches nothing. */
bool glob_matches_any(size_t count, const char *const *patterns, const char *name);

#endif
