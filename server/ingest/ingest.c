/* SPDX-License-Identifier: Apache-2.0
 *
 * Writers: which process sends objects for which opening, which of them are durable, and the check
 * of a part against these.
 */
#include "ingest/ingest_private.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { WRITER_OBJECTS_MAX = 256 };

int ingest_new(const struct ingest_options *options, struct ingest **ret)
{
    struct ingest *ingest = calloc(1, sizeof(*ingest));
    if (!ingest) {
        return CAIRN_E_NO_MEMORY;
    }
    *ingest = (struct ingest){.store = options->store,
                              .pool = options->pool,
                              .credit = options->credit,
                              .loop = options->loop,
                              .lanes = options->lanes};
    encode_kit_init(&ingest->kit, ENCODE_ADAPTIVE);
    encode_kit_limit(&ingest->kit, options->lanes);
    list_init(&ingest->writers);
    timer_init(&ingest->hold, options->loop, mapped_hold_over);
    *ret = ingest;
    return 0;
}

void ingest_free(struct ingest *ingest)
{
    if (ingest) {
        CHECK(ingest->pending == 0);
        timer_stop(&ingest->hold);
        encode_kit_fini(&ingest->kit);
        free(ingest->learnt);
        free(ingest);
    }
}

void ingest_progress(const struct ingest *ingest,
                     void (*row)(void *user, const struct ingest_row *row), void *user)
{
    uint64_t now = loop_now_ms(ingest->loop);
    list_each (node, &ingest->writers) {
        const struct writer *writer = list_item(node, struct writer, link);
        struct ingest_row found = {.run = &writer->run,
                                   .id = writer->key.id,
                                   .rank = writer->key.rank,
                                   .received_bytes = writer->received_bytes,
                                   .durable_bytes = writer->durable_bytes,
                                   .age_ms = now - writer->began_ms,
                                   .quiet_ms = now - writer->fed_ms,
                                   .connected = writer->user != NULL,
                                   .handed_over = writer->hand != NULL};
        if (!writer->over) {
            row(user, &found);
        }
    }
}

uint64_t ingest_bytes_in(const struct ingest *ingest) { return ingest->bytes_in; }

/* --- life of a writer ----------------------------------------------------------------------- */

void writer_ref(struct writer *writer) { writer->refs++; }

void writer_unref(struct writer *writer)
{
    CHECK(writer->refs > 0);
    if (--writer->refs > 0) {
        return;
    }
    struct ingest *ingest = writer->ingest;
    list_remove(&writer->link);
    for (size_t i = 0; i < writer->durable_count; i++) {
        free(writer->durables[i].envelopes);
        free(writer->durables[i].pieces);
    }
    free(writer->recovered);
    free(writer->durables);
    free(writer);
    ingest->pending--;
    if (ingest->pending == 0 && ingest->idle) {
        void (*idle)(void *) = ingest->idle;
        ingest->idle = NULL;
        idle(ingest->idle_user);
    }
}

static void drop_objects(struct writer *writer)
{
    list_each_safe (node, &writer->objects) {
        in_object_drop(list_item(node, struct in_object, link));
    }
}

/* Called when the save has ended: the reference of the watch is given back. The writer lives until
 * the last reference is gone. */
static void end_writer(struct writer *writer)
{
    if (!writer->over) {
        writer->over = true;
        hand_over_cancel(writer);
        drop_objects(writer); /* nothing can refer to them any more */
        writer_unref(writer);
    }
}

/* Logs one line for each checkpoint, from rank 0's writer. */
static void log_outcome(const struct writer *writer, enum save_state state, int code,
                        const char *why, uint64_t seq)
{
    char name[RUN_NAME_TEXT_MAX];
    if (writer->key.rank != 0) {
        return;
    }
    run_name_format(&writer->run, name);
    if (state == SAVE_COMMITTED) {
        LOG(LOG_INFO, "commit", "checkpoint committed", ls("run", name),
            lu("term", writer->key.id.term), lu("step", writer->key.id.step), lu("sequence", seq));
    } else {
        LOG(LOG_WARN, "commit", state == SAVE_ABORTED ? "save aborted" : "save lost from sight",
            ls("run", name), lu("term", writer->key.id.term), lu("step", writer->key.id.step),
            ls("err", why && why[0] ? why : err_text(code)));
    }
}

