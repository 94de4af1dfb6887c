/* SPDX-License-Identifier: Apache-2.0
 *
 * Restore: all ranks of an attempt agree on one checkpoint through a session in the record, with
 * the key (token, ordinal). The first rank resolves the selector, durably, even to "this run is
 * empty"; the others get the same answer (I4: never ranks at different steps). If one rank finds
 * damage, all move to the next older good ancestor. Reports exist only while a session runs: the
 * update that ends the session removes them. Pure.
 */
#include <stdio.h>

#include "base/check.h"
#include "core_private.h"

/* Sessions of other attempts that are kept, including running ones whose attempt has died. */
enum { SESSIONS_MAX = 16 };

/* Puts into the verdict what the client of a restore session is told. */
static void answer_session(struct step *step, const struct entry_restore *entry)
{
    CHECK(entry->state != RESTORE_RUNNING || entry->id.term != 0);
    struct verdict *ret = step->ret;
    ret->id = entry->id;
    ret->newest_term = entry->newest_term;
    ret->proven = entry->state != RESTORE_RUNNING;
    ret->u.restore = (struct verdict_restore){
        .try_count = entry->try_count,
        .fell_back = !ckpt_id_equal(entry->id, entry->first),
        .done = entry->state == RESTORE_OK,
        .failed = entry->state == RESTORE_FAILED,
        .code = entry->state == RESTORE_FAILED ? entry->code : 0,
        .empty = entry->id.term == 0,
    };
    if (ret->u.restore.failed) {
        /* The text of the answer. */
        err_ignore(diag_set(&ret->diag, entry->code, "%s", entry->reason));
    }
}

static void session_put(struct step *step, const struct token *token, uint32_t ordinal,
                        const struct entry_restore *entry)
{
    entry_restore_encode(entry, step_value(step));
    step_put(step, key_restore(token, ordinal).at);
}

static void session_guard(struct step *step, const struct state_restore *session)
{
    step_guard_as_read(step, key_restore(&session->token, session->ordinal).at, session->raw);
}

/* Removes the reports of a session that is guarded as read and whose try ends: with the try all its
 * reports are void. */
static void remove_reports(struct step *step, const struct state_restore *session)
{
    size_t count;
    const struct state_report *reports = reports_of(step->state, session, &count);
    for (size_t i = 0; i < count && step_may_remove(step, 1); i++) {
        step_remove(step, key_report(&reports[i].token, reports[i].ordinal, reports[i].rank).at);
    }
}

/* Writes the note of an ended session under a number of its own. The oldest note beyond ENDED_MAX
 * goes. */
static void put_ended(struct step *step, const struct entry_ended *entry)
{
    const struct run_state *state = step->state;
    uint64_t newest = state->ended_count > 0 ? state->ended[state->ended_count - 1].number : 0;
    size_t oldest = step->ended_count++;
    entry_ended_encode(entry, step_value(step));
    step_put_over(step, key_ended(newest + step->ended_count).at, (struct record_value){0});
    if (state->ended_count + step->ended_count > ENDED_MAX && oldest < state->ended_count &&
        step_may_remove(step, 1)) {
        step_remove(step, key_ended(state->ended[oldest].number).at);
    }
}

/* Notes for `cairn log` that a session has ended. */
static void log_end(struct step *step, const struct entry_restore *session, const char *actor)
{
    CHECK(session->state != RESTORE_RUNNING);
    CHECK(session->id.term != 0);
    struct entry_ended entry = {.wall_ns = step->event->wall_ns,
                                .world_size = session->world_size,
                                .try_count = session->try_count,
                                .id = session->id,
                                .first = session->first,
                                .code = session->state == RESTORE_OK ? 0 : session->code};
    reason_set(entry.reason, entry.code != 0 ? session->reason : "");
    reason_set(entry.actor, actor != NULL ? actor : "");
    put_ended(step, &entry);
}

