/* SPDX-License-Identifier: Apache-2.0
 *
 * In any order of events nothing uncommitted is listed (I2), a term and step have one content (I3),
 * the ranks of a restore are at one checkpoint (I4), nothing of a fenced term takes effect (I5),
 * and an event that comes again changes nothing. Method: some drivers hold copies of one record
 * that go stale; each event is decided on such a copy and applied to the true record, on CONFLICT
 * read again and decided again. A naive model is told only what was applied, judges it by its own
 * rules, and is compared with the record after each. Every seed is printed when it fails;
 * CAIRN_SEED=n runs one seed, CAIRN_SEEDS=n as many.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/check.h"
#include "core_model.h"
#include "support/unit_test.h"

enum { SEED_COUNT = 7000, EVENT_COUNT = 110, DRIVER_COUNT = 3, VERSION_MAX = 320 };

struct sim {
    uint64_t seed, random;
    struct record *record;
    size_t version_count; /* versions[i]: the state after i updates */
    struct version {
        struct scratch scratch;
        struct run_state state;
    } versions[VERSION_MAX];
    size_t at[DRIVER_COUNT]; /* which version each driver has */
    struct model model;
    unsigned conflict_count;
};

static struct sim sim; /* large; one test at a time */

static uint64_t draw(uint64_t below)
{
    sim.random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t z = sim.random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static bool chance(unsigned percent) { return draw(100) < percent; }

static const struct run_state *truth(void) { return &sim.versions[sim.version_count - 1].state; }

static void push_version(void)
{
    struct diag diag = DIAG_INIT;
    assert_true(sim.version_count < VERSION_MAX);
    struct version *version = &sim.versions[sim.version_count++];
    scratch_init(&version->scratch, MIB(4));
    int status = run_state_load(sim.record, &version->scratch, &version->state, &diag);
    if (status != 0) {
        fail_msg("the record cannot be loaded: %s", diag_text(&diag, status));
    }
}

/* What a batch has done is done; what was refused for what a copy that is behind still shows may go
 * the second time. */
static void check_batch(const struct verdict_marks *first, const struct verdict_marks *again)
{
    assert_int_equal(again->count, first->count);
    for (size_t i = 0; i < first->count; i++) {
        if (first->items[i].outcome <= MARK_ALREADY) {
            assert_int_equal(again->items[i].outcome, MARK_ALREADY);
        }
    }
}

/* The same event on the state that its update made: no change, the same answer. */
static void check_idempotence(const struct event *event, const struct verdict *verdict)
{
    struct scratch scratch;
    struct verdict again;
    scratch_init(&scratch, MIB(1));
    commit_step(truth(), event, &scratch, &again);
    bool report = event->kind == EVENT_RESTORE_REPORT;
    bool batch = verdict->answer == ANSWER_MARKS && event->u.mark.id_count > 0;
    if (batch) {
        check_batch(verdict_marks(verdict), verdict_marks(&again));
    } else if (again.update.change_count != 0 && !(report && verdict_restore(&again)->done) &&
               event->kind != EVENT_RECLAIM) {
        fail_msg("event %d is not idempotent", (int)event->kind);
    }
    if (!report) {
        if (again.code != 0) {
            fail_msg("event %d a second time: %s", (int)event->kind, again.diag.text);
        }
        if (verdict->answer == ANSWER_SAVE) {
            const struct verdict_save *first = verdict_save(verdict), *then = verdict_save(&again);
            assert_int_equal(then->state, first->state);
            assert_int_equal(then->open_id, first->open_id);
            assert_int_equal(then->seq, first->seq);
            assert_true(then->all_sealed || event->kind != EVENT_SEAL || !first->all_sealed);
        }
        assert_true(ckpt_id_equal(again.id, verdict->id));
    }
    scratch_fini(&scratch);
}

/* Decides on the driver's copy, applies, and on conflict goes on with a fresh copy. The final
 * verdict. */
static struct verdict submit(const struct event *event)
{
    size_t driver = draw(DRIVER_COUNT);
    if (chance(50)) {
        sim.at[driver] = sim.version_count - 1;
    }
    struct verdict verdict;
    for (unsigned round = 0;; round++) {
        struct scratch scratch;
        scratch_init(&scratch, MIB(1));
        commit_step(&sim.versions[sim.at[driver]].state, event, &scratch, &verdict);
        int status = 0;
        if (verdict.update.change_count > 0) {
            assert_int_equal(verdict.code, 0);
            status = record_apply(sim.record, &verdict.update, NULL);
        }
        bool applied = verdict.update.change_count > 0 && status == 0;
        verdict.update = (struct record_update){0};
        static struct mark marks[MODEL_OPENINGS_MAX];
        size_t mark_count = verdict.answer == ANSWER_MARKS ? verdict_marks(&verdict)->count : 0;
        assert_true(mark_count <= MODEL_OPENINGS_MAX);
        if (mark_count > 0) {
            memcpy(marks, verdict_marks(&verdict)->items, mark_count * sizeof(*marks));
            verdict.u.marks.items = marks;
        }
        scratch_fini(&scratch);
        if (status == CAIRN_E_CONFLICT) {
            assert_int_equal(round, 0); /* a fresh copy cannot conflict: nothing runs beside it */
            sim.conflict_count++;
            sim.at[driver] = sim.version_count - 1;
            continue;
        }
        assert_int_equal(status, 0);
        if (!applied && !verdict.proven && sim.at[driver] != sim.version_count - 1) {
            sim.at[driver] =
                sim.version_count - 1; /* the rule for answers of a copy that is behind */
            continue;
        }
        if (applied) {
            push_version();
            model_applied(&sim.model, event, &verdict);
            model_compare(&sim.model, truth());
            check_idempotence(event, &verdict);
            if (chance(60)) {
                sim.at[driver] = sim.version_count - 1;
            }
        }
        model_answered(&sim.model, event, &verdict);
        return verdict;
    }
}

/* ---- who acts ---- */

static struct attempt_rank draw_rank(const struct model_attempt *attempt, uint32_t ordinal)
{
    struct attempt_rank from = {.world_size = attempt->world_size,
                                .ordinal = ordinal,
                                .rank = (uint32_t)draw(attempt->world_size)};
    memset(from.token.bytes, (int)attempt->token, sizeof(from.token.bytes));
    if (chance(3)) {
        from.world_size++; /* a rank that was started wrongly */
    }
    return from;
}

static struct event draw_open(enum event_kind kind, const struct model_attempt *attempt)
{
    return (struct event){.kind = kind,
                          .u.open = {.from = draw_rank(attempt, attempt->ordinal),
                                     .parent = attempt->parent,
                                     .newest_seen = attempt->newest_seen,
                                     .info = {.chunk_bytes = LIMIT_CHUNK_BYTES}}};
}

static void act_open(struct model_attempt *attempt)
{
    struct event event = draw_open(EVENT_OPEN, attempt);
    struct event_open *open = &event.u.open;
    open->from.rank = 0;
    event.id.step = 1 + draw(5);
    open->entry.deadline_ms = 1000;
    static const char *tags[] = {"t"};
    open->entry.tags = tags;
    if (attempt->opening_count > attempt->opening_first && chance(25)) { /* a repeated message */
        event.id.step = attempt->openings[attempt->opening_count - 1].id.step;
        open->open_id = attempt->openings[attempt->opening_count - 1].open_id;
    } else {
        open->open_id = model_new_open_id(&sim.model);
    }
    open->entry.tag_count = event.id.step % 2;
    open->full_every = attempt->token % 2 == 0 ? 2 : 0;
    struct verdict verdict = submit(&event);
    if (verdict.code == 0 && verdict_save(&verdict)->state == SAVE_OPEN) {
        model_learn_opening(attempt, verdict.id, verdict_save(&verdict)->open_id);
    }
}

static void act_find(struct model_attempt *attempt)
{
    struct event event = draw_open(EVENT_FIND_OPEN, attempt);
    event.id.step = 1 + draw(5);
    struct verdict verdict = submit(&event);
    if (verdict.code == 0 && verdict_save(&verdict)->state == SAVE_OPEN) {
        model_learn_opening(attempt, verdict.id, verdict_save(&verdict)->open_id);
    }
}

static struct event commit_of(struct ckpt_id id, uint64_t open_id)
{
    struct event event = {.kind = EVENT_COMMIT,
                          .id = id,
                          .u.commit = {.open_id = open_id, .entry.manifest_bytes = 1}};
    memcpy(event.u.commit.entry.manifest_sha256.bytes, &open_id, sizeof(open_id));
    return event;
}

static void act_seal(struct model_attempt *attempt)
{
    if (attempt->opening_count == 0) {
        return;
    }
    size_t back = draw(attempt->opening_count < 3 ? attempt->opening_count : 3);
    struct model_opening *opening = &attempt->openings[attempt->opening_count - 1 - back];
    uint32_t one = draw_rank(attempt, attempt->ordinal).rank;
    struct event_seal seals[MODEL_WORLD_MAX + 1];
    size_t count = 0;
    bool all = chance(40);
    for (uint32_t rank = 0; rank < attempt->world_size; rank++) {
        if (all || rank == one) {
            struct event_seal *seal = &seals[count++];
            *seal = (struct event_seal){.rank = rank,
                                        .entry = {.writer = attempt->token, .part_bytes = 9}};
            seal->entry.part_sha256.bytes[0] = chance(4) ? 1 : 0; /* now and then another content */
        }
    }
    uint64_t open_id = chance(4) ? opening->open_id + 1000 : opening->open_id;
    struct event event = {.kind = EVENT_SEAL,
                          .id = opening->id,
                          .u.seal = {.open_id = open_id, .count = count, .items = seals}};
    struct verdict verdict = submit(&event);
    if (verdict_save(&verdict)->all_sealed && chance(70)) { /* as the driver does */
        struct event commit = commit_of(opening->id, open_id);
        submit(&commit);
    }
}

static void act_end(struct model_attempt *attempt, bool commit)
{
    if (attempt->opening_count == 0) {
        return;
    }
    struct model_opening *opening = &attempt->openings[draw(attempt->opening_count)];
    struct event event = {
        .kind = EVENT_ABORT,
        .id = opening->id,
        .u.abort = {.open_id = opening->open_id, .code = CAIRN_E_TIMED_OUT, .reason = "deadline"}};
    if (commit) {
        event = commit_of(opening->id, opening->open_id);
    }
    submit(&event);
}

static void act_begin(struct model_attempt *attempt)
{
    if (sim.model.commit_count == 0 && chance(70)) {
        return; /* empty runs are not all that there is */
    }
    /* The sessions are numbered from 1, the term of no restore is 0. */
    struct attempt_rank from = draw_rank(attempt, attempt->ordinal + 1);
    struct event event = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = from,
                                      .allow_older = attempt->token % 3 != 0,
                                      .info = {.chunk_bytes = LIMIT_CHUNK_BYTES}}};
    if (chance(20) && sim.model.commit_count > 0) {
        event.u.begin.selector.kind = chance(50) ? SELECT_STEP : SELECT_EXACT;
        event.u.begin.selector.id = sim.model.commits[draw(sim.model.commit_count)].id;
    }
    struct verdict verdict = submit(&event);
    if (verdict.code == 0 && from.world_size == attempt->world_size) {
        attempt->at[from.rank] = verdict.id;
        attempt->restoring = true;
    }
}

