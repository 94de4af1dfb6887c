/* SPDX-License-Identifier: Apache-2.0
 *
 * See core_model.h. The rules are those of server/core/README.md, not those of the core's guards.
 */
#include "core_model.h"

#include "support/unit_test.h"

void model_init(struct model *model)
{
    memset(model, 0, sizeof(*model));
    model->next_open_id = 1;
}

uint64_t model_new_open_id(struct model *model) { return model->next_open_id++; }

void model_learn_opening(struct model_attempt *attempt, struct ckpt_id id, uint64_t open_id)
{
    for (size_t i = 0; i < attempt->opening_count; i++) {
        if (attempt->openings[i].open_id == open_id) {
            return;
        }
    }
    attempt->openings[attempt->opening_count++] =
        (struct model_opening){.id = id, .open_id = open_id};
}

static struct model_opening *opening_of(struct model *model, uint64_t open_id)
{
    for (size_t i = 0; i < model->opening_count; i++) {
        if (model->openings[i].open_id == open_id) {
            return &model->openings[i];
        }
    }
    return NULL;
}

static struct model_commit *commit_of(struct model *model, struct ckpt_id id)
{
    for (size_t i = 0; i < model->commit_count; i++) {
        if (ckpt_id_equal(model->commits[i].id, id)) {
            return &model->commits[i];
        }
    }
    return NULL;
}

/* ---- lineage, the slow way ---- */

static bool is_ancestor(const struct model *model, struct ckpt_id id, struct ckpt_id of)
{
    while (of.term != 0) {
        if (id.term == of.term) {
            return id.step <= of.step;
        }
        of = model->terms[of.term - 1].parent;
    }
    return false;
}

static bool on_lineage(const struct model *model, struct ckpt_id id)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < model->commit_count; i++) {
        newest = model->commits[i].id.term > newest ? model->commits[i].id.term : newest;
    }
    return is_ancestor(model, id, (struct ckpt_id){newest, UINT64_MAX});
}

struct ckpt_id model_latest(const struct model *model)
{
    struct ckpt_id latest = {0, 0};
    for (size_t i = 0; i < model->commit_count; i++) {
        const struct model_commit *commit = &model->commits[i];
        if (commit->health != HEALTH_DAMAGED && !commit->forgotten &&
            on_lineage(model, commit->id) && ckpt_id_compare(commit->id, latest) > 0) {
            latest = commit->id;
        }
    }
    return latest;
}

/* ---- what was applied ---- */

static void applied_open(struct model *model, const struct event *event,
                         const struct verdict *verdict)
{
    const struct event_open *asked = &event->u.open;
    const struct attempt_rank *from = &asked->from;
    const struct verdict_save *save = verdict_save(verdict);
    if (save->new_term) {
        /* A stalled one cannot fence its successor. */
        assert_int_equal(asked->newest_seen, model->term_count);
        assert_int_equal(verdict->id.term, model->term_count + 1);
        assert_true(asked->parent.term == 0 || commit_of(model, asked->parent) != NULL);
        assert_int_equal(save->new_lineage, asked->parent.term == 0 && model->commit_count > 0);
        assert_true(model->term_count < MODEL_TERMS_MAX);
        model->terms[model->term_count++] = (struct model_term){.token = from->token.bytes[0],
                                                                .ordinal = from->ordinal,
                                                                .world_size = from->world_size,
                                                                .parent = asked->parent};
        for (size_t i = 0; i < model->opening_count; i++) {
            if (model->openings[i].end == MODEL_OPEN) {
                model->openings[i].end = MODEL_FENCED;
                model->totals.fenced++;
            }
        }
    }
    assert_int_equal(verdict->id.term, model->term_count); /* I5 */
    const struct model_term *term = &model->terms[verdict->id.term - 1];
    assert_true(term->token == from->token.bytes[0] && term->ordinal == from->ordinal);
    assert_int_equal(term->world_size, from->world_size);
    assert_null(commit_of(model, verdict->id));
    assert_null(opening_of(model, save->open_id));
    for (size_t i = 0; i < model->opening_count; i++) { /* one opening of a step at a time */
        assert_false(ckpt_id_equal(model->openings[i].id, verdict->id) &&
                     model->openings[i].end == MODEL_OPEN);
    }
    assert_true(model->opening_count < MODEL_OPENINGS_MAX);
    model->openings[model->opening_count++] =
        (struct model_opening){.id = verdict->id,
                               .open_id = save->open_id,
                               .base = save->base,
                               .world_size = from->world_size};
    if (save->base.term != 0) {
        assert_false(commit_of(model, save->base)->forgotten);
    }
}

