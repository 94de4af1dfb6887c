/* SPDX-License-Identifier: Apache-2.0
 *
 * run_counts: see run_counts.h. The figures of a run are computed whenever its record is decoded,
 * so that a summary costs the number of runs, not the number of checkpoints.
 */
#include "run_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t save_bounds_us[] = {
    100000,   250000,   500000,    1000000,   2500000,   5000000,    10000000,
    30000000, 60000000, 120000000, 300000000, 900000000, 3600000000,
};
static const uint64_t blocked_bounds_us[] = {
    10000,   25000,   50000,    100000,   250000,   500000,
    1000000, 2500000, 10000000, 30000000, 60000000, 300000000,
};
static const uint64_t phase_bounds_us[] = {
    10000,    25000,    50000,    100000,    250000,    500000,    1000000,    2500000,
    10000000, 30000000, 60000000, 120000000, 300000000, 900000000, 3600000000,
};

void counts_init(struct run_counts *counts)
{
    memset(counts, 0, sizeof(*counts));
    histogram_init(&counts->save_durations, ARRAY_LEN(save_bounds_us), save_bounds_us);
    histogram_init(&counts->persisted, ARRAY_LEN(save_bounds_us), save_bounds_us);
    histogram_init(&counts->blocked, ARRAY_LEN(blocked_bounds_us), blocked_bounds_us);
    histogram_init(&counts->staged, ARRAY_LEN(blocked_bounds_us), blocked_bounds_us);
    for (int phase = 0; phase < RUN_PHASE_COUNT; phase++) {
        histogram_init(&counts->phases[phase], ARRAY_LEN(phase_bounds_us), phase_bounds_us);
    }
}

const struct run_counts *catalog_counts(const struct catalog *catalog) { return &catalog->counts; }

void run_took(struct run *run, enum run_phase phase, uint64_t ms)
{
    CHECK(phase < RUN_PHASE_COUNT);
    histogram_add(&run->catalog->counts.phases[phase], ms * 1000);
}

/* --- notices of nodes ------------------------------------------------------------------------ */

/* Copies the name of the node out of the tag "notice on NODE, SOURCE: WHY" among the added tags, or
 * "" if there is no such tag. */
static void find_notice(const struct note_change *change, char ret_node[NOTICE_NODE_BYTES])
{
    ret_node[0] = '\0';
    for (uint32_t i = 0; i < change->tag_count; i++) {
        const char *tag = change->tags[i], *node = tag + strlen(NOTICE_TAG);
        const char *comma =
            strncmp(tag, NOTICE_TAG, strlen(NOTICE_TAG)) == 0 ? strchr(node, ',') : NULL;
        if (comma && comma > node && comma - node < NOTICE_NODE_BYTES) {
            snprintf(ret_node, NOTICE_NODE_BYTES, "%.*s", (int)(comma - node), node);
            return;
        }
    }
}

/* Returns the place of the node in the table, or the end of the table. */
static size_t place_of(const struct node_notices *notices, const char *node)
{
    size_t at = 0;
    while (at < notices->count && strcmp(notices->nodes[at].node, node) != 0) {
        at++;
    }
    return at;
}

static void count_notice(struct node_notices *notices, const char *node)
{
    size_t at = place_of(notices, node);
    if (at == NOTICE_NODES_MAX) {
        notices->unnamed++;
        return;
    }
    if (at == notices->count) {
        snprintf(notices->nodes[notices->count++].node, NOTICE_NODE_BYTES, "%s", node);
    }
    notices->nodes[at].notices++;
}

const struct node_notice *catalog_notice(const struct catalog *catalog,
                                         const struct note_change *change)
{
    const struct node_notices *notices = &catalog->counts.notices;
    char node[NOTICE_NODE_BYTES];
    find_notice(change, node);
    size_t at = place_of(notices, node);
    return at < notices->count ? &notices->nodes[at] : NULL;
}

/* --- an update ------------------------------------------------------------------------------- */

