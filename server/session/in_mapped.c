/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads that lie in a client's arena: a queue of descriptions for each writer, written and
 * digested from where they lie, a bounded number at a time, writer by writer in turn.
 *
 *   described --> write (the store) ---\
 *            \--> digest (a worker) ----+--> its chunks count; the object goes on
 *
 * The write and the digest look at the bytes at different moments, and nobody can hold the client's
 * hand meanwhile. What makes them see the same is the client's promise (PROTOCOL.md 5): it leaves
 * the bytes alone until the object is durable or this opening is decided. A client that reuses them
 * after an abort cannot do harm, because an object of an aborted opening is referred to by nothing:
 * the record takes no seal of it any more. A client that breaks the promise spoils its own
 * checkpoint, and every reader finds out: the bytes on the disk do not match the digest.
 *
 * While ranks of this host copy their state, digests wait (writes do not need the processors): a
 * trainer waits for its copy, and for nothing else here. One loop's thread; digests on workers.
 */
#include "session/ingest_private.h"

#include "pipeline/chunk.h"

#include <stdlib.h>

enum {
    MAPPED_WRITES_MAX = 8,
    MAPPED_DIGESTS_MAX = 4,
    HOLD_MS = 60, /* descriptions come faster than this while a rank copies */
    HOLD_STEP_MS = 20,
    DIGESTS_WAITING_MAX = 512, /* more are not held back: their objects are open files */
    DESCRIBED_BYTES_HIGH = 32 << 20
};