void session_expire(struct step *step, const struct state_restore *session, const char *reason)
{
    struct entry_restore entry = session->entry;
    entry.state = RESTORE_FAILED;
    entry.code = CAIRN_E_TIMED_OUT;
    reason_set(entry.reason, reason);
    CHECK(session->entry.state == RESTORE_RUNNING);
    session_guard(step, session);
    session_put(step, &session->token, session->ordinal, &entry);
    remove_reports(step, session);
    log_end(step, &entry, NULL);
    step->day.restores_failed++;
}

static bool world_agrees(struct step *step, const struct attempt_rank *from,
                         const struct entry_restore *entry)
{
    if (from->world_size != entry->world_size) {
        step_fail(step, CAIRN_E_WORLD_MISMATCH,
                  "rank %" PRIu32 " gives the world size %" PRIu32
                  ", but this attempt began the restore with %" PRIu32
                  "; start all ranks with one world size",
                  from->rank, from->world_size, entry->world_size);
        return false;
    }
    return true;
}

/* Answers a later rank of the session. The rank must not have asked for another checkpoint than the
 * first rank did. */
static void begin_again(struct step *step, const struct state_restore *session)
{
    const struct entry_restore *entry = &session->entry;
    const struct attempt_rank *from = &step->event->u.begin.from;
    const struct selector *selector = &step->event->u.begin.selector;
    if (!world_agrees(step, from, entry)) {
        return;
    }
    bool same = selector->kind == SELECT_LATEST || selector->id.step == entry->first.step;
    if (!same || (selector->kind == SELECT_EXACT && selector->id.term != entry->first.term)) {
        step_fail(step, CAIRN_E_INVALID,
                  "rank %" PRIu32 " asks for step %" PRIu64 ", but this attempt restores %s: "
                  "all ranks must ask for the same checkpoint",
                  from->rank, selector->id.step, ckpt_id_text(entry->first).at);
        return;
    }
    answer_session(step, entry);
}

/* Resolves the selector into entry; a damaged checkpoint is chosen only if it was asked for by
 * name. Returns false if that was refused. */
static bool resolve(struct step *step, struct entry_restore *entry)
{
    const struct run_state *state = step->state;
    const struct event_begin *begin = &step->event->u.begin;
    struct verdict *ret = step->ret;
    const struct state_commit *first = NULL;
    if (begin->selector.kind != SELECT_LATEST) {
        ret->code = state_select(state, &begin->selector, &first, &ret->diag);
        if (ret->code != 0) {
            return false;
        }
        entry->first = entry->id = first->entry.id;
        return true; /* a checkpoint asked for by name is tried even if it is known to be damaged */
    }
    if (state->commit_count == 0 || state->removal != NULL) {
        ret->code = state_unrecorded_check(state, &ret->diag);
        entry->state = RESTORE_OK;
        return ret->code == 0;
    }
    first = lineage_newest(state);
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    if (first == NULL) {
        step_fail(step, CAIRN_E_NOT_FOUND,
                  "all checkpoints of the lineage were forgotten; `cairn ls RUN --all` shows the "
                  "superseded ones, and `cairn undelete RUN` the forgotten ones");
        return false;
    }
    if (latest == NULL || (latest != first && !begin->allow_older)) {
        char tried[200];
        ancestors_damaged(state, first->entry.id, sizeof(tried), tried);
        if (latest == NULL) {
            step_fail(step, CAIRN_E_DAMAGED,
                      "all checkpoints of the lineage are damaged: %s; `cairn ls RUN --all` shows "
                      "superseded ones, which can be restored as STEP@TERM",
                      tried);
        } else {
            step_fail(step, CAIRN_E_DAMAGED,
                      "the newest checkpoint %s is damaged (%s), and the caller does not allow an "
                      "older one; the newest good one is %s",
                      ckpt_id_text(first->entry.id).at, first->health_reason,
                      ckpt_id_text(latest->entry.id).at);
        }
        return false;
    }
    entry->first = first->entry.id;
    entry->id = latest->entry.id;
    return true;
}

/* Returns how early a session is to be removed, 0 for never: first this attempt's sessions but the
 * last two, then finished ones of other attempts, then those that began at an old term. */
