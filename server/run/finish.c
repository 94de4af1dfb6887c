/* SPDX-License-Identifier: Apache-2.0
 *
 * Finishes a save of which every rank has sealed: reads the parts back (or takes the uploaded
 * bytes), checks coverage, publishes pages and manifest, and lets the commit core decide.
 *
 *   PARTS --> BUILD --> PUBLISH --> COMMIT --> DONE
 *     |         |      (EXISTS: compare) |       ^
 *     +---------+---------+--------------+--> ABORT
 *   All states but DONE wait: for the store, for the pool, or for the driver.
 *
 * Invariant: the commit event is sent only after all pages and the manifest are durable under the
 * hashes that it carries. A finish that was cancelled (its track is gone) has no further effect.
 * Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"
#include "base/sm.h"
#include "build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINISH_PARALLEL = 8, FINISH_TRIES_MAX = 4 };

enum { FIN_PARTS, FIN_BUILD, FIN_PUBLISH, FIN_COMMIT, FIN_ABORT, FIN_DONE };

struct fin_part {
    struct doc_req req;
    struct finish *finish;
};

struct fin_put { /* publishes one thing; compares if it exists already */
    struct store_req req;
    struct finish *finish;
    const uint8_t *data;
    size_t bytes;
    unsigned tries;
    bool is_manifest;
};

struct finish {
    struct sm sm;
    struct catalog *catalog;
    struct run *run;
    struct open_track *track; /* NULL once it is cancelled */
    struct scratch scratch;   /* memory of the copies below */
    struct build_input input;
    struct entry_open open;
    struct entry_seal *seals;
    struct part *parts; /* shallow copies of the documents' */
    struct fin_part *fetches;
    struct fin_put *puts;
    uint32_t next, inflight;
    struct work work;
    bool building; /* work is with the pool */
    bool built, committing, aborting;
    struct build build;
    struct fin_put put_manifest;
    int status;
    struct diag diag;
    struct run_req event;
    char reason[ENTRY_REASON_BYTES];
};

static struct finish *finish_of(struct sm *sm) { return container_of(sm, struct finish, sm); }

/* --- start: a copy of all that is needed, because the state changes under way --------------- */

/* Copies the entry of the opened save with the texts it points to. Returns 0 or CAIRN_E_NO_MEMORY.
 */
static int copy_open(struct finish *finish, const struct entry_open *from)
{
    struct scratch *scratch = &finish->scratch;
    struct entry_open *to = &finish->open;
    const char **tags = scratch_array(scratch, from->tag_count + 1, sizeof *tags);
    const char **names = scratch_array(scratch, from->metric_count + 1, sizeof *names);

    *to = *from;
    if (!tags || !names) {
        return CAIRN_E_NO_MEMORY;
    }
    to->metadata = scratch_copy(scratch, from->metadata_bytes,
                                from->metadata_bytes ? (const void *)from->metadata : "");
    to->metric_values = scratch_array(scratch, from->metric_count + 1, sizeof *to->metric_values);
    if (!to->metadata || !to->metric_values) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < from->tag_count; i++) {
        tags[i] = scratch_string(scratch, strlen(from->tags[i]), from->tags[i]);
        if (!tags[i]) {
            return CAIRN_E_NO_MEMORY;
        }
    }
    for (uint32_t i = 0; i < from->metric_count; i++) {
        names[i] = scratch_string(scratch, strlen(from->metric_names[i]), from->metric_names[i]);
        to->metric_values[i] = from->metric_values[i];
        if (!names[i]) {
            return CAIRN_E_NO_MEMORY;
        }
    }
    to->tags = tags;
    to->metric_names = names;
    return 0;
}

