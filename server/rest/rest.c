/* SPDX-License-Identifier: Apache-2.0
 *
 * rest: see rest.h. The table of paths.
 */
#include "rest/rest_private.h"

#include "base/check.h"
#include "env/loop.h"

#include <string.h>

enum { ARGS_MAX = 5 };

/* One row a path; "*" stands for any word. */
struct endpoint {
    const char *path;
    const char *args[ARGS_MAX];
    int (*answer)(struct rest_call *call, struct diag *diag);
};

static int rest_index(struct rest_call *call, struct diag *diag);

static const struct endpoint endpoints[] = {
    {"", {NULL}, rest_index},
    {"status", {NULL}, rest_status},
    {"live", {"project", "ranks", NULL}, rest_live},
    {"runs", {"project", "after", "since", "limit", "checkpoints"}, rest_runs},
    {"runs/*/*", {NULL}, rest_run},
    {"runs/*/*/checkpoints", {"before", "limit", "forgotten", NULL}, rest_checkpoints},
    {"runs/*/*/log", {"before", "limit", NULL}, rest_log},
    {"projects", {"after", "limit", NULL}, rest_projects},
};

static int rest_index(struct rest_call *call, struct diag *diag)
{
    (void)diag;
    json_open(call->json, "paths", '[');
    for (size_t i = 0; i < ARRAY_LEN(endpoints); i++) {
        const struct endpoint *row = &endpoints[i];
        json_open(call->json, NULL, '{');
        json_str(call->json, "path", row->path);
        json_open(call->json, "arguments", '[');
        for (size_t k = 0; k < ARGS_MAX && row->args[k]; k++) {
            json_str(call->json, NULL, row->args[k]);
        }
        json_close(call->json, ']');
        json_close(call->json, '}');
    }
    json_close(call->json, ']');
    return 0;
}

/* --- dispatch --- */

static bool fits(const struct endpoint *endpoint, const struct rest_request *request)
{
    const char *at = endpoint->path;
    CHECK(request->word_count <= REST_WORDS_MAX);
    for (size_t i = 0; i < request->word_count; i++) {
        size_t bytes = strcspn(at, "/");
        bool same = strlen(request->words[i]) == bytes && memcmp(at, request->words[i], bytes) == 0;
        if (bytes == 0 || (!same && !(bytes == 1 && *at == '*'))) {
            return false;
        }
        at += bytes + (at[bytes] == '/');
    }
    return *at == '\0';
}

static int check_args(const struct endpoint *endpoint, const struct rest_request *request,
                      struct diag *diag)
{
    CHECK(request->arg_count <= REST_ARGS_MAX);
    for (size_t i = 0; i < request->arg_count; i++) {
        bool known = false;
        for (size_t k = 0; k < ARGS_MAX && endpoint->args[k]; k++) {
            known = known || strcmp(endpoint->args[k], request->args[i].name) == 0;
        }
        if (!known) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "%s/%s has no argument '%s'; " REST_PREFIX
                            "/ lists paths and arguments",
                            REST_PREFIX, endpoint->path, request->args[i].name);
        }
    }
    return 0;
}

static int dispatch(struct rest_call *call, struct diag *diag)
{
    for (size_t i = 0; i < ARRAY_LEN(endpoints); i++) {
        if (fits(&endpoints[i], call->request)) {
            int status = check_args(&endpoints[i], call->request, diag);
            if (status == 0 && !call->catalog && endpoints[i].answer != rest_index &&
                endpoints[i].answer != rest_status) {
                status = diag_set(diag, CAIRN_E_UNREACHABLE,
                                  "the daemon has not opened its store yet; /healthz says why");
            }
            return status != 0 ? status : endpoints[i].answer(call, diag);
        }
    }
    return diag_set(diag, CAIRN_E_NOT_FOUND, "there is no such path; " REST_PREFIX "/ lists them");
}

/* Returns the status of HTTP for an error. */
static unsigned http_status_of(int code)
{
    static const struct {
        int code;
        unsigned status;
    } table[] = {{0, 200},
                 {CAIRN_E_INVALID, 400},
                 {CAIRN_E_NOT_FOUND, 404},
                 {CAIRN_E_AGAIN, 503},
                 {CAIRN_E_UNREACHABLE, 503}};
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (table[i].code == code) {
            return table[i].status;
        }
    }
    return 500;
}

static void begin(const struct rest_source *source, struct json *json)
{
    json_open(json, NULL, '{');
    json_u64(json, "schema_version", JSON_SCHEMA_VERSION);
    json_wall(json, "now", loop_wall_ns(source->metrics->loop));
}

void rest_answer(const struct rest_source *source, const char *target, struct http_reply *io)
{
    struct json json = {.buf = io->body};
    struct diag diag = DIAG_INIT;
    struct rest_request request;
    struct rest_call call = {
        .source = source, .request = &request, .catalog = source->metrics->catalog, .json = &json};
    CHECK(source->usage && source->addresses);
    CHECK(io->body.bytes == 0);
    begin(source, &json);
    int status = rest_request_parse(target, &request, &diag);
    status = status != 0 ? status : dispatch(&call, &diag);
    if (status != 0) {
        buf_reset(&json.buf);
        json.comma = false;
        begin(source, &json);
        json_open(&json, "error", '{');
        json_str(&json, "code", err_name(status));
        json_str(&json, "message", diag_text(&diag, status));
        json_close(&json, '}');
    }
    json_close(&json, '}');
    buf_put_u8(&json.buf, '\n');
    io->body = json.buf;
    io->content_type = "application/json";
    io->status = http_status_of(status);
    io->fresh_ms = status == 0 ? REST_FRESH_MS : 0;
}
