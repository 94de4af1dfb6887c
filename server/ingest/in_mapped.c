/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads that lie in a client's arena. Each writer has two queues of descriptions. A bounded
 * number of payloads is served at a time, writer by writer in turn.
 *
 *   described --> place --> write (the store) ---\
 *       |            \----> digest (a worker) ----+--> its chunks count; the object goes on
 *       \--> pack (a worker) --> place --> write --/
 *                           \--> nothing new -----/
 *
 * A payload is packed before it is written if the base, or the objects that this writer had
 * stored before a restart of the daemon, may have its chunks, or if it is to be encoded. Otherwise
 * the disk does not wait for the processors. A payload gets its place in the object when its length
 * is known, so a chunk that is described at one place may be stored at another: in_piece says
 * where.
 *
 * The write and the digest read the bytes at different moments, and nobody can stop the client from
 * changing them in between. What makes both see the same bytes is the client's promise (PROTOCOL.md
 * 5): it leaves the bytes alone until the object is durable or this opening is decided. A client
 * that reuses them after an abort cannot do harm, because nothing refers to an object of an aborted
 * opening: the record takes no seal of it any more. A client that breaks the promise spoils its own
 * checkpoint, and every reader finds out, because the bytes on the disk do not match the digest.
 *
 * While ranks of this host copy their state, digests wait, except for one pack at a time: a trainer
 * waits for its copy, and for nothing else here. Writes do not need the processors and go on;
 * without that one the disk would have to wait for the end of the copy. One loop's thread;
 * digests on workers.
 */
#include "ingest/ingest_private.h"

#include "hash/hash.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAPPED_WRITES_MAX = 8,
    /* For a store across a network, where writes wait for round trips. */
    MAPPED_WRITES_SHARED_MAX = 64,
    MAPPED_BYTES_MAX = 128 << 20, /* of all writes under way: librados copies them */
    MAPPED_DIGESTS_MAX = 4,
    MAPPED_PACKS_HELD_MAX = 1,
    HOLD_MS = 60, /* while a rank copies, its descriptions come faster than this */
    HOLD_STEP_MS = 20,
    /* Further ones are not held back, because their objects are open files. */
    DIGESTS_WAITING_MAX = 512,
    DESCRIBED_BYTES_HIGH = 32 << 20
};

static const struct in_way mapped_way;

static struct mapped_write *of_base(struct in_write *write)
{
    return container_of(write, struct mapped_write, base);
}

/* Returns the memory of a description of so many chunks. */
static size_t own_bytes(size_t count)
{
    return sizeof(struct mapped_write) +
           count * (sizeof(struct envelope) + sizeof(struct in_piece) + sizeof(uint32_t));
}

bool ingest_is_full(const struct ingest *ingest)
{
    return ingest->described_bytes > DESCRIBED_BYTES_HIGH;
}

void ingest_on_room(struct ingest *ingest, void (*room)(void *user), void *user)
{
    ingest->room = room;
    ingest->room_user = user;
}

/* --- the two steps of a payload ------------------------------------------------------------- */

/* Ends one of the steps of a described payload; the last one frees it. Reading is resumed when
 * enough memory has become free. */
static void end_part(struct mapped_write *write, int status, const struct diag *diag)
{
    struct in_object *object = write->base.object;
    struct ingest *ingest = object->writer->ingest;
    CHECK(write->parts_left > 0);
    if (--write->parts_left == 0) {
        CHECK(object->pending > 0);
        CHECK(ingest->described_bytes >= own_bytes(write->base.envelope_count));
        CHECK(!write->encoder); /* no worker has it */
        ingest->described_bytes -= own_bytes(write->base.envelope_count);
        encode_pool_give_buffer(write->buffer);
        mapped_unref(write->mapped);
        in_write_leave(&write->base);
        free(write);
    }
    if (status != 0) {
        in_object_fail(object, status, diag_text(diag, status));
    }
    if (ingest->was_full && ingest->described_bytes < DESCRIBED_BYTES_HIGH / 2) {
        ingest->was_full = false;
        ingest->room(ingest->room_user);
    }
}

