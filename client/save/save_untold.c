/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps that this rank has declined, whose callers are done, and of which the other ranks have not
 * been told. Of each only the step, the deadline and the reason are kept, because there may be many
 * after a long outage. Invariant: none is forgotten before its deadline, since another rank may
 * have kept its part of the step and be waiting for this one. On a connection each is told by a
 * save that refuses, a few at a time, the oldest first. Loop's thread.
 */
#include "save/save_common.h"

#include <stdlib.h>

enum { UNTOLD_AT_ONCE = 16 }; /* the server answers them when rank 0 has opened the steps */

struct teller { /* a save that nobody has called for: it tells of one declined step */
    struct engine_save save;
    struct engine *engine;
    struct registered *set; /* holds a reference */
    save_start_fn *start;
};

static void on_staged(struct engine_save *save, int status)
{
    (void)save;
    (void)status;
}

static void on_done(struct engine_save *save, int status)
{
    struct teller *teller = container_of(save, struct teller, save);
    struct engine *engine = teller->engine;
    (void)status; /* the other ranks know, or the deadline is over for them as well */
    engine->telling--;
    save_untold_tell(engine, teller->set, teller->start);
    registered_unref(teller->set);
    free(teller);
}

bool save_untold_is_teller(const struct engine_save *user) { return user->on_done == on_done; }

bool save_untold_add(const struct save_common *common, const struct diag *why)
{
    struct untold *untold = calloc(1, sizeof *untold);
    if (!untold) {
        return false;
    }
    untold->step = common->user->step;
    untold->end_ms = common->end_ms;
    untold->why = *why;
    list_add_tail(&common->engine->untold, &untold->link);
    return true;
}

bool save_untold_has(const struct engine *engine, uint64_t step)
{
    list_each (node, &engine->untold) {
        const struct untold *untold = list_item(node, struct untold, link);
        if (untold->step == step && engine_ms_left(engine, untold->end_ms) > 0) {
            return true;
        }
    }
    return false;
}

void save_untold_tell(struct engine *engine, struct registered *set, save_start_fn *start)
{
    while (!engine->closing && link_is_up(&engine->link) && engine->telling < UNTOLD_AT_ONCE &&
           !list_is_empty(&engine->untold)) {
        struct untold *untold = list_item(engine->untold.next, struct untold, link);
        uint64_t left_ms = engine_ms_left(engine, untold->end_ms);
        struct teller *teller = left_ms > 0 ? calloc(1, sizeof *teller) : NULL;
        if (left_ms > 0 && !teller) {
            return; /* the next save or connection tries again */
        }
        list_remove(&untold->link);
        if (teller) {
            teller->engine = engine;
            teller->set = registered_ref(set);
            teller->start = start;
            teller->save = (struct engine_save){.step = untold->step,
                                                .deadline_ms = left_ms,
                                                .set = set,
                                                .refusal = untold->why,
                                                .on_staged = on_staged,
                                                .on_done = on_done};
            engine->telling++;
            start(engine, &teller->save);
        }
        free(untold);
    }
}
