/* SPDX-License-Identifier: Apache-2.0
 *
 * See json_read.h. Invariant: jansson gets no text that would take more than VALUES_MAX nodes, or
 * that nests deeper than DEPTH_MAX. Any thread.
 */
#include "formats/json_read.h"

#include "base/check.h"

#include <string.h>

/* A node of jansson takes about 100 bytes, so a text takes at most 1.6 GB. The largest header of a
 * safetensors file (100 MB) has 11 million values. */
enum { DEPTH_MAX = 32, VALUES_MAX = 16 << 20 };

/* Counts what bounds depth and memory. A text that is broken is left to jansson. */
static int check_size(size_t bytes, const char *text, struct diag *diag)
{
    size_t depth = 0, deepest = 0, values = 1;
    bool is_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (is_string) {
            i += c == '\\';
            is_string = c != '"';
        } else if (c == '"') {
            is_string = true;
        } else if (c == '[' || c == '{') {
            depth++;
            values++;
            deepest = depth > deepest ? depth : deepest;
        } else if (c == ',') {
            values++;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    if (deepest > DEPTH_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "JSON: nested deeper than %d", DEPTH_MAX);
    }
    return values <= VALUES_MAX
               ? 0
               : diag_set(diag, CAIRN_E_TOO_LARGE, "JSON: more than %d values", VALUES_MAX);
}

int json_read(size_t bytes, const char *text, json_t **ret, struct diag *diag)
{
    CHECK(text != NULL || bytes == 0);
    int rc = check_size(bytes, text, diag);
    if (rc != 0) {
        return rc;
    }
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (root != NULL) {
        *ret = root;
        return 0;
    }
    if (json_error_code(&error) == json_error_out_of_memory) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for JSON");
    }
    /* What stands behind " near " is the text's own, and could steer a terminal. */
    const char *quoted = strstr(error.text, " near ");
    return diag_set(diag, CAIRN_E_FORMAT, "JSON: %.*s (line %d, byte %d)",
                    quoted != NULL ? (int)(quoted - error.text) : (int)strlen(error.text),
                    error.text, error.line, error.position);
}