/* Called when the save has ended: the writer ends with it, and its objects are told. */
static void on_outcome(struct run_watch *watch, enum save_state state, int code, const char *why,
                       uint64_t seq)
{
    struct writer *writer = container_of(watch, struct writer, watch);
    log_outcome(writer, state, code, why, seq);
    writer->watching = false;
    list_each (node, &writer->objects) {
        in_object_tell_ended(list_item(node, struct in_object, link));
    }
    end_writer(writer);
}

void ingest_close(struct ingest *ingest, void (*idle)(void *user), void *user)
{
    ingest->idle = idle;
    ingest->idle_user = user;
    ingest->pending++;
    list_each_safe (node, &ingest->writers) {
        struct writer *writer = list_item(node, struct writer, link);
        if (writer->watching) {
            run_unwatch(&writer->watch);
            writer->watching = false;
            end_writer(writer);
        }
    }
    if (--ingest->pending == 0) {
        ingest->idle = NULL;
        idle(user);
    }
}

static struct writer *find_writer(struct ingest *ingest, const struct writer_key *key)
{
    list_each (node, &ingest->writers) {
        struct writer *writer = list_item(node, struct writer, link);
        if (!writer->over && writer->key.run == key->run &&
            ckpt_id_equal(writer->key.id, key->id) && writer->key.open_id == key->open_id &&
            writer->key.writer == key->writer && writer->key.rank == key->rank) {
            return writer;
        }
    }
    return NULL;
}

int ingest_attach(struct ingest *ingest, const struct writer_key *key,
                  const struct writer_events *events, void *user, struct writer **ret)
{
    struct writer *writer = find_writer(ingest, key);
    if (!writer) {
        writer = calloc(1, sizeof(*writer));
        if (!writer) {
            return CAIRN_E_NO_MEMORY;
        }
        *writer = (struct writer){.ingest = ingest,
                                  .key = *key,
                                  .run = *run_name_of(key->run),
                                  .refs = 1,
                                  .began_ms = loop_now_ms(ingest->loop),
                                  .fed_ms = loop_now_ms(ingest->loop)};
        list_init(&writer->objects);
        list_init(&writer->haves);
        list_init(&writer->to_write);
        list_init(&writer->to_digest);
        list_add_tail(&ingest->writers, &writer->link);
        ingest->pending++;
        writer->watch = (struct run_watch){
            .id = key->id, .open_id = key->open_id, .any_age = true, .done = on_outcome};
        writer->watching = true;
        run_watch(key->run, &writer->watch);
    }
    writer->events = *events;
    writer->user = user;
    writer_ref(writer);
    *ret = writer;
    return 0;
}

/* Fails the questions that still wait. Sessions that close have removed theirs before. */
static void fail_haves(struct writer *writer)
{
    struct list *node;
    while ((node = list_pop(&writer->haves))) {
        struct writer_have *have = list_item(node, struct writer_have, link);
        have->done(have, CAIRN_E_ABORTED, NULL, 0, NULL);
    }
}

void writer_detach(struct writer *writer, void *user)
{
    if (user && writer->user == user) {
        writer->user = NULL;
        fail_haves(writer);
        if (!writer->hand) {
            drop_objects(writer);
        }
        list_each (node, &writer->objects) {
            list_item(node, struct in_object, link)->quiet = true;
        }
    }
    writer_unref(writer);
}

struct writer *writer_hold(struct writer *writer)
{
    writer_ref(writer);
    return writer;
}

bool writer_is_over(const struct writer *writer) { return writer->over; }

/* --- objects -------------------------------------------------------------------------------- */

struct in_object *writer_find_object(struct writer *writer, uint32_t sequence)
{
    list_each (node, &writer->objects) {
        struct in_object *object = list_item(node, struct in_object, link);
        if (object->id.sequence == sequence) {
            return object;
        }
    }
    return NULL;
}

