/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a rank's contribution: its part is published, and its seal enters the record.
 *
 *   begin -> publish -> seal -> end
 *             |   ^      ^
 *             v   |      |
 *            compare ----/
 *
 * PUBLISH, COMPARE and SEAL wait, for the store and for the driver, and go to END after an error.
 * PUBLISH never replaces what is stored. If the name is taken, or nobody knows whether it is, the
 * stored part is read; if it is not there, PUBLISH is repeated. An equal part is success. So is one
 * of the same process with the same contents: it was published for this opening, which is part of
 * its name, by an earlier connection, another server or an earlier try of the step, and whoever
 * published it had verified its chunks; only their places differ. The seal then names that part.
 * Invariant: a part is sealed only when it is in the store. One loop's thread.
 */
#include "ingest/part_seal.h"

#include "ingest/ingest_private.h"

#include <stdlib.h>
#include <string.h>

enum part_seal_state { PART_BEGIN, PART_PUBLISH, PART_COMPARE, PART_SEAL, PART_END };

enum { COMPARE_SCRATCH_FACTOR = 4, PUBLISH_TRIES = 4 }; /* the latter stands in a text below */

static struct part_seal *of_sm(const struct sm *sm)
{
    return container_of(sm, struct part_seal, sm);
}

static enum sm_result go(struct part_seal *seal, enum part_seal_state state)
{
    sm_move(&seal->sm, state);
    return SM_AGAIN;
}

static enum sm_result fail(struct part_seal *seal, int code, const char *why)
{
    diag_clear(&seal->diag);
    seal->status = diag_set(&seal->diag, code, "rank %u: %s", seal->writer->key.rank, why);
    return go(seal, PART_END);
}

static void on_stored(struct store_req *req)
{
    struct part_seal *seal = container_of(req, struct part_seal, store);
    CHECK(seal->busy);
    seal->busy = false;
    seal->status = req->status;
    seal->diag = req->diag;
    sm_run(&seal->sm);
}

/* Asks the store for something about the part's name. */
static void submit(struct part_seal *seal, struct store_req req)
{
    const struct writer *writer = seal->writer;
    CHECK(!seal->busy);
    seal->busy = true;
    seal->store = req;
    seal->store.done = on_stored;
    seal->store.name = (struct store_name){.run = writer->run,
                                           .id = writer->key.id,
                                           .kind = STORE_PART,
                                           .number = writer->key.rank,
                                           .tag = writer->key.open_id};
    store_submit(writer->ingest->store, &seal->store);
}

static void enter_publish(struct sm *sm)
{
    struct part_seal *seal = of_sm(sm);
    uint8_t *data = (uint8_t *)(uintptr_t)seal->data; /* PUBLISH only reads it */
    submit(seal, (struct store_req){.op = STORE_PUBLISH, .bytes = seal->bytes, .data = data});
}

/* The state PUBLISH: waits for the store. */
static enum sm_result on_publish(struct sm *sm)
{
    struct part_seal *seal = of_sm(sm);
    bool in_doubt = seal->status == CAIRN_E_EXISTS || seal->status == CAIRN_E_OUTCOME_UNKNOWN;
    if (seal->busy) {
        return SM_WAIT;
    }
    if (seal->cancelled) {
        return fail(seal, CAIRN_E_ABORTED, "the save has already ended");
    }
    if (seal->status != 0 && !in_doubt) {
        return go(seal, PART_END);
    }
    if (!in_doubt) { /* its bytes are kept for finishing the save */
        run_cache_part(seal->writer->key.run, &seal->store.name, seal->bytes, seal->data);
    }
    return go(seal, in_doubt ? PART_COMPARE : PART_SEAL);
}

static void enter_compare(struct sm *sm)
{
    submit(of_sm(sm), (struct store_req){.op = STORE_FETCH});
}

/* Judges the part that is stored under the name. Returns true if it is, or replaces, ours. */
static bool adopt(struct part_seal *seal, size_t bytes, const uint8_t *data)
{
    struct scratch scratch;
    struct part found;
    struct sha256 sha = sha256(bytes, data);
    bool is_ours = memcmp(&sha, &seal->sha256, sizeof(sha)) == 0;
    if (!is_ours) {
        scratch_init(&scratch, bytes * COMPARE_SCRATCH_FACTOR + KIB(64));
        is_ours = part_decode(bytes, data, &scratch, &found, NULL) == 0 &&
                  part_is_alike(seal->part, &found);
        scratch_fini(&scratch);
    }
    if (is_ours) {
        seal->bytes = bytes;
        seal->sha256 = sha;
    }
    return is_ours;
}

