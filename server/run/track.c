/* SPDX-License-Identifier: Apache-2.0
 *
 * Open saves: for each open entry of the record there is one track, which holds its deadline and,
 * once all ranks have sealed, its finish. Invariant: after tracks_sync() the tracks are the open
 * entries, so when any daemon commits, aborts or fences a save, its timer and its finish end.
 * Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void on_deadline(struct timer *timer);
static void on_aborted(struct run_req *req);

const struct state_term *term_at(const struct run_state *state, uint64_t term)
{
    return term >= 1 && term <= state->term_count ? &state->terms[term - 1] : NULL;
}

/* Returns true if every rank has sealed and no newer term has fenced the save. */
static bool open_is_sealed(const struct run_state *state, const struct state_open *open)
{
    return open->id.term == state->newest_term && open->world_size != 0 &&
           open->sealed_count == open->world_size;
}

static struct open_track *track_find(struct run *run, const struct state_open *open)
{
    list_each (node, &run->tracks) {
        struct open_track *track = list_item(node, struct open_track, link);
        if (track->open_id == open->entry.open_id && ckpt_id_equal(track->id, open->id)) {
            return track;
        }
    }
    return NULL;
}

/* Returns the track of an open save, with its deadline running; NULL if there is no memory. */
static struct open_track *track_new(struct run *run, const struct state_open *open)
{
    CHECK(track_find(run, open) == NULL);
    struct open_track *track = calloc(1, sizeof *track);
    uint64_t most_ms = run->catalog->options.deadline_ms_max;
    uint64_t deadline_ms = open->entry.deadline_ms ? open->entry.deadline_ms : UINT64_MAX;

    if (!track) {
        return NULL;
    }
    track->run = run;
    track->id = open->id;
    track->open_id = open->entry.open_id;
    track->begun_ms = loop_now_ms(run->catalog->loop);
    timer_init(&track->timer, run->catalog->loop, on_deadline);
    timer_start(&track->timer, min_u64(deadline_ms, most_ms ? most_ms : UINT64_MAX));
    list_add_tail(&run->tracks, &track->link);
    return track;
}

/* Frees the track. A finish that is under way goes on without it and tells nobody. */
static void track_free(struct open_track *track)
{
    if (track->finish) {
        finish_cancel(track->finish);
    }
    run_cancel(&track->abort);
    timer_stop(&track->timer);
    list_remove(&track->link);
    free(track);
}

void tracks_sync(struct run *run)
{
    const struct run_state *state = &run->state;
    bool short_of_memory = false;
    size_t kept = 0;

    CHECK(run_is_fresh(run));
    list_each (node, &run->tracks) {
        list_item(node, struct open_track, link)->seen = false;
    }
    for (size_t i = 0; i < state->open_count; i++) {
        const struct state_open *open = &state->opens[i];
        struct open_track *track = track_find(run, open);

        if (!track) {
            track = track_new(run, open);
        }
        if (!track) {
            short_of_memory = true;
            continue;
        }
        track->seen = true;
        if (track->sealed_ms == 0 && open_is_sealed(state, open)) {
            track->sealed_ms = loop_now_ms(run->catalog->loop);
        }
        if (open_is_sealed(state, open) && !track->finish && !track->failed &&
            !track->abort.submitted) {
            short_of_memory = !finish_start(track, open) || short_of_memory;
        }
    }
    list_each_safe (node, &run->tracks) {
        struct open_track *track = list_item(node, struct open_track, link);
        kept += track->seen;
        if (!track->seen) {
            track_free(track);
        }
    }
    /* The tracks are the open entries; some have none while memory is short. */
    CHECK(kept <= state->open_count);
    CHECK(short_of_memory || kept == state->open_count);
    if (short_of_memory) {
        timer_start(&run->retry, RUN_RETRY_MS);
    }
}

void tracks_free(struct run *run)
{
    struct list *node;
    while ((node = list_pop(&run->tracks))) {
        track_free(list_item(node, struct open_track, link));
    }
}

/* Called when the time of a save is over: tries to abort it. The record decides whether the abort
 * or a commit wins. */