/* Copies the seals, the term and the opening of the save out of the run's state. */
static int copy_state(struct finish *finish, const struct state_open *open)
{
    const struct run_state *state = &finish->run->state;
    const struct state_term *term = term_at(state, open->id.term);
    struct build_input *input = &finish->input;

    uint32_t copied = 0;
    CHECK(term);
    finish->seals = scratch_array(&finish->scratch, open->world_size, sizeof *finish->seals);
    finish->parts = calloc(open->world_size, sizeof *finish->parts);
    finish->fetches = calloc(open->world_size, sizeof *finish->fetches);
    if (!finish->seals || !finish->parts || !finish->fetches ||
        copy_open(finish, &open->entry) != 0) {
        return CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; i < state->seal_count; i++) {
        const struct state_seal *seal = &state->seals[i];
        if (ckpt_id_equal(seal->id, open->id) && !seal->orphan) {
            CHECK(seal->rank < open->world_size);
            finish->seals[seal->rank] = seal->entry;
            copied++;
        }
    }
    CHECK(copied == open->world_size);
    *input = (struct build_input){.store_uuid = finish->catalog->store->caps.uuid,
                                  .run_uuid = state->info.run_uuid,
                                  .run = finish->run->name,
                                  .id = open->id,
                                  .parent = term->entry.parent,
                                  .token = term->entry.token,
                                  .world_size = open->world_size,
                                  .chunk_bytes = state->info.chunk_bytes,
                                  .page_bytes = finish->catalog->options.page_bytes,
                                  .created_wall_ns = loop_wall_ns(finish->catalog->loop),
                                  .open = &finish->open,
                                  .seals = finish->seals,
                                  .parts = finish->parts};
    return 0;
}

static void finish_free(struct finish *finish)
{
    if (finish->built) {
        build_fini(&finish->build);
    }
    scratch_fini(&finish->scratch);
    free(finish->parts);
    free(finish->fetches);
    free(finish->puts);
    free(finish);
}

/* Frees the finish at once, or when the last store operation or work item has come back. */
static void finish_end(struct finish *finish)
{
    struct catalog *catalog = finish->catalog;

    if (finish->track) {
        finish->track->finish = NULL;
        finish->track = NULL;
    }
    for (uint32_t i = 0; i < finish->input.world_size; i++) {
        if (finish->fetches[i].req.pending) {
            finish->inflight--;
        }
        if (!finish->building) { /* the builder reads them */
            doc_release(&finish->fetches[i].req);
        }
    }
    run_cancel(&finish->event);
    if (finish->inflight == 0 && !finish->building) {
        finish_free(finish);
        catalog_drop(catalog);
    }
}

void finish_cancel(struct finish *finish)
{
    finish->track = NULL;
    finish_end(finish);
}

static enum sm_result on_done(struct sm *sm)
{
    finish_end(finish_of(sm));
    return SM_DONE;
}

/* Called by the completions. Returns true if the finish was cancelled; the last completion frees
 * it. */
static bool is_cancelled(struct finish *finish)
{
    if (finish->track) {
        return false;
    }
    finish_end(finish);
    return true;
}

static void finish_fail(struct finish *finish, int status, const struct diag *diag)
{
    CHECK(status != 0);
    if (finish->status == 0) {
        finish->status = status;
        diag_copy(&finish->diag, diag);
    }
}

/* --- parts ---------------------------------------------------------------------------------- */

/* Called when a part was read and verified, or could not be. */
static void on_part(struct doc_req *req)
{
    struct finish *finish = container_of(req, struct fin_part, req)->finish;
    uint32_t rank = req->key.name.number;

    CHECK(finish->inflight > 0);
    CHECK(rank < finish->input.world_size);
    finish->inflight--;
    if (is_cancelled(finish)) {
        return;
    }
    if (req->status) {
        finish_fail(finish, req->status, &req->diag);
    } else {
        finish->parts[rank] = req->doc->part;
    }
    sm_run(&finish->sm);
}

/* Reads the parts of all ranks, FINISH_PARALLEL at a time, and goes on when the last one is there.
 */
static enum sm_result on_parts(struct sm *sm)
{
    struct finish *finish = finish_of(sm);
    const struct build_input *input = &finish->input;

    while (finish->status == 0 && finish->next < input->world_size &&
           finish->inflight < FINISH_PARALLEL) {
        uint32_t rank = finish->next++;
        struct fin_part *fetch = &finish->fetches[rank];

        fetch->finish = finish;
        fetch->req.done = on_part;
        fetch->req.key = (struct doc_key){.name = {.run = input->run,
                                                   .id = input->id,
                                                   .kind = STORE_PART,
                                                   .number = rank,
                                                   .tag = finish->seals[rank].open_id},
                                          .sha256 = finish->seals[rank].part_sha256,
                                          .bytes = finish->seals[rank].part_bytes};
        if (docs_get(finish->catalog, &fetch->req) == 0) {
            finish->inflight++;
        } else {
            finish_fail(finish, fetch->req.status, &fetch->req.diag);
        }
    }
    if (finish->inflight) {
        return SM_WAIT;
    }
    sm_move(sm, finish->status ? FIN_ABORT : FIN_BUILD);
    return SM_AGAIN;
}

/* --- build ---------------------------------------------------------------------------------- */