static int check_id(const struct writer *writer, const struct object_id *id, struct diag *diag)
{
    if (id->term != writer->key.id.term || id->step != writer->key.id.step ||
        id->rank != writer->key.rank || id->writer != writer->key.writer) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "an object of term %llu step %llu rank %u is not this session's",
                        (unsigned long long)id->term, (unsigned long long)id->step, id->rank);
    }
    return 0;
}

bool writer_owns(const struct writer *writer, const struct object_id *id)
{
    struct diag ignored;
    return check_id(writer, id, &ignored) == 0;
}

/* Returns a new object for its first payload. Returns NULL with *ret_status 0 if the payload
 * belongs to an object that has failed here meanwhile, of which an ERROR tells the client. */
static struct in_object *begin_object(struct writer *writer, const struct msg_data *data,
                                      int *ret_status, struct diag *diag)
{
    size_t count = 0; /* without described objects that wait for their turn at the disk */
    list_each (node, &writer->objects) {
        const struct in_object *object = list_item(node, struct in_object, link);
        bool is_waiting = object->ended && !object->created && !object->busy;
        count += is_waiting ? 0 : 1;
    }
    *ret_status = 0;
    if (data->object.sequence < writer->next_sequence) {
        return NULL;
    }
    if (count >= WRITER_OBJECTS_MAX) {
        *ret_status = diag_set(diag, CAIRN_E_PROTOCOL,
                               "more than %d objects at once that have no end", WRITER_OBJECTS_MAX);
        return NULL;
    }
    struct in_object *object = in_object_new(writer, data);
    if (!object) {
        *ret_status = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for an object");
        return NULL;
    }
    writer_ref(writer);
    list_add_tail(&writer->objects, &object->link);
    writer->next_sequence = data->object.sequence + 1;
    return object;
}

int writer_data(struct writer *writer, const struct msg_data *data, const struct payload *payload,
                struct diag *diag)
{
    int status = check_id(writer, &data->object, diag);
    struct in_object *object =
        status == 0 ? writer_find_object(writer, data->object.sequence) : NULL;
    if (status == 0 && !object) {
        object = begin_object(writer, data, &status, diag);
    }
    if (!object) {
        credit_put(writer->ingest->credit, payload->data);
        return status;
    }
    return in_object_data(object, data, payload, diag);
}

int writer_describe(struct writer *writer, const struct msg_describe *describe,
                    const struct described *described, struct diag *diag)
{
    const struct msg_data *data = &describe->data;
    int status = check_id(writer, &data->object, diag);
    struct in_object *object =
        status == 0 ? writer_find_object(writer, data->object.sequence) : NULL;
    if (status == 0 && !object) {
        object = begin_object(writer, data, &status, diag);
    }
    return object ? in_object_describe(object, describe, described, diag) : status;
}

int writer_end(struct writer *writer, uint32_t stream, const struct msg_object_end *end,
               struct diag *diag)
{
    int status = check_id(writer, &end->object, diag);
    if (status != 0) {
        return status;
    }
    struct in_object *object = writer_find_object(writer, end->object.sequence);
    if (!object) {
        return end->object.sequence < writer->next_sequence
                   ? 0
                   : diag_set(diag, CAIRN_E_PROTOCOL, "the end of an object without payload");
    }
    if (in_object_has_failed(object)) {
        return 0; /* its ERROR is on the way */
    }
    if (object->ended || end->data_bytes != object->next_offset ||
        end->envelope_count != object->chunk_count) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL, "object %u ends at %llu with %u chunks, received %llu with %u",
            end->object.sequence, (unsigned long long)end->data_bytes, end->envelope_count,
            (unsigned long long)object->next_offset, object->chunk_count);
    }
    object->stream = stream;
    in_object_end(object);
    return 0;
}

/* --- what is durable ------------------------------------------------------------------------ */

