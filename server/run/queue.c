/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of a run that wait for its turn: events, snapshots and watches. Each is put into a
 * list of the run, and the driver (run.c) looks at the lists in the next turn of the loop. Here are
 * also the functions that all files of this folder use: holding a catalogue that closes, and
 * whether the wall clock is trusted. Calls no other file of the folder. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

#include <stdio.h>

/* --- the catalogue ---------------------------------------------------------------------------- */

void catalog_hold(struct catalog *catalog)
{
    CHECK(!catalog->freeing);
    catalog->pending++;
}

void catalog_drop(struct catalog *catalog)
{
    CHECK(catalog->pending > 0);
    catalog->pending--;
    if (catalog->closing && catalog->pending == 0 && !catalog->freeing) {
        catalog->freeing = true;
        loop_post(catalog->loop, &catalog->post);
    }
}

enum { CLOCK_JUMP_MS = 300000, CLOCK_BELIEVED_MS = 24 * 3600 * 1000 };

static bool is_jump(int64_t from_ms, int64_t to_ms)
{
    return to_ms - from_ms > CLOCK_JUMP_MS || from_ms - to_ms > CLOCK_JUMP_MS;
}

/* The doubt ends with a jump back to where the clock was trusted, or after a day without another
 * jump: somebody would have noticed a wrong clock by then, and a corrected clock must not be
 * doubted for ever. */
int64_t catalog_clock_jump_s(struct catalog *catalog)
{
    uint64_t now_ms = loop_now_ms(catalog->loop);
    int64_t offset_ms = loop_wall_ns(catalog->loop) / 1000000 - (int64_t)now_ms;

    if (is_jump(catalog->clock.seen_ms, offset_ms)) {
        catalog->clock.seen_ms = offset_ms;
        catalog->clock.seen_at_ms = now_ms;
    }
    CHECK(now_ms >= catalog->clock.seen_at_ms);
    if (now_ms - catalog->clock.seen_at_ms >= CLOCK_BELIEVED_MS) {
        catalog->clock.believed_ms = catalog->clock.seen_ms = offset_ms;
        catalog->clock.seen_at_ms = now_ms; /* it may drift by so much in a day, and no more */
    }
    return is_jump(catalog->clock.believed_ms, offset_ms)
               ? (offset_ms - catalog->clock.believed_ms) / 1000
               : 0;
}

void ckpt_text(const struct run_name *run, struct ckpt_id id, char ret[CKPT_TEXT_MAX])
{
    snprintf(ret, CKPT_TEXT_MAX, "checkpoint %s of %s", ckpt_id_text(id).at, run_name_text(run).at);
}

/* --- the requests of a run ------------------------------------------------------------------ */

void run_kick(struct run *run)
{
    if (!run->posted) {
        run->posted = true;
        catalog_hold(run->catalog);
        loop_post(run->catalog->loop, &run->post);
    }
}

/* Fills in the fields that the caller has left to the driver. It does so once, so that a second try
 * of the event says the same. */
static void event_complete(struct run *run, struct event *event)
{
    const struct catalog_options *options = &run->catalog->options;
    struct loop *loop = run->catalog->loop;
    bool redundant = run->catalog->store->caps.redundant;
    struct entry_info *info = event->kind == EVENT_CREATE          ? &event->u.create
                              : event->kind == EVENT_OPEN          ? &event->u.open.info
                              : event->kind == EVENT_RESTORE_BEGIN ? &event->u.begin.info
                                                                   : NULL;

    if (event->kind == EVENT_FORGET) {
        struct event_forget *forget = &event->u.mark.forget;
        forget->clock_jump_s =
            event->wall_ns == 0 ? catalog_clock_jump_s(run->catalog) : forget->clock_jump_s;
        forget->apart = !redundant;
    }
    if (event->wall_ns == 0) {
        event->wall_ns = loop_wall_ns(loop);
    }
    if (info && info->chunk_bytes == 0) {
        loop_random(loop, sizeof info->run_uuid, &info->run_uuid);
        info->chunk_bytes = options->chunk_bytes;
        info->created_wall_ns = event->wall_ns;
    }
    if (event->kind == EVENT_OPEN) {
        uint64_t *deadline_ms = &event->u.open.entry.deadline_ms, most = options->deadline_ms_max;
        *deadline_ms = most == 0 || (*deadline_ms > 0 && *deadline_ms < most) ? *deadline_ms : most;
        event->u.open.full_every = redundant ? event->u.open.full_every : options->full_every;
    }
}

void run_submit(struct run *run, struct run_req *req)
{
    CHECK(!req->submitted);
    CHECK(req->done);
    event_complete(run, &req->event);
    timer_init(&req->timer, run->catalog->loop, NULL);
    req->run = run;
    req->status = 0;
    req->verdict = verdict_of(req->event.kind);
    diag_clear(&req->diag);
    req->waiting = req->expired = req->alone = false;
    req->tries = 0;
    req->op = run->ops.started;
    req->submitted = true;
    list_add_tail(&run->queue, &req->link);
    run_kick(run);
}

void run_cancel(struct run_req *req)
{
    if (req->submitted) {
        req->submitted = req->waiting = false;
        timer_stop(&req->timer);
        list_remove(&req->link);
    }
}

void req_answer(struct run_req *req, int status)
{
    CHECK(req->submitted);
    CHECK(status <= 0);
    run_cancel(req);
    req->status = status;
    if (status) {
        diag_set(&req->diag, status, "%s", err_text(status));
    }
    req->done(req);
}

void run_snapshot(struct run *run, struct run_snapshot_req *req)
{
    CHECK(req->done != NULL);
    CHECK(req->run == NULL);
    req->run = run;
    req->status = 0;
    req->state = NULL;
    diag_clear(&req->diag);
    if (!req->any_age) {
        run->ops.asked = run->ops.started;
    }
    list_add_tail(&run->snapshots, &req->link);
    run_kick(run);
}

void run_snapshot_cancel(struct run_snapshot_req *req)
{
    if (req->run) {
        list_remove(&req->link);
        req->run = NULL;
    }
}

void run_watch(struct run *run, struct run_watch *watch)
{
    CHECK(watch->done != NULL);
    CHECK(watch->run == NULL);
    watch->run = run;
    list_add_tail(&run->watches, &watch->link);
    if (!watch->any_age) {
        run->ops.asked = run->ops.started;
    }
    run->tell = true;
    run_kick(run);
}

void run_unwatch(struct run_watch *watch)
{
    if (watch->run) {
        list_remove(&watch->link);
        watch->run = NULL;
    }
}