static void applied_seal(struct model *model, const struct event *event)
{
    const struct event_seals *seals = &event->u.seal;
    struct model_opening *opening = opening_of(model, seals->open_id);
    assert_non_null(opening);
    assert_int_equal(opening->end, MODEL_OPEN); /* I5 */
    for (size_t i = 0; i < seals->count; i++) {
        uint32_t rank = seals->items[i].rank;
        uint8_t content = seals->items[i].entry.part_sha256.bytes[0];
        assert_true(rank < opening->world_size);
        assert_true(!opening->sealed[rank] || opening->content[rank] == content); /* I3 */
        opening->sealed[rank] = true;
        opening->content[rank] = content;
    }
}

static void applied_commit(struct model *model, const struct event *event,
                           const struct verdict *verdict)
{
    struct model_opening *opening = opening_of(model, event->u.commit.open_id);
    assert_non_null(opening);
    assert_int_equal(opening->end, MODEL_OPEN); /* of commit and abort one wins */
    assert_false(opening->told_dead);
    assert_int_equal(opening->id.term, model->term_count); /* I5 */
    assert_true(ckpt_id_equal(opening->id, event->id));
    assert_null(commit_of(model, opening->id)); /* I3 */
    for (uint32_t rank = 0; rank < opening->world_size; rank++) {
        assert_true(opening->sealed[rank]); /* I2 */
    }
    opening->end = MODEL_COMMITTED;
    model->commits[model->commit_count++] = (struct model_commit){.id = opening->id,
                                                                  .open_id = opening->open_id,
                                                                  .seq = ++model->chain_seq,
                                                                  .base = opening->base};
    assert_int_equal(verdict_save(verdict)->seq, model->chain_seq);
    bool tagged = opening->id.step % 2 == 1; /* as the test opens them */
    model->commits[model->commit_count - 1].tagged = tagged;
    model->commits[model->commit_count - 1].note_version = tagged ? 1 : 0;
    model->totals.commits++;
}

static void applied_abort(struct model *model, const struct event *event,
                          const struct verdict *verdict)
{
    struct model_opening *opening = opening_of(model, event->u.abort.open_id);
    assert_non_null(opening);
    assert_true(opening->end == MODEL_OPEN || opening->end == MODEL_FENCED);
    assert_int_equal(verdict_save(verdict)->state, SAVE_ABORTED);
    model->totals.aborts += opening->end == MODEL_OPEN;
    opening->end = opening->end == MODEL_OPEN ? MODEL_ABORTED : opening->end;
}

static void lower(struct model *model, struct ckpt_id id, enum health health)
{
    struct model_commit *commit = commit_of(model, id);
    assert_non_null(commit);
    commit->health = health > commit->health ? health : commit->health;
}

static void applied_note(struct model *model, const struct event *event,
                         const struct verdict *verdict)
{
    const struct note_change *note = &event->u.annotate.note;
    struct model_commit *commit = commit_of(model, verdict->id);
    assert_non_null(commit);
    double score = note->metric_count > 0 ? note->metrics[0].value : commit->score;
    bool tagged = note->tag_count > 0 || (commit->tagged && note->removed_count == 0);
    assert_true(score != commit->score || tagged != commit->tagged); /* else nothing to write */
    commit->score = score;
    commit->tagged = tagged;
    assert_int_equal(verdict_save(verdict)->note_version, ++commit->note_version);
}

/* ---- forgetting ---- */

static bool is_good(const struct model *model, const struct model_commit *commit)
{
    return commit->health == HEALTH_VERIFIED && !commit->forgotten && on_lineage(model, commit->id);
}

static struct ckpt_id root_of(struct model *model, struct ckpt_id id)
{
    while (commit_of(model, id)->base.term != 0) {
        id = commit_of(model, id)->base;
    }
    return id;
}

struct good { /* what the lineage has */
    unsigned count;
    struct ckpt_id newest;
    bool apart; /* two that share no object */
};

static struct good good_of(struct model *model)
{
    struct good good = {0};
    struct ckpt_id root = {0};
    for (size_t i = 0; i < model->commit_count; i++) {
        const struct model_commit *commit = &model->commits[i];
        if (is_good(model, commit)) {
            good.apart =
                good.apart || (good.count > 0 && !ckpt_id_equal(root, root_of(model, commit->id)));
            root = root_of(model, commit->id);
            good.count++;
            good.newest = ckpt_id_compare(commit->id, good.newest) > 0 ? commit->id : good.newest;
        }
    }
    return good;
}