static void end_write(struct in_write *base, int status, const struct diag *diag)
{
    struct mapped_write *write = of_base(base);
    struct in_object *object = write->base.object;
    struct ingest *ingest = object->writer->ingest;
    CHECK(ingest->mapped_writes > 0);
    CHECK(ingest->mapped_bytes >= write->counted_bytes);
    ingest->mapped_writes--;
    ingest->mapped_bytes -= write->counted_bytes;
    end_part(write, status, diag);
    in_object_advance(object);
    mapped_pump(ingest);
}

/* Enters the envelopes of chunks that were written as they are. */
static void note_digests(struct mapped_write *write)
{
    const struct in_object *object = write->base.object;
    CHECK(write->envelope_first + write->base.envelope_count <= object->envelope_count);
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        struct envelope *to = &object->envelopes[write->envelope_first + i];
        uint64_t offset = to->offset;
        *to = write->envelopes[i];
        to->offset = offset;
    }
}

/* Enters the fate of each chunk. If some chunks are new, the write waits for the disk, ahead of
 * others, and true is returned. */
static bool note_packed(struct mapped_write *write)
{
    struct in_object *object = write->base.object;
    struct writer *writer = object->writer;
    CHECK(write->pack == PACK_FIRST);
    CHECK(write->piece_first + write->base.envelope_count <= object->chunk_count);
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        struct in_piece *to = &object->pieces[write->piece_first + i];
        uint64_t at = to->at;
        *to = write->pieces[i];
        to->at = at;
    }
    write->pack = PACK_DONE;
    if (write->seal.new_count == 0) {
        return false;
    }
    list_add_tail(writer->to_write.next, &write->base.link);
    return true;
}

/* Called when a worker has finished with a payload: enters its digests, or what packing has
 * found. */
static void digest_done(struct work *work)
{
    struct mapped_write *write = container_of(work, struct mapped_write, work);
    struct in_object *object = write->base.object;
    struct ingest *ingest = object->writer->ingest;
    struct diag diag = write->diag;
    CHECK(ingest->mapped_digests > 0);
    ingest->mapped_digests--;
    pack_end(write);
    bool goes_on = false;
    if (write->status == 0 && write->pack == PACK_NOT) {
        note_digests(write);
        in_write_known(&write->base);
    } else if (write->status == 0 && !in_object_has_failed(object)) {
        goes_on = note_packed(write);
    }
    if (!goes_on) {
        end_part(write, write->status, &diag);
        in_object_advance(object);
    }
    mapped_pump(ingest);
}

/* Places a payload behind the payloads that have a place. Returns NO_MEMORY if there is no memory.
 */
static int place(struct in_object *object, struct mapped_write *write)
{
    uint32_t count = write->pack == PACK_DONE ? write->seal.new_count : write->base.envelope_count;
    uint32_t first = object->envelope_count;
    int status = in_object_keep(object, count, write->base.envelopes, object->stored_bytes, NULL);
    if (status != 0) {
        return status;
    }
    write->base.offset = object->stored_bytes;
    write->envelope_first = first;
    object->stored_bytes =
        round_up_u64(write->base.offset + write->base.payload_bytes, LIMIT_ALIGN_BYTES);
    for (uint32_t i = 0, stored = 0; i < write->base.envelope_count; i++) {
        struct in_piece *piece = &object->pieces[write->piece_first + i];
        if (piece->where == WHERE_OPEN || piece->where == WHERE_STORED) {
            piece->where = WHERE_STORED;
            piece->envelope = first + stored++;
        }
    }
    return 0;
}

/* --- whose turn it is ----------------------------------------------------------------------- */

static void to_the_end(struct writer *writer)
{
    list_remove(&writer->link);
    list_add_tail(&writer->ingest->writers, &writer->link);
}

/* Returns the writer with a write to do that was not served for the longest time, or NULL. */
static struct writer *next_to_write(struct ingest *ingest)
{
    list_each (node, &ingest->writers) {
        struct writer *writer = list_item(node, struct writer, link);
        if (!list_is_empty(&writer->to_write)) {
            to_the_end(writer);
            return writer;
        }
    }
    return NULL;
}