void counts_remember(struct run *run, const struct event *event)
{
    struct run_applying *applying = &run->applying;
    *applying = (struct run_applying){.kind = event->kind};
    if (event->kind == EVENT_ABORT) {
        applying->code = event->u.abort.code;
    } else if (event->kind == EVENT_COMMIT) {
        applying->plain_bytes = event->u.commit.entry.plain_bytes;
        applying->stored_bytes = event->u.commit.entry.stored_bytes;
    } else if (event->kind == EVENT_OPEN) {
        applying->blocked_ms = event->u.open.blocked_ms;
        applying->staged_ms = event->u.open.staged_ms;
        applying->persist_ms = event->u.open.persist_ms;
    } else if (event->kind == EVENT_ANNOTATE) {
        find_notice(&event->u.annotate.note, applying->node);
    }
}

/* --- durations of saves ---------------------------------------------------------------------- */

/* Returns the entry of the checkpoint, which may be made by dropping the oldest one, or NULL if
 * there is no memory: a duration less on a page. */
static struct run_time *time_of(struct run *run, struct ckpt_id id)
{
    struct run_shown *shown = &run->shown;
    if (!shown->times) {
        shown->times = calloc(RUN_TIMES_MAX, sizeof(*shown->times));
    }
    if (!shown->times) {
        return NULL;
    }
    for (size_t i = shown->time_count; i > 0; i--) {
        if (ckpt_id_equal(shown->times[i - 1].id, id)) {
            return &shown->times[i - 1];
        }
    }
    if (shown->time_count == RUN_TIMES_MAX) {
        shown->time_count--;
        memmove(shown->times, shown->times + 1, shown->time_count * sizeof(*shown->times));
    }
    CHECK(shown->time_count < RUN_TIMES_MAX);
    struct run_time *time = &shown->times[shown->time_count++];
    *time = (struct run_time){.id = id};
    return time;
}

static void note_took(struct run *run, struct ckpt_id id, uint64_t took_ms)
{
    struct run_time *time = time_of(run, id);
    if (time) {
        time->took_ms = took_ms;
    }
}

static void note_reported(struct run *run, uint64_t blocked_ms, uint64_t persist_ms)
{
    const struct run_state *state = &run->state;
    struct run_time *time = NULL;
    if (state->commit_count > 0) {
        time = time_of(run, state->commits[state->commit_count - 1].entry.id);
    }
    if (time) {
        time->blocked_ms = blocked_ms;
        time->persist_ms = persist_ms;
        time->is_reported = true;
    }
}

/* --- counting --- */

/* Counts a commit that this daemon has made, and how long its save took. */
static void count_commit(struct run *run)
{
    struct run_counts *counts = &run->catalog->counts;
    counts->saves_committed++;
    counts->plain_bytes += run->applying.plain_bytes;
    counts->stored_bytes += run->applying.stored_bytes;
    list_each (node, &run->tracks) {
        const struct open_track *track = list_item(node, struct open_track, link);
        if (ckpt_id_equal(track->id, run->verdict.id)) {
            uint64_t now_ms = loop_now_ms(run->catalog->loop), ms = now_ms - track->begun_ms;
            CHECK(now_ms >= track->begun_ms);
            CHECK(now_ms >= track->sealed_ms);
            histogram_add(&counts->save_durations, ms * 1000);
            if (track->sealed_ms != 0) {
                run_took(run, PHASE_COMMIT, now_ms - track->sealed_ms);
            }
            note_took(run, track->id, ms);
            return;
        }
    }
}