static void on_deadline(struct timer *timer)
{
    struct open_track *track = container_of(timer, struct open_track, timer);
    struct run *run = track->run;
    const struct state_open *open =
        run_is_fresh(run) ? state_open_find(&run->state, track->id) : NULL;
    const struct state_term *term = run_is_fresh(run) ? term_at(&run->state, track->id.term) : NULL;
    char missing[192] = "";

    if (track->abort.submitted) {
        return;
    }
    if (!open || !term) { /* an update is under way, or the record could not be read just now */
        timer_start(&track->timer, RUN_RETRY_MS);
        run->want_load = true;
        run_kick(run);
        return;
    }
    int code = CAIRN_E_MISSING_RANKS;
    if (open->sealed_count == open->world_size) {
        code = CAIRN_E_TIMED_OUT;
        snprintf(track->reason, sizeof track->reason,
                 "all ranks sealed their parts, but the deadline of %" PRIu64
                 " ms passed before the commit",
                 open->entry.deadline_ms);
    } else {
        state_missing_ranks(&run->state, track->id, sizeof missing, missing);
        snprintf(track->reason, sizeof track->reason,
                 "no part within the deadline of %" PRIu64 " ms from %s", open->entry.deadline_ms,
                 missing);
    }
    track->abort.event = (struct event){.kind = EVENT_ABORT,
                                        .id = track->id,
                                        .u.abort = {.token = term->entry.token,
                                                    .open_id = track->open_id,
                                                    .code = code,
                                                    .reason = track->reason}};
    track->abort.done = on_aborted;
    run_submit(run, &track->abort);
}

static void on_aborted(struct run_req *req)
{
    struct open_track *track = container_of(req, struct open_track, abort);

    /* If the abort won, or came too late, the entry is gone and the next sync frees the track. If
     * the store failed, the entry is still there, and the abort is tried again. */
    if (!track->run->catalog->closing) {
        timer_start(&track->timer, RUN_RETRY_MS);
    }
}

/* --- telling the store ahead what an opening will write ------------------------------------- */

/* Tells a store that has to note names first what an opening will write (STORE_ENTER): the
 * checkpoint while the opening is put into the record, the small things while the objects are
 * written, because CREATE and PUBLISH would have to wait for it. The names of small things are told
 * only when the opening is in the record, because from then on nobody removes them until it ends.
 * It is a hint, and its outcome does not matter. */

enum { PAGES_MOST = 2 }; /* what most checkpoints have: one page of parts and one of tensors */

struct enter {
    struct store_req req;
    struct catalog *catalog;
    struct store_name names[2 + PAGES_MOST];
};

static void on_entered(struct store_req *req)
{
    struct enter *enter = container_of(req, struct enter, req);
    struct catalog *catalog = enter->catalog;

    free(enter);
    catalog_drop(catalog);
}

/* Returns the request that tells the store of a checkpoint that will soon be written. Returns NULL
 * if this is of no use to the store, if the catalog closes or if there is no memory: the save is
 * only slower without it. */
static struct enter *enter_new(struct run *run, struct ckpt_id id)
{
    struct catalog *catalog = run->catalog;
    bool useful = catalog->store->caps.enters && !catalog->closing;
    struct enter *enter = useful ? calloc(1, sizeof *enter) : NULL;

    if (enter) {
        enter->catalog = catalog;
        enter->req = (struct store_req){.op = STORE_ENTER,
                                        .run = run->name,
                                        .id = id,
                                        .names = enter->names,
                                        .deadline_ms = RUN_STORE_DEADLINE_MS,
                                        .done = on_entered};
    }
    return enter;
}

static void enter_submit(struct enter *enter)
{
    catalog_hold(enter->catalog);
    store_submit(enter->catalog->store, &enter->req);
}

void enter_ckpt(struct run *run, struct ckpt_id id)
{
    struct enter *enter = enter_new(run, id);

    if (enter) {
        enter_submit(enter);
    }
}

static void add(struct enter *enter, uint64_t tag, enum store_kind kind, uint32_t number)
{
    CHECK(enter->req.name_count < ARRAY_LEN(enter->names));
    enter->names[enter->req.name_count++] = (struct store_name){
        .run = enter->req.run, .id = enter->req.id, .kind = kind, .number = number, .tag = tag};
}

void run_enter_rank(struct run *run, struct ckpt_id id, uint64_t open_id, uint32_t rank)
{
    struct enter *enter = enter_new(run, id);

    if (!enter) {
        return;
    }
    add(enter, open_id, STORE_PART, rank);
    for (uint32_t number = 0; rank == 0 && number < PAGES_MOST; number++) {
        add(enter, open_id, STORE_PAGE, number);
    }
    if (rank == 0) {
        add(enter, open_id, STORE_MANIFEST, 0);
    }
    enter_submit(enter);
}
