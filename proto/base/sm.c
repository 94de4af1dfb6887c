/* SPDX-License-Identifier: Apache-2.0
 *
 * The one loop over state tables. Invariants: a state changes only along its row's `next`; state
 * functions never nest; after SM_DONE the struct is not touched, because its owner may have freed
 * it. Runs on the loop that owns the operation.
 */
#include "base/sm.h"

#include "base/check.h"
#include "base/log.h"

void sm_init(struct sm *sm, const struct sm_state *table, unsigned first, const char *op,
             uint64_t id)
{
    CHECK(table != NULL);
    CHECK(first < 64);
    *sm = (struct sm){.table = table, .op = op, .id = id, .state = first};
}

void sm_move(struct sm *sm, unsigned next)
{
    const struct sm_state *from = &sm->table[sm->state];
    CHECK(next < 64);
    CHECK((from->next & SM_TO(next)) != 0);
    LOG(LOG_DEBUG, "sm", "state", ls("op", sm->op), lu("id", sm->id), ls("from", from->name),
        ls("to", sm->table[next].name));
    sm->state = next;
    if (sm->invariant != NULL) {
        sm->invariant(sm);
    }
    if (sm->table[next].enter != NULL) {
        sm->table[next].enter(sm);
        CHECK(sm->state == next);
    }
}

void sm_run(struct sm *sm)
{
    if (sm->running) {
        sm->again = true;
        return;
    }
    sm->running = true;
    for (;;) {
        sm->again = false;
        const struct sm_state *state = &sm->table[sm->state];
        enum sm_result result = state->run != NULL ? state->run(sm) : SM_WAIT;
        if (result == SM_DONE) {
            CHECK((state->flags & SM_FINAL) != 0);
            return;
        }
        if (result == SM_WAIT && !sm->again) {
            break;
        }
    }
    sm->running = false;
}

const char *sm_state_name(const struct sm *sm) { return sm->table[sm->state].name; }
