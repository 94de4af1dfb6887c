/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a rank's contribution without its client: the steps that remain once everything was
 * described and the part, except for its digests, is here. The session may end; the writer goes on.
 *
 *   decode (worker) -> wait for the objects -> fill in, encode (worker) -> publish -> seal -> over
 *                           \-> base, index (worker) ->/                 \-> compare ->/
 *
 * Invariant: what is filled into the part comes from envelopes that were made or verified here, of
 * objects that are durable. The whole part is then checked against them, like a part that a client
 * has made. Every step is made from a post, because the code that reports an object's outcome is in
 * the middle of its own work. One loop's thread; a worker has the part between work_submit and
 * done.
 */
#include "ingest/ingest_private.h"

#include "base/log.h"
#include "hash/hash.h"
#include "run/run_fetch.h"

#include <stdlib.h>
#include <string.h>

enum hand_state {
    HAND_DECODE,
    HAND_OBJECTS,
    HAND_BASE,
    HAND_INDEX,
    HAND_ENCODE,
    HAND_PUBLISH,
    HAND_COMPARE,
    HAND_SEAL,
    HAND_DONE
};

enum { HAND_SCRATCH_FACTOR = 4, PUBLISH_TRIES = 4 };

struct hand_over {
    struct writer *writer; /* a reference */
    struct hand_over_options options;
    struct list waits; /* hand_over_wait.link: at most one */
    enum hand_state state;
    bool busy, cancelled;
    unsigned tries; /* of publishing */
    int status;
    struct diag diag;
    struct post post;
    struct work work;
    struct store_req store;
    struct run_req run;
    struct event_seal seal;
    struct run_handed handed;
    struct part part;
    struct scratch scratch, filled; /* filled: memory of what was filled in, and of refs */
    struct fetch_req fetch;         /* the part of this rank in the base, if a chunk refers to it */
    struct part_refs refs;
    struct part_fill fill;
    struct buf buf; /* the encoded part */
    struct sha256 sha256;
};

static void on_post(struct post *post);

static void kick(struct hand_over *hand) { loop_post(hand->writer->ingest->loop, &hand->post); }