static bool is_copying(const struct writer *writer, uint64_t now_ms)
{
    return writer->user && !writer->over && !writer->hand && writer->described_ms != 0 &&
           now_ms < writer->described_ms + HOLD_MS;
}

/* Returns true while digests have to wait for a copying rank. A rank that copies keeps sending
 * descriptions, so one that pauses, or fills its arena in waves, delays the others only for a short
 * time. */
static bool digests_are_held(struct ingest *ingest)
{
    uint64_t now_ms = loop_now_ms(ingest->loop);
    if (ingest->digests_waiting >= DIGESTS_WAITING_MAX || ingest_is_full(ingest)) {
        return false;
    }
    list_each (node, &ingest->writers) {
        if (is_copying(list_item(node, struct writer, link), now_ms)) {
            return true;
        }
    }
    return false;
}

void mapped_hold_over(struct timer *timer)
{
    mapped_pump(container_of(timer, struct ingest, hold));
}

static void queue_digest(struct writer *writer, struct mapped_write *write)
{
    list_add_tail(&writer->to_digest, &write->digest_link);
    writer->ingest->digests_waiting++;
}

/* Begins the first write in the writer's queue. A payload that has to be packed first goes to
 * the queue of digests instead. */
static void begin_write(struct ingest *ingest, struct writer *writer)
{
    struct mapped_write *write =
        of_base(list_item(list_pop(&writer->to_write), struct in_write, link));
    struct in_object *object = write->base.object;
    list_init(&write->base.link);
    if (write->pack == PACK_NOT && pack_is_due(ingest, write)) {
        write->pack = PACK_FIRST;
        queue_digest(writer, write);
        return;
    }
    int status = place(object, write);
    if (status != 0) {
        end_part(write, status, NULL);
        in_object_advance(object);
        return;
    }
    if (write->pack == PACK_NOT) {
        write->parts_left = 2;
        queue_digest(writer, write);
    } else {
        in_write_known(&write->base);
    }
    ingest->mapped_writes++;
    write->counted_bytes = write->base.payload_bytes;
    ingest->mapped_bytes += write->counted_bytes;
    sink_rate_begin(&ingest->encode_pool.rate, loop_now_ms(ingest->loop));
    if (sm_is(&object->sm, IN_WRITING)) {
        in_write_submit(&write->base);
        in_object_advance(object);
        return;
    }
    /* Created only before its first write: an open object is an open file. */
    list_add_tail(&object->ready, &write->base.link);
    if (sm_is(&object->sm, IN_FILLING)) {
        in_object_create(object);
    }
}

/* Begins the first digest in the writer's queue. Returns false if there is none, or if it cannot
 * begin now. */
static bool begin_digest(struct ingest *ingest, struct writer *writer, bool only_packs)
{
    if (list_is_empty(&writer->to_digest)) {
        return false;
    }
    struct mapped_write *write =
        list_item(writer->to_digest.next, struct mapped_write, digest_link);
    if ((only_packs && write->pack == PACK_NOT) || !pack_begin(write)) {
        return false;
    }
    CHECK(ingest->digests_waiting > 0);
    list_remove(&write->digest_link);
    list_init(&write->digest_link);
    ingest->digests_waiting--;
    ingest->mapped_digests++;
    write->work = (struct work){.run = pack_run, .done = digest_done};
    work_submit(ingest->pool, &write->work);
    to_the_end(writer);
    return true;
}

/* Begins one digest. Returns false if none can begin. */
static bool begin_digests(struct ingest *ingest, bool only_packs)
{
    list_each (node, &ingest->writers) {
        if (begin_digest(ingest, list_item(node, struct writer, link), only_packs)) {
            return true;
        }
    }
    return false;
}

/* Tells the rate of the store whether the disk is waiting for the processors: the bytes that become
 * durable meanwhile say little about its speed. */
