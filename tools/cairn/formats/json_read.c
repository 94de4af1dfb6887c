/* SPDX-License-Identifier: Apache-2.0
 *
 * See json_read.h. Objects and arrays are opened and closed on a stack of our own.
 */
#include "formats/json_read.h"

#include "base/check.h"
#include "base/digits.h"
#include "format/ids.h"

#include <string.h>

enum { DEPTH_MAX = 32, SMALL_OBJECT = 32 };

struct reading {
    const char *text;
    size_t bytes, at;
    struct scratch *scratch;
    struct diag *diag;
    struct json_node *open[DEPTH_MAX], *last[DEPTH_MAX]; /* last child of each */
    size_t depth;
};

static int broken(struct reading *reading, const char *what)
{
    return diag_set(reading->diag, CAIRN_E_FORMAT, "JSON: %s at byte %zu", what, reading->at);
}

static int peek(const struct reading *reading)
{
    return reading->at < reading->bytes ? (unsigned char)reading->text[reading->at] : -1;
}

static void skip_blanks(struct reading *reading)
{
    while (peek(reading) == ' ' || peek(reading) == '\t' || peek(reading) == '\n' ||
           peek(reading) == '\r') {
        reading->at++;
    }
}

/* --- strings --- */

static bool take_hex(struct reading *reading, uint32_t *ret)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        int c = peek(reading);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            return false;
        }
        value = value << 4 | (uint32_t)digit;
        reading->at++;
    }
    *ret = value;
    return true;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    } else {
        *to++ = (char)(0xf0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3f));
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    }
    return to;
}

/* Behind "\u". Surrogates come in pairs; NUL is not taken, for names are C strings. */
static int take_unicode(struct reading *reading, char **io)
{
    uint32_t c = 0, low = 0;
    if (!take_hex(reading, &c)) {
        return broken(reading, "a broken \\u");
    }
    if (c >= 0xd800 && c < 0xdc00) {
        bool pair = peek(reading) == '\\';
        reading->at += pair;
        pair = pair && peek(reading) == 'u';
        reading->at += pair;
        if (!pair || !take_hex(reading, &low) || low < 0xdc00 || low > 0xdfff) {
            return broken(reading, "half a surrogate pair");
        }
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c == 0 || (c >= 0xdc00 && c <= 0xdfff)) {
        return broken(reading, "a character that is none");
    }
    *io = put_utf8(*io, c);
    return 0;
}

static int take_escape(struct reading *reading, char **io)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(reading);
    reading->at++;
    if (c == 'u') {
        return take_unicode(reading, io);
    }
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (!found) {
        return broken(reading, "an unknown escape");
    }
    *(*io)++ = to[found - from];
    return 0;
}

static int take_string(struct reading *reading, const char **ret)
{
    size_t end = ++reading->at;
    while (end < reading->bytes && reading->text[end] != '"') {
        end += reading->text[end] == '\\' ? 2 : 1;
    }
    if (end >= reading->bytes) {
        return broken(reading, "a string without an end");
    }
    char *text = scratch_alloc(reading->scratch, end - reading->at + 1), *to = text;
    if (!text) {
        return diag_set(reading->diag, CAIRN_E_NO_MEMORY, "no memory for a string");
    }
    int status = utf8_is_valid(end - reading->at, reading->text + reading->at)
                     ? 0
                     : broken(reading, "no UTF-8 text");
    while (status == 0 && reading->at < end) {
        unsigned char c = (unsigned char)reading->text[reading->at++];
        if (c == '\\') {
            status = take_escape(reading, &to);
        } else if (c < 0x20) {
            status = broken(reading, "a control character");
        } else {
            *to++ = (char)c;
        }
    }
    *to = '\0';
    reading->at = end + 1;
    *ret = text;
    return status;
}

/* --- numbers and words --- */

static bool take_digits(struct reading *reading)
{
    size_t from = reading->at;
    while (peek(reading) >= '0' && peek(reading) <= '9') {
        reading->at++;
    }
    return reading->at > from;
}

static int take_number(struct reading *reading, struct json_node *node)
{
    size_t from = reading->at;
    bool whole = true;
    reading->at += peek(reading) == '-';
    bool zero = peek(reading) == '0';
    bool fine =
        take_digits(reading) && !(zero && reading->at - from > 1 + (reading->text[from] == '-'));
    if (fine && peek(reading) == '.') {
        reading->at++;
        whole = false;
        fine = take_digits(reading);
    }
    if (fine && (peek(reading) == 'e' || peek(reading) == 'E')) {
        reading->at++;
        reading->at += peek(reading) == '+' || peek(reading) == '-';
        whole = false;
        fine = take_digits(reading);
    }
    if (!fine) {
        return broken(reading, "a broken number");
    }
    node->kind = JSON_NUMBER;
    node->text = scratch_string(reading->scratch, reading->at - from, reading->text + from);
    if (!node->text) {
        return diag_set(reading->diag, CAIRN_E_NO_MEMORY, "no memory for a number");
    }
    node->is_whole = whole && digits_parse_decimal(node->text, UINT64_MAX, &node->whole);
    return 0;
}