static void act_report(struct model_attempt *attempt)
{
    if (!attempt->restoring) {
        return;
    }
    struct event event = {.kind = EVENT_RESTORE_REPORT,
                          .u.report.from = draw_rank(attempt, attempt->ordinal + 1)};
    struct event_report *report = &event.u.report;
    const uint32_t rank = report->from.rank;
    if (rank >= attempt->world_size || attempt->at[rank].term == 0) {
        return;
    }
    event.id = attempt->at[rank];
    report->code = !chance(25)  ? 0
                   : chance(80) ? CAIRN_E_DAMAGED
                   : chance(50) ? CAIRN_E_DIGEST_MISMATCH
                                : CAIRN_E_SHAPE_MISMATCH;
    uint32_t ranks[MODEL_WORLD_MAX + 1] = {rank};
    if (report->code == 0 && chance(30)) { /* a batch, this rank perhaps twice in it */
        report->ranks = ranks;
        report->rank_count = 1;
        for (uint32_t other = 0; other < attempt->world_size; other++) {
            if (ckpt_id_equal(attempt->at[other], event.id) && chance(50)) {
                ranks[report->rank_count++] = other;
            }
        }
    }
    struct verdict verdict = submit(&event);
    if (report->from.world_size != attempt->world_size ||
        (verdict.code != 0 && verdict.code != CAIRN_E_AGAIN)) {
        return;
    }
    attempt->at[rank] = verdict.id;
    for (size_t i = 0; i < report->rank_count; i++) {
        attempt->at[ranks[i]] = verdict.id;
    }
    if (verdict_restore(&verdict)->done || verdict_restore(&verdict)->failed) {
        attempt->restoring = false;
        attempt->ordinal++;
        attempt->opening_first = attempt->opening_count;
        memset(attempt->at, 0, sizeof(attempt->at));
    }
    if (verdict_restore(&verdict)->done) {
        attempt->parent = verdict.id;
        attempt->newest_seen = verdict.newest_term;
    }
}

