/* SPDX-License-Identifier: Apache-2.0
 *
 * rest_request: see rest_request.h.
 */
#include "rest/rest_request.h"

#include "base/check.h"
#include "base/digits.h"
#include "rest/rest.h"

#include <inttypes.h>
#include <string.h>

/* Returns the value of a hexadecimal digit, which browsers write in capitals, or -1. */
static int hex_digit(char sign)
{
    static const char digits[] = "0123456789abcdef";
    const char *at =
        sign != '\0' ? strchr(digits, sign >= 'A' && sign <= 'F' ? sign + 32 : sign) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Copies a piece of the target with its escapes resolved, and a NUL. Returns the place behind the
 * copy, or NULL if an escape is bad. */
static char *resolve(const char *from, size_t bytes, char *to)
{
    const char *end = from + bytes;
    while (from < end) {
        if (*from != '%') {
            *to++ = *from++;
            continue;
        }
        int high = end - from >= 3 ? hex_digit(from[1]) : -1;
        int low = end - from >= 3 ? hex_digit(from[2]) : -1;
        if (high < 0 || low < 0 || high + low == 0) {
            return NULL;
        }
        *to++ = (char)(16 * high + low);
        from += 3;
    }
    *to++ = '\0';
    return to;
}

static int bad(struct diag *diag)
{
    return diag_set(diag, CAIRN_E_INVALID,
                    "the path or the query has a bad %%-escape or too many parts; docs/web.md has "
                    "the paths and their arguments");
}

/* Takes the words between slashes, up to `bytes`. */
static char *parse_path(const char *at, size_t bytes, char *room, struct rest_request *io)
{
    const char *end = at + bytes;
    while (room && at < end) {
        size_t word = 0;
        while (at + word < end && at[word] != '/') {
            word++;
        }
        if (word > 0 && io->word_count == REST_WORDS_MAX) {
            return NULL;
        }
        if (word > 0) {
            io->words[io->word_count++] = room;
            room = resolve(at, word, room);
        }
        at += word + (at + word < end);
    }
    return room;
}

/* Takes name=value pairs between ampersands. */
static char *parse_query(const char *at, char *room, struct rest_request *io)
{
    while (room && *at) {
        size_t pair = strcspn(at, "&"), name = strcspn(at, "=&");
        if (pair > 0 && io->arg_count == REST_ARGS_MAX) {
            return NULL;
        }
        if (pair > 0) {
            struct rest_arg *arg = &io->args[io->arg_count++];
            arg->name = room;
            room = resolve(at, name, room);
            arg->value = room;
            size_t skip = name < pair ? name + 1 : pair;
            room = room ? resolve(at + skip, pair - skip, room) : NULL;
        }
        at += pair + (at[pair] == '&');
    }
    return room;
}

int rest_request_parse(const char *target, struct rest_request *ret, struct diag *diag)
{
    CHECK(strlen(target) < HTTP_TARGET_MAX);
    CHECK(strncmp(target, REST_PREFIX, strlen(REST_PREFIX)) == 0);
    memset(ret, 0, sizeof(*ret));
    const char *path = target + strlen(REST_PREFIX);
    size_t bytes = strcspn(path, "?");
    char *room = parse_path(path, bytes, ret->text, ret);
    if (room && path[bytes] == '?') {
        room = parse_query(path + bytes + 1, room, ret);
    }
    if (!room) {
        return bad(diag);
    }
    CHECK(ret->word_count <= REST_WORDS_MAX && ret->arg_count <= REST_ARGS_MAX);
    CHECK(room <= ret->text + sizeof(ret->text));
    return 0;
}

const char *rest_arg(const struct rest_request *request, const char *name)
{
    for (size_t i = 0; i < request->arg_count; i++) {
        if (strcmp(request->args[i].name, name) == 0) {
            return request->args[i].value;
        }
    }
    return NULL;
}

int rest_arg_u64(const struct rest_request *request, const char *name, struct rest_range range,
                 uint64_t *ret, struct diag *diag)
{
    const char *text = rest_arg(request, name);
    CHECK(range.least <= range.most && range.preset <= range.most);
    uint64_t value = range.preset;
    if (text && (!digits_parse_decimal(text, range.most, &value) || value < range.least)) {
        return diag_set(diag, CAIRN_E_INVALID, "%s must be a number from %" PRIu64 " to %" PRIu64,
                        name, range.least, range.most);
    }
    *ret = value;
    return 0;
}