/* Returns the place of the object in the sorted list, or the place where it belongs. */
static size_t durable_position(const struct writer *writer, uint32_t sequence)
{
    size_t low = 0, high = writer->durable_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (writer->durables[middle].sequence < sequence) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct durable *writer_find_durable(const struct writer *writer, uint32_t sequence)
{
    size_t at = durable_position(writer, sequence);
    return at < writer->durable_count && writer->durables[at].sequence == sequence
               ? &writer->durables[at]
               : NULL;
}

static int drop_durable(const struct durable *durable, int status)
{
    free(durable->envelopes);
    free(durable->pieces);
    return status;
}

int writer_add_durable(struct writer *writer, const struct durable *durable)
{
    uint32_t sequence = durable->sequence;
    if (writer_find_durable(writer, sequence)) {
        return drop_durable(durable, 0);
    }
    if (writer->durable_count == writer->durable_cap) {
        size_t cap = writer->durable_cap == 0 ? 16 : writer->durable_cap * 2;
        struct durable *grown = realloc(writer->durables, cap * sizeof(*grown));
        if (!grown) {
            return drop_durable(durable, CAIRN_E_NO_MEMORY);
        }
        writer->durables = grown;
        writer->durable_cap = cap;
    }
    size_t at = durable_position(writer, sequence);
    memmove(&writer->durables[at + 1], &writer->durables[at],
            (writer->durable_count - at) * sizeof(struct durable));
    writer->durables[at] = *durable;
    for (uint32_t i = 0; i < durable->envelope_count; i++) {
        writer->durable_bytes += durable->envelopes[i].stored_bytes;
    }
    writer->durable_count++;
    if (sequence >= writer->next_sequence) {
        writer->next_sequence = sequence + 1;
    }
    return 0;
}

const struct envelope *durable_find(const struct durable *durable, uint64_t offset)
{
    uint32_t low = 0, high = durable->envelope_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (durable->envelopes[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < durable->envelope_count && durable->envelopes[low].offset == offset
               ? &durable->envelopes[low]
               : NULL;
}

const struct in_piece *durable_piece(const struct durable *durable, uint64_t at)
{
    uint32_t low = 0, high = durable->piece_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (durable->pieces[middle].at < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < durable->piece_count && durable->pieces[low].at == at ? &durable->pieces[low]
                                                                       : NULL;
}

static bool chunk_matches(const struct part_chunk *chunk, const struct envelope *envelope)
{
    return envelope && envelope->stored_bytes == chunk->stored_bytes &&
           envelope->plain_bytes == chunk->plain_bytes &&
           envelope->stored_crc == chunk->stored_crc && envelope->encoding == chunk->encoding &&
           envelope->digest_alg == chunk->digest_alg &&
           memcmp(&envelope->digest, &chunk->digest, sizeof(chunk->digest)) == 0;
}

bool writer_has_refs(const struct writer *writer, const struct part *part)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        if (!writer_owns(writer, &part->objects[i].id)) {
            return true;
        }
    }
    return false;
}

/* Returns NULL if the part may refer to the chunk, or the reason why it may not. */
static const char *chunk_refused(const struct writer *writer, const struct part_refs *refs,
                                 const struct object_id *id, const struct part_chunk *chunk)
{
    if (!writer_owns(writer, id)) {
        return !refs                            ? "is of another save, and this one has no base"
               : part_refs_has(refs, id, chunk) ? NULL
                                                : "is of another save, and not so in the base";
    }
    const struct durable *durable = writer_find_durable(writer, id->sequence);
    if (!durable) {
        return "is not durable";
    }
    return chunk_matches(chunk, durable_find(durable, chunk->offset)) ? NULL
                                                                      : "holds another chunk there";
}

int writer_check_part(const struct writer *writer, const struct part *part,
                      const struct part_refs *refs, struct diag *diag)
{
    const struct writer_key *key = &writer->key;
    if (!ckpt_id_equal(part->id, key->id) || part->rank != key->rank ||
        part->writer != key->writer) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the part says term %llu step %llu rank %u, the session is another",
                        (unsigned long long)part->id.term, (unsigned long long)part->id.step,
                        part->rank);
    }
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        const struct part_chunk *chunk = &part->chunks[i];
        const struct object_id *id = &part->objects[chunk->object].id;
        const char *why = chunk_refused(writer, refs, id, chunk);
        if (why) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "rank %u: chunk %u refers to object %u of step %llu@%llu at %llu, "
                            "which %s",
                            key->rank, i, id->sequence, (unsigned long long)id->step,
                            (unsigned long long)id->term, (unsigned long long)chunk->offset, why);
        }
    }
    return 0;
}