static size_t own_bytes(const struct in_write *write)
{
    return sizeof(*write) + write->envelope_count * sizeof(write->envelopes[0]);
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

/* --- the two things that are done with a payload -------------------------------------------------
 */

static void end_part(struct in_write *write, int status, const struct diag *diag)
{
    struct in_object *object = write->object;
    struct ingest *ingest = object->writer->ingest;
    CHECK(write->parts_left > 0);
    if (--write->parts_left == 0) {
        ingest->described_bytes -= own_bytes(write);
        mapped_unref(write->mapped);
        free(write);
        object->pending--;
    }
    if (status != 0) {
        in_object_fail(object, status, diag_text(diag, status));
    }
    if (ingest->was_full && ingest->described_bytes < DESCRIBED_BYTES_HIGH / 2) {
        ingest->was_full = false;
        ingest->room(ingest->room_user);
    }
}

void mapped_written(struct in_write *write, int status, const struct diag *diag)
{
    struct in_object *object = write->object;
    struct ingest *ingest = object->writer->ingest;
    CHECK(ingest->mapped_writes > 0);
    ingest->mapped_writes--;
    end_part(write, status, diag);
    in_object_advance(object);
    mapped_pump(ingest);
}

/* One payload from its bytes to its envelopes: here they are stored as they lie. */
static int process(struct in_write *write, struct diag *diag)
{
    uint64_t at = 0, padded = round_up_u64(write->payload_bytes, LIMIT_ALIGN_BYTES);
    for (uint32_t i = 0; i < write->envelope_count; i++) {
        struct envelope *envelope = &write->envelopes[i];
        uint64_t offset = envelope->offset;
        if (!is_all_zero(offset - at, write->payload + at)) {
            break;
        }
        chunk_seal_raw(envelope->plain_bytes, write->payload + offset, envelope->element_bytes,
                       envelope);
        envelope->offset = offset;
        at = offset + envelope->stored_bytes;
    }
    if (at != write->payload_bytes || !is_all_zero(padded - at, write->payload + at)) {
        return diag_set(diag, CAIRN_E_DIGEST_MISMATCH, "padding beside a chunk is not zero");
    }
    return 0;
}

static void digest_run(struct work *work)
{
    struct in_write *write = container_of(work, struct in_write, work);
    write->status = process(write, &write->diag);
}

static void digest_done(struct work *work)
{
    struct in_write *write = container_of(work, struct in_write, work);
    struct in_object *object = write->object;
    struct ingest *ingest = object->writer->ingest;
    struct diag diag = write->diag;
    CHECK(ingest->mapped_digests > 0);
    ingest->mapped_digests--;
    for (uint32_t i = 0; write->status == 0 && i < write->envelope_count; i++) {
        struct envelope *to = &object->envelopes[write->envelope_first + i];
        *to = write->envelopes[i];
        to->offset += write->offset;
    }
    end_part(write, write->status, &diag);
    in_object_advance(object);
    mapped_pump(ingest);
}

/* --- whose turn it is ----------------------------------------------------------------------------
 */

/* The writer that has something in the queue and was not served for longest. */
static struct writer *next_writer(struct ingest *ingest, bool digests)
{
    list_each (node, &ingest->writers) {
        struct writer *writer = list_item(node, struct writer, link);
        if (!list_is_empty(digests ? &writer->to_digest : &writer->to_write)) {
            list_remove(&writer->link);
            list_add_tail(&ingest->writers, &writer->link);
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

/* Copying shows by descriptions that keep coming: a rank that stands still, or fills its arena in
 * waves, holds nobody up for long. */
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

static void begin_write(struct ingest *ingest, struct writer *writer)
{
    struct in_write *write = list_item(list_pop(&writer->to_write), struct in_write, link);
    struct in_object *object = write->object;
    ingest->mapped_writes++;
    list_init(&write->link);
    if (object->created) {
        in_write_submit(write);
        return;
    }
    /* Not before its first write: an open object is an open file. */
    list_add_tail(&object->ready, &write->link);
    if (!object->busy) {
        in_object_create(object);
    }
}

static void begin_digest(struct ingest *ingest, struct writer *writer)
{
    struct in_write *write = list_item(list_pop(&writer->to_digest), struct in_write, digest_link);
    list_init(&write->digest_link);
    ingest->digests_waiting--;
    ingest->mapped_digests++;
    write->work = (struct work){.run = digest_run, .done = digest_done};
    work_submit(ingest->pool, &write->work);
}

void mapped_pump(struct ingest *ingest)
{
    struct writer *writer;
    while (ingest->mapped_writes < MAPPED_WRITES_MAX &&
           (writer = next_writer(ingest, false)) != NULL) {
        begin_write(ingest, writer);
    }
    if (ingest->digests_waiting > 0 && digests_are_held(ingest)) {
        if (!timer_is_active(&ingest->hold)) {
            timer_start(&ingest->hold, HOLD_STEP_MS);
        }
        return;
    }
    while (ingest->mapped_digests < MAPPED_DIGESTS_MAX &&
           (writer = next_writer(ingest, true)) != NULL) {
        begin_digest(ingest, writer);
    }
}

void mapped_drop(struct in_object *object)
{
    struct writer *writer = object->writer;
    list_each_safe (node, &writer->to_write) {
        struct in_write *write = list_item(node, struct in_write, link);
        if (write->object == object) {
            list_remove(&write->link);
            list_init(&write->link);
            end_part(write, 0, NULL);
        }
    }
    list_each_safe (node, &writer->to_digest) {
        struct in_write *write = list_item(node, struct in_write, digest_link);
        if (write->object == object) {
            list_remove(&write->digest_link);
            list_init(&write->digest_link);
            writer->ingest->digests_waiting--;
            end_part(write, 0, NULL);
        }
    }
}

/* --- a new one -----------------------------------------------------------------------------------
 */

static int check(const struct in_object *object, const struct msg_data *data, struct diag *diag)
{
    if (object->next_offset > 0 && !object->described) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "bytes of object %u came, and then a description",
                        object->id.sequence);
    }
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        const struct envelope *envelope = &data->envelopes[i];
        if (envelope->encoding != ENCODING_RAW || envelope->digest_alg != DIGEST_XXH3_128) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "chunk %u is described with encoding %u and digest algorithm %u", i,
                            envelope->encoding, envelope->digest_alg);
        }
    }
    return 0;
}

int in_object_describe(struct in_object *object, const struct msg_data *data,
                       const struct described *described, struct diag *diag)
{
    struct writer *writer = object->writer;
    struct ingest *ingest = writer->ingest;
    struct in_write *write = NULL;
    const uint8_t *bytes = mapped_at(described->mapped, described->offset,
                                     round_up_u64(described->bytes, LIMIT_ALIGN_BYTES));
    if (in_object_has_failed(object)) {
        return 0;
    }
    object->stream = described->stream;
    int status = bytes ? check(object, data, diag)
                       : diag_set(diag, CAIRN_E_PROTOCOL, "%u bytes at %llu of the arena leave it",
                                  described->bytes, (unsigned long long)described->offset);
    if (status == 0) {
        status = in_object_take(object, data, described->bytes, &write, diag);
    }
    if (status != 0) {
        return status;
    }
    object->described = true;
    write->payload = (uint8_t *)(uintptr_t)bytes;
    write->mapped = mapped_ref(described->mapped);
    write->parts_left = 2;
    list_add_tail(&writer->to_write, &write->link);
    list_add_tail(&writer->to_digest, &write->digest_link);
    ingest->digests_waiting++;
    ingest->described_bytes += own_bytes(write);
    ingest->was_full = ingest->was_full || ingest_is_full(ingest);
    writer->described_ms = loop_now_ms(ingest->loop);
    mapped_pump(ingest);
    return 0;
}
