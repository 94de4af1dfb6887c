/* SPDX-License-Identifier: Apache-2.0
 *
 * glob: names chosen by patterns, as a shell does it. `*` any characters (also `.` and `/`), `?`
 * one character, `[abc]`, `[a-z]`, `[!a-z]` one of or one not of, `[[]` a bracket itself. A pattern
 * that is equal to the name matches it, whatever it holds: "w[0]" means that name too. Pure.
 */
#ifndef CAIRN_BASE_GLOB_H
#define CAIRN_BASE_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Both are UTF-8; takes at most pattern times name steps, whatever the pattern. */
bool glob_matches(const char *pattern, const char *name);
/* One of them; none for a count of 0. */
bool glob_matches_any(size_t count, const char *const *patterns, const char *name);

#endif