/* Builds pages and manifest. Runs on a pool thread. */
static void work_build(struct work *work)
{
    struct finish *finish = container_of(work, struct finish, work);

    finish->status = build_checkpoint(&finish->input, &finish->build, &finish->diag);
}

static void on_built(struct work *work)
{
    struct finish *finish = container_of(work, struct finish, work);

    CHECK(finish->building);
    finish->building = false;
    finish->built = true;
    if (!is_cancelled(finish)) {
        sm_run(&finish->sm);
    }
}

/* Builds the manifest and its pages in the pool, and goes on when they are ready. */
static enum sm_result on_build(struct sm *sm)
{
    struct finish *finish = finish_of(sm);

    if (!finish->built) {
        if (!finish->building) {
            finish->building = true;
            finish->work = (struct work){.run = work_build, .done = on_built};
            work_submit(finish->catalog->options.pool, &finish->work);
        }
        return SM_WAIT;
    }
    finish->next = 0;
    finish->puts =
        calloc(finish->build.page_count ? finish->build.page_count : 1, sizeof *finish->puts);
    if (!finish->puts && finish->status == 0) {
        finish->status = diag_no_memory(&finish->diag, "the pages of the checkpoint");
    }
    sm_move(sm, finish->status ? FIN_ABORT : FIN_PUBLISH);
    return SM_AGAIN;
}

/* --- publish -------------------------------------------------------------------------------- */

static void on_put(struct store_req *req);

/* Publishes the document, or reads the one that is there already. */
static void put_submit(struct fin_put *put, enum store_op op)
{
    struct store_req *req = &put->req;

    CHECK(put->bytes > 0);
    req->op = op;
    req->run = req->name.run;
    req->deadline_ms = RUN_STORE_DEADLINE_MS;
    req->done = on_put;
    req->data =
        op == STORE_PUBLISH ? (void *)(uintptr_t)put->data : NULL; /* PUBLISH only reads it */
    req->bytes = op == STORE_PUBLISH ? put->bytes : 0;
    req->ret_data = NULL;
    put->finish->inflight++;
    store_submit(put->finish->catalog->store, req);
}

static void put_start(struct finish *finish, struct fin_put *put, enum store_kind kind,
                      uint32_t number)
{
    CHECK(put->finish == NULL);
    put->finish = finish;
    put->is_manifest = kind == STORE_MANIFEST;
    put->req.name = (struct store_name){.run = finish->input.run,
                                        .id = finish->input.id,
                                        .kind = kind,
                                        .number = number,
                                        .tag = finish->open.open_id};
    put_submit(put, STORE_PUBLISH);
}

/* Compares a manifest of this opening that exists already. An earlier try that died before the
 * commit has made it, or another daemon that is working on it now. The two may differ in their wall
 * time only; in that case the published one is taken, and true is returned. */
static bool manifest_adopt(struct fin_put *put, const uint8_t *data, uint64_t bytes)
{
    struct finish *finish = put->finish;
    struct scratch scratch;
    struct manifest found;
    bool same = false;

    scratch_init(&scratch, MIB(4));
    if (manifest_decode((size_t)bytes, data, &scratch, &found, NULL) == 0) {
        int64_t mine = finish->build.manifest.created_wall_ns;
        int status = build_manifest_at(&finish->build, found.created_wall_ns, NULL);

        same = status == 0 && finish->build.bytes.bytes == bytes &&
               memcmp(finish->build.bytes.data, data, finish->build.bytes.bytes) == 0;
        if (!same) {
            err_ignore(build_manifest_at(&finish->build, mine,
                                         /* It was encoded before, and the save fails anyway. */
                                         NULL));
        }
    }
    scratch_fini(&scratch);
    return same;
}

/* Compares a document that was there already with ours. The save fails if they differ, unless the
 * one found is a manifest of the same save that can be taken instead. */
static void put_compare(struct fin_put *put, const uint8_t *found, uint64_t bytes)
{
    struct store_req *req = &put->req;
    bool same = bytes == put->bytes && memcmp(found, put->data, put->bytes) == 0;
    struct diag diag = DIAG_INIT;
    char text[256];

    if (!same && put->is_manifest) {
        same = manifest_adopt(put, found, bytes);
    }
    if (!same) {
        doc_name_text(&req->name, sizeof text, text);
        diag_set(&diag, CAIRN_E_DAMAGED, "%s is already in the store with other bytes; save again",
                 text);
        finish_fail(put->finish, CAIRN_E_DAMAGED, &diag);
    }
}

