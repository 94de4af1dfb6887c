/* SPDX-License-Identifier: Apache-2.0
 *
 * json: writes one JSON document into a buf, with commas and escapes. A name that is NULL makes an
 * element of an array. The library that reads JSON does not write it: jansson has no numbers above
 * 2^63 - 1, writes 1 as 1.0, and lets through characters that steer a terminal.
 */
#ifndef CAIRN_BASE_JSON_H
#define CAIRN_BASE_JSON_H

#include "buf.h"

#include <stdbool.h>

struct json {
    struct buf buf;
    bool comma;
};

void json_init(struct json *json); /* buf.max is 1 GiB; the caller may lower it */
void json_fini(struct json *json);
void json_open(struct json *json, const char *name, char bracket);    /* '{' or '[' */
void json_close(struct json *json, char bracket);                     /* '}' or ']' */
void json_str(struct json *json, const char *name, const char *text); /* NULL text: null */
void json_u64(struct json *json, const char *name, uint64_t value);
void json_f64(struct json *json, const char *name, double value);
void json_bool(struct json *json, const char *name, bool value);
void json_raw(struct json *json, const char *name, size_t bytes,
              const char *text); /* a JSON value */
/* Writes a wall time in RFC 3339, UTC, to the second; 0 is null. */
void json_wall(struct json *json, const char *name, int64_t wall_ns);

#endif