static void forget_one(struct model *model, struct model_commit *commit)
{
    assert_false(commit->forgotten || commit->pinned);
    commit->forgotten = true;
    commit->forgotten_cycle = model->cycle;
    model->totals.forgotten++;
}

static void mark_one(struct model *model, const struct event *event, struct model_commit *commit)
{
    if (event->kind == EVENT_FORGET) {
        forget_one(model, commit);
    } else if (event->kind == EVENT_UNDELETE) {
        assert_true(commit->forgotten && !commit->reclaimed);
        commit->forgotten = false;
        model->totals.undeleted++;
    } else if (event->kind == EVENT_RECLAIM) { /* that it serves nobody: model_compare */
        assert_true(commit->forgotten && !commit->reclaimed);
        assert_true(model->cycle >= commit->forgotten_cycle + event->u.mark.cycles);
        commit->reclaimed = true;
        model->totals.reclaimed++;
    } else {
        bool pin = event->kind == EVENT_PIN;
        assert_true(commit->pinned != pin && !commit->forgotten);
        commit->pinned = pin;
        model->totals.pinned += pin;
    }
}

static void applied_marks(struct model *model, const struct event *event,
                          const struct verdict *verdict)
{
    struct good before = good_of(model);
    const struct verdict_marks *marks = verdict_marks(verdict);
    assert_true(marks->done_count > 0);
    model->chain_seq++;
    for (size_t i = 0; i < marks->count; i++) {
        if (marks->items[i].outcome == MARK_DONE) {
            mark_one(model, event, commit_of(model, marks->items[i].id));
        }
    }
    if (event->kind != EVENT_FORGET) {
        return;
    }
    const struct event_forget *forget = &event->u.mark.forget;
    uint32_t least = forget->keep_least > 0 ? forget->keep_least : 2;
    struct good after = good_of(model);
    assert_true(before.count > 0 && ckpt_id_equal(before.newest, after.newest));
    assert_true(after.count >= (before.count < least ? before.count : least));
    assert_true(!forget->apart || least < 2 || !before.apart || after.apart);
}

void model_applied(struct model *model, const struct event *event, const struct verdict *verdict)
{
    switch (event->kind) {
    case EVENT_OPEN:
        applied_open(model, event, verdict);
        break;
    case EVENT_SEAL:
        applied_seal(model, event);
        break;
    case EVENT_COMMIT:
        applied_commit(model, event, verdict);
        break;
    case EVENT_ABORT:
        applied_abort(model, event, verdict);
        break;
    case EVENT_HEALTH:
        if (event->u.health.health == HEALTH_VERIFIED) {
            commit_of(model, event->id)->health = HEALTH_VERIFIED;
        } else {
            lower(model, event->id, event->u.health.health);
        }
        break;
    case EVENT_ANNOTATE:
        applied_note(model, event, verdict);
        break;
    case EVENT_RESTORE_REPORT:
        if (event->u.report.code == CAIRN_E_DAMAGED ||
            event->u.report.code == CAIRN_E_DIGEST_MISMATCH) {
            lower(model, event->id,
                  event->u.report.code == CAIRN_E_DAMAGED ? HEALTH_DAMAGED : HEALTH_SUSPECT);
        }
        break;
    case EVENT_RESTORE_BEGIN: /* resolved as of now, not as of some older copy */
        assert_int_equal(verdict->newest_term, model->term_count);
        assert_int_equal(verdict_restore(verdict)->empty, model->commit_count == 0);
        if (event->u.begin.selector.kind == SELECT_LATEST) {
            assert_true(ckpt_id_equal(verdict->id, model_latest(model)));
        }
        break;
    case EVENT_FORGET:
    case EVENT_UNDELETE:
    case EVENT_PIN:
    case EVENT_UNPIN:
    case EVENT_RECLAIM:
        applied_marks(model, event, verdict);
        break;
    case EVENT_ADOPT:
    case EVENT_REMOVE: /* test_commit_remove.c */
    case EVENT_REPAIR:
        fail_msg(
            "repairs and removals are not among the random events: each is an entry of its own");
        break;
    case EVENT_GC_CYCLE:
        assert_int_equal(event->u.gc_cycle.cycle, model->cycle);
        assert_int_equal(verdict_gc_cycle(verdict)->cycle, ++model->cycle);
        model->totals.sessions_ended += (unsigned)verdict_gc_cycle(verdict)->ended_count;
        break;
    case EVENT_CREATE:
    case EVENT_LEAVE: /* test_commit_open.c: nothing follows from it */
        break;
    case EVENT_BURY:
        fail_msg("dead entries are not buried among the random events: gc's tests do it");
        break;
    case EVENT_FIND_OPEN:
        fail_msg("finding an opening writes");
    }
}

