/* SPDX-License-Identifier: Apache-2.0
 *
 * A matcher with one loop that goes back only to the last star, so that no pattern takes
 * exponential time. glob.h has the rules.
 */
#include "glob.h"

#include <stdint.h>
#include <string.h>

/* Returns the character at *at, and moves *at behind it. A byte that begins no character counts as
 * one. */
static uint32_t take_char(const char **at)
{
    const unsigned char *byte = (const unsigned char *)*at;
    uint32_t ret = byte[0];
    size_t more = ret >= 0xf0 ? 3 : ret >= 0xe0 ? 2 : ret >= 0xc0 ? 1 : 0;
    size_t used = 1;
    for (; used <= more && (byte[used] & 0xc0) == 0x80; used++) {
        ret = ret << 8 | byte[used];
    }
    *at += used;
    return ret;
}

/* Returns the ']' that ends the set which begins behind '[', or NULL: then the '[' is a plain
 * character. */
static const char *set_end(const char *set)
{
    set += *set == '!';
    set += *set == ']'; /* a ']' in the first place is one of the set */
    return strchr(set, ']');
}

/* Returns whether the character is in the set, which is the text between the brackets: characters,
 * ranges, and a `!` in front that means all others. */
static bool set_has(const char *set, const char *end, uint32_t wanted)
{
    bool not_of = *set == '!', found = false;
    set += not_of;
    while (set < end) {
        uint32_t from = take_char(&set), to = from;
        if (*set == '-' && set + 1 < end) {
            set++;
            to = take_char(&set);
        }
        found = found || (wanted >= from && wanted <= to);
    }
    return found != not_of;
}

/* Compares one character of the name with what the pattern has for one. Both move on if they
 * match. */
static bool match_one(const char **pattern, const char **name)
{
    const char *at = *pattern, *rest = *name;
    if (*rest == '\0' || *at == '\0') {
        return false;
    }
    uint32_t wanted = take_char(&rest);
    const char *end = *at == '[' ? set_end(at + 1) : NULL;
    bool good;
    if (end != NULL) {
        good = set_has(at + 1, end, wanted);
        at = end + 1;
    } else {
        uint32_t have = take_char(&at);
        good = have == '?' || have == wanted;
    }
    if (good) {
        *pattern = at;
        *name = rest;
    }
    return good;
}

bool glob_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *star_name = NULL;
    if (strcmp(pattern, name) == 0) {
        return true;
    }
    while (*name != '\0') {
        if (*pattern == '*') {
            star = ++pattern;
            star_name = name;
        } else if (!match_one(&pattern, &name)) {
            if (star == NULL) {
                return false;
            }
            (void)take_char(&star_name); /* the star takes one more */
            name = star_name;
            pattern = star;
        }
    }
    while (*pattern == '*') {
        pattern++;
    }
    return *pattern == '\0';
}

bool glob_matches_any(size_t count, const char *const *patterns, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (glob_matches(patterns[i], name)) {
            return true;
        }
    }
    return false;
}