/* Counts what an update has ended besides its subject: openings of fenced terms, and sessions. */
static void count_day(struct run *run)
{
    struct run_counts *counts = &run->catalog->counts;
    const struct entry_day *day = &run->verdict.counted;
    int code = run->applying.kind == EVENT_ABORT ? run->applying.code : CAIRN_E_FENCED;
    counts->restores_done += day->restores;
    counts->restores_failed += day->restores_failed;
    counts->saves_failed += day->saves_aborted;
    for (uint64_t i = 0; i < day->saves_aborted; i++) {
        err_tally_add(&counts->failures, code);
    }
    if (day->timed_saves > 0) {
        histogram_add(&counts->blocked, run->applying.blocked_ms * 1000);
        histogram_add(&counts->persisted, run->applying.persist_ms * 1000);
        if (run->applying.staged_ms > 0) { /* an older client does not tell it */
            histogram_add(&counts->staged, run->applying.staged_ms * 1000);
        }
        note_reported(run, run->applying.blocked_ms, run->applying.persist_ms);
    }
}

void counts_applied(struct run *run)
{
    struct run_counts *counts = &run->catalog->counts;
    const struct verdict *verdict = &run->verdict;
    const enum event_kind kind = run->applying.kind;
    counts->updates++;
    count_day(run);
    if (kind == EVENT_OPEN) {
        counts->saves_opened += verdict_save(verdict)->state == SAVE_OPEN;
    } else if (kind == EVENT_COMMIT) {
        count_commit(run);
    } else if (kind == EVENT_FORGET) {
        counts->forgotten += verdict_marks(verdict)->done_count;
    } else if (kind == EVENT_UNDELETE) {
        counts->undeleted += verdict_marks(verdict)->done_count;
    } else if (kind == EVENT_RECLAIM) {
        counts->reclaimed += verdict_marks(verdict)->done_count;
    } else if (kind == EVENT_ANNOTATE) {
        counts->annotated++;
        if (run->applying.node[0] != '\0') {
            count_notice(&counts->notices, run->applying.node);
        }
    }
}

static void forgotten_add(struct forgotten_total *io, const struct forgotten_total *more)
{
    if (more->count > 0) {
        CHECK(more->cycles_min <= more->cycles_max);
        io->cycles_min =
            io->count > 0 ? min_u64(io->cycles_min, more->cycles_min) : more->cycles_min;
        io->cycles_max = max_u64(io->cycles_max, more->cycles_max);
        io->count += more->count;
        io->bytes += more->bytes;
    }
}

static void count_forgotten(const struct run_state *state, const struct state_commit *commit,
                            struct forgotten_total *io)
{
    uint64_t at = commit->forgotten_cycle, cycle = state->gc.cycle;
    struct forgotten_total one = {.count = 1, .bytes = commit->entry.stored_bytes};
    one.cycles_max = one.cycles_min = cycle > at ? cycle - at : 0;
    forgotten_add(io, &one);
}

/* Returns the figures of the day of a wall time, or NULL if a newer day has taken their place. */
static struct run_day *day_at(struct run_sums *sums, int64_t wall_ns)
{
    uint64_t day = day_of(wall_ns);
    struct run_day *at = &sums->days[day % RUN_DAYS];
    if (day > at->day) {
        *at = (struct run_day){.day = day};
    }
    return day == at->day && day != 0 ? at : NULL;
}

/* Adds a commit to the day on which it came, and to the day on which its space was reclaimed. */
static void count_days(struct run_sums *sums, const struct state_commit *commit)
{
    struct run_day *came = day_at(sums, commit->entry.wall_ns);
    if (came) {
        came->saves++;
        came->written_bytes += commit->entry.stored_bytes;
    }
    struct run_day *went = commit->reclaimed && commit->reclaim_mark
                               ? day_at(sums, commit->reclaim_mark->wall_ns)
                               : NULL;
    if (went) {
        went->reclaimed_bytes += commit->entry.stored_bytes;
    }
}

