/* SPDX-License-Identifier: Apache-2.0
 *
 * See core_fixture.h. Manifests and parts are stood for by numbers in their hashes.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static void reload(struct core_fixture *fixture)
{
    struct diag diag = DIAG_INIT;
    scratch_fini(&fixture->scratch);
    scratch_init(&fixture->scratch, MIB(16));
    int status = run_state_load(fixture->record, &fixture->scratch, &fixture->state, &diag);
    if (status != 0) {
        fail_msg("the record cannot be loaded: %s", diag_text(&diag, status));
    }
    fixture->state.unrecorded = fixture->unrecorded;
}

void core_fixture_init(struct core_fixture *fixture)
{
    *fixture = (struct core_fixture){0};
    assert_int_equal(record_new(&fixture->record), 0);
    reload(fixture);
}

void core_fixture_fini(struct core_fixture *fixture)
{
    scratch_fini(&fixture->scratch);
    record_free(fixture->record);
}

int core_run(struct core_fixture *fixture, const struct event *event)
{
    fixture->state.unrecorded = fixture->unrecorded;
    commit_step(&fixture->state, event, &fixture->scratch, &fixture->verdict);
    struct record_update update = fixture->verdict.update;
    if (fixture->verdict.code != 0) {
        assert_int_equal(update.change_count, 0);
        assert_int_equal(fixture->verdict.diag.code, fixture->verdict.code);
        assert_true(fixture->verdict.diag.text[0] != '\0');
    }
    if (update.change_count > 0) {
        struct diag diag = DIAG_INIT;
        int status = record_apply(fixture->record, &update, &diag);
        if (status != 0) {
            fail_msg("a fresh update was refused: %s", diag_text(&diag, status));
        }
        reload(fixture);
    }
    fixture->verdict.update = (struct record_update){0};
    return fixture->verdict.code;
}

struct event event_of(enum event_kind kind, const struct actor *actor)
{
    struct attempt_rank from = {
        .rank = actor->rank, .world_size = actor->world_size, .ordinal = actor->ordinal};
    struct entry_info info = {.chunk_bytes = LIMIT_CHUNK_BYTES};
    struct event event = {.kind = kind};
    memset(from.token.bytes, actor->token, sizeof(from.token.bytes));
    if (kind == EVENT_CREATE) {
        event.u.create = info;
    } else if (kind == EVENT_OPEN || kind == EVENT_FIND_OPEN) {
        event.u.open = (struct event_open){
            .from = from, .info = info, .parent = actor->parent, .newest_seen = actor->newest_seen};
    } else if (kind == EVENT_RESTORE_BEGIN) {
        event.u.begin = (struct event_begin){.from = from, .info = info};
    } else if (kind == EVENT_RESTORE_REPORT) {
        event.u.report.from = from;
    } else if (kind == EVENT_ABORT) {
        event.u.abort.token = from.token;
    } else {
        fail_msg("an event of kind %d names no rank", (int)kind);
    }
    return event;
}

struct event_seal seal_of(uint32_t rank, uint64_t content)
{
    struct event_seal seal = {.rank = rank, .entry = {.writer = rank + 100, .part_bytes = 1000}};
    memcpy(seal.entry.part_sha256.bytes, &content, sizeof(content));
    return seal;
}

struct event seal_event(struct ckpt_id id, uint64_t open_id, size_t count,
                        const struct event_seal *seals)
{
    return (struct event){.kind = EVENT_SEAL,
                          .id = id,
                          .u.seal = {.open_id = open_id, .count = count, .items = seals}};
}

struct event open_event(const struct actor *actor, uint64_t step, uint64_t open_id)
{
    struct event event = event_of(EVENT_OPEN, actor);
    event.id.step = step;
    event.u.open.open_id = open_id;
    event.u.open.entry.deadline_ms = 5000;
    return event;
}

int core_open(struct core_fixture *fixture, const struct actor *actor, uint64_t step,
              uint64_t open_id)
{
    struct event event = open_event(actor, step, open_id);
    return core_run(fixture, &event);
}

int core_find(struct core_fixture *fixture, const struct actor *actor, uint64_t step)
{
    struct event event = event_of(EVENT_FIND_OPEN, actor);
    event.id.step = step;
    int code = core_run(fixture, &event);
    assert_int_equal(fixture->verdict.update.change_count, 0);
    return code;
}

int core_seal(struct core_fixture *fixture, struct ckpt_id id, uint64_t open_id, uint32_t rank)
{
    struct event_seal seal = seal_of(rank, open_id);
    struct event event = seal_event(id, open_id, 1, &seal);
    return core_run(fixture, &event);
}

struct event commit_event(struct ckpt_id id, uint64_t open_id)
{
    struct event event = {.kind = EVENT_COMMIT,
                          .id = id,
                          .wall_ns = 7,
                          .u.commit = {.open_id = open_id, .entry.manifest_bytes = 500}};
    memcpy(event.u.commit.entry.manifest_sha256.bytes, &open_id, sizeof(open_id));
    return event;
}

struct event abort_event(struct ckpt_id id, uint64_t open_id)
{
    return (struct event){.kind = EVENT_ABORT,
                          .id = id,
                          .u.abort = {.open_id = open_id,
                                      .code = CAIRN_E_MISSING_RANKS,
                                      .reason = "rank 1 did not come"}};
}

int core_commit(struct core_fixture *fixture, struct ckpt_id id, uint64_t open_id)
{
    struct event event = commit_event(id, open_id);
    return core_run(fixture, &event);
}

int core_abort(struct core_fixture *fixture, struct ckpt_id id, uint64_t open_id)
{
    struct event event = abort_event(id, open_id);
    return core_run(fixture, &event);
}

int core_health(struct core_fixture *fixture, struct ckpt_id id, enum health health)
{
    struct event event = {.kind = EVENT_HEALTH, .id = id, .u.health = {health, "scrub found it"}};
    return core_run(fixture, &event);
}

int core_begin(struct core_fixture *fixture, const struct actor *actor, struct selector selector,
               bool allow_older)
{
    struct event event = event_of(EVENT_RESTORE_BEGIN, actor);
    event.u.begin.selector = selector;
    event.u.begin.allow_older = allow_older;
    return core_run(fixture, &event);
}

int core_report(struct core_fixture *fixture, const struct actor *actor, struct ckpt_id id,
                int code)
{
    struct event event = event_of(EVENT_RESTORE_REPORT, actor);
    event.id = id;
    event.u.report.code = code;
    event.u.report.reason = code != 0 ? "tensor w: a chunk's crc differs" : NULL;
    return core_run(fixture, &event);
}

struct ckpt_id core_save(struct core_fixture *fixture, const struct actor *actor, uint64_t step)
{
    uint64_t open_id = 1000 * (uint64_t)actor->token + 100 * actor->ordinal + step;
    assert_int_equal(core_open(fixture, actor, step, open_id), 0);
    struct ckpt_id id = fixture->verdict.id;
    for (uint32_t rank = 0; rank < actor->world_size; rank++) {
        assert_int_equal(core_seal(fixture, id, open_id, rank), 0);
    }
    assert_true(verdict_save(&fixture->verdict)->all_sealed);
    assert_int_equal(core_commit(fixture, id, open_id), 0);
    assert_int_equal(verdict_save(&fixture->verdict)->state, SAVE_COMMITTED);
    return id;
}

void stale_init(struct stale *stale, const struct core_fixture *fixture, const struct event *event)
{
    scratch_init(&stale->scratch, MIB(16));
    assert_int_equal(run_state_load(fixture->record, &stale->scratch, &stale->state, NULL), 0);
    commit_step(&stale->state, event, &stale->scratch, &stale->verdict);
    assert_int_equal(stale->verdict.code, 0);
    assert_true(stale->verdict.update.change_count > 0);
}

int stale_apply(struct stale *stale, struct core_fixture *fixture)
{
    int status = record_apply(fixture->record, &stale->verdict.update, NULL);
    scratch_fini(&stale->scratch);
    reload(fixture);
    return status;
}

int core_append(struct core_fixture *f, uint32_t kind, struct ckpt_id id, struct run_state *ret)
{
    struct entry_chain entry = {
        .kind = kind, .seq = f->state.head.seq + 1, .previous = f->state.head.sha256, .id = id};
    struct key_text chain = key_chain(entry.seq), head = key_head();
    struct buf chain_buf, head_buf;
    buf_init(&chain_buf, KIB(1));
    buf_init(&head_buf, KIB(1));
    entry_chain_encode(&entry, &chain_buf);
    struct entry_head new_head = {.seq = entry.seq,
                                  .sha256 = sha256(chain_buf.bytes, chain_buf.data)};
    entry_head_encode(&new_head, &head_buf);
    struct record_change changes[2] = {
        {.key = chain.at, .value = {chain_buf.bytes, chain_buf.data}},
        {.key = head.at, .value = {head_buf.bytes, head_buf.data}}};
    struct record_update update = {.change_count = 2, .changes = changes};
    assert_int_equal(record_apply(f->record, &update, NULL), 0);
    buf_fini(&chain_buf);
    buf_fini(&head_buf);
    int status = run_state_load(f->record, &f->scratch, ret, NULL);
    if (status == 0) {
        f->state = *ret;
    }
    return status;
}
