/* SPDX-License-Identifier: Apache-2.0
 *
 * What every part of a pass needs: one store operation, one event and one question to the run at a
 * time, rest beside busy sessions, errors for the status, and the ways out of a run and of a pass.
 * One loop's thread.
 */
#include "gc_private.h"

#include "base/check.h"

#include <stdio.h>

/* Checks that nothing is under way: a pass does one thing at a time, and the completion of each is
 * what begins the next. */
static void check_idle(const struct gc *gc)
{
    CHECK(!gc->busy);
    CHECK(!gc->event.submitted);
    CHECK(gc->snapshot.run == NULL);
}

void gc_later(struct gc *gc, uint64_t ms, void (*step)(struct gc *gc))
{
    CHECK(step != NULL);
    check_idle(gc);
    gc->step = step;
    timer_start(&gc->timer, ms);
}

bool gc_may_run(const struct gc *gc)
{
    return !gc->options.may_run || gc->options.may_run(gc->options.user);
}

void gc_stop_pass(struct gc *gc)
{
    CHECK(!gc->busy);
    if (gc->status.code == 0) {
        gc->status.code = CAIRN_E_NO_MEMORY;
        snprintf(gc->status.text, sizeof(gc->status.text), "no memory for a pass");
    }
    gc->status.errors++;
    gc->status.errors_total++;
    gc->end_pass(gc);
}

bool gc_must_stop(struct gc *gc)
{
    if (!gc->closed && gc_may_run(gc)) {
        return false;
    }
    gc->end_pass(gc);
    return true;
}

static bool is_damage(int code)
{
    return err_exit_status(code) == err_exit_status(CAIRN_E_DAMAGED);
}

void gc_note(struct gc *gc, int status, const struct diag *diag, const char *what)
{
    char name[RUN_NAME_TEXT_MAX];
    gc->status.errors++;
    gc->status.errors_total++;
    if (is_damage(gc->status.code) && !is_damage(status)) {
        return;
    }
    CHECK(status != 0);
    run_name_format(&gc->status.run, name);
    gc->status.code = status;
    snprintf(gc->status.text, sizeof(gc->status.text), "%s: %s: %s", name, what,
             diag_text(diag, status));
}

static void on_done(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    CHECK(gc->busy);
    gc->busy = false;
    gc->took_ms = loop_now_ms(gc->options.loop) - gc->op_ms;
    gc->done(req);
}

void gc_submit(struct gc *gc, void (*done)(struct store_req *req))
{
    check_idle(gc);
    CHECK(!timer_is_active(&gc->timer));
    CHECK(done != NULL);
    if (gc->status.dry_run || gc->visit.marked) {
        CHECK(gc->req.op != STORE_DELETE_OBJECT);
        CHECK(gc->req.op != STORE_DELETE_SMALL);
        CHECK(gc->req.op != STORE_SWEEP);
    }
    gc->busy = true;
    gc->done = done;
    gc->req.deadline_ms = GC_STORE_DEADLINE_MS;
    gc->req.done = on_done;
    gc->op_ms = loop_now_ms(gc->options.loop);
    store_submit(catalog_store(gc->options.catalog), &gc->req);
}

/* Removing files costs a disk about as much time as it takes. Beside busy sessions gc may use a
 * twentieth of the time. */
void gc_rest(struct gc *gc, void (*step)(struct gc *gc))
{
    uint64_t now = loop_now_ms(gc->options.loop);
    uint64_t load = gc->options.load ? gc->options.load(gc->options.user) : 0;
    if (load != gc->load) {
        gc->load = load;
        gc->busy_ms = now + GC_QUIET_MS;
    }
    /* An order to reclaim now does not yield, because somebody waits for the room. */
    bool disturbs = now < gc->busy_ms && !gc->order.now;
    uint64_t took = gc->took_ms;
    gc->took_ms = 0;
    gc_later(gc, disturbs ? max_u64(GC_PAUSE_MS, took * (GC_SHARE - 1)) : 0, step);
}

void gc_submit_event(struct gc *gc, const struct event *event, void (*done)(struct run_req *req))
{
    check_idle(gc);
    CHECK(gc->visit.run != NULL);
    CHECK(!gc->status.dry_run); /* each of them is written */
    gc->event = (struct run_req){.event = *event, .done = done};
    run_submit(gc->visit.run, &gc->event);
}

void gc_snapshot(struct gc *gc, void (*done)(struct run_snapshot_req *req))
{
    check_idle(gc);
    CHECK(gc->visit.run != NULL);
    gc->snapshot = (struct run_snapshot_req){.done = done};
    run_snapshot(gc->visit.run, &gc->snapshot);
}

void gc_next_run(struct gc *gc) { gc_rest(gc, gc->next_run); }
