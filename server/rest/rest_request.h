/* SPDX-License-Identifier: Apache-2.0
 *
 * rest_request: takes a request's target apart: the words of its path and the arguments of its
 * query, with %XX resolved. Pure.
 */
#ifndef CAIRN_REST_REST_REQUEST_H
#define CAIRN_REST_REST_REQUEST_H

#include "base/diag.h"
#include "http/http.h"

enum { REST_WORDS_MAX = 6, REST_ARGS_MAX = 8 };

struct rest_arg {
    const char *name, *value;
};
struct rest_request {
    char text[2 * HTTP_TARGET_MAX]; /* what the pointers point into */
    size_t word_count, arg_count;
    const char *words[REST_WORDS_MAX]; /* of the path behind /api/v1/ */
    struct rest_arg args[REST_ARGS_MAX];
};

/* Returns INVALID for a bad escape, a NUL, or more words or arguments than any request has. The
 * target must begin with REST_PREFIX. */
int MUST_USE rest_request_parse(const char *target, struct rest_request *ret, struct diag *diag);
/* Returns the argument's value, or NULL if the request has none of that name. */
const char *rest_arg(const struct rest_request *request, const char *name);
/* Gives a number argument from `least` to `most`, or `preset` if there is none. Returns INVALID if
 * it is something else. */
struct rest_range {
    uint64_t preset, least, most;
};
int MUST_USE rest_arg_u64(const struct rest_request *request, const char *name,
                          struct rest_range range, uint64_t *ret, struct diag *diag);

#endif