static void note_starved(struct ingest *ingest)
{
    bool waits = ingest->mapped_writes == 0 && ingest->mapped_digests > 0;
    sink_rate_starved(&ingest->encode_pool.rate, waits, loop_now_ms(ingest->loop));
}

void mapped_pump(struct ingest *ingest)
{
    struct writer *writer;
    uint32_t writes = ingest->store->caps.shared ? MAPPED_WRITES_SHARED_MAX : MAPPED_WRITES_MAX;
    while (ingest->mapped_writes < writes && ingest->mapped_bytes < MAPPED_BYTES_MAX &&
           (writer = next_to_write(ingest)) != NULL) {
        begin_write(ingest, writer);
    }
    bool held = ingest->digests_waiting > 0 && digests_are_held(ingest);
    if (held && !timer_is_active(&ingest->hold)) {
        timer_start(&ingest->hold, HOLD_STEP_MS);
    }
    uint32_t most = held ? MAPPED_PACKS_HELD_MAX : MAPPED_DIGESTS_MAX;
    while (ingest->mapped_digests < most && begin_digests(ingest, held)) {
    }
    note_starved(ingest);
}

static void drop_waiting(struct in_object *object)
{
    struct writer *writer = object->writer;
    list_each_safe (node, &writer->to_write) {
        struct mapped_write *write = of_base(list_item(node, struct in_write, link));
        if (write->base.object == object) {
            list_remove(&write->base.link);
            list_init(&write->base.link);
            end_part(write, 0, NULL);
        }
    }
    list_each_safe (node, &writer->to_digest) {
        struct mapped_write *write = list_item(node, struct mapped_write, digest_link);
        if (write->base.object == object) {
            list_remove(&write->digest_link);
            list_init(&write->digest_link);
            writer->ingest->digests_waiting--;
            end_part(write, 0, NULL);
        }
    }
}

/* --- a new description ---------------------------------------------------------------------- */

/* Checks that the description fits the object, and describes raw chunks with a digest that is known
 * here. */
static int check(const struct in_object *object, const struct msg_data *data, struct diag *diag)
{
    if (object->way && object->way != &mapped_way) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL,
            "the client sent bytes of object %u, and then a description of the same object",
            object->id.sequence);
    }
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        const struct envelope *envelope = &data->envelopes[i];
        if (envelope->encoding != ENCODING_RAW || envelope->digest_alg != DIGEST_XXH3_128) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "chunk %u is described with encoding %u and digest algorithm %u, which "
                            "cannot be used for a hand-over",
                            i, envelope->encoding, envelope->digest_alg);
        }
    }
    return 0;
}

/* Returns the key under which the encoding of a tensor is learnt. Chunks of the same tensor of a
 * run are alike, whichever rank holds them. */
static uint64_t learnt_key(const struct writer *writer, uint32_t tensor)
{
    char text[RUN_NAME_TEXT_MAX + 16];
    run_name_format(&writer->run, text);
    size_t bytes = strlen(text);
    memcpy(text + bytes, &tensor, sizeof(tensor));
    struct xxh128 hash = xxh3_128(bytes + sizeof(tensor), text);
    uint64_t ret;
    memcpy(&ret, &hash, sizeof(ret));
    return ret;
}

/* Takes over how the client has described the chunks. Checksums in the description do not count:
 * the bytes are not read yet. */
static void note_description(struct mapped_write *write, const struct msg_describe *describe,
                             const struct described *described)
{
    const struct ingest *ingest = write->base.object->writer->ingest;
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        write->envelopes[i].stored_crc = 0;
        if (!described->packs) { /* PROTOCOL.md: digests count only if packing was negotiated */
            memset(&write->envelopes[i].digest, 0, sizeof(struct digest));
        }
    }
    if (described->packs && ingest->lanes > 0) {
        write->encode = (enum encode_mode)describe->encode;
        write->tensor = learnt_key(write->base.object->writer, describe->tensor);
    }
}

