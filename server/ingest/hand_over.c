/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a rank's contribution without its client: the steps that remain once everything was
 * described and the part, except for its digests, is here. The session may end; the writer goes on.
 *
 *   decode -> objects -> encode -> seal -> end
 *                |         ^
 *                v         |
 *               base -> index
 *
 * OBJECTS waits until the objects are durable, BASE for the part of the base to which described
 * chunks refer, and SEAL for part_seal.c; DECODE, INDEX and ENCODE wait for a worker, which has the
 * part meanwhile. Every state goes to END after an error, and when the save is over.
 *
 * Invariant: what is filled into the part comes from envelopes that were made or verified here, of
 * objects that are durable. The whole part is then checked against them, like a part that a client
 * has made. The machine is run from a post, because the code that reports an object's outcome is in
 * the middle of its own work. One loop's thread.
 */
#include "ingest/ingest_private.h"

#include "base/log.h"
#include "hash/hash.h"
#include "ingest/part_seal.h"
#include "run/run_fetch.h"

#include <stdlib.h>

enum hand_state {
    HAND_DECODE,
    HAND_OBJECTS,
    HAND_BASE,
    HAND_INDEX,
    HAND_ENCODE,
    HAND_SEAL,
    HAND_END
};

enum { HAND_SCRATCH_FACTOR = 4 };

struct hand_over {
    struct writer *writer; /* a reference */
    struct hand_over_options options;
    struct list waits; /* hand_over_wait.link: at most one */
    struct sm sm;
    bool busy;      /* a worker, the store or the driver is at work */
    bool cancelled; /* the save is over */
    int status;
    struct diag diag;
    struct post post;
    struct work work;
    struct part_seal seal;
    struct run_handed handed;
    struct part part;
    struct scratch scratch, filled; /* filled: memory of what was filled in, and of refs */
    struct fetch_req fetch;         /* the part of this rank in the base, if a chunk refers to it */
    struct part_refs refs;
    struct part_fill fill;
    struct buf buf; /* the encoded part */
    struct sha256 sha256;
};

static struct hand_over *of_sm(const struct sm *sm)
{
    return container_of(sm, struct hand_over, sm);
}

static void kick(struct hand_over *hand) { loop_post(hand->writer->ingest->loop, &hand->post); }

void hand_over_cancel(struct writer *writer)
{
    struct hand_over *hand = writer->hand;
    if (!hand) {
        return;
    }
    hand->cancelled = true;
    if (sm_is(&hand->sm, HAND_SEAL) && hand->busy) {
        hand->busy = !part_seal_cancel(&hand->seal);
    }
    if (sm_is(&hand->sm, HAND_BASE) && hand->busy) {
        run_fetch_release(&hand->fetch);
        hand->busy = false;
    }
    kick(hand);
}

bool ingest_is_finishing(const struct ingest *ingest)
{
    list_each (node, &ingest->writers) {
        if (list_item(node, struct writer, link)->hand) {
            return true;
        }
    }
    return false;
}

/* --- work and its ends ---------------------------------------------------------------------- */

static void decode_run(struct work *work)
{
    struct hand_over *hand = container_of(work, struct hand_over, work);
    hand->status = part_decode(hand->options.part_bytes, hand->options.part, &hand->scratch,
                               &hand->part, &hand->diag);
}

/* Encodes and hashes the part. Called on a thread of the pool. */
static void encode_run(struct work *work)
{
    struct hand_over *hand = container_of(work, struct hand_over, work);
    part_encode(&hand->part, &hand->buf);
    hand->status = buf_status(&hand->buf);
    if (hand->status == 0) {
        hand->sha256 = sha256(hand->buf.bytes, hand->buf.data);
    } else {
        diag_set(&hand->diag, hand->status,
                 "the part has %u chunks, which is more than are allowed", hand->part.chunk_count);
    }
}

static void index_run(struct work *work)
{
    struct hand_over *hand = container_of(work, struct hand_over, work);
    hand->status = part_refs_init(&hand->refs, hand->fetch.part, &hand->filled, &hand->diag);
}

/* Called when a step has ended: stores its result, and goes on from a post. */
static void step_done(struct hand_over *hand, int status, const struct diag *diag)
{
    CHECK(hand->busy);
    CHECK(status <= 0);
    hand->busy = false;
    hand->status = status;
    if (status != 0 && diag != &hand->diag) {
        diag_copy(&hand->diag, diag);
    }
    kick(hand);
}