/* ---- what was answered ---- */

/* I4: a try of a session is one checkpoint, whoever asks; later tries are older; done is when all
 * said OK to it. */
static void answered_restore(struct model *model, const struct event *event,
                             const struct verdict *verdict)
{
    const struct event_report *report =
        event->kind == EVENT_RESTORE_REPORT ? &event->u.report : NULL;
    const struct attempt_rank *from = report != NULL ? &report->from : &event->u.begin.from;
    const struct verdict_restore *restore = verdict_restore(verdict);
    struct model_try *found = NULL;
    for (size_t i = 0; i < model->try_count; i++) {
        struct model_try *try = &model->tries[i];
        if (try->token != from->token.bytes[0] || try->ordinal != from->ordinal) {
            continue;
        }
        if (try->try_count == restore->try_count) {
            assert_true(ckpt_id_equal(try->id, verdict->id));
            found = try;
        } else {
            assert_int_equal(
                try->try_count<restore->try_count, ckpt_id_compare(try->id, verdict->id)> 0);
            assert_true(try->try_count > restore->try_count || !try->done);
        }
    }
    assert_true(verdict->id.term == 0 || commit_of(model, verdict->id) != NULL); /* I2 */
    if (found == NULL) {
        assert_true(model->try_count < MODEL_SESSIONS_MAX);
        found = &model->tries[model->try_count++];
        *found = (struct model_try){.token = from->token.bytes[0],
                                    .ordinal = from->ordinal,
                                    .try_count = restore->try_count,
                                    .id = verdict->id};
        model->totals.fell_back += restore->try_count > 1;
    }
    if (report != NULL && report->code == 0 && ckpt_id_equal(event->id, verdict->id)) {
        found->ok[from->rank] = true;
        for (size_t i = 0; i < report->rank_count; i++) {
            found->ok[report->ranks[i]] = true;
        }
    }
    model->totals.restores_failed += restore->failed;
    if (restore->done && !restore->empty) {
        for (uint32_t rank = 0; rank < from->world_size; rank++) {
            assert_true(found->ok[rank]);
        }
        model->totals.restores_done += !found->done;
        found->done = true;
    }
}

void model_answered(struct model *model, const struct event *event, const struct verdict *verdict)
{
    const struct verdict_save *save = verdict->answer == ANSWER_SAVE ? verdict_save(verdict) : NULL;
    if (save != NULL && save->state == SAVE_COMMITTED &&
        event->kind != EVENT_HEALTH) { /* true for ever, also when stale */
        const struct model_commit *commit = commit_of(model, verdict->id);
        assert_non_null(commit);
        assert_int_equal(commit->open_id, save->open_id);
        assert_int_equal(commit->seq, save->seq);
    }
    if (verdict->answer == ANSWER_MARKS && verdict->code == 0) {
        model->totals.refused += (unsigned)verdict_marks(verdict)->refused_count;
    }
    if (event->kind == EVENT_SEAL || event->kind == EVENT_COMMIT || event->kind == EVENT_ABORT) {
        uint64_t open_id = event->kind == EVENT_SEAL     ? event->u.seal.open_id
                           : event->kind == EVENT_COMMIT ? event->u.commit.open_id
                                                         : event->u.abort.open_id;
        struct model_opening *opening = opening_of(model, open_id);
        bool dead = verdict->code == CAIRN_E_ABORTED || verdict->code == CAIRN_E_FENCED ||
                    (verdict->code == 0 && verdict_save(verdict)->state == SAVE_ABORTED);
        if (opening != NULL && dead) {
            assert_int_not_equal(opening->end, MODEL_COMMITTED);
            opening->told_dead = true;
        }
    }
    bool restore = event->kind == EVENT_RESTORE_BEGIN || event->kind == EVENT_RESTORE_REPORT;
    if (restore && (verdict->code == 0 || verdict->code == CAIRN_E_AGAIN)) {
        answered_restore(model, event, verdict);
    }
}