/* Appends the places of a write's chunks in the object. */
static int keep_pieces(struct in_object *object, const struct msg_data *data, struct diag *diag)
{
    struct in_piece *grown =
        in_object_room(object->pieces, object->chunk_count + data->envelope_count, sizeof(*grown),
                       &object->piece_cap);
    if (!grown) {
        return diag_no_memory(diag, "the chunks of an object");
    }
    object->pieces = grown;
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        object->pieces[object->chunk_count + i] =
            (struct in_piece){.at = data->offset + data->envelopes[i].offset};
    }
    return 0;
}

/* Returns the write of a description, with memory for its chunks behind it, or NULL. */
static struct mapped_write *new_write(const struct msg_describe *describe)
{
    size_t count = describe->data.envelope_count;
    struct mapped_write *write = calloc(1, own_bytes(count));
    if (write) {
        write->base.envelopes = write->envelopes;
        write->pieces = (struct in_piece *)(void *)&write->envelopes[count];
        write->dtypes = (uint32_t *)(void *)&write->pieces[count];
        if (describe->dtype_count > 0) {
            memcpy(write->dtypes, describe->dtypes, count * sizeof(uint32_t));
        }
    }
    return write;
}

static void note_durable(struct in_object *object)
{
    struct ingest *ingest = object->writer->ingest;
    sink_rate_durable(&ingest->encode_pool.rate, object->stored_bytes, loop_now_ms(ingest->loop));
}

static void leave(struct in_object *object)
{
    struct ingest *ingest = object->writer->ingest;
    if (--ingest->mapped_objects == 0) {
        sink_rate_end(&ingest->encode_pool.rate);
    }
}

static const struct in_way mapped_way = {end_write, drop_waiting, note_durable, leave};

/* Enters a described payload into its object, and gives the write. */
static int enter(struct in_object *object, const struct msg_describe *describe,
                 struct mapped_write **ret, struct diag *diag)
{
    const struct msg_data *data = &describe->data;
    int status = check(object, data, diag);
    status = status ? status : in_object_check(object, data, describe->bytes, diag);
    status = status ? status : keep_pieces(object, data, diag);
    if (status != 0) {
        return status;
    }
    struct mapped_write *write = new_write(describe);
    if (!write) {
        return diag_no_memory(diag, "a write");
    }
    write->base.payload_bytes = describe->bytes;
    write->piece_first = object->chunk_count;
    write->parts_left = 1;
    list_init(&write->digest_link);
    in_object_enter(object, &write->base, data);
    object->writer->ingest->bytes_mapped += describe->bytes;
    *ret = write;
    return 0;
}

int mapped_take(struct in_object *object, const struct msg_describe *describe,
                const struct described *described, struct diag *diag)
{
    struct writer *writer = object->writer;
    struct ingest *ingest = writer->ingest;
    struct mapped_write *write = NULL;
    const uint8_t *bytes = mapped_at(described->mapped, describe->arena_offset,
                                     round_up_u64(describe->bytes, LIMIT_ALIGN_BYTES));
    if (in_object_has_failed(object)) {
        return 0;
    }
    object->stream = described->stream;
    int status =
        bytes ? enter(object, describe, &write, diag)
              : diag_set(diag, CAIRN_E_PROTOCOL,
                         "the %u bytes at %llu of the arena are outside it, or were never written",
                         describe->bytes, (unsigned long long)describe->arena_offset);
    if (status != 0) {
        return status;
    }
    ingest->mapped_objects += object->way ? 0 : 1;
    object->way = &mapped_way;
    write->base.payload = (uint8_t *)(uintptr_t)bytes;
    write->mapped = mapped_ref(described->mapped);
    note_description(write, describe, described);
    ingest->described_bytes += own_bytes(write->base.envelope_count);
    ingest->was_full = ingest->was_full || ingest_is_full(ingest);
    writer->described_ms = loop_now_ms(ingest->loop);
    if (pack_is_due(ingest, write)) {
        write->pack = PACK_FIRST;
        queue_digest(writer, write);
    } else {
        list_add_tail(&writer->to_write, &write->base.link);
    }
    mapped_pump(ingest);
    return 0;
}