void hand_over_cancel(struct writer *writer)
{
    struct hand_over *hand = writer->hand;
    if (!hand) {
        return;
    }
    hand->cancelled = true;
    if (hand->state == HAND_SEAL && hand->busy) {
        run_cancel(&hand->run);
        hand->busy = false;
    }
    if (hand->state == HAND_BASE && hand->busy) {
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

static void work_done(struct work *work)
{
    struct hand_over *hand = container_of(work, struct hand_over, work);
    hand->busy = false;
    kick(hand);
}

static void begin_work(struct hand_over *hand, enum hand_state state,
                       void (*run)(struct work *work))
{
    hand->state = state;
    hand->busy = true;
    hand->work = (struct work){.run = run, .done = work_done};
    work_submit(hand->options.pool, &hand->work);
}

static void store_done(struct store_req *req)
{
    struct hand_over *hand = container_of(req, struct hand_over, store);
    hand->busy = false;
    hand->status = req->status;
    diag_copy(&hand->diag, &req->diag);
    kick(hand);
}

static void sealed(struct run_req *req)
{
    struct hand_over *hand = container_of(req, struct hand_over, run);
    hand->busy = false;
    hand->status = req->status;
    diag_copy(&hand->diag, &req->diag);
    kick(hand);
}

/* --- the steps ------------------------------------------------------------------------------ */

static int fail(struct hand_over *hand, int code, const char *why)
{
    hand->status = diag_set(&hand->diag, code, "%s", why);
    return hand->status;
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

/* Called when the part of the base was read. */
static void fetched(struct fetch_req *fetch)
{
    struct hand_over *hand = container_of(fetch, struct hand_over, fetch);
    hand->busy = false;
    hand->status = fetch->status;
    diag_copy(&hand->diag, &fetch->diag);
    if (hand->status != 0) {
        diag_add(&hand->diag, "reading the base that the part refers to");
    }
    kick(hand);
}

/* Reads the part of the base to which the described chunks refer. */
static void fetch_base(struct hand_over *hand)
{
    const struct writer *writer = hand->writer;
    if (hand->options.base.term == 0) {
        (void)fail(
            hand, CAIRN_E_INVALID,
            "the client described chunks as unchanged since a base, but this save has no base");
        return;
    }
    hand->state = HAND_BASE;
    hand->busy = true;
    hand->fetch = (struct fetch_req){
        .id = hand->options.base, .kind = STORE_PART, .number = writer->key.rank, .done = fetched};
    run_fetch(writer->key.run, &hand->fetch);
}

static void init_filled(struct hand_over *hand)
{
    const struct part *base = hand->fetch.part;
    size_t refs_bytes = base ? ((size_t)base->chunk_count + 1) * sizeof(uint32_t) : 0;
    scratch_fini(&hand->filled);
    scratch_init(&hand->filled,
                 part_fill_bytes(hand->writer, &hand->part, base) + refs_bytes + KIB(64));
}

/* Fills in the part, checks it as a whole like any client's part, and encodes it on a worker. */
static void check_and_encode(struct hand_over *hand)
{
    const struct part *base = hand->fetch.part;
    if (!base) {
        init_filled(hand);
    }
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
    if (hand->status == 0) {
        begin_work(hand, HAND_ENCODE, encode_run);
    }
}

/* Submits PUBLISH for the part, or FETCH to compare what is stored under its name. */
static void publish(struct hand_over *hand, enum store_op op)
{
    const struct writer *writer = hand->writer;
    hand->state = op == STORE_PUBLISH ? HAND_PUBLISH : HAND_COMPARE;
    hand->busy = true;
    hand->store = (struct store_req){.op = op,
                                     .done = store_done,
                                     .name = {.run = writer->run,
                                              .id = writer->key.id,
                                              .kind = STORE_PART,
                                              .number = writer->key.rank,
                                              .tag = writer->key.open_id}};
    if (op == STORE_PUBLISH) {
        hand->store.bytes = hand->buf.bytes;
        hand->store.data = hand->buf.data;
    }
    store_submit(writer->ingest->store, &hand->store);
}

/* Accepts a published part with the same contents whose chunks are all durable or of the base. It
 * was published before this daemon was restarted; what was described again since then has other
 * places. The published part replaces ours. */
static bool adopt(struct hand_over *hand, size_t bytes, const uint8_t *data)
{
    const struct part_refs *refs = hand->fetch.part ? &hand->refs : NULL;
    struct scratch scratch;
    struct part published;
    struct diag ignored = DIAG_INIT;
    scratch_init(&scratch, bytes * HAND_SCRATCH_FACTOR + KIB(64));
    bool is_same = part_decode(bytes, data, &scratch, &published, &ignored) == 0 &&
                   part_is_alike(&hand->part, &published) &&
                   writer_check_part(hand->writer, &published, refs, &ignored) == 0;
    scratch_fini(&scratch);
    if (is_same) {
        buf_fini(&hand->buf);
        buf_init(&hand->buf, LIMIT_PART_BYTES);
        buf_put(&hand->buf, bytes, data);
        hand->sha256 = sha256(bytes, data);
    }
    return is_same && buf_status(&hand->buf) == 0;
}

/* Compares a part that is already published: the same bytes are success. */
static void compare(struct hand_over *hand)
{
    struct store_req *req = &hand->store;
    bool is_equal = req->ret_bytes == hand->buf.bytes && req->ret_data != NULL &&
                    memcmp(req->ret_data, hand->buf.data, hand->buf.bytes) == 0;
    if (!is_equal && !adopt(hand, req->ret_bytes, req->ret_data)) {
        (void)fail(hand, CAIRN_E_CONFLICT,
                   "another part of this rank is already stored for the same save; start each rank "
                   "only once");
    }
    free(req->ret_data);
    req->ret_data = NULL;
}

/* Keeps the bytes of the part for finishing the save, and submits the seal. */
static void seal(struct hand_over *hand)
{
    const struct writer_key *key = &hand->writer->key;
    run_cache_part(key->run, &hand->store.name, hand->buf.bytes, hand->buf.data);
    hand->state = HAND_SEAL;
    hand->busy = true;
    hand->seal = (struct event_seal){.rank = key->rank,
                                     .entry = {.open_id = key->open_id,
                                               .writer = key->writer,
                                               .part_bytes = hand->buf.bytes,
                                               .part_sha256 = hand->sha256}};
    hand->run = (struct run_req){.done = sealed};
    hand->run.event =
        (struct event){.kind = EVENT_SEAL,
                       .id = key->id,
                       .u.seal = {.open_id = key->open_id, .count = 1, .items = &hand->seal}};
    run_submit(key->run, &hand->run);
}

/* Makes the next step after one has ended well. */
static void step(struct hand_over *hand)
{
    switch (hand->state) {
    case HAND_DECODE:
        hand->state = HAND_OBJECTS;
        step(hand);
        break;
    case HAND_OBJECTS:
        if (objects_are_durable(hand) && part_fill_needs_base(hand->writer, &hand->part)) {
            fetch_base(hand);
        } else if (hand->status == 0 && objects_are_durable(hand)) {
            check_and_encode(hand);
        }
        break;
    case HAND_BASE:
        init_filled(hand);
        begin_work(hand, HAND_INDEX, index_run);
        break;
    case HAND_INDEX:
        check_and_encode(hand);
        break;
    case HAND_ENCODE:
        publish(hand, STORE_PUBLISH);
        break;
    case HAND_COMPARE:
        compare(hand);
        if (hand->status == 0) {
            seal(hand);
        }
        break;
    case HAND_PUBLISH:
        seal(hand);
        break;
    case HAND_SEAL:
        hand->state = HAND_DONE;
        break;
    case HAND_DONE:
        UNREACHABLE();
    }
}

/* Logs a refused part, or one that was finished after its client had gone. */
static void log_end(const struct hand_over *hand)
{
    const struct writer *writer = hand->writer;
    char name[RUN_NAME_TEXT_MAX];
    run_name_format(&writer->run, name);
    if (hand->status != 0 && !hand->cancelled) {
        LOG(LOG_WARN, "session", "part refused", ls("run", name), lu("term", writer->key.id.term),
            lu("step", writer->key.id.step), lu("rank", writer->key.rank),
            ls("err", diag_text(&hand->diag, hand->status)));
    } else if (hand->status == 0 && !writer->user) {
        LOG(LOG_INFO, "session",
            "the daemon finished the save of a client that is gone, from the memory that it had "
            "handed over",
            ls("run", name), lu("term", writer->key.id.term), lu("step", writer->key.id.step),
            lu("rank", writer->key.rank));
    }
}

/* Ends a hand-over: tells its client if it still waits, and gives everything back. */
static void end(struct hand_over *hand)
{
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
}

/* Returns true if it is not known whether the part is published: the name is taken, the outcome of
 * PUBLISH is unknown, or the part was looked for after a time-out and is not there. */
static bool is_in_doubt(const struct hand_over *hand)
{
    return (hand->state == HAND_PUBLISH &&
            (hand->status == CAIRN_E_EXISTS || hand->status == CAIRN_E_OUTCOME_UNKNOWN)) ||
           (hand->state == HAND_COMPARE && hand->status == CAIRN_E_NOT_FOUND);
}

/* Resolves the doubt: reads the part back, or publishes it again, which never replaces. It tries
 * PUBLISH_TRIES times. */
static void resolve(struct hand_over *hand)
{
    bool is_missing = hand->state == HAND_COMPARE;
    hand->status = 0;
    diag_clear(&hand->diag);
    if (hand->cancelled) {
        (void)fail(hand, CAIRN_E_ABORTED, "the save has already ended");
    } else if (!is_missing) {
        publish(hand, STORE_FETCH);
    } else if (++hand->tries < PUBLISH_TRIES) {
        publish(hand, STORE_PUBLISH);
    } else {
        (void)fail(hand, CAIRN_E_TIMED_OUT,
                   "the store did not take the part: every attempt timed out; see `cairn status` "
                   "for the daemon's health");
    }
}

/* Makes the next step of a hand-over, or ends it. Each step is made from here, never from the
 * callback that caused it. */
static void on_post(struct post *post)
{
    struct hand_over *hand = container_of(post, struct hand_over, post);
    if (hand->busy) {
        return; /* the end of that step kicks again */
    }
    if (is_in_doubt(hand)) {
        resolve(hand);
    }
    if (hand->busy) {
        return;
    }
    if (hand->cancelled && hand->state == HAND_COMPARE && hand->status == 0) {
        compare(hand); /* frees the bytes that were read */
    }
    if (hand->cancelled && hand->status == 0 && hand->state != HAND_DONE) {
        (void)fail(hand, CAIRN_E_ABORTED, "the save has already ended");
    }
    if (hand->status == 0) {
        step(hand);
    }
    if (!hand->busy && (hand->status != 0 || hand->state == HAND_DONE)) {
        end(hand);
    }
}

int writer_hand_over(struct writer *writer, const struct hand_over_options *options,
                     struct hand_over_wait *wait, struct diag *diag)
{
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
    begin_work(hand, HAND_DECODE, decode_run);
    mapped_pump(writer->ingest); /* this rank does not copy any more */
    return 0;
}
