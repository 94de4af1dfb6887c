/* SPDX-License-Identifier: Apache-2.0
 *
 * json: writes one JSON document into a buf, with commas and escapes. A name that is NULL makes an
 * element of an array. The library that reads JSON does not write it: jansson has no numbers above
 * 2^63 - 1, writes 1 as 1.0, and lets through characters that steer a terminal.
 */
#ifndef CAIRN_TOOLS_JSON_H
#define CAIRN_TOOLS_JSON_H

#include "base/buf.h"

#include <stdbool.h>

struct json {
    struct buf buf;
    bool comma;
};

enum {
    JSON_SCHEMA_VERSION = 1
}; /* of everything that --json prints; fields may be added within a version */

void json_init(struct json *json);
/* Begins a document: an object that begins with schema_version. */
void json_begin(struct json *json);
/* Ends the object, prints the document and frees it. Returns what json_print() says. */
int MUST_USE json_end(struct json *json);
void json_fini(struct json *json);
void json_open(struct json *json, const char *name, char bracket);    /* '{' or '[' */
void json_close(struct json *json, char bracket);                     /* '}' or ']' */
void json_str(struct json *json, const char *name, const char *text); /* NULL text: null */
void json_u64(struct json *json, const char *name, uint64_t value);
void json_f64(struct json *json, const char *name, double value);
void json_bool(struct json *json, const char *name, bool value);
void json_raw(struct json *json, const char *name, size_t bytes,
              const char *text); /* a JSON value */
/* Prints the document and a newline to stdout. NO_MEMORY, and what out_flush() says. */
int MUST_USE json_print(struct json *json);

#endif
