/* SPDX-License-Identifier: Apache-2.0
 *
 * Strict readers of numbers in text. Invariant: a text that is refused moves nothing and writes
 * nothing. Pure; any thread.
 */
#include "base/digits.h"

#include "base/check.h"

#include <string.h>

static bool is_decimal(char c) { return c >= '0' && c <= '9'; }

bool digits_read_decimal(const char **at, uint64_t max, uint64_t *ret)
{
    const char *text = *at;
    uint64_t value = 0;
    if (!is_decimal(text[0]) || (text[0] == '0' && is_decimal(text[1]))) {
        return false;
    }
    for (; is_decimal(*text); text++) {
        if (!mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(*text - '0'), &value)) {
            return false;
        }
    }
    if (value > max) {
        return false;
    }
    *at = text;
    *ret = value;
    return true;
}

bool digits_read_hex(const char **at, size_t count, uint64_t *ret)
{
    CHECK(count >= 1);
    CHECK(count <= 16);
    const char *text = *at;
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++) {
        char c = text[i]; /* a NUL is no digit: nothing behind it is read */
        if (is_decimal(c)) {
            value = value << 4 | (uint64_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        } else {
            return false;
        }
    }
    *at = text + count;
    *ret = value;
    return true;
}

bool digits_skip(const char **at, const char *literal)
{
    size_t bytes = strlen(literal);
    if (strncmp(*at, literal, bytes) != 0) {
        return false;
    }
    *at += bytes;
    return true;
}

bool digits_parse_decimal(const char *text, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;
    if (!digits_read_decimal(&text, max, &value) || *text != '\0') {
        return false;
    }
    *ret = value;
    return true;
}