static uint64_t session_age(const struct step *step, const struct state_restore *session)
{
    const struct attempt_rank *from = &step->event->u.begin.from;
    if (token_equal(&session->token, &from->token)) {
        return session->ordinal + 1 < from->ordinal ? UINT64_MAX : 0;
    }
    CHECK(session->entry.newest_term <= step->state->newest_term);
    uint64_t age = step->state->newest_term - session->entry.newest_term + 1;
    return session->entry.state == RESTORE_RUNNING ? age : age + UINT64_MAX / 2;
}

/* Bounds the number of sessions by removing one, chosen by session_age(), if there are too many.
 * Old sessions of this attempt are always removed. A running session is removed only together with
 * all its reports, so that it cannot wait for lost ones. */
static void sweep_sessions(struct step *step)
{
    const struct run_state *state = step->state;
    const struct state_restore *victim = NULL;
    uint64_t age_max = 0;
    for (size_t i = 0; i < state->restore_count; i++) {
        uint64_t age = session_age(step, &state->restores[i]);
        if (age > age_max) {
            age_max = age;
            victim = &state->restores[i];
        }
    }
    size_t count;
    if (victim == NULL || (age_max != UINT64_MAX && state->restore_count < SESSIONS_MAX)) {
        return;
    }
    (void)reports_of(state, victim, &count);
    if (!step_may_remove(step, count + 1)) {
        return;
    }
    step_remove_as_read(step, key_restore(&victim->token, victim->ordinal).at, victim->raw);
    for (size_t i = 0; i < count; i++) {
        const struct state_report *report = &reports_of(state, victim, &count)[i];
        if (!report->orphan) { /* step_sweep() removes orphans */
            step_remove(step, key_report(&report->token, report->ordinal, report->rank).at);
        }
    }
}

/* Guards the health of the chosen checkpoint, and of the newer ones that were skipped because of
 * theirs. */
static void guard_choice(struct step *step, const struct entry_restore *entry)
{
    const struct run_state *state = step->state;
    for (size_t i = state->commit_count; i-- > 0;) {
        const struct state_commit *commit = state->by_id[i];
        bool skipped = ckpt_id_compare(commit->entry.id, entry->id) > 0 &&
                       ckpt_id_compare(commit->entry.id, entry->first) <= 0 && commit->on_lineage;
        if (skipped || ckpt_id_equal(commit->entry.id, entry->id)) {
            step_guard_as_read(step, key_health(commit->entry.seq).at, commit->health_raw);
        }
    }
}

void on_restore_begin(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_begin *begin = &step->event->u.begin;
    const struct attempt_rank *from = &begin->from;
    if (from->world_size == 0 || from->world_size > LIMIT_WORLD_SIZE ||
        from->rank >= from->world_size) {
        step_fail(
            step, CAIRN_E_INVALID,
            "rank %" PRIu32 " of a world of %" PRIu32
            " is not possible: the rank must be below the world size, and that must be 1 to %d",
            from->rank, from->world_size, (int)LIMIT_WORLD_SIZE);
        return;
    }
    const struct state_restore *session = state_restore_find(state, &from->token, from->ordinal);
    if (session != NULL) {
        begin_again(step, session);
        return;
    }
    struct entry_restore entry = {.world_size = from->world_size,
                                  .allow_older = begin->allow_older,
                                  .newest_term = state->newest_term,
                                  .try_count = 1,
                                  .state = RESTORE_RUNNING,
                                  .cycle = state->gc.cycle};
    if (!resolve(step, &entry)) {
        return;
    }
    step_create_run(step, &begin->info);
    step_guard_absent(step, key_restore(&from->token, from->ordinal).at);
    step_guard_head(step);
    step_guard_newest(step);
    guard_choice(step, &entry);
    session_put(step, &from->token, from->ordinal, &entry);
    sweep_sessions(step);
    step_sweep(step);
    answer_session(step, &entry);
}