void counts_update(struct run *run)
{
    struct run_sums *sums = &run->sums;
    memset(sums, 0, sizeof(*sums));
    for (size_t i = 0; i < run->state.commit_count; i++) {
        const struct state_commit *commit = &run->state.commits[i];
        CHECK(commit->health <= HEALTH_DAMAGED);
        sums->stored_bytes += commit->reclaimed ? 0 : commit->entry.stored_bytes;
        count_days(sums, commit);
        if (!commit->forgotten) {
            sums->checkpoints[commit->health]++;
        } else if (!commit->reclaimed) {
            count_forgotten(&run->state, commit, &sums->forgotten);
        }
    }
    if (run->state.commit_count > 0) {
        const struct entry_chain *newest = &run->state.commits[run->state.commit_count - 1].entry;
        sums->first_wall_ns = run->state.commits[0].entry.wall_ns;
        sums->commit_wall_ns = newest->wall_ns;
        sums->commit_step = newest->id.step;
    }
    run_changed(run);
}

/* Returns true if a policy could forget a checkpoint of the run: two good ones always stay. */
static bool can_forget(const struct run *run) { return run->sums.checkpoints[HEALTH_VERIFIED] > 2; }

bool catalog_next_project(const struct catalog *catalog, size_t *at, struct project_totals *ret)
{
    if (*at >= catalog->run_count) {
        return false;
    }
    *ret = (struct project_totals){.project = catalog->runs[*at]->name.project};
    for (; *at < catalog->run_count; (*at)++) {
        const struct run *run = catalog->runs[*at];
        if (strcmp(run->name.project, ret->project) != 0) {
            break;
        }
        ret->stored_bytes += run->sums.stored_bytes;
        forgotten_add(&ret->forgotten, &run->sums.forgotten);
    }
    return true;
}

void catalog_totals(const struct catalog *catalog, struct catalog_totals *ret)
{
    uint64_t now_ms = loop_now_ms(catalog->loop), largest = 0;
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < catalog->run_count; i++) {
        const struct run *run = catalog->runs[i];
        ret->runs += run->held;
        ret->runs_unreadable += run->held && run->unreadable;
        if (run->copy != COPY_NONE && state_is_marked(&run->state)) {
            ret->marked = ret->runs_marked++ == 0 ? &run->name : ret->marked;
        }
        for (size_t health = 0; health < ARRAY_LEN(ret->checkpoints); health++) {
            ret->checkpoints[health] += run->sums.checkpoints[health];
        }
        forgotten_add(&ret->forgotten, &run->sums.forgotten);
        if (can_forget(run) && run->sums.stored_bytes > largest) {
            largest = run->sums.stored_bytes;
            ret->largest = &run->name;
        }
        list_each (node, &run->tracks) {
            const struct open_track *track = list_item(node, struct open_track, link);
            ret->saves_open++;
            ret->oldest_open_ms = max_u64(ret->oldest_open_ms, now_ms - track->begun_ms);
        }
    }
}

void run_rank_came(struct run *run)
{
    run->shown.ranks++;
    run_changed(run);
}

void run_rank_left(struct run *run)
{
    CHECK(run->shown.ranks > 0);
    run->shown.ranks--;
    run_changed(run);
}

void run_forgotten(const struct run *run, struct forgotten_total *ret)
{
    *ret = run->sums.forgotten;
}

uint64_t run_open_count(const struct run *run)
{
    uint64_t count = 0;
    list_each (node, &run->tracks) {
        count++;
    }
    return count;
}

size_t catalog_live_runs(const struct catalog *catalog, int64_t since_wall_ns, size_t most,
                         struct run_totals *ret)
{
    size_t count = 0;
    for (size_t i = 0; i < catalog->run_count; i++) {
        const struct run *run = catalog->runs[i];
        uint64_t open = run_open_count(run);
        bool has_saved = run->sums.commit_wall_ns != 0 && run->sums.commit_wall_ns >= since_wall_ns;
        if (!has_saved && open == 0) {
            continue;
        }
        if (count < most) {
            ret[count] = (struct run_totals){.name = &run->name,
                                             .commit_wall_ns = run->sums.commit_wall_ns,
                                             .commit_step = run->sums.commit_step,
                                             .saves_open = open,
                                             .ranks = run->shown.ranks};
        }
        count++;
    }
    return count;
}
