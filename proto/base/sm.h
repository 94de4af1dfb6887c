/* SPDX-License-Identifier: Apache-2.0
 *
 * State machines as tables. A state is a named row with a function and the set of states that may
 * follow. sm_run() calls the function of the current state until that waits or is done; it is the
 * only loop. sm_move() is the only place where a state changes; it checks the move against the
 * table and traces it in the log. A machine belongs to one loop.
 */
#ifndef CAIRN_BASE_SM_H
#define CAIRN_BASE_SM_H

#include <stdbool.h>
#include <stdint.h>

/* What a state function tells sm_run() to do. */
enum sm_result {
    SM_AGAIN, /* the next state was set with sm_move(); run it now */
    SM_WAIT,  /* a completion will call sm_run() again */
    SM_DONE,  /* a final state has finished; the struct may be freed already */
};

struct sm;

/* One row of a table: a state, what it does, and where it may go. */
struct sm_state {
    const char *name;
    enum sm_result (*run)(struct sm *sm); /* one step; NULL for a state that only waits */
    uint64_t next;                        /* the states that may follow: SM_TO(state) | ... */
    unsigned flags;                       /* SM_FINAL */
    void (*enter)(struct sm *sm);         /* what happens once, on arrival; may be NULL */
};

#define SM_TO(state) (UINT64_C(1) << (state))
enum { SM_FINAL = 1u << 0 };

/* A machine, embedded in its owner, which the functions of the table find by container_of. */
struct sm {
    const struct sm_state *table;
    /* Checks, with CHECK, what is true of the owner in the state that it has just moved to. It runs
     * at each move, before `enter`. NULL if the machine has none. */
    void (*invariant)(const struct sm *sm);
    const char *op; /* borrowed, for traces: "save", "link" */
    uint64_t id;    /* for traces */
    unsigned state;
    /* Guards against re-entry: an sm_run() inside sm_run() only sets `again`. */
    bool running;
    bool again;
};

/* Puts the machine into its first state, without a call of its `enter`. The table and op are
 * borrowed for ever. */
void sm_init(struct sm *sm, const struct sm_state *table, unsigned first, const char *op,
             uint64_t id);
/* Changes the state, CHECKs that the row of the present state allows it and that the invariant
 * holds, and calls the `enter` of the new state, which must not move. */
void sm_move(struct sm *sm, unsigned next);
/* Runs until SM_WAIT or SM_DONE. A call from inside a state function is remembered, not nested. */
void sm_run(struct sm *sm);
const char *sm_state_name(const struct sm *sm);
static inline bool sm_is(const struct sm *sm, unsigned state) { return sm->state == state; }

#endif