static void work_done(struct work *work)
{
    struct hand_over *hand = container_of(work, struct hand_over, work);
    step_done(hand, hand->status, &hand->diag);
}

static void begin_work(struct hand_over *hand, void (*run)(struct work *work))
{
    CHECK(!hand->busy);
    hand->busy = true;
    hand->work = (struct work){.run = run, .done = work_done};
    work_submit(hand->options.pool, &hand->work);
}

/* --- the states ----------------------------------------------------------------------------- */

static enum sm_result go(struct hand_over *hand, enum hand_state state)
{
    sm_move(&hand->sm, state);
    return SM_AGAIN;
}

static enum sm_result fail(struct hand_over *hand, int code, const char *why)
{
    hand->status = diag_set(&hand->diag, code, "%s", why);
    return go(hand, HAND_END);
}

/* Returns true if a state has nothing to do: its step is under way, or the hand-over has failed or
 * was cancelled. *ret says what it returns then. A save that is over is ABORTED, whatever failed
 * because of that: the client asks for its outcome, and hears the reason. */
static bool waits_or_ends(struct hand_over *hand, enum sm_result *ret)
{
    if (hand->busy) {
        *ret = SM_WAIT;
        return true;
    }
    if (hand->cancelled) {
        diag_clear(&hand->diag);
        *ret = fail(hand, CAIRN_E_ABORTED, "the save has already ended");
        return true;
    }
    if (hand->status != 0) {
        *ret = go(hand, HAND_END);
        return true;
    }
    return false;
}

/* The states that wait for one step, and then go on to the next one. */
static enum sm_result on_step(struct sm *sm)
{
    static const enum hand_state next[] = {[HAND_DECODE] = HAND_OBJECTS,
                                           [HAND_BASE] = HAND_INDEX,
                                           [HAND_ENCODE] = HAND_SEAL,
                                           [HAND_SEAL] = HAND_END};
    enum sm_result ret;
    return waits_or_ends(of_sm(sm), &ret) ? ret : go(of_sm(sm), next[sm->state]);
}

/* Returns true if every object of this writer that the part names is durable. An object that
 * neither is nor will be durable fails the hand-over. */
static bool objects_are_durable(struct hand_over *hand)
{
    struct writer *writer = hand->writer;
    bool all = true;
    for (uint32_t i = 0; i < hand->part.object_count; i++) {
        const struct object_id *id = &hand->part.objects[i].id;
        if (!writer_owns(writer, id) || writer_find_durable(writer, id->sequence)) {
            continue; /* the check of the part judges objects of others */
        }
        const struct in_object *object = writer_find_object(writer, id->sequence);
        if (!object || in_object_has_failed(object) || !object->ended) {
            hand->status =
                diag_set(&hand->diag, CAIRN_E_INVALID, "object %u %s", id->sequence,
                         !object                        ? "was never sent to this server"
                         : in_object_has_failed(object) ? "could not be stored"
                                                        : "was never finished by the client");
            return false;
        }
        all = false;
    }
    return all;
}

/* Makes room for what is filled in, with references to that part of a base, or to none. */
static void init_filled(struct hand_over *hand, const struct part *base)
{
    size_t refs_bytes = base ? ((size_t)base->chunk_count + 1) * sizeof(uint32_t) : 0;
    scratch_fini(&hand->filled);
    scratch_init(&hand->filled,
                 part_fill_bytes(hand->writer, &hand->part, base) + refs_bytes + KIB(64));
}

/* Fills in the part and checks it as a whole like any client's part. A worker then encodes it. */
static enum sm_result fill_and_check(struct hand_over *hand)
{
    const struct part *base = hand->fetch.part;
    hand->fill = (struct part_fill){.part = &hand->part, .base = base, .scratch = &hand->filled};
    hand->status = part_fill(hand->writer, &hand->fill, &hand->diag);
    if (hand->status == 0) {
        hand->status =
            writer_check_part(hand->writer, &hand->part, base ? &hand->refs : NULL, &hand->diag);
    }
    if (hand->status == 0 && hand->part.world_size != hand->options.world_size) {
        hand->status = diag_set(&hand->diag, CAIRN_E_INVALID,
                                "the part gives the world size %u, which is not that of the save",
                                hand->part.world_size);
    }
    return go(hand, hand->status == 0 ? HAND_ENCODE : HAND_END);
}

