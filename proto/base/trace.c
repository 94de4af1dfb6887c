/* SPDX-License-Identifier: Apache-2.0
 *
 * trace: see trace.h. A traceparent is "VERSION-TRACE-PARENT-FLAGS" in small hexadecimal digits.
 * A version above 00 may add fields behind a further dash; version ff is not valid.
 */
#include "trace.h"

#include <stdio.h>
#include <string.h>

enum {
    ID_DIGITS = TRACE_ID_BYTES - 1,
    PARENT_DIGITS = 16,
    PAIR_DIGITS = 2,
    VALUE_CHARS_MIN = PAIR_DIGITS + 1 + ID_DIGITS + 1 + PARENT_DIGITS + 1 + PAIR_DIGITS
};

/* Returns whether the text begins with so many small hexadecimal digits. */
static bool has_digits(const char *text, size_t count)
{
    return strspn(text, "0123456789abcdef") >= count;
}

/* Returns whether the text begins with an id, which has so many digits and is not zero. */
static bool is_id(const char *text, size_t digits)
{
    return has_digits(text, digits) && strspn(text, "0") < digits;
}

bool trace_tag(const char *traceparent, char ret_tag[TRACE_TAG_BYTES])
{
    ret_tag[0] = '\0';
    if (strlen(traceparent) < VALUE_CHARS_MIN) {
        return false;
    }
    const char *version = traceparent, *id = version + PAIR_DIGITS + 1;
    const char *parent = id + ID_DIGITS + 1, *flags = parent + PARENT_DIGITS + 1;
    const char end = flags[PAIR_DIGITS];
    bool is_known = strncmp(version, "00", PAIR_DIGITS) == 0;
    if (!has_digits(version, PAIR_DIGITS) || !is_id(id, ID_DIGITS) ||
        !is_id(parent, PARENT_DIGITS) || !has_digits(flags, PAIR_DIGITS) ||
        strncmp(version, "ff", PAIR_DIGITS) == 0) {
        return false;
    }
    if (id[-1] != '-' || parent[-1] != '-' || flags[-1] != '-' ||
        (end != '\0' && (is_known || end != '-'))) {
        return false;
    }
    snprintf(ret_tag, TRACE_TAG_BYTES, TRACE_TAG "%.*s", (int)ID_DIGITS, id);
    return true;
}

const char *trace_of(uint32_t tag_count, const char *const *tags)
{
    const size_t prefix = strlen(TRACE_TAG);
    for (uint32_t i = 0; i < tag_count; i++) {
        const char *id = tags[i] + prefix;
        if (strncmp(tags[i], TRACE_TAG, prefix) == 0 && strlen(id) == ID_DIGITS &&
            is_id(id, ID_DIGITS)) {
            return id;
        }
    }
    return NULL;
}