static bool is_damage(int code)
{
    return code == CAIRN_E_DAMAGED || code == CAIRN_E_DIGEST_MISMATCH || code == CAIRN_E_FORMAT;
}

/* Moves the session to the newest older ancestor that is good now, this report's finding included,
 * or ends it as failed. */
static void fall_back_or_fail(struct step *step, struct entry_restore *entry)
{
    const struct event_report *report = &step->event->u.report;
    const int code = report->code;
    const char *reason =
        report->reason != NULL && report->reason[0] != '\0' ? report->reason : err_text(code);
    const struct state_commit *older = NULL;
    char text[512] = "";
    entry->state = RESTORE_FAILED;
    entry->code = code;
    if (is_damage(code)) {
        const struct state_commit *commit = commit_any(step->state, entry->id);
        enum health health = code == CAIRN_E_DIGEST_MISMATCH ? HEALTH_SUSPECT : HEALTH_DAMAGED;
        CHECK(commit != NULL);
        step_lower_health(step, commit, health, reason);
        older = entry->allow_older ? ancestor_below(step->state, entry->id) : NULL;
    }
    if (older != NULL) {
        CHECK(ckpt_id_compare(older->entry.id, entry->id) < 0); /* so that falling back ends */
        entry->state = RESTORE_RUNNING;
        entry->code = 0;
        entry->id = older->entry.id;
        entry->try_count++;
        entry->cycle = step->state->gc.cycle;
        step_guard_head(step); /* guards that it is not forgotten: its lease begins here */
    } else if (is_damage(code) && entry->allow_older) {
        char tried[160];
        ancestors_damaged(step->state, entry->first, sizeof(tried), tried);
        entry->code = CAIRN_E_DAMAGED;
        snprintf(text, sizeof(text),
                 "no good checkpoint is left to restore (tried: %s); rank %" PRIu32 " reported: %s",
                 tried, report->from.rank, reason);
    } else {
        snprintf(text, sizeof(text), "rank %" PRIu32 ", checkpoint %s: %s", report->from.rank,
                 ckpt_id_text(entry->id).at, reason);
    }
    reason_set(entry->reason, text);
}

/* The ranks that the event reports for. */
struct reporters {
    size_t count;
    const uint32_t *ranks;
};

static struct reporters reporters_of(const struct event_report *report)
{
    bool batch = report->rank_count > 0;
    return (struct reporters){batch ? report->rank_count : 1,
                              batch ? report->ranks : &report->from.rank};
}

/* Returns an array that says for each rank whether its report on the current try is there, or NULL
 * if there is no memory. */
static bool *came_map(struct step *step, const struct state_restore *session)
{
    size_t count;
    const struct state_report *reports = reports_of(step->state, session, &count);
    bool *came = scratch_array(step->scratch, session->entry.world_size, sizeof(*came));
    for (size_t i = 0; came != NULL && i < count; i++) {
        if (!reports[i].orphan && reports[i].rank < session->entry.world_size) {
            came[reports[i].rank] = true;
        }
    }
    return came;
}

static void put_report(struct step *step, uint32_t rank, uint32_t try_count)
{
    const struct attempt_rank *from = &step->event->u.report.from;
    CHECK(rank < from->world_size);
    struct entry_report report = {.try_count = try_count};
    entry_report_encode(&report, step_value(step));
    step_put(step, key_report(&from->token, from->ordinal, rank).at);
}

/* Returns true if the attempt's session before this one ended well with the same checkpoint, and
 * nothing was saved in between. cairn.Checkpointer reads the trees first and then the arrays, in a
 * session each: to the user that is one restore. */
static bool is_continued(struct step *step, const struct state_restore *session)
{
    if (session->ordinal == 0) {
        return false;
    }
    const struct state_restore *before =
        state_restore_find(step->state, &session->token, session->ordinal - 1);
    if (before == NULL) {
        return false;
    }
    session_guard(step, before);
    return before->entry.state == RESTORE_OK &&
           ckpt_id_equal(before->entry.id, session->entry.id) &&
           before->entry.newest_term == session->entry.newest_term;
}