/* Called when a document was published, or when one that was there already was read to compare it.
 */
static void on_put(struct store_req *req)
{
    struct fin_put *put = container_of(req, struct fin_put, req);
    struct finish *finish = put->finish;
    bool transient = req->status == CAIRN_E_OUTCOME_UNKNOWN || req->status == CAIRN_E_TIMED_OUT;
    uint8_t *found = req->op == STORE_FETCH ? req->ret_data : NULL;
    char text[256];

    CHECK(finish->inflight > 0);
    finish->inflight--;
    if (finish->track && finish->status == 0) {
        if (req->status == CAIRN_E_EXISTS && req->op == STORE_PUBLISH) {
            put_submit(put, STORE_FETCH);
        } else if ((transient || req->status == CAIRN_E_NOT_FOUND) &&
                   ++put->tries < FINISH_TRIES_MAX) {
            put_submit(put, STORE_PUBLISH); /* PUBLISH never replaces, so it may be repeated */
        } else if (req->status) {
            doc_name_text(&req->name, sizeof text, text);
            diag_add(&req->diag, "cannot publish %s", text);
            finish_fail(finish, req->status, &req->diag);
        } else if (req->op == STORE_FETCH) {
            put_compare(put, found, req->ret_bytes);
        }
    }
    free(found);
    if (!is_cancelled(finish)) {
        sm_run(&finish->sm);
    }
}

/* Publishes pages and manifest at the same time. The manifest holds the hashes of the pages, and
 * nobody believes it before the record names it, which is asked for when all of them are
 * durable. */
static enum sm_result on_publish(struct sm *sm)
{
    struct finish *finish = finish_of(sm);
    const struct build *build = &finish->build;

    while (finish->status == 0 && finish->next <= build->page_count &&
           finish->inflight < FINISH_PARALLEL) {
        uint32_t number = finish->next++;
        if (number < build->page_count) {
            struct fin_put *put = &finish->puts[number];
            put->data = build->pages[number].data;
            put->bytes = build->pages[number].bytes;
            put_start(finish, put, STORE_PAGE, number);
        } else {
            struct fin_put *put = &finish->put_manifest;
            put->data = build->bytes.data;
            put->bytes = build->bytes.bytes;
            put_start(finish, put, STORE_MANIFEST, 0);
        }
    }
    if (finish->inflight) {
        return SM_WAIT;
    }
    sm_move(sm, finish->status ? FIN_ABORT : FIN_COMMIT);
    return SM_AGAIN;
}

/* --- the record ----------------------------------------------------------------------------- */

static void on_event(struct run_req *req)
{
    struct finish *finish = container_of(req, struct finish, event);

    sm_run(&finish->sm); /* a cancelled one gets no callback */
}

/* Submits the event that ends the save: a commit or an abort. */
static void event_submit(struct finish *finish, enum event_kind kind)
{
    const struct build_input *input = &finish->input;

    CHECK((kind == EVENT_COMMIT) == (finish->status == 0));
    struct event *event = &finish->event.event;
    *event = (struct event){.kind = kind, .id = input->id};
    finish->event.done = on_event;
    if (kind == EVENT_COMMIT) {
        event->u.commit =
            (struct event_commit){.open_id = finish->open.open_id,
                                  .entry = {.manifest_sha256 = sha256(finish->build.bytes.bytes,
                                                                      finish->build.bytes.data),
                                            .manifest_bytes = finish->build.bytes.bytes,
                                            .plain_bytes = finish->build.manifest.plain_bytes,
                                            .stored_bytes = finish->build.manifest.stored_bytes}};
    } else {
        event->u.abort = (struct event_abort){.token = input->token,
                                              .open_id = finish->open.open_id,
                                              .code = finish->status,
                                              .reason = finish->reason};
    }
    run_submit(finish->run, &finish->event);
}

/* Keeps what the next save of the run asks for of its base: the manifest, and the pages that name
 * the parts. Like the bytes of an uploaded part they are checked against their hashes. */
static void keep_for_next(struct finish *finish)
{
    struct docs *docs = &finish->catalog->docs;
    const struct build *build = &finish->build;

    for (size_t i = 0; i < build->page_count; i++) {
        if (build->manifest.pages[i].kind == PAGE_PARTS) {
            docs_add_upload(docs, &finish->puts[i].req.name, build->pages[i].bytes,
                            build->pages[i].data);
        }
    }
    docs_add_upload(docs, &finish->put_manifest.req.name, build->bytes.bytes, build->bytes.data);
}

