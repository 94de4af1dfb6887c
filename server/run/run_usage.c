/* SPDX-License-Identifier: Apache-2.0
 *
 * run_usage: see run_usage.h. A run whose record cannot be read becomes a row with its error, and
 * the others are counted all the same. The overviews of runs (run_counts.h) are here as well.
 */
#include "run_usage.h"

#include "base/check.h"
#include "env/loop.h"
#include "run_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_SCRATCH_MAX = 4 << 20 };

static void next_run(struct usage_walk *walk);

static bool is_wanted(const struct usage_walk *walk, const struct run_name *name)
{
    if ((walk->project[0] != '\0' && strcmp(walk->project, name->project) != 0) ||
        (walk->no_capitals && run_name_has_capitals(name))) {
        return false;
    }
    int order = strcmp(name->project, walk->after.project);
    return order > 0 || (order == 0 && strcmp(name->run, walk->after.run) > 0);
}

static void on_refreshed(struct catalog_refresh *refresh)
{
    struct usage_walk *walk = container_of(refresh, struct usage_walk, refresh);
    walk->status = refresh->status;
    if (walk->status == 0) {
        walk->status = catalog_names(walk->catalog, &walk->names, &walk->name_count);
    }
    walk->rows = calloc(walk->rows_max + 1u, sizeof(*walk->rows));
    if (walk->status == 0 && walk->rows == NULL) {
        walk->status = CAIRN_E_NO_MEMORY;
    }
    next_run(walk);
}

void usage_walk_start(struct usage_walk *walk, struct catalog *catalog)
{
    CHECK(walk->done != NULL);
    CHECK(walk->project != NULL);
    walk->catalog = catalog;
    walk->names = NULL;
    walk->name_count = walk->at = 0;
    walk->run = NULL;
    walk->row_count = 0;
    walk->more = false;
    walk->unreadable = 0;
    walk->total = (struct usage){0};
    scratch_init(&walk->scratch, WALK_SCRATCH_MAX);
    walk->rows = NULL;
    walk->refresh = (struct catalog_refresh){.done = on_refreshed};
    catalog_refresh(catalog, &walk->refresh);
}

static void leave_run(struct usage_walk *walk)
{
    if (walk->run) {
        run_snapshot_cancel(&walk->snapshot);
        catalog_release(walk->run);
        walk->run = NULL;
    }
}

void usage_walk_cancel(struct usage_walk *walk)
{
    catalog_refresh_cancel(&walk->refresh);
    leave_run(walk);
}

void usage_walk_fini(struct usage_walk *walk)
{
    free(walk->names);
    free(walk->rows);
    scratch_fini(&walk->scratch);
    walk->names = NULL;
    walk->rows = NULL;
}

static int64_t newest_wall_ns(const struct run_state *state)
{
    for (size_t i = state->commit_count; i-- > 0;) {
        if (!state->commits[i].forgotten) {
            return state->commits[i].entry.wall_ns;
        }
    }
    return 0;
}

/* Returns the row of a report for one run or for the total. */
static struct msg_usage_row row_of(const struct run_state *state, const struct usage *usage)
{
    struct msg_usage_row row = {.text = "", .newest_wall_ns = newest_wall_ns(state)};
#define TAKE(figure) row.figure = usage->figure;
    USAGE_FIGURES(TAKE)
#undef TAKE
    return row;
}

/* Adds a note to the row of a marked run: its figures lack what the record has lost. */
static void take_mark(struct usage_walk *walk, const struct run_state *state,
                      struct msg_usage_row *row)
{
    char mark[DIAG_TEXT_MAX];
    if (state_is_marked(state)) {
        state_mark_text(state, sizeof(mark), mark);
        row->text = scratch_string(&walk->scratch, strlen(mark), mark);
        row->text = row->text ? row->text : err_text(CAIRN_E_DAMAGED);
    }
}

