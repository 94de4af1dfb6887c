/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at one character of a text at a time; plain.h has the rules. Pure; any thread.
 */
#include "base/plain.h"

#include "base/check.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Returns the code point. Those that matter lie below U+10000 and have at most three bytes; others
 * give UINT32_MAX. */
static uint32_t codepoint(const uint8_t *text, size_t length)
{
    return length == 1   ? text[0]
           : length == 2 ? (text[0] & 0x1fu) << 6 | (text[1] & 0x3fu)
           : length == 3 ? (text[0] & 0x0fu) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu)
                         : UINT32_MAX;
}

/* Returns whether the character does something in a terminal instead of being seen: control
 * characters, and those that change the direction of writing or have no width. */
static bool acts(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {{0x00, 0x1f},     {0x7f, 0x9f},     {0x061c, 0x061c}, {0x200e, 0x200f},
                  {0x2028, 0x202e}, {0x2066, 0x2069}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (c >= ranges[i].first && c <= ranges[i].last) {
            return true;
        }
    }
    return false;
}

size_t plain_next(const char *text, char ret_escape[PLAIN_ESCAPE_BYTES])
{
    const uint8_t *at = (const uint8_t *)text;
    size_t length = utf8_length(UTF8_BYTES_MAX, text);
    CHECK(at[0] != '\0');
    ret_escape[0] = '\0';
    if (length == 0) {
        snprintf(ret_escape, PLAIN_ESCAPE_BYTES, "\\ufffd");
        return 1;
    }
    uint32_t c = codepoint(at, length);
    if (c == '\n') {
        snprintf(ret_escape, PLAIN_ESCAPE_BYTES, "\\n");
    } else if (acts(c)) {
        snprintf(ret_escape, PLAIN_ESCAPE_BYTES, "\\u%04x", (unsigned)(c & 0xffffu));
    }
    return length;
}

const char *plain_copy(const char *text, size_t size, char *ret)
{
    enum { DOTS_BYTES = 3 };
    char escape[PLAIN_ESCAPE_BYTES];
    size_t at = 0, cut = 0; /* cut: where the dots would begin */
    CHECK(size > DOTS_BYTES);
    while (*text != '\0') {
        size_t length = plain_next(text, escape);
        const char *from = escape[0] != '\0' ? escape : text;
        size_t bytes = escape[0] != '\0' ? strlen(escape) : length;
        if (bytes >= size - at) {
            memcpy(ret + cut, "...", DOTS_BYTES + 1);
            return ret;
        }
        memcpy(ret + at, from, bytes);
        at += bytes;
        cut = at + DOTS_BYTES < size ? at : cut;
        text += length;
    }
    ret[at] = '\0';
    return ret;
}