/* Sends the commit. Only the record says how the save ended; if the commit was refused (fenced, or
 * aborted by a deadline), tracks_sync() has seen that already. A failure of the store leads to an
 * abort, which is guarded and cannot undo a commit. */
static enum sm_result on_commit(struct sm *sm)
{
    struct finish *finish = finish_of(sm);
    int status;

    if (!finish->committing) {
        finish->committing = true;
        event_submit(finish, EVENT_COMMIT);
    }
    if (finish->event.submitted) {
        return SM_WAIT;
    }
    status = finish->event.status;
    if (status) {
        finish_fail(finish, status, &finish->event.diag);
    } else {
        keep_for_next(finish);
    }
    sm_move(sm, status ? FIN_ABORT : FIN_DONE);
    return SM_AGAIN;
}

/* Aborts the save in the record, with the error as the reason. Does nothing while the daemon stops:
 * the next daemon finishes the save. */
static enum sm_result on_abort(struct sm *sm)
{
    struct finish *finish = finish_of(sm);

    if (finish->status == CAIRN_E_SHUTTING_DOWN || finish->catalog->closing) {
        sm_move(sm, FIN_DONE); /* the next daemon finishes it */
        return SM_AGAIN;
    }
    if (!finish->aborting) {
        finish->aborting = true;
        snprintf(finish->reason, sizeof finish->reason, "%.*s", (int)sizeof finish->reason - 1,
                 diag_text(&finish->diag, finish->status));
        event_submit(finish, EVENT_ABORT);
    }
    if (finish->event.submitted) {
        return SM_WAIT;
    }
    /* After a failure the deadline tries again. */
    finish->track->failed = finish->event.status != 0;
    sm_move(sm, FIN_DONE);
    return SM_AGAIN;
}

static const struct sm_state finish_states[] = {
    [FIN_PARTS] = {"parts", on_parts, SM_TO(FIN_BUILD) | SM_TO(FIN_ABORT) | SM_TO(FIN_DONE), 0},
    [FIN_BUILD] = {"build", on_build, SM_TO(FIN_PUBLISH) | SM_TO(FIN_ABORT) | SM_TO(FIN_DONE), 0},
    [FIN_PUBLISH] = {"publish", on_publish, SM_TO(FIN_COMMIT) | SM_TO(FIN_ABORT) | SM_TO(FIN_DONE),
                     0},
    [FIN_COMMIT] = {"commit", on_commit, SM_TO(FIN_ABORT) | SM_TO(FIN_DONE), 0},
    [FIN_ABORT] = {"abort", on_abort, SM_TO(FIN_DONE), 0},
    [FIN_DONE] = {"done", on_done, 0, SM_FINAL},
};

/* Checks at each move that nothing is under way any more, and what the new state relies on. */
static void check_invariants(const struct sm *sm)
{
    const struct finish *finish = container_of(sm, const struct finish, sm);

    CHECK(finish->track != NULL);
    CHECK(finish->inflight == 0);
    CHECK(!finish->building);
    CHECK(!finish->event.submitted);
    if (sm->state == FIN_BUILD) {
        CHECK(finish->next == finish->input.world_size); /* every part was read */
    }
    if (sm->state == FIN_COMMIT) {
        CHECK(finish->built);
        CHECK(finish->next == finish->build.page_count + 1); /* all pages, and the manifest */
    }
    if (sm->state == FIN_ABORT) {
        CHECK(finish->status != 0);
    }
    if (sm->state == FIN_BUILD || sm->state == FIN_PUBLISH || sm->state == FIN_COMMIT) {
        CHECK(finish->status == 0);
    }
}

bool finish_start(struct open_track *track, const struct state_open *open)
{
    struct finish *finish = calloc(1, sizeof *finish);

    CHECK(!track->finish);
    if (!finish) {
        return false;
    }
    finish->run = track->run;
    finish->catalog = track->run->catalog;
    finish->track = track;
    scratch_init(&finish->scratch, MIB(64));
    if (copy_state(finish, open) != 0) {
        finish_free(finish);
        return false;
    }
    track->finish = finish; /* before it runs: its end clears this, and may come at once */
    sm_init(&finish->sm, finish_states, FIN_PARTS, "finish", open->entry.open_id);
    finish->sm.invariant = check_invariants;
    catalog_hold(finish->catalog);
    sm_run(&finish->sm);
    return true;
}