static void act_health(void)
{
    if (sim.model.commit_count == 0) {
        return;
    }
    struct event event = {.kind = EVENT_HEALTH,
                          .id = sim.model.commits[draw(sim.model.commit_count)].id,
                          .u.health = {.health = (enum health)draw(3), .reason = "scrub"}};
    submit(&event);
}

static void act_annotate(void)
{
    if (sim.model.commit_count == 0) {
        return;
    }
    static const char *const tags[] = {"t"};
    const struct metric score = {.name = "score", .value = 1 + (double)draw(3)};
    struct event event = {
        .kind = EVENT_ANNOTATE,
        .u.annotate.selector = {.kind = SELECT_EXACT,
                                .id = sim.model.commits[draw(sim.model.commit_count)].id}};
    struct note_change *note = &event.u.annotate.note;
    if (chance(20)) {
        event.u.annotate.selector = (struct selector){.kind = SELECT_LATEST};
    }
    note->metrics = &score;
    note->metric_count = (uint32_t)draw(2);
    note->tags = note->removed = tags;
    note->tag_count = (uint32_t)draw(2);
    note->removed_count = note->tag_count == 0 ? (uint32_t)draw(2) : 0;
    submit(&event);
}

/* Some checkpoints, now and then one that never was. */
static size_t draw_ids(struct ckpt_id ids[4])
{
    size_t count = 0, wanted = 1 + draw(4);
    for (size_t i = draw(sim.model.commit_count); i < sim.model.commit_count && count < wanted;
         i += 1 + draw(2)) {
        ids[count++] = sim.model.commits[i].id;
    }
    if (count < 4 && chance(5)) {
        ids[count++] = (struct ckpt_id){1 + draw(3), 77};
    }
    return count;
}