static int take_word(struct reading *reading, struct json_node *node)
{
    static const struct {
        const char *word;
        enum json_kind kind;
        bool truth;
    } words[] = {
        {"null", JSON_NULL, false}, {"true", JSON_BOOL, true}, {"false", JSON_BOOL, false}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        size_t length = strlen(words[i].word);
        if (reading->bytes - reading->at >= length &&
            memcmp(reading->text + reading->at, words[i].word, length) == 0) {
            node->kind = words[i].kind;
            node->truth = words[i].truth;
            reading->at += length;
            return 0;
        }
    }
    return broken(reading, "no value");
}

/* --- values --- */

static int open_node(struct reading *reading, struct json_node *node, enum json_kind kind)
{
    if (reading->depth == DEPTH_MAX) {
        return diag_set(reading->diag, CAIRN_E_TOO_LARGE, "JSON: nested deeper than %d", DEPTH_MAX);
    }
    node->kind = kind;
    reading->open[reading->depth] = node;
    reading->last[reading->depth++] = NULL;
    reading->at++;
    return 0;
}

static int check_key(struct reading *reading, const struct json_node *object, const char *key)
{
    return object->count <= SMALL_OBJECT && json_get(object, key)
               ? broken(reading, "a key that is there already")
               : 0;
}

static void add_child(struct reading *reading, struct json_node *node)
{
    if (reading->depth > 0) {
        struct json_node *parent = reading->open[reading->depth - 1];
        struct json_node **last = &reading->last[reading->depth - 1];
        if (*last) {
            (*last)->next = node;
        } else {
            parent->first = node;
        }
        *last = node;
        parent->count++;
    }
}

/* "key": in an object. */
static int take_key(struct reading *reading, struct json_node *node)
{
    if (reading->depth == 0 || reading->open[reading->depth - 1]->kind != JSON_OBJECT) {
        return 0;
    }
    if (peek(reading) != '"') {
        return broken(reading, "no key");
    }
    int status = take_string(reading, &node->key);
    status =
        status != 0 ? status : check_key(reading, reading->open[reading->depth - 1], node->key);
    skip_blanks(reading);
    if (status == 0 && peek(reading) != ':') {
        status = broken(reading, "no colon");
    }
    reading->at++;
    skip_blanks(reading);
    return status;
}

static int take_value(struct reading *reading, struct json_node **ret)
{
    struct json_node *node = scratch_alloc(reading->scratch, sizeof(*node));
    if (!node) {
        return diag_set(reading->diag, CAIRN_E_NO_MEMORY, "no memory for JSON");
    }
    *node = (struct json_node){0};
    int status = take_key(reading, node);
    if (status != 0) {
        return status;
    }
    add_child(reading, node);
    *ret = node;
    int c = peek(reading);
    if (c == '{' || c == '[') {
        return open_node(reading, node, c == '{' ? JSON_OBJECT : JSON_ARRAY);
    }
    if (c == '"') {
        node->kind = JSON_STRING;
        return take_string(reading, &node->text);
    }
    return c == '-' || (c >= '0' && c <= '9') ? take_number(reading, node)
                                              : take_word(reading, node);
}

/* Closes what ends here, and goes past a comma: true when another value must follow. */
static int go_on(struct reading *reading, bool *ret_more)
{
    for (;;) {
        skip_blanks(reading);
        if (reading->depth == 0) {
            *ret_more = false;
            return 0;
        }
        const struct json_node *parent = reading->open[reading->depth - 1];
        int c = peek(reading), end = parent->kind == JSON_OBJECT ? '}' : ']';
        if (c == end) {
            reading->depth--;
            reading->at++;
            continue;
        }
        if (parent->count > 0 && c != ',') {
            return broken(reading, "no comma");
        }
        reading->at += parent->count > 0;
        skip_blanks(reading);
        *ret_more = true;
        return 0;
    }
}

int json_read(size_t bytes, const char *text, struct scratch *scratch, const struct json_node **ret,
              struct diag *diag)
{
    struct reading reading = {.text = text, .bytes = bytes, .scratch = scratch, .diag = diag};
    struct json_node *root = NULL, *node = NULL;
    bool more = true;
    int status = 0;
    skip_blanks(&reading);
    while (status == 0 && more) {
        status = take_value(&reading, &node);
        root = root ? root : node;
        status = status != 0 ? status : go_on(&reading, &more);
    }
    if (status == 0 && reading.at != bytes) {
        status = broken(&reading, "more behind the value");
    }
    if (status == 0) {
        *ret = root;
    }
    return status;
}

const struct json_node *json_get(const struct json_node *object, const char *key)
{
    if (!object || object->kind != JSON_OBJECT) {
        return NULL;
    }
    for (const struct json_node *node = object->first; node; node = node->next) {
        if (node->key && strcmp(node->key, key) == 0) {
            return node;
        }
    }
    return NULL;
}