/* The state OBJECTS: waits until they are durable. */
static enum sm_result on_objects(struct sm *sm)
{
    struct hand_over *hand = of_sm(sm);
    enum sm_result ret;
    if (waits_or_ends(hand, &ret)) {
        return ret;
    }
    if (!objects_are_durable(hand)) {
        return hand->status != 0 ? go(hand, HAND_END) : SM_WAIT;
    }
    if (!part_fill_needs_base(hand->writer, &hand->part)) {
        init_filled(hand, NULL);
        return fill_and_check(hand);
    }
    return hand->options.base.term != 0
               ? go(hand, HAND_BASE)
               : fail(hand, CAIRN_E_INVALID,
                      "the client described chunks as unchanged since a base, but this save has no "
                      "base");
}

/* Called when the part of the base was read. */
static void fetched(struct fetch_req *fetch)
{
    struct hand_over *hand = container_of(fetch, struct hand_over, fetch);
    if (fetch->status != 0) {
        diag_add(&fetch->diag, "reading the base that the part refers to");
    }
    step_done(hand, fetch->status, &fetch->diag);
}

/* Called on entering BASE: reads the part of the base to which the described chunks refer. */
static void enter_base(struct sm *sm)
{
    struct hand_over *hand = of_sm(sm);
    hand->busy = true;
    hand->fetch = (struct fetch_req){.id = hand->options.base,
                                     .kind = STORE_PART,
                                     .number = hand->writer->key.rank,
                                     .any_age = true, /* the save's opening claims it */
                                     .done = fetched};
    run_fetch(hand->writer->key.run, &hand->fetch);
}

/* Called on entering INDEX: a worker sorts the base's chunks, so that they are found. */
static void enter_index(struct sm *sm)
{
    struct hand_over *hand = of_sm(sm);
    init_filled(hand, hand->fetch.part);
    begin_work(hand, index_run);
}

static enum sm_result on_index(struct sm *sm)
{
    struct hand_over *hand = of_sm(sm);
    enum sm_result ret;
    return waits_or_ends(hand, &ret) ? ret : fill_and_check(hand);
}

static void enter_encode(struct sm *sm) { begin_work(of_sm(sm), encode_run); }

static void sealed(struct part_seal *seal, int status, const struct diag *diag)
{
    step_done(container_of(seal, struct hand_over, seal), status, diag);
}

/* Called on entering SEAL: publishes the part, and enters its seal into the record. */
static void enter_seal(struct sm *sm)
{
    struct hand_over *hand = of_sm(sm);
    hand->busy = true;
    hand->seal = (struct part_seal){.writer = hand->writer,
                                    .part = &hand->part,
                                    .bytes = hand->buf.bytes,
                                    .data = hand->buf.data,
                                    .sha256 = hand->sha256,
                                    .done = sealed};
    part_seal_begin(&hand->seal);
}

/* Logs a refused part, or one that was finished after its client had gone. */
static void log_end(const struct hand_over *hand)
{
    const struct writer *writer = hand->writer;
    struct run_name_text name = run_name_text(&writer->run);
    if (hand->status != 0 && !hand->cancelled) {
        LOG(LOG_WARN, "session", "part refused", ls("run", name.at),
            lu("term", writer->key.id.term), lu("step", writer->key.id.step),
            lu("rank", writer->key.rank), ls("err", diag_text(&hand->diag, hand->status)));
    } else if (hand->status == 0 && !writer->user) {
        LOG(LOG_INFO, "session",
            "the daemon finished the save of a client that is gone, from the memory that it had "
            "handed over",
            ls("run", name.at), lu("term", writer->key.id.term), lu("step", writer->key.id.step),
            lu("rank", writer->key.rank));
    }
}