static void act_retention(void)
{
    static const enum event_kind kinds[] = {
        EVENT_FORGET,  EVENT_FORGET,  EVENT_FORGET,   EVENT_FORGET,   EVENT_FORGET,
        EVENT_FORGET,  EVENT_FORGET,  EVENT_UNDELETE, EVENT_PIN,      EVENT_UNPIN,
        EVENT_RECLAIM, EVENT_RECLAIM, EVENT_GC_CYCLE, EVENT_GC_CYCLE, EVENT_GC_CYCLE};
    struct ckpt_id ids[4];
    if (sim.model.commit_count == 0) {
        return;
    }
    enum event_kind kind = kinds[draw(ARRAY_LEN(kinds))];
    struct event_forget forget = {.keep_least = chance(60) ? 1 : (uint32_t)draw(3),
                                  .apart = chance(50)};
    uint64_t cycles = 1 + draw(2);
    struct event event = {.kind = kind};
    if (kind == EVENT_GC_CYCLE) {
        bool repeats = sim.model.cycle > 0 && chance(20);
        event.u.gc_cycle =
            (struct event_gc_cycle){.cycle = sim.model.cycle - repeats, .lease_cycles = cycles};
        submit(&event);
        return;
    }
    struct event_mark *mark = &event.u.mark;
    *mark = (struct event_mark){.ids = ids, .actor = "tester", .reason = "at random"};
    if (kind != EVENT_RECLAIM || chance(30)) {
        mark->id_count = draw_ids(ids);
    }
    if (kind == EVENT_FORGET) {
        mark->forget = forget;
    } else if (kind == EVENT_RECLAIM) {
        mark->cycles = cycles;
    }
    submit(&event);
}

static struct model_attempt *choose_attempt(void)
{
    struct model *model = &sim.model;
    if (model->attempt_count == 0 || (model->attempt_count < MODEL_ATTEMPTS_MAX && chance(8))) {
        struct model_attempt *attempt = &model->attempts[model->attempt_count++];
        *attempt = (struct model_attempt){.token = model->attempt_count,
                                          .world_size = 1 + (uint32_t)draw(MODEL_WORLD_MAX)};
        attempt->newest_seen = sim.versions[sim.at[draw(DRIVER_COUNT)]].state.newest_term;
        return attempt;
    }
    /* Mostly the newest; old ones are zombies that still send. */
    return &model->attempts[chance(65) ? model->attempt_count - 1 : draw(model->attempt_count)];
}

