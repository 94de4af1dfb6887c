/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a writer is durable: known while this daemon has run since its first object, else read
 * back from the store: list the checkpoint's objects, read trailer and footer of each that is this
 * writer's. An object whose footer does not decode is left out: the client sends its chunks again.
 */
#include "session/ingest_private.h"

#include <stdlib.h>
#include <string.h>

struct asking {
    struct writer *writer;
    struct store_req req;
    struct object_id *objects;
    size_t count, at;
    uint64_t object_bytes, footer_bytes;
    uint8_t *memory;
};

static void next_object(struct asking *asking);

static void answer(struct writer *writer, int status, const struct diag *diag)
{
    uint32_t *sequences = calloc(writer->durable_count + 1, sizeof(*sequences));
    if (!sequences) {
        status = CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; sequences && i < writer->durable_count; i++) {
        sequences[i] = writer->durables[i].sequence;
    }
    struct list *node;
    while ((node = list_pop(&writer->haves))) {
        struct writer_have *have = list_item(node, struct writer_have, link);
        have->done(have, status, diag, status == 0 ? writer->durable_count : 0, sequences);
    }
    free(sequences);
}

static void finish(struct asking *asking, int status, const struct diag *diag)
{
    struct writer *writer = asking->writer;
    writer->asking = false;
    writer->known = status == 0;
    answer(writer, status, diag);
    free(asking->objects);
    free(asking->memory);
    free(asking);
    writer_unref(writer);
}

static void read_range(struct asking *asking, uint64_t offset, uint64_t bytes,
                       void (*done)(struct store_req *))
{
    asking->req = (struct store_req){.op = STORE_READ,
                                     .done = done,
                                     .run = asking->writer->run,
                                     .object = asking->objects[asking->at],
                                     .offset = offset,
                                     .bytes = bytes,
                                     .data = asking->memory};
    store_submit(asking->writer->ingest->store, &asking->req);
}

static void on_footer(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    struct scratch scratch;
    struct object_footer footer;
    scratch_init(&scratch, LIMIT_OBJECT_ENVELOPES * sizeof(struct envelope) + KIB(64));
    if (req->status == 0 &&
        object_footer_decode(asking->footer_bytes, asking->memory, asking->object_bytes, &scratch,
                             &footer, NULL) == 0 &&
        object_id_equal(&footer.id, &asking->objects[asking->at])) {
        size_t bytes = footer.envelope_count * sizeof(struct envelope);
        struct envelope *envelopes = malloc(bytes + 1);
        if (envelopes) {
            memcpy(envelopes, footer.envelopes, bytes);
            /* A failure leaves the object out: the client then sends its chunks again. */
            err_ignore(writer_add_durable(asking->writer, footer.id.sequence, footer.envelope_count,
                                          envelopes));
        }
    }
    scratch_fini(&scratch);
    asking->at++;
    next_object(asking);
}

static void on_trailer(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    uint64_t offset = 0, bytes = 0;
    int status = req->status;
    if (status == 0) {
        status = object_trailer_decode(asking->memory, asking->object_bytes, &offset, &bytes, NULL);
    }
    if (status == 0) {
        free(asking->memory);
        asking->memory = aligned_alloc(POOL_ALIGN, round_up_u64(bytes, POOL_ALIGN));
        asking->footer_bytes = bytes;
    }
    if (status != 0 || !asking->memory) {
        asking->at++;
        next_object(asking);
        return;
    }
    read_range(asking, offset, bytes, on_footer);
}

static void on_stat(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    asking->object_bytes = req->ret_bytes;
    free(asking->memory);
    asking->memory = aligned_alloc(POOL_ALIGN, POOL_ALIGN);
    if (req->status != 0 || asking->object_bytes < OBJECT_TRAILER_BYTES || !asking->memory) {
        asking->at++;
        next_object(asking);
        return;
    }
    read_range(asking, asking->object_bytes - OBJECT_TRAILER_BYTES, OBJECT_TRAILER_BYTES,
               on_trailer);
}

static bool is_ours(const struct writer *writer, const struct object_id *id)
{
    return id->rank == writer->key.rank && id->writer == writer->key.writer;
}

static void next_object(struct asking *asking)
{
    while (asking->at < asking->count && !is_ours(asking->writer, &asking->objects[asking->at])) {
        asking->at++;
    }
    if (asking->at == asking->count) {
        finish(asking, 0, NULL);
        return;
    }
    asking->req = (struct store_req){.op = STORE_STAT,
                                     .done = on_stat,
                                     .run = asking->writer->run,
                                     .object = asking->objects[asking->at]};
    store_submit(asking->writer->ingest->store, &asking->req);
}

static void on_list(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    if (req->status != 0) {
        struct diag diag = req->diag;
        finish(asking, req->status, &diag);
        return;
    }
    asking->objects = req->ret_objects;
    asking->count = req->ret_count;
    next_object(asking);
}

void writer_have(struct writer *writer, struct writer_have *have)
{
    list_init(&have->link);
    list_add_tail(&writer->haves, &have->link);
    if (!writer->asking && !writer->hand) { /* after a hand-over: hand_over.c begins */
        writer_have_begin(writer);
    }
}

void writer_have_begin(struct writer *writer)
{
    struct asking *asking = calloc(1, sizeof(*asking));
    if (!asking) {
        answer(writer, CAIRN_E_NO_MEMORY, NULL);
        return;
    }
    writer->asking = true;
    writer_ref(writer);
    asking->writer = writer;
    asking->req = (struct store_req){
        .op = STORE_LIST_OBJECTS, .done = on_list, .run = writer->run, .id = writer->key.id};
    store_submit(writer->ingest->store, &asking->req);
}
