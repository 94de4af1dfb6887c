/* SPDX-License-Identifier: Apache-2.0
 *
 * /runs: a row for each run, with its newest checkpoints as points on a line of time. With `since`
 * only those that have changed, so that a page that asks again and again costs what is new.
 */
#include "rest/rest_private.h"

#include "base/check.h"
#include "core/unrecorded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 500, GAPS_MAX = 32 };

/* Returns the letters that say what a point is; docs/web.md explains them. */
static const char *marks_of(const struct state_commit *commit, char ret[8])
{
    size_t count = 0;
    const struct {
        bool is;
        char letter;
    } marks[] = {{commit->forgotten, 'f'},
                 {commit->health == HEALTH_DAMAGED, 'd'},
                 {commit->health == HEALTH_SUSPECT, 'u'},
                 {!commit->on_lineage, 's'},
                 {commit->pinned, 'p'},
                 {commit->entry.base.term == 0, 'b'}};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        if (marks[i].is) {
            ret[count++] = marks[i].letter;
        }
    }
    CHECK(count < 8);
    ret[count] = '\0';
    return ret;
}

/* Writes the newest checkpoints, oldest first, as [step, term, ms since 1970, bytes, marks]. */
static void write_points(struct json *json, const struct run_state *state, uint64_t most)
{
    size_t first = state->commit_count, left = most;
    CHECK(most <= POINTS_MAX);
    while (first > 0 && left > 0) {
        left -= !state->commits[--first].reclaimed;
    }
    json_open(json, "points", '[');
    for (size_t i = first; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        char marks[8];
        if (commit->reclaimed) {
            continue;
        }
        json_open(json, NULL, '[');
        json_u64(json, NULL, commit->entry.id.step);
        json_u64(json, NULL, commit->entry.id.term);
        json_u64(json, NULL, (uint64_t)(commit->entry.wall_ns / 1000000));
        json_u64(json, NULL, commit->entry.stored_bytes);
        json_str(json, NULL, marks_of(commit, marks));
        json_close(json, ']');
    }
    json_close(json, ']');
}

static int compare(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Returns the median time between the newest commits in ms, or 0 if there are fewer than three. */
static uint64_t usual_interval_ms(const struct run_state *state)
{
    int64_t gaps[GAPS_MAX];
    size_t count = 0;
    for (size_t i = state->commit_count; i > 1 && count < GAPS_MAX; i--) {
        int64_t gap = state->commits[i - 1].entry.wall_ns - state->commits[i - 2].entry.wall_ns;
        if (gap > 0) {
            gaps[count++] = gap;
        }
    }
    CHECK(count <= GAPS_MAX);
    qsort(gaps, count, sizeof(gaps[0]), compare);
    return count >= 2 ? (uint64_t)(gaps[count / 2] / 1000000) : 0;
}

static void write_latest(struct json *json, const struct run_state *state)
{
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    if (!latest) {
        json_str(json, "latest", NULL);
        return;
    }
    json_open(json, "latest", '{');
    json_ckpt_id(json, latest->entry.id);
    json_wall(json, "committed_at", latest->entry.wall_ns);
    json_u64(json, "world_size", latest->entry.world_size);
    json_u64(json, "plain_bytes", latest->entry.plain_bytes);
    json_u64(json, "stored_bytes", latest->entry.stored_bytes);
    json_close(json, '}');
}

void rest_json_run(struct json *json, const struct run_overview *run, uint64_t points)
{
    const struct run_state *state = run->state;
    char mark[DIAG_TEXT_MAX] = "";
    rest_json_run_name(json, run->name);
    json_u64(json, "changed", run->changed);
    json_str(json, "record", run->is_unreadable ? "unreadable" : state ? "read" : "unread");
    json_u64(json, "verified", run->checkpoints[HEALTH_VERIFIED]);
    json_u64(json, "suspect", run->checkpoints[HEALTH_SUSPECT]);
    json_u64(json, "damaged", run->checkpoints[HEALTH_DAMAGED]);
    json_u64(json, "forgotten", run->forgotten.count);
    json_u64(json, "stored_bytes", run->stored_bytes);
    json_u64(json, "reclaimable_bytes", run->forgotten.bytes);
    json_u64(json, "saves_open", run->saves_open);
    json_u64(json, "connected_ranks", run->ranks);
    json_wall(json, "first_commit_at", run->first_wall_ns);
    json_wall(json, "last_commit_at", run->commit_wall_ns);
    if (!state) {
        return;
    }
    state_mark_text(state, sizeof(mark), mark);
    json_str(json, "loss", mark[0] != '\0' ? mark : NULL);
    json_bool(json, "removed", state->removed);
    json_u64(json, "usual_interval_ms", usual_interval_ms(state));
    write_latest(json, state);
    if (points > 0) {
        write_points(json, state, points);
    }
}

/* Gives the name behind which the page begins. */
static int after_of(const struct rest_call *call, struct run_name *ret, struct diag *diag)
{
    const char *after = rest_arg(call->request, "after");
    const char *project = rest_arg(call->request, "project");
    memset(ret, 0, sizeof(*ret));
    if (after && run_name_parse(after, ret, diag) != 0) {
        return CAIRN_E_INVALID;
    }
    if (!after && project) { /* before all of its runs */
        snprintf(ret->project, sizeof(ret->project), "%s", project);
    }
    return 0;
}

int rest_runs(struct rest_call *call, struct diag *diag)
{
    const char *project = rest_arg(call->request, "project");
    uint64_t limit = 0, points = 0, since = 0;
    struct run_name after;
    struct run_overview run;
    bool more = false;
    const struct rest_range counts = {0, 0, POINTS_MAX}, changes = {0, 0, UINT64_MAX};
    int status = rest_limit(call, 100, &limit, diag);
    if (status == 0) {
        status = rest_arg_u64(call->request, "checkpoints", counts, &points, diag);
    }
    if (status == 0) {
        status = rest_arg_u64(call->request, "since", changes, &since, diag);
    }
    status = status != 0 ? status : after_of(call, &after, diag);
    if (status != 0) {
        return status;
    }
    catalog_overviews_refresh(call->catalog);
    json_u64(call->json, "changes", catalog_changes(call->catalog));
    json_open(call->json, "runs", '[');
    while (catalog_next_overview(call->catalog, &after, &run)) {
        bool is_meant = !project || strcmp(project, run.name->project) == 0;
        bool is_gone = since == 0 && run.state && run.state->removed;
        if (project && strcmp(run.name->project, project) > 0) {
            break;
        }
        if (is_meant && !is_gone && run.changed > since) {
            more = limit == 0 || call->json->buf.bytes >= REST_PAGE_BYTES;
            if (more) {
                break;
            }
            limit--;
            json_open(call->json, NULL, '{');
            rest_json_run(call->json, &run, points);
            json_close(call->json, '}');
        }
        after = *run.name;
    }
    char next[RUN_NAME_TEXT_MAX] = "";
    run_name_format(&after, next);
    json_close(call->json, ']');
    json_bool(call->json, "more", more);
    json_str(call->json, "next", more ? next : NULL);
    return 0;
}
