/* SPDX-License-Identifier: Apache-2.0
 *
 * See json.h.
 */
#include "json.h"

#include "plain.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

void json_init(struct json *json)
{
    buf_init(&json->buf, (size_t)1 << 30);
    json->comma = false;
}

void json_fini(struct json *json) { buf_fini(&json->buf); }

/* Returns how many bytes of ASCII at text stand in a JSON string as they are. Nearly all text is
 * that, and goes in one piece. */
static size_t literal_bytes(const char *text)
{
    size_t bytes = 0;
    while (text[bytes] >= ' ' && text[bytes] <= '~' && text[bytes] != '"' && text[bytes] != '\\') {
        bytes++;
    }
    return bytes;
}

static void put_text(struct json *json, const char *text)
{
    buf_put_u8(&json->buf, '"');
    for (size_t length; *text; text += length) {
        char escape[PLAIN_ESCAPE_BYTES] = "";
        length = literal_bytes(text);
        if (length == 0) {
            length = plain_next(text, escape);
        }
        if (escape[0] != '\0') {
            buf_printf(&json->buf, "%s", escape);
        } else if (*text == '"' || *text == '\\') {
            buf_printf(&json->buf, "\\%c", *text);
        } else {
            buf_put(&json->buf, length, text);
        }
    }
    buf_put_u8(&json->buf, '"');
}

static void begin(struct json *json, const char *name)
{
    if (json->comma) {
        buf_put_u8(&json->buf, ',');
    }
    json->comma = true;
    if (name) {
        put_text(json, name);
        buf_put_u8(&json->buf, ':');
    }
}

void json_open(struct json *json, const char *name, char bracket)
{
    begin(json, name);
    buf_put_u8(&json->buf, (uint8_t)bracket);
    json->comma = false;
}

void json_close(struct json *json, char bracket)
{
    buf_put_u8(&json->buf, (uint8_t)bracket);
    json->comma = true;
}

void json_str(struct json *json, const char *name, const char *text)
{
    begin(json, name);
    if (text) {
        put_text(json, text);
    } else {
        buf_put(&json->buf, 4, "null");
    }
}

void json_u64(struct json *json, const char *name, uint64_t value)
{
    begin(json, name);
    buf_printf(&json->buf, "%" PRIu64, value);
}

void json_f64(struct json *json, const char *name, double value)
{
    begin(json, name);
    if (isfinite(value)) {
        buf_printf(&json->buf, "%.17g", value);
    } else {
        buf_put(&json->buf, 4, "null");
    }
}

void json_bool(struct json *json, const char *name, bool value)
{
    begin(json, name);
    buf_printf(&json->buf, "%s", value ? "true" : "false");
}

void json_raw(struct json *json, const char *name, size_t bytes, const char *text)
{
    begin(json, name);
    buf_put(&json->buf, bytes, text);
}

void json_wall(struct json *json, const char *name, int64_t wall_ns)
{
    time_t seconds = (time_t)(wall_ns / 1000000000);
    char text[40];
    struct tm tm;
    bool known = wall_ns != 0 && gmtime_r(&seconds, &tm) &&
                 strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0;
    json_str(json, name, known ? text : NULL);
}
