/* SPDX-License-Identifier: Apache-2.0
 *
 * rest_pieces: what the answers of this folder share: arguments, the run that a path names, and
 * pieces of documents. Loop's thread.
 */
#include "rest/rest_private.h"

#include "base/check.h"

int rest_limit(const struct rest_call *call, uint64_t preset, uint64_t *ret, struct diag *diag)
{
    CHECK(preset >= 1 && preset <= REST_LIMIT_MAX);
    struct rest_range range = {.preset = preset, .least = 1, .most = REST_LIMIT_MAX};
    return rest_arg_u64(call->request, "limit", range, ret, diag);
}

int rest_find_run(const struct rest_call *call, struct run_overview *ret, struct diag *diag)
{
    struct run_name name;
    CHECK(call->request->word_count >= 3);
    int status = run_name_set(call->request->words[1], call->request->words[2], &name, diag);
    if (status != 0) {
        return CAIRN_E_INVALID;
    }
    if (!catalog_overview(call->catalog, &name, ret) || (ret->state && ret->state->removed)) {
        return diag_set(diag, CAIRN_E_NOT_FOUND, "there is no run %s/%s; `cairn ls` lists the runs",
                        name.project, name.run);
    }
    run_overview_refresh(call->catalog, &name, REST_FRESH_MS);
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
    CHECK(name->project[0] != '\0' && name->run[0] != '\0');
    json_str(json, "run", run_name_text(name).at);
    json_str(json, "project", name->project);
    json_str(json, "name", name->run);
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

void rest_flow_add(const struct run_overview *run, int64_t now_ns, struct rest_flow *io)
{
    uint64_t today = day_of(now_ns);
    bool has_saves = false;
    CHECK(run->days != NULL);
    for (size_t i = 0; i < RUN_DAYS; i++) {
        const struct run_day *day = &run->days[i];
        if (day->day != 0 && day->day <= today && day->day + RUN_DAYS > today) {
            io->saves += day->saves;
            io->written_bytes += day->written_bytes;
            io->reclaimed_bytes += day->reclaimed_bytes;
            has_saves = has_saves || day->saves > 0;
        }
    }
    if (has_saves && (io->first_wall_ns == 0 || run->first_wall_ns < io->first_wall_ns)) {
        io->first_wall_ns = run->first_wall_ns;
    }
}
