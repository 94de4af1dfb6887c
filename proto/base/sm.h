/* SPDX-License-Identifier: Apache-2.0
 *
 * State machines as tables: a state is a named row with a function and the set of states that may
 * follow. sm_run() calls the current state's function until it waits or is done; it is the only
 * loop, and sm_move() the only place where a state changes (checked against the table, traced to
 * the log).
 */
#ifndef CAIRN_BASE_SM_H
#define CAIRN_BASE_SM_H

#include <stdbool.h>
#include <stdint.h>

enum sm_result {
    SM_AGAIN, /* the next state was set with sm_move(); run it now */
    SM_WAIT,  /* a completion will call sm_run() again */
    SM_DONE,  /* a final state has finished; the struct may be gone */
};

struct sm;

struct sm_state {
    const char *name;
    enum sm_result (*run)(struct sm *sm); /* one step; NULL: a state that only waits */
    uint64_t next;                        /* SM_TO(state) | ... */
    unsigned flags;                       /* SM_FINAL */
};

#define SM_TO(state) (UINT64_C(1) << (state))
enum { SM_FINAL = 1u << 0 };

struct sm {
    const struct sm_state *table;
    const char *op; /* borrowed, for traces: "save", "link" */
    uint64_t id;    /* for traces */
    unsigned state;
    bool running; /* guards against re-entry: a run() inside run() only marks again */
    bool again;
};

void sm_init(struct sm *sm, const struct sm_state *table, unsigned first, const char *op,
             uint64_t id);
void sm_move(struct sm *sm, unsigned next);
/* Runs until SM_WAIT or SM_DONE. A call from inside a state function is remembered, not nested. */
void sm_run(struct sm *sm);
const char *sm_state_name(const struct sm *sm);
static inline bool sm_is(const struct sm *sm, unsigned state) { return sm->state == state; }

#endif