/* ---- what the record says ---- */

static void compare_commits(const struct model *model, const struct run_state *state)
{
    assert_int_equal(state->commit_count, model->commit_count);
    for (size_t i = 0; i < model->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        const struct model_commit *want = &model->commits[i];
        uint64_t content;
        memcpy(&content, commit->entry.manifest_sha256.bytes, sizeof(content));
        assert_true(ckpt_id_equal(commit->entry.id, want->id));
        assert_int_equal(commit->entry.seq, want->seq);
        assert_int_equal(commit->forgotten, want->forgotten);
        assert_int_equal(commit->reclaimed, want->reclaimed);
        assert_int_equal(commit->pinned, want->pinned);
        assert_int_equal(commit->entry.open_id, want->open_id);
        assert_int_equal(content, want->open_id);
        assert_int_equal(commit->health, want->health);
        assert_int_equal(commit->note != NULL ? commit->note->version : 0, want->note_version);
        if (commit->note != NULL) {
            assert_int_equal(commit->note->tag_count, want->tagged);
            assert_int_equal(commit->note->metric_count, want->score != 0);
            assert_true(want->score == 0 || commit->note->metrics[0].value == want->score);
        }
        assert_int_equal(commit->on_lineage, on_lineage(model, want->id));
        assert_int_equal(state_status(state, want->id, NULL),
                         want->forgotten ? SAVE_FORGOTTEN : SAVE_COMMITTED);
    }
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    struct ckpt_id want = model_latest(model);
    assert_true(latest == NULL ? want.term == 0 : ckpt_id_equal(latest->entry.id, want));
}

/* I6: nothing that a save or a restore builds on is gone. */
static void compare_uses(struct model *model, const struct run_state *state)
{
    for (size_t i = 0; i < model->opening_count; i++) {
        const struct model_opening *opening = &model->openings[i];
        if (opening->end == MODEL_OPEN && opening->base.term != 0) {
            assert_false(commit_of(model, opening->base)->reclaimed);
        }
    }
    for (size_t i = 0; i < state->restore_count; i++) {
        const struct entry_restore *entry = &state->restores[i].entry;
        if (entry->state == RESTORE_RUNNING) {
            assert_false(commit_of(model, entry->id)->reclaimed);
        }
    }
    assert_int_equal(state->gc.cycle, model->cycle);
    assert_int_equal(state->head.seq, model->chain_seq);
}

void model_compare(struct model *model, const struct run_state *state)
{
    size_t live_count = 0, stale_count = 0;
    compare_commits(model, state);
    compare_uses(model, state);
    assert_int_equal(state->newest_term, model->term_count);
    for (size_t i = 0; i < state->open_count; i++) {
        stale_count += state->opens[i].id.term != state->newest_term;
    }
    for (size_t i = 0; i < model->opening_count; i++) {
        const struct model_opening *opening = &model->openings[i];
        if (opening->end != MODEL_OPEN) {
            continue;
        }
        const struct state_open *open = state_open_find(state, opening->id);
        assert_non_null(open);
        assert_int_equal(open->entry.open_id, opening->open_id);
        uint32_t sealed_count = 0;
        for (uint32_t rank = 0; rank < opening->world_size; rank++) {
            sealed_count += opening->sealed[rank];
        }
        assert_int_equal(open->sealed_count, sealed_count);
        assert_int_equal(state_status(state, opening->id, NULL), SAVE_OPEN);
        live_count++;
    }
    assert_int_equal(live_count + stale_count, state->open_count);
    for (size_t i = 0; i < state->dead_count; i++) {
        assert_null(state_open_find(state, state->deads[i].id));
    }
}

void model_add_totals(const struct model *model, struct model_totals *totals)
{
    totals->commits += model->totals.commits;
    totals->aborts += model->totals.aborts;
    totals->fenced += model->totals.fenced;
    totals->restores_done += model->totals.restores_done;
    totals->fell_back += model->totals.fell_back;
    totals->restores_failed += model->totals.restores_failed;
    totals->forgotten += model->totals.forgotten;
    totals->undeleted += model->totals.undeleted;
    totals->pinned += model->totals.pinned;
    totals->reclaimed += model->totals.reclaimed;
    totals->refused += model->totals.refused;
    totals->sessions_ended += model->totals.sessions_ended;
}
