/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's record in memory and short words for the events of one attempt, for the scenario tests of
 * the core. Every event is decided on a fresh copy, applied, and the record is loaded again: a
 * transition that writes what cannot be read back fails at once.
 */
#ifndef CAIRN_TESTS_CORE_FIXTURE_H
#define CAIRN_TESTS_CORE_FIXTURE_H

#include "core/commit.h"

struct core_fixture {
    struct record *record;
    struct state_unrecorded unrecorded; /* what lies on the medium, for every event */
    struct scratch scratch;             /* of state and verdict */
    struct run_state state;             /* after the last event */
    struct verdict verdict;             /* of the last event; its update is gone */
};

/* Who acts: fill in what differs. */
struct actor {
    uint8_t token; /* all 16 bytes */
    uint32_t rank, world_size, ordinal;
    struct ckpt_id parent;
    uint64_t newest_seen;
};

void core_fixture_init(struct core_fixture *fixture);
void core_fixture_fini(struct core_fixture *fixture);
/* cmocka's functions around a test: its state is a fixture of an empty run. */
/* Decides, applies, loads again; returns the verdict's code. */
int core_run(struct core_fixture *fixture, const struct event *event);

struct event event_of(enum event_kind kind, const struct actor *actor);
struct event_seal seal_of(uint32_t rank, uint64_t content);
struct event seal_event(struct ckpt_id id, uint64_t open_id, size_t count,
                        const struct event_seal *seals);

int core_open(struct core_fixture *fixture, const struct actor *actor, uint64_t step,
              uint64_t open_id);
int core_find(struct core_fixture *fixture, const struct actor *actor, uint64_t step);
int core_seal(struct core_fixture *fixture, struct ckpt_id id, uint64_t open_id, uint32_t rank);
int core_commit(struct core_fixture *fixture, struct ckpt_id id, uint64_t open_id);
int core_abort(struct core_fixture *fixture, struct ckpt_id id, uint64_t open_id);
int core_health(struct core_fixture *fixture, struct ckpt_id id, enum health health);
int core_begin(struct core_fixture *fixture, const struct actor *actor, struct selector selector,
               bool allow_older);
int core_report(struct core_fixture *fixture, const struct actor *actor, struct ckpt_id id,
                int code);
/* Open, all seals, commit; the id. Fails the test when one of them fails. */
struct ckpt_id core_save(struct core_fixture *fixture, const struct actor *actor, uint64_t step);

/* Appends a chain entry as a later version's transition will, hash and head right; what loading it
 * says. */
int core_append(struct core_fixture *fixture, uint32_t kind, struct ckpt_id id,
                struct run_state *ret);

/* An update that was decided on a copy of the state, which goes stale before it is applied. */
struct stale {
    struct scratch scratch;
    struct run_state state;
    struct verdict verdict;
};
void stale_init(struct stale *stale, const struct core_fixture *fixture, const struct event *event);
/* Applies the update to the record as it is now, frees it, and returns what the record answers. */
int stale_apply(struct stale *stale, struct core_fixture *fixture);
struct event commit_event(struct ckpt_id id, uint64_t open_id);
struct event abort_event(struct ckpt_id id, uint64_t open_id);
struct event open_event(const struct actor *actor, uint64_t step, uint64_t open_id);

#define ID(term, step)    ((struct ckpt_id){(term), (step)})
#define LATEST            ((struct selector){.kind = SELECT_LATEST})
#define STEP(step)        ((struct selector){.kind = SELECT_STEP, .id = {0, (step)}})
#define EXACT(term, step) ((struct selector){.kind = SELECT_EXACT, .id = {(term), (step)}})
#define assert_ckpt(is, term_, step_) \
    (assert_int_equal((is).term, (term_)), assert_int_equal((is).step, (step_)))

#endif
