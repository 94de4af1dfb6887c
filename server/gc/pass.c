/* SPDX-License-Identifier: Apache-2.0
 *
 * What every part of a pass needs: questions to the store and to the run, errors for the status,
 * and the status itself. On the pass's thread.
 */
#include "gc_private.h"

#include "base/check.h"

#include <stdio.h>

void gc_show(struct gc *gc)
{
    pthread_mutex_lock(&gc->lock);
    gc->shown = gc->now;
    pthread_mutex_unlock(&gc->lock);
}

static bool is_damage(int code)
{
    return err_exit_status(code) == err_exit_status(CAIRN_E_DAMAGED);
}

int gc_note(struct gc *gc, int status, const struct diag *diag, const char *what)
{
    CHECK(status != 0);
    if (status == CAIRN_E_CANCELLED) {
        return status;
    }
    gc->now.errors++;
    gc->now.errors_total++;
    if (!is_damage(gc->now.code) || is_damage(status)) {
        gc->now.code = status;
        snprintf(gc->now.text, sizeof(gc->now.text), "%s: %s: %s", run_name_text(&gc->now.run).at,
                 what, diag_text(diag, status));
    }
    return 0;
}

/* --- the store -------------------------------------------------------------------------------- */

static void ask_for(struct gc *gc, size_t count, struct store_req *io)
{
    for (size_t i = 0; i < count; i++) {
        if (gc->order.dry_run || gc->visit.marked) {
            CHECK(io[i].op != STORE_DELETE_OBJECT);
            CHECK(io[i].op != STORE_DELETE_SMALL);
            CHECK(io[i].op != STORE_SWEEP);
        }
    }
    ask_stores(&gc->ask, catalog_store(gc->options.catalog), count, io);
    gc_show(gc);
}

int gc_store(struct gc *gc, struct store_req *io)
{
    ask_for(gc, 1, io);
    return io->status;
}

int gc_group_run(struct gc *gc, int (*take)(struct gc *gc, struct store_req *req))
{
    size_t count = gc->group_count;
    int status = 0;
    gc->group_count = 0;
    if (count == 0) {
        return 0;
    }
    ask_for(gc, count, gc->group);
    for (size_t i = 0; i < count; i++) {
        struct store_req *req = &gc->group[i];
        int one = req->status == CAIRN_E_CANCELLED ? req->status : take(gc, req);
        status = status != 0 ? status : one;
    }
    gc_show(gc);
    return status;
}

int gc_group_add(struct gc *gc, const struct store_req *req,
                 int (*take)(struct gc *gc, struct store_req *req))
{
    int status = gc->group_count == GC_GROUP ? gc_group_run(gc, take) : 0;
    if (status == 0) {
        CHECK(gc->group_count < GC_GROUP);
        gc->group[gc->group_count++] = *req;
    }
    return status;
}

/* --- the run ---------------------------------------------------------------------------------- */

static void on_take_run(void *user)
{
    struct gc *gc = user;
    gc->visit.run = catalog_run(gc->options.catalog, gc->visit.name);
}

bool gc_take_run(struct gc *gc, const struct run_name *name)
{
    CHECK(gc->visit.run == NULL);
    gc->visit.name = name;
    ask_call(&gc->ask, on_take_run, gc);
    return gc->visit.run != NULL;
}

static void on_release_run(void *user)
{
    struct gc *gc = user;
    catalog_release(gc->visit.run);
    gc->visit = (struct visit){.run = NULL};
}

void gc_release_run(struct gc *gc) { ask_call(&gc->ask, on_release_run, gc); }

struct state_question {
    struct gc *gc;
    int (*take)(struct gc *gc, const struct run_state *state);
    int status;
};

static void on_state(void *user, const struct run_state *state)
{
    struct state_question *question = user;
    question->status = question->take(question->gc, state);
}

int gc_state(struct gc *gc, int (*take)(struct gc *gc, const struct run_state *state))
{
    struct state_question question = {.gc = gc, .take = take};
    struct diag diag = DIAG_INIT;
    int status = ask_state(&gc->ask, gc->visit.run, on_state, &question, &diag);
    if (status == 0) {
        return question.status;
    }
    status = gc_note(gc, status, &diag, "the run's record");
    return status != 0 ? status : CAIRN_E_ENDED;
}