/* Ends the session well: all ranks have reported OK on this try. */
static void end_session(struct step *step, const struct state_restore *session)
{
    CHECK(session->entry.state == RESTORE_RUNNING);
    struct entry_restore entry = session->entry;
    entry.state = RESTORE_OK;
    session_guard(step, session);
    session_put(step, &session->token, session->ordinal, &entry);
    remove_reports(step, session);
    if (is_continued(step, session)) { /* no note, but a use of the run as much as the first */
        step_put_use(step, step->event->wall_ns, step->state->gc.cycle);
    } else {
        step->day.restores++;
        log_end(step, &entry, step->event->u.report.actor);
    }
    answer_session(step, &entry);
}

/* Notes the ranks that have restored without an error, and ends the session when the last one has
 * come. */
static void report_ok(struct step *step, const struct state_restore *session)
{
    struct reporters reporters = reporters_of(&step->event->u.report);
    bool *came = came_map(step, session);
    uint32_t fresh_count = 0, *fresh = scratch_array(step->scratch, reporters.count, sizeof *fresh);
    if (came == NULL || fresh == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY,
                  "there is not enough memory for %zu reports of a restore", reporters.count);
        return;
    }
    for (size_t i = 0; i < reporters.count; i++) {
        if (!came[reporters.ranks[i]]) {
            came[reporters.ranks[i]] = true;
            fresh[fresh_count++] = reporters.ranks[i];
        }
    }
    CHECK(fresh_count <= reporters.count);
    CHECK(state_report_count(step->state, session) + fresh_count <= session->entry.world_size);
    if (state_report_count(step->state, session) + fresh_count == session->entry.world_size) {
        end_session(step, session);
        return;
    }
    answer_session(step, &session->entry);
    if (fresh_count == 0) {
        char missing[160] = "";
        state_missing_reports(step->state, session, sizeof(missing), missing);
        step_fail(step, CAIRN_E_AGAIN, "the restore is still waiting for %s", missing);
        return;
    }
    session_guard(step, session); /* an existing report is of an older try, or is the same */
    for (uint32_t i = 0; i < fresh_count; i++) {
        put_report(step, fresh[i], session->entry.try_count);
    }
}

static bool are_ranks(struct step *step, uint32_t world_size)
{
    struct reporters reporters = reporters_of(&step->event->u.report);
    for (size_t i = 0; i < reporters.count; i++) {
        if (reporters.ranks[i] >= world_size) {
            step_fail(step, CAIRN_E_INVALID,
                      "the rank is %" PRIu32 "; with a world size of %" PRIu32 " it must be lower",
                      reporters.ranks[i], world_size);
            return false;
        }
    }
    return true;
}

void on_restore_report(struct step *step)
{
    const struct event_report *report = &step->event->u.report;
    const struct state_restore *session =
        state_restore_find(step->state, &report->from.token, report->from.ordinal);
    if (session == NULL) {
        step_fail(step, CAIRN_E_NOT_FOUND,
                  "this attempt has not begun its restore number %" PRIu32
                  "; begin the restore first",
                  report->from.ordinal);
        return;
    }
    if (!world_agrees(step, &report->from, &session->entry)) {
        return;
    }
    if (!are_ranks(step, session->entry.world_size)) {
        return;
    }
    if (session->entry.state != RESTORE_RUNNING ||
        !ckpt_id_equal(step->event->id, session->entry.id)) {
        /* Finished, or this rank is behind: answers the session's present state. */
        answer_session(step, &session->entry);
        return;
    }
    if (report->code == 0) {
        report_ok(step, session);
        return;
    }
    struct entry_restore entry = session->entry;
    session_guard(step, session);
    fall_back_or_fail(step, &entry);
    if (entry.state == RESTORE_FAILED) {
        step->day.restores_failed++;
        log_end(step, &entry, report->actor);
    }
    session_put(step, &session->token, session->ordinal, &entry);
    remove_reports(step, session);
    answer_session(step, &entry);
}
