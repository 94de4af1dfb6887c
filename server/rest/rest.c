/* SPDX-License-Identifier: Apache-2.0
 *
 * rest: see rest.h. The table of paths, and what all of them share.
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

/* How long an answer may be given to others who ask the same: as often as a page asks anew. */
enum { FRESH_MS = 1000 };

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

/* --- pieces --- */

int rest_limit(const struct rest_call *call, uint64_t preset, uint64_t *ret, struct diag *diag)
{
    struct rest_range range = {.preset = preset, .least = 1, .most = REST_LIMIT_MAX};
    return rest_arg_u64(call->request, "limit", range, ret, diag);
}

int rest_find_run(const struct rest_call *call, struct run_look *ret, struct diag *diag)
{
    struct run_name name;
    int status = run_name_set(call->request->words[1], call->request->words[2], &name, diag);
    if (status != 0) {
        return CAIRN_E_INVALID;
    }
    if (!catalog_look(call->catalog, &name, ret) || (ret->state && ret->state->removed)) {
        return diag_set(diag, CAIRN_E_NOT_FOUND, "there is no run %s/%s; `cairn ls` lists the runs",
                        name.project, name.run);
    }
    run_look_again(call->catalog, &name, FRESH_MS);
    if (!ret->state && ret->is_unreadable) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the record of %s/%s cannot be read; run `cairn doctor`", name.project,
                        name.run);
    }
    return ret->state ? 0
                      : diag_set(diag, CAIRN_E_AGAIN,
                                 "the record of %s/%s has not been read yet; ask again",
                                 name.project, name.run);
}

void rest_json_run_name(struct json *json, const struct run_name *name)
{
    char text[RUN_NAME_TEXT_MAX];
    run_name_format(name, text);
    json_str(json, "run", text);
    json_str(json, "project", name->project);
    json_str(json, "name", name->run);
}

void rest_json_id(struct json *json, struct ckpt_id id)
{
    json_u64(json, "step", id.step);
    json_u64(json, "term", id.term);
}

void rest_json_health(struct json *json, const struct health_word *health)
{
    json_open(json, "health", '{');
    json_str(json, "word", server_health_name(health->word));
    json_str(json, "code", health->code != 0 ? err_name(health->code) : NULL);
    json_str(json, "text", health->text[0] != '\0' ? health->text : NULL);
    json_str(json, "remedy", health->remedy[0] != '\0' ? health->remedy : NULL);
    json_close(json, '}');
}

void rest_flow_add(const struct run_look *look, int64_t now_ns, struct rest_flow *io)
{
    uint64_t today = day_of(now_ns);
    bool has_saves = false;
    for (size_t i = 0; i < RUN_DAYS; i++) {
        const struct run_day *day = &look->days[i];
        if (day->day != 0 && day->day <= today && day->day + RUN_DAYS > today) {
            io->saves += day->saves;
            io->written_bytes += day->written_bytes;
            io->reclaimed_bytes += day->reclaimed_bytes;
            has_saves = has_saves || day->saves > 0;
        }
    }
    if (has_saves && (io->first_wall_ns == 0 || look->first_wall_ns < io->first_wall_ns)) {
        io->first_wall_ns = look->first_wall_ns;
    }
}

/* --- dispatch --- */

static bool fits(const struct endpoint *endpoint, const struct rest_request *request)
{
    const char *at = endpoint->path;
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
    io->fresh_ms = status == 0 ? FRESH_MS : 0;
}