/* The state END: tells the client if it still waits, and gives everything back. */
static enum sm_result on_end(struct sm *sm)
{
    struct hand_over *hand = of_sm(sm);
    struct writer *writer = hand->writer;
    struct list *node = list_pop(&hand->waits);
    log_end(hand);
    run_handed_remove(&hand->handed);
    writer->hand = NULL;
    writer->settled = NULL;
    if (node) {
        struct hand_over_wait *wait = list_item(node, struct hand_over_wait, link);
        wait->stored_bytes = hand->fill.stored_bytes;
        wait->shared_bytes = hand->fill.shared_bytes;
        wait->done(wait, hand->status, &hand->diag);
    }
    if (!writer->user) {
        list_each_safe (item, &writer->objects) { /* the objects of a part that failed */
            in_object_drop(list_item(item, struct in_object, link));
        }
    }
    if (!list_is_empty(&writer->haves) && !writer->asking) {
        writer_have_begin(writer);
    }
    hand->options.put_part(hand->options.user, hand->options.part, hand->options.part_bytes);
    run_fetch_release(&hand->fetch);
    scratch_fini(&hand->scratch);
    scratch_fini(&hand->filled);
    buf_fini(&hand->buf);
    free(hand);
    writer_unref(writer);
    return SM_DONE;
}

#define HAND_TO(state) (SM_TO(state) | SM_TO(HAND_END))
static const struct sm_state hand_table[] = {
    [HAND_DECODE] = {"decode", on_step, HAND_TO(HAND_OBJECTS), 0},
    [HAND_OBJECTS] = {"objects", on_objects, HAND_TO(HAND_BASE) | SM_TO(HAND_ENCODE), 0},
    [HAND_BASE] = {"base", on_step, HAND_TO(HAND_INDEX), 0, enter_base},
    [HAND_INDEX] = {"index", on_index, HAND_TO(HAND_ENCODE), 0, enter_index},
    [HAND_ENCODE] = {"encode", on_step, HAND_TO(HAND_SEAL), 0, enter_encode},
    [HAND_SEAL] = {"seal", on_step, SM_TO(HAND_END), 0, enter_seal},
    [HAND_END] = {"end", on_end, 0, SM_FINAL},
};

/* CHECKs the invariant of a hand-over that has just moved to another state. */
static void check_hand(const struct sm *sm)
{
    const struct hand_over *hand = of_sm(sm);
    unsigned state = sm->state;
    CHECK(hand->writer->hand == hand);
    CHECK(!hand->busy);
    CHECK(state == HAND_END || hand->status == 0);
    CHECK(state == HAND_END || !hand->cancelled);
    CHECK(state != HAND_INDEX || hand->fetch.part != NULL);
    CHECK(state != HAND_ENCODE || hand->fill.part == &hand->part);
    CHECK(state != HAND_SEAL || hand->buf.bytes > 0);
}

/* Each step is made from here, never from the callback that caused it. */
static void on_post(struct post *post) { sm_run(&container_of(post, struct hand_over, post)->sm); }

int writer_hand_over(struct writer *writer, const struct hand_over_options *options,
                     struct hand_over_wait *wait, struct diag *diag)
{
    CHECK(!writer->over);
    CHECK(options->part != NULL);
    if (writer->hand) {
        return diag_set(diag, CAIRN_E_BUSY, "the part of this rank is already being finished");
    }
    struct hand_over *hand = calloc(1, sizeof(*hand));
    if (!hand) {
        return diag_no_memory(diag, "finishing a part");
    }
    *hand = (struct hand_over){
        .writer = writer, .options = *options, .post = {.cb = on_post}, .diag = DIAG_INIT};
    list_init(&hand->waits);
    list_init(&wait->link);
    list_add_tail(&hand->waits, &wait->link);
    scratch_init(&hand->scratch, options->part_bytes * HAND_SCRATCH_FACTOR + KIB(64));
    scratch_init(&hand->filled, KIB(4));
    buf_init(&hand->buf, LIMIT_PART_BYTES);
    hand->handed = (struct run_handed){
        .id = writer->key.id, .open_id = writer->key.open_id, .rank = writer->key.rank};
    run_handed_add(writer->key.run, &hand->handed);
    writer_ref(writer);
    writer->hand = hand;
    writer->settled = &hand->post;
    sm_init(&hand->sm, hand_table, HAND_DECODE, "hand-over", writer->key.rank);
    hand->sm.invariant = check_hand;
    begin_work(hand, decode_run);
    mapped_pump(writer->ingest); /* this rank does not copy any more */
    return 0;
}