/* Called with the state of a run. A run that cannot be read gets a row with its error. */
static void on_snapshot(struct run_snapshot_req *req)
{
    struct usage_walk *walk = container_of(req, struct usage_walk, snapshot);
    struct msg_usage_row row = {.code = req->status, .text = ""};
    CHECK(walk->run != NULL);
    if (req->status == 0) {
        struct usage usage;
        usage_of_run(req->state, walk->window, &usage);
        usage_add(&walk->total, &usage);
        row = row_of(req->state, &usage);
        take_mark(walk, req->state, &row);
    } else {
        const char *text = diag_text(&req->diag, req->status);
        walk->unreadable++;
        row.text = scratch_string(&walk->scratch, strlen(text), text);
        row.text = row.text ? row.text : err_text(req->status);
    }
    row.run = *run_name_of(walk->run);
    if (walk->row_count < walk->rows_max) {
        walk->rows[walk->row_count++] = row;
    }
    catalog_release(walk->run);
    walk->run = NULL;
    next_run(walk);
}

/* Asks for the next wanted run. The walk ends when there is none left or the report is full. */
static void next_run(struct usage_walk *walk)
{
    while (walk->status == 0 && walk->at < walk->name_count &&
           !is_wanted(walk, &walk->names[walk->at])) {
        walk->at++;
    }
    CHECK(walk->run == NULL);
    CHECK(walk->at <= walk->name_count);
    CHECK(walk->row_count <= walk->rows_max);
    bool full = walk->rows_max != 0 && walk->row_count == walk->rows_max;
    walk->more = walk->status == 0 && walk->at < walk->name_count;
    if (!full && walk->more) {
        walk->run = catalog_run(walk->catalog, &walk->names[walk->at++]);
        walk->status = walk->run ? 0 : CAIRN_E_NO_MEMORY;
    }
    if (!walk->run) {
        walk->done(walk);
        return;
    }
    walk->snapshot = (struct run_snapshot_req){.done = on_snapshot};
    run_snapshot(walk->run, &walk->snapshot);
}

/* --- quotas --- */

const struct quota *quota_of(const struct quota_table *table, const char *project)
{
    const struct quota *other = NULL;
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        const struct quota *quota = &table->quotas[i];
        if (strcmp(quota->project, project) == 0) {
            return quota;
        }
        other = strcmp(quota->project, "*") == 0 ? quota : other;
    }
    return other;
}

/* Writes how many bytes are forgotten and until when they wait, and the command that frees them. It
 * is short, because the reason of an abort holds only a few words. */
static const char *remedy_of(const struct quota_use *use, size_t size, char *ret)
{
    const struct usage *usage = use->usage;
    if (usage->reclaimable_bytes > 0) {
        snprintf(ret, size,
                 "%" PRIu64
                 " are forgotten and wait%s: free them with `cairn gc --now --project %s`, or",
                 usage->reclaimable_bytes, use->until, use->project);
    } else {
        snprintf(ret, size, "free some with `cairn forget RUN --keep-last N --now`, or");
    }
    return ret;
}

int quota_check(const struct quota *quota, const struct quota_use *use, struct diag *diag)
{
    const struct usage *usage = use->usage;
    char remedy[256];
    if (!quota) {
        return 0;
    }
    if (quota->bytes != 0 && usage->stored_bytes >= quota->bytes) {
        return diag_set(diag, CAIRN_E_QUOTA,
                        "project %s uses %" PRIu64 " bytes of its quota of %" PRIu64
                        "; %s raise [quota]",
                        use->project, usage->stored_bytes, quota->bytes,
                        remedy_of(use, sizeof(remedy), remedy));
    }
    if (quota->checkpoints != 0 && usage->checkpoints >= quota->checkpoints) {
        return diag_set(diag, CAIRN_E_QUOTA,
                        "project %s has %" PRIu64 " checkpoints, and its quota is %" PRIu64
                        ": forget some with `cairn forget RUN --keep-last N`, or raise [quota]; "
                        "two good checkpoints of each run stay unless --keep-least is lower",
                        use->project, usage->checkpoints, quota->checkpoints);
    }
    return 0;
}

