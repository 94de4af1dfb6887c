/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes as lower-case hexadecimal digits and back. Names of objects and digests in documents are
 * made of these, so there is one spelling: upper-case digits are refused. Pure; any thread.
 */
#include "hash/hash.h"

void hex_encode(size_t bytes, const void *data, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) {
        ret[2 * i] = digits[at[i] >> 4];
        ret[2 * i + 1] = digits[at[i] & 15];
    }
    ret[2 * bytes] = '\0';
}

/* Returns 0 to 15, or 16 for a character that is no lower-case hex digit. */
static unsigned hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return (unsigned)(c - '0');
    }
    if (c >= 'a' && c <= 'f') {
        return (unsigned)(c - 'a') + 10;
    }
    return 16;
}

/* The first pass decides and the second one writes, so a text that is refused leaves ret as it
 * was. */
int hex_decode(size_t bytes, const char *text, void *ret)
{
    for (size_t i = 0; i < 2 * bytes; i++) {
        if (hex_digit(text[i]) > 15) { /* a NUL too: a short text ends here */
            return 0;
        }
    }
    if (text[2 * bytes] != '\0') {
        return 0;
    }
    uint8_t *out = ret;
    for (size_t i = 0; i < bytes; i++) {
        out[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    }
    return 1;
}