static void act(void)
{
    struct model_attempt *attempt = choose_attempt();
    uint64_t what = attempt->restoring && chance(40) ? 84 + draw(13) : draw(100);
    if (chance(12)) {
        act_retention();
        return;
    }
    if (what < 22) {
        act_open(attempt);
    } else if (what < 32) {
        act_find(attempt);
    } else if (what < 62) {
        act_seal(attempt);
    } else if (what < 69) {
        act_end(attempt, true);
    } else if (what < 75) {
        act_end(attempt, false);
    } else if (what < 84) {
        act_begin(attempt);
    } else if (what < 97) {
        act_report(attempt);
    } else if (what < 98 || chance(50)) {
        act_health();
    } else {
        act_annotate();
    }
}

/* I7: when all is quiet, a new attempt restores what the model says, and saves. */
static void finish(void)
{
    for (size_t i = 0; i < DRIVER_COUNT; i++) {
        sim.at[i] = sim.version_count - 1;
    }
    struct event event = {.kind = EVENT_OPEN,
                          .id.step = 100,
                          .u.open = {.from.world_size = 1,
                                     .newest_seen = truth()->newest_term,
                                     .open_id = 999999,
                                     .info.chunk_bytes = LIMIT_CHUNK_BYTES,
                                     .parent = model_latest(&sim.model)}};
    struct token *token = &event.u.open.from.token;
    memset(token->bytes, 0xee, sizeof(token->bytes));
    struct verdict verdict = submit(&event);
    assert_int_equal(verdict.code, 0);
    struct event_seal seal = {.entry = {.part_bytes = 1}};
    struct event more = {.kind = EVENT_SEAL,
                         .id = verdict.id,
                         .u.seal = {.open_id = 999999, .count = 1, .items = &seal}};
    struct verdict sealed = submit(&more);
    assert_true(verdict_save(&sealed)->all_sealed);
    more = commit_of(verdict.id, 999999);
    struct verdict committed = submit(&more);
    assert_int_equal(verdict_save(&committed)->state, SAVE_COMMITTED);
    assert_true(ckpt_id_equal(state_latest(truth(), (struct ckpt_id){0, 0})->entry.id, verdict.id));
}

static void run_seed(uint64_t seed)
{
    sim.seed = sim.random = seed;
    sim.version_count = 0;
    memset(sim.at, 0, sizeof(sim.at));
    model_init(&sim.model);
    assert_int_equal(record_new(&sim.record), 0);
    push_version();
    for (unsigned i = 0; i < EVENT_COUNT; i++) {
        act();
    }
    finish();
    for (size_t i = 0; i < sim.version_count; i++) {
        scratch_fini(&sim.versions[i].scratch);
    }
    record_free(sim.record);
}

static void report_seed(void)
{
    fprintf(stderr, "random event orders: to replay, CAIRN_SEED=%" PRIu64 " and this test\n",
            sim.seed);
}

static void after(void)
{
    if (sim.seed != 0) {
        report_seed();
    }
}

#define FIXED_TEST(name) SETUP_TEST(name, unit_test_nothing, after)

FIXED_TEST(random_event_orders)
{
    const char *one = getenv("CAIRN_SEED"), *many = getenv("CAIRN_SEEDS");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL ? 1 : many != NULL ? strtoull(many, NULL, 10) : SEED_COUNT;
    struct model_totals totals = {0};
    unsigned conflict_count = 0;
    for (uint64_t i = 0; i < count; i++) {
        sim.conflict_count = 0;
        run_seed(first + i);
        model_add_totals(&sim.model, &totals);
        conflict_count += sim.conflict_count;
    }
    sim.seed = 0;
    printf("seeds %" PRIu64 "..%" PRIu64
           ": %u commits, %u aborts, %u fenced, %u conflicts, %u restores done, "
           "%u fallen back, %u failed; %u forgotten, %u refused, %u undeleted, %u pinned, "
           "%u reclaimed, %u sessions ended\n",
           first, first + count - 1, totals.commits, totals.aborts, totals.fenced, conflict_count,
           totals.restores_done, totals.fell_back, totals.restores_failed, totals.forgotten,
           totals.refused, totals.undeleted, totals.pinned, totals.reclaimed,
           totals.sessions_ended);
    if (count >= 1000) { /* the orders reach what they are for */
        assert_true(totals.commits > 2 * count && totals.aborts > count / 3 &&
                    totals.fenced > count / 3);
        assert_true(conflict_count > count && totals.restores_done > count / 5);
        assert_true(totals.fell_back > count / 25 && totals.restores_failed > count / 50);
        assert_true(totals.forgotten > count / 5 && totals.refused > count / 2);
        assert_true(totals.undeleted > count / 50 && totals.pinned > count / 20);
        assert_true(totals.reclaimed > count / 100 && totals.sessions_ended > count / 50);
    }
}
