/* SPDX-License-Identifier: Apache-2.0
 *
 * /projects: what each project costs in bytes. A page visits whole projects; what a run costs is
 * summed whenever its record changes, so a page costs the number of runs.
 */
#include "rest/rest_private.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

struct project {
    struct run_name name; /* of its last run that was visited */
    uint64_t runs, checkpoints, damaged, stored_bytes, saves_open;
    struct forgotten_total forgotten;
    struct rest_flow flow;
    int64_t commit_wall_ns;
};

static void add_run(struct project *io, const struct run_overview *run, int64_t now_ns)
{
    io->name = *run->name;
    io->runs++;
    for (size_t i = 0; i <= HEALTH_DAMAGED; i++) {
        io->checkpoints += run->checkpoints[i];
    }
    io->damaged += run->checkpoints[HEALTH_DAMAGED];
    io->stored_bytes += run->stored_bytes;
    io->saves_open += run->saves_open;
    io->forgotten.count += run->forgotten.count;
    io->forgotten.bytes += run->forgotten.bytes;
    io->commit_wall_ns =
        run->commit_wall_ns > io->commit_wall_ns ? run->commit_wall_ns : io->commit_wall_ns;
    rest_flow_add(run, now_ns, &io->flow);
}

static void write_project(const struct rest_call *call, const struct project *project)
{
    struct json *json = call->json;
    const struct quota *quota =
        call->source->quotas ? quota_of(call->source->quotas, project->name.project) : NULL;
    json_open(json, NULL, '{');
    json_str(json, "project", project->name.project);
    json_u64(json, "runs", project->runs);
    json_u64(json, "checkpoints", project->checkpoints);
    json_u64(json, "damaged", project->damaged);
    json_u64(json, "saves_open", project->saves_open);
    json_u64(json, "stored_bytes", project->stored_bytes);
    json_u64(json, "reclaimable_bytes", project->forgotten.bytes);
    json_u64(json, "written_bytes_week", project->flow.written_bytes);
    json_u64(json, "reclaimed_bytes_week", project->flow.reclaimed_bytes);
    json_wall(json, "last_commit_at", project->commit_wall_ns);
    json_u64(json, "quota_bytes", quota ? quota->bytes : 0);
    json_u64(json, "quota_checkpoints", quota ? quota->checkpoints : 0);
    json_close(json, '}');
}

/* Moves on to the first run of the next project. */
static bool next_project(const struct rest_call *call, struct run_overview *io, struct project *ret)
{
    int64_t now_ns = loop_wall_ns(call->source->metrics->loop);
    bool more = true;
    memset(ret, 0, sizeof(*ret));
    const char *project = io->name->project;
    CHECK(project[0] != '\0');
    while (more && strcmp(io->name->project, project) == 0) {
        add_run(ret, io, now_ns);
        more = catalog_next_overview(call->catalog, io->name, io);
    }
    CHECK(ret->runs > 0);
    return more;
}

int rest_projects(struct rest_call *call, struct diag *diag)
{
    const char *after = rest_arg(call->request, "after");
    struct run_name from = {.project = ""};
    struct run_overview run;
    struct project project;
    uint64_t limit = 0;
    int status = rest_limit(call, 100, &limit, diag);
    if (status != 0) {
        return status;
    }
    if (after && strlen(after) >= sizeof(from.project)) {
        return diag_set(diag, CAIRN_E_INVALID, "after must be the name of a project");
    }
    /* Behind all runs of `after`: no name of a run begins with this byte. */
    snprintf(from.project, sizeof(from.project), "%s", after ? after : "");
    snprintf(from.run, sizeof(from.run), "%s", after ? "\x7f" : "");
    bool more = catalog_next_overview(call->catalog, &from, &run);
    json_open(call->json, "projects", '[');
    while (more && limit-- > 0 && call->json->buf.bytes < REST_PAGE_BYTES) {
        more = next_project(call, &run, &project);
        write_project(call, &project);
        from = project.name;
    }
    json_close(call->json, ']');
    json_bool(call->json, "more", more);
    json_str(call->json, "next", more ? from.project : NULL);
    return 0;
}
