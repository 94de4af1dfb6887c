/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8: see utf8.h. Pure.
 */
#include "base/utf8.h"

#include <stdint.h>

static bool continues(uint8_t byte) { return (byte & 0xc0) == 0x80; }

/* Returns the bytes of the character that begins with the byte, as far as the byte says. */
static size_t length_of(uint8_t lead)
{
    return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
}

size_t utf8_length(size_t bytes, const void *text)
{
    const uint8_t *at = text;
    uint8_t lead = at[0];
    if (lead < 0x80) {
        return 1;
    }
    size_t length = length_of(lead);
    if (lead < 0xc2 || lead > 0xf4 || length > bytes) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if (!continues(at[i])) {
            return 0;
        }
    }
    bool overlong = (lead == 0xe0 && at[1] < 0xa0) || (lead == 0xf0 && at[1] < 0x90);
    bool surrogate = lead == 0xed && at[1] > 0x9f;
    bool beyond = lead == 0xf4 && at[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : length;
}

bool utf8_is_valid(size_t bytes, const void *text)
{
    const uint8_t *at = text;
    for (size_t i = 0; i < bytes;) {
        size_t step = utf8_length(bytes - i, at + i);
        if (step == 0) {
            return false;
        }
        i += step;
    }
    return true;
}

size_t utf8_trim(size_t bytes, const char *text)
{
    size_t tail = 0; /* the bytes at the end that continue a character */
    while (tail < bytes && tail < 3 && continues((uint8_t)text[bytes - 1 - tail])) {
        tail++;
    }
    bool cut = tail < bytes && length_of((uint8_t)text[bytes - 1 - tail]) > tail + 1;
    return cut ? bytes - 1 - tail : bytes;
}
