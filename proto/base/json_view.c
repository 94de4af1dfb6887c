/* SPDX-License-Identifier: Apache-2.0
 *
 * A reader of JSON that only steps over values; json_view.h has the rules.
 */
#include "json_view.h"

#include "digits.h"

#include <stdlib.h>
#include <string.h>

static const struct json_view none = {NULL, 0};

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && strchr(" \t\r\n", *at) != NULL && *at != '\0') {
        at++;
    }
    return at;
}

/* Returns a pointer just past the string that begins at `at`, or NULL if the text ends inside
 * it. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\') {
            at++;
        } else if (*at == '"') {
            return at + 1;
        }
    }
    return NULL;
}

/* Returns a pointer just past the value that begins at `at`, or NULL if the text ends inside it.
 * Brackets are counted, not matched by kind. */
static const char *skip_value(const char *at, const char *end)
{
    size_t depth = 0;
    do {
        at = skip_space(at, end);
        if (at == end) {
            return NULL;
        }
        if (*at == '"') {
            at = skip_string(at, end);
            if (at == NULL) {
                return NULL;
            }
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (depth > 0 && (*at == '}' || *at == ']')) {
            depth--;
            at++;
        } else if (depth > 0 && (*at == ',' || *at == ':')) {
            at++;
        } else {
            const char *from = at;
            while (at < end && *at != '\0' && strchr(" \t\r\n,:{}[]\"", *at) == NULL) {
                at++;
            }
            if (at == from) {
                return NULL;
            }
        }
    } while (depth > 0);
    return at;
}

static struct json_view value_at(const char *at, const char *end)
{
    at = skip_space(at, end);
    const char *behind = skip_value(at, end);
    return behind != NULL ? (struct json_view){at, (size_t)(behind - at)} : none;
}

struct json_view json_view_of(size_t bytes, const char *text)
{
    return value_at(text, text + bytes);
}

/* Returns where the next element begins, which is behind the bracket, or behind a comma after
 * `last`. Returns NULL if there is none. */
static const char *next_element(struct json_view whole, char bracket, const char *last)
{
    const char *end = whole.at + whole.bytes;
    if (whole.at == NULL || whole.at[0] != bracket) {
        return NULL;
    }
    const char *at = skip_space(last != NULL ? last : whole.at + 1, end);
    if (last != NULL) {
        if (at == end || *at != ',') {
            return NULL;
        }
        at = skip_space(at + 1, end);
    }
    return at < end && *at != '}' && *at != ']' ? at : NULL;
}

bool json_view_next(struct json_view array, struct json_view *io_item)
{
    const char *last = io_item->at != NULL ? io_item->at + io_item->bytes : NULL;
    const char *at = next_element(array, '[', last);
    *io_item = at != NULL ? value_at(at, array.at + array.bytes) : none;
    return io_item->at != NULL;
}

bool json_view_next_member(struct json_view object, struct json_view *ret_name,
                           struct json_view *io_value)
{
    const char *end = object.at + object.bytes;
    const char *last = io_value->at != NULL ? io_value->at + io_value->bytes : NULL;
    const char *at = next_element(object, '{', last);
    *io_value = none;
    if (at == NULL || *at != '"') {
        return false;
    }
    struct json_view name = value_at(at, end);
    at = name.at != NULL ? skip_space(name.at + name.bytes, end) : end;
    if (at == end || *at != ':') {
        return false;
    }
    *ret_name = name;
    *io_value = value_at(at + 1, end);
    return io_value->at != NULL;
}

struct json_view json_view_member(struct json_view object, const char *name)
{
    struct json_view key, value = none;
    while (json_view_next_member(object, &key, &value)) {
        if (json_view_is(key, name)) {
            return value;
        }
    }
    return none;
}

bool json_view_u64(struct json_view value, uint64_t *ret)
{
    char text[24];
    if (value.at == NULL || value.bytes >= sizeof(text)) {
        return false;
    }
    memcpy(text, value.at, value.bytes);
    text[value.bytes] = '\0';
    return digits_parse_decimal(text, UINT64_MAX, ret);
}

bool json_view_f64(struct json_view value, double *ret)
{
    char text[64], *end;
    if (value.at == NULL || value.bytes == 0 || value.bytes >= sizeof(text) ||
        strchr("-0123456789", value.at[0]) == NULL) {
        return false;
    }
    memcpy(text, value.at, value.bytes);
    text[value.bytes] = '\0';
    double number = strtod(text, &end);
    if (*end != '\0') {
        return false;
    }
    *ret = number;
    return true;
}

bool json_view_is_true(struct json_view value)
{
    return value.at != NULL && value.bytes == 4 && memcmp(value.at, "true", 4) == 0;
}

void json_view_text(struct json_view value, size_t size, char *ret)
{
    size_t to = 0;
    if (value.at != NULL && value.bytes >= 2 && value.at[0] == '"') {
        for (size_t i = 1; i + 1 < value.bytes && to + 1 < size; i++) {
            char c = value.at[i];
            if (c == '\\') {
                c = value.at[++i];
                if (c == 'u') {
                    i += 4;
                }
                c = c == '"' || c == '\\' || c == '/' ? c : strchr("ntrbf", c) ? ' ' : '?';
            }
            ret[to++] = (unsigned char)c < ' ' ? '?' : c;
        }
    }
    ret[to] = '\0';
}

bool json_view_is(struct json_view value, const char *text)
{
    size_t bytes = strlen(text);
    return value.at != NULL && value.bytes == bytes + 2 && value.at[0] == '"' &&
           memcmp(value.at + 1, text, bytes) == 0;
}

struct json_view json_view_named(struct json_view array, const char *key, const char *name)
{
    struct json_view item = {NULL, 0};
    while (json_view_next(array, &item)) {
        if (json_view_is(json_view_member(item, key), name)) {
            return item;
        }
    }
    return (struct json_view){NULL, 0};
}