/* The state COMPARE: waits for the stored part. */
static enum sm_result on_compare(struct sm *sm)
{
    struct part_seal *seal = of_sm(sm);
    struct store_req *req = &seal->store;
    if (seal->busy) {
        return SM_WAIT;
    }
    bool is_ours = seal->status == 0 && adopt(seal, req->ret_bytes, req->ret_data);
    free(req->ret_data);
    req->ret_data = NULL;
    if (seal->cancelled) {
        return fail(seal, CAIRN_E_ABORTED, "the save has already ended");
    }
    if (seal->status == CAIRN_E_NOT_FOUND && ++seal->tries < PUBLISH_TRIES) {
        return go(seal, PART_PUBLISH); /* PUBLISH has timed out, and has done nothing */
    }
    if (seal->status == CAIRN_E_NOT_FOUND) {
        return fail(seal, CAIRN_E_TIMED_OUT,
                    "the store did not take the part: all 4 attempts timed out; see `cairn status` "
                    "for the daemon's health");
    }
    if (seal->status != 0) {
        return go(seal, PART_END);
    }
    if (!is_ours) {
        return fail(seal, CAIRN_E_CONFLICT,
                    "another part of this rank, with other contents, is already stored for the "
                    "same save; save the step again, and start each rank only once");
    }
    return go(seal, PART_SEAL);
}

static void on_sealed(struct run_req *req)
{
    struct part_seal *seal = container_of(req, struct part_seal, run);
    CHECK(seal->busy);
    seal->busy = false;
    seal->status = req->status;
    seal->diag = req->diag;
    sm_run(&seal->sm);
}

/* Called on entering SEAL: submits the seal to the driver. */
static void enter_seal(struct sm *sm)
{
    struct part_seal *seal = of_sm(sm);
    const struct writer_key *key = &seal->writer->key;
    seal->busy = true;
    seal->entry = (struct event_seal){.rank = key->rank,
                                      .entry = {.open_id = key->open_id,
                                                .writer = key->writer,
                                                .part_bytes = seal->bytes,
                                                .part_sha256 = seal->sha256}};
    seal->run = (struct run_req){.done = on_sealed};
    seal->run.event =
        (struct event){.kind = EVENT_SEAL,
                       .id = key->id,
                       .u.seal = {.open_id = key->open_id, .count = 1, .items = &seal->entry}};
    run_submit(key->run, &seal->run);
}

/* The state SEAL: waits for the record. */
static enum sm_result on_seal_answered(struct sm *sm)
{
    struct part_seal *seal = of_sm(sm);
    return seal->busy ? SM_WAIT : go(seal, PART_END);
}

static enum sm_result on_end(struct sm *sm)
{
    struct part_seal *seal = of_sm(sm);
    seal->done(seal, seal->status, &seal->diag);
    return SM_DONE;
}

static const struct sm_state part_seal_table[] = {
    [PART_BEGIN] = {"begin", NULL, SM_TO(PART_PUBLISH), 0},
    [PART_PUBLISH] = {"publish", on_publish,
                      SM_TO(PART_COMPARE) | SM_TO(PART_SEAL) | SM_TO(PART_END), 0, enter_publish},
    [PART_COMPARE] = {"compare", on_compare,
                      SM_TO(PART_PUBLISH) | SM_TO(PART_SEAL) | SM_TO(PART_END), 0, enter_compare},
    [PART_SEAL] = {"seal", on_seal_answered, SM_TO(PART_END), 0, enter_seal},
    [PART_END] = {"end", on_end, 0, SM_FINAL},
};

/* CHECKs the invariant of a part_seal that has just moved to another state. */
static void check_seal(const struct sm *sm)
{
    const struct part_seal *seal = of_sm(sm);
    CHECK(!seal->busy);
    CHECK(seal->tries < PUBLISH_TRIES || sm->state == PART_END);
    CHECK(seal->store.ret_data == NULL);
    CHECK(sm->state != PART_SEAL || seal->status == 0);
    CHECK(sm->state != PART_SEAL || !seal->cancelled);
    CHECK(sm->state != PART_SEAL || seal->bytes > 0);
    CHECK(sm->state == PART_END || !seal->run.submitted);
}

void part_seal_begin(struct part_seal *seal)
{
    CHECK(seal->done != NULL);
    CHECK(seal->data != NULL);
    CHECK(seal->bytes > 0);
    CHECK(ckpt_id_equal(seal->part->id, seal->writer->key.id));
    CHECK(seal->part->rank == seal->writer->key.rank);
    seal->diag = (struct diag)DIAG_INIT;
    sm_init(&seal->sm, part_seal_table, PART_BEGIN, "part", seal->writer->key.rank);
    seal->sm.invariant = check_seal;
    sm_move(&seal->sm, PART_PUBLISH);
}

bool part_seal_cancel(struct part_seal *seal)
{
    seal->cancelled = true;
    if (seal->busy && sm_is(&seal->sm, PART_SEAL)) {
        run_cancel(&seal->run);
        seal->busy = false;
    }
    return !seal->busy;
}