int quota_check_save(const struct quota *quota, const struct quota_use *use, uint64_t bytes,
                     struct diag *diag)
{
    const struct usage *usage = use->usage;
    uint64_t after = 0;
    char remedy[256];
    if (!quota || quota->bytes == 0 ||
        (add_u64(usage->stored_bytes, bytes, &after) && after <= quota->bytes)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_QUOTA,
                    "there is no room for %" PRIu64 " bytes: project %s uses %" PRIu64
                    " of its quota of %" PRIu64 "; %s raise [quota]",
                    bytes, use->project, usage->stored_bytes, quota->bytes,
                    remedy_of(use, sizeof(remedy), remedy));
}

/* --- overviews ------------------------------------------------------------------------------- */

enum { REFRESHES_MAX = 128, REFRESH_MS = 10000 };

uint64_t catalog_changes(const struct catalog *catalog) { return catalog->changes + 1; }

static void fill_overview(const struct run *run, struct run_overview *ret)
{
    const struct run_sums *sums = &run->sums;
    CHECK(run->held);
    CHECK(run->shown.changed <= run->catalog->changes);
    *ret = (struct run_overview){.name = &run->name,
                                 .state = run->copy != COPY_NONE ? &run->state : NULL,
                                 .is_unreadable = run->unreadable,
                                 .changed = run->shown.changed + 1,
                                 .forgotten = sums->forgotten,
                                 .stored_bytes = sums->stored_bytes,
                                 .saves_open = run_open_count(run),
                                 .ranks = run->shown.ranks,
                                 .first_wall_ns = sums->first_wall_ns,
                                 .commit_wall_ns = sums->commit_wall_ns,
                                 .days = sums->days,
                                 .times = run->shown.times,
                                 .time_count = run->shown.time_count};
    memcpy(ret->checkpoints, sums->checkpoints, sizeof(ret->checkpoints));
}

bool catalog_next_overview(const struct catalog *catalog, const struct run_name *after,
                           struct run_overview *ret)
{
    size_t at = catalog_lower_bound(catalog, after);
    if (at < catalog->run_count && run_name_equal(&catalog->runs[at]->name, after)) {
        at++;
    }
    while (at < catalog->run_count && !catalog->runs[at]->held) {
        at++;
    }
    if (at >= catalog->run_count) {
        return false;
    }
    fill_overview(catalog->runs[at], ret);
    return true;
}

bool catalog_overview(const struct catalog *catalog, const struct run_name *name,
                      struct run_overview *ret)
{
    const struct run *run = catalog_find(catalog, name);
    bool is_held = run && run->held;
    if (is_held) {
        fill_overview(run, ret);
    }
    return is_held;
}

void run_overview_refresh(struct catalog *catalog, const struct run_name *name, uint64_t every_ms)
{
    struct run *run = catalog_find(catalog, name);
    uint64_t now_ms = loop_now_ms(catalog->loop);
    CHECK(every_ms > 0);
    CHECK(!run || run->shown.again_ms <= now_ms);
    if (!run || !run->held || catalog->options.poll_ms == 0 || catalog->closing ||
        now_ms - run->shown.again_ms < every_ms) {
        return;
    }
    run->shown.again_ms = now_ms;
    if (run_is_idle(run)) { /* an update under way reads its own outcome */
        run_copy_ages(run);
    }
    run->want_load = true;
    run_kick(run);
}

void catalog_overviews_refresh(struct catalog *catalog)
{
    size_t count = min_u64(catalog->run_count, REFRESHES_MAX);
    for (size_t i = 0; i < count; i++) {
        catalog->refreshed_at = (catalog->refreshed_at + 1) % catalog->run_count;
        run_overview_refresh(catalog, &catalog->runs[catalog->refreshed_at]->name, REFRESH_MS);
    }
}

uint64_t run_opened_ms(const struct catalog *catalog, const struct run_name *name,
                       struct ckpt_id id)
{
    const struct run *run = catalog_find(catalog, name);
    if (!run) {
        return 0;
    }
    list_each (node, &run->tracks) {
        const struct open_track *track = list_item(node, struct open_track, link);
        if (ckpt_id_equal(track->id, id)) {
            CHECK(track->begun_ms <= loop_now_ms(catalog->loop));
            return track->begun_ms;
        }
    }
    return 0;
}
