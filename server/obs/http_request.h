/* SPDX-License-Identifier: Apache-2.0
 *
 * http_request: reads the head of an HTTP/1.x request, as strictly as possible: everything that is
 * not plainly a GET or HEAD without a body is refused with a status. Pure; the bytes may come from
 * anybody.
 */
#ifndef CAIRN_OBS_HTTP_REQUEST_H
#define CAIRN_OBS_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_HEAD_MAX = 8192, HTTP_PATH_MAX = 128, HTTP_HEADERS_MAX = 64 };

struct http_request {
    bool is_head;             /* HEAD: the answer has no body */
    bool wants_openmetrics;   /* Accept names application/openmetrics-text, and not with q=0 */
    char path[HTTP_PATH_MAX]; /* begins with '/'; a '?' and what follows it are cut off */
};

enum http_parsed { HTTP_MORE, HTTP_WHOLE, HTTP_REFUSED };

/* Parses the bytes that came so far. After HTTP_WHOLE *ret is set. After HTTP_REFUSED *ret_status
 * says why (400, 405 and so on). */
enum http_parsed http_request_parse(size_t bytes, const char *data, struct http_request *ret,
                                    unsigned *ret_status);
const char *http_status_text(unsigned status); /* such as "Bad Request" */

#endif
