/* SPDX-License-Identifier: Apache-2.0
 *
 * Writers: which process sends objects for which opening, and the way of each message to its
 * object. The root of this folder. One loop's thread.
 */
#include "ingest/ingest_private.h"

#include "base/log.h"
#include "run/run_counts.h"

#include <stdlib.h>

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
    encode_pool_init(&ingest->encode_pool, ENCODE_ADAPTIVE);
    encode_pool_limit(&ingest->encode_pool, options->lanes);
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
        encode_pool_fini(&ingest->encode_pool);
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

uint64_t ingest_bytes_mapped(const struct ingest *ingest) { return ingest->bytes_mapped; }

/* --- life of a writer ----------------------------------------------------------------------- */

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
    struct run_name_text name = run_name_text(&writer->run);
    const char *trace = writer->key.trace[0] ? writer->key.trace : NULL;
    if (writer->key.rank != 0) {
        return;
    }
    if (state == SAVE_COMMITTED) {
        LOG(LOG_INFO, "commit", "checkpoint committed", ls("run", name.at),
            lu("term", writer->key.id.term), lu("step", writer->key.id.step), lu("sequence", seq),
            ls("trace", trace));
    } else {
        LOG(LOG_WARN, "commit",
            state == SAVE_ABORTED ? "save aborted" : "the outcome of a save is unknown",
            ls("run", name.at), lu("term", writer->key.id.term), lu("step", writer->key.id.step),
            ls("err", why && why[0] ? why : err_text(code)), ls("trace", trace));
    }
}

/* Called when the save has ended: the writer ends with it, and its objects are told. */
static void on_outcome(struct run_watch *watch, enum save_state state, int code, const char *why,
                       uint64_t seq)
{
    struct writer *writer = container_of(watch, struct writer, watch);
    CHECK(writer->watching);
    log_outcome(writer, state, code, why, seq);
    writer->watching = false;
    list_each (node, &writer->objects) {
        in_object_tell_ended(list_item(node, struct in_object, link));
    }
    end_writer(writer);
}

void ingest_close(struct ingest *ingest, void (*idle)(void *user), void *user)
{
    CHECK(!ingest->idle);
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
        CHECK(key->id.term > 0);
        CHECK(key->open_id != 0);
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
    CHECK(user != NULL);
    CHECK(!writer->over);
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

void writer_transferred(struct writer *writer)
{
    if (writer->first_ms != 0) {
        run_took(writer->key.run, PHASE_TRANSFER,
                 loop_now_ms(writer->ingest->loop) - writer->first_ms);
        writer->first_ms = 0;
    }
}

/* --- objects -------------------------------------------------------------------------------- */

/* Returns a new object for its first payload. Returns NULL with *ret_status 0 if the payload
 * belongs to an object that has failed here meanwhile, of which an ERROR tells the client. */
static struct in_object *begin_object(struct writer *writer, const struct msg_data *data,
                                      int *ret_status, struct diag *diag)
{
    size_t count = 0; /* without described objects that wait for their turn at the disk */
    list_each (node, &writer->objects) {
        const struct in_object *object = list_item(node, struct in_object, link);
        bool is_waiting = object->ended && sm_is(&object->sm, IN_FILLING);
        count += is_waiting ? 0 : 1;
    }
    *ret_status = 0;
    if (data->object.sequence < writer->next_sequence) {
        return NULL;
    }
    if (count >= WRITER_OBJECTS_MAX) {
        *ret_status =
            diag_set(diag, CAIRN_E_PROTOCOL,
                     "the client has more than %d unfinished objects at once", WRITER_OBJECTS_MAX);
        return NULL;
    }
    struct in_object *object = in_object_new(writer, data);
    if (!object) {
        *ret_status = diag_no_memory(diag, "an object");
        return NULL;
    }
    CHECK(!writer_find_durable(writer, data->object.sequence));
    writer_ref(writer);
    list_add_tail(&writer->objects, &object->link);
    writer->next_sequence = data->object.sequence + 1;
    return object;
}

/* Returns the object that the data belongs to, and begins it with its first data. Returns NULL,
 * with the reason in *ret_status, if the data is refused. */
static struct in_object *object_of(struct writer *writer, const struct msg_data *data,
                                   int *ret_status, struct diag *diag)
{
    *ret_status = writer_check_id(writer, &data->object, diag);
    if (*ret_status != 0) {
        return NULL;
    }
    struct in_object *object = writer_find_object(writer, data->object.sequence);
    return object ? object : begin_object(writer, data, ret_status, diag);
}

int writer_data(struct writer *writer, const struct msg_data *data, const struct payload *payload,
                struct diag *diag)
{
    int status = 0;
    struct in_object *object = object_of(writer, data, &status, diag);
    if (!object) {
        credit_put(writer->ingest->credit, payload->data);
        return status;
    }
    return socket_take(object, data, payload, diag);
}

int writer_describe(struct writer *writer, const struct msg_describe *describe,
                    const struct described *described, struct diag *diag)
{
    const struct msg_data *data = &describe->data;
    int status = 0;
    struct in_object *object = object_of(writer, data, &status, diag);
    return object ? mapped_take(object, describe, described, diag) : status;
}

int writer_end(struct writer *writer, uint32_t stream, const struct msg_object_end *end,
               struct diag *diag)
{
    int status = writer_check_id(writer, &end->object, diag);
    if (status != 0) {
        return status;
    }
    struct in_object *object = writer_find_object(writer, end->object.sequence);
    if (!object) {
        return end->object.sequence < writer->next_sequence
                   ? 0
                   : diag_set(diag, CAIRN_E_PROTOCOL,
                              "the client ended an object of which it had sent no payload");
    }
    if (in_object_has_failed(object)) {
        return 0; /* its ERROR is on the way */
    }
    if (object->ended || end->data_bytes != object->next_offset ||
        end->envelope_count != object->chunk_count) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client says that object %u ends at %llu with %u chunks, but %llu "
                        "bytes with %u chunks were received",
                        end->object.sequence, (unsigned long long)end->data_bytes,
                        end->envelope_count, (unsigned long long)object->next_offset,
                        object->chunk_count);
    }
    object->stream = stream;
    in_object_end(object);
    return 0;
}
