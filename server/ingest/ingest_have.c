/* SPDX-License-Identifier: Apache-2.0
 *
 * The durable objects of a writer. Those that this daemon has made durable are known. The others
 * are read back from the store: it lists the checkpoint's objects, and trailer and footer of each
 * that is this writer's and not known are read. An object whose footer cannot be decoded is left
 * out, and the client sends its chunks again.
 */
#include "ingest/ingest_private.h"

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

/* Lists the sequence numbers of the writer's durable objects. With `placed` only those whose chunks
 * have known places. */
static size_t list_held(const struct writer *writer, bool placed, uint32_t *ret)
{
    size_t count = 0;
    for (size_t i = 0; i < writer->durable_count; i++) {
        if (!placed || writer->durables[i].pieces) {
            ret[count++] = writer->durables[i].sequence;
        }
    }
    return count;
}

static int recovered_order(const void *a, const void *b)
{
    const struct recovered *x = a, *y = b;
    int order = memcmp(&x->digest, &y->digest, sizeof(x->digest));
    if (order == 0) {
        order = compare_u64(x->sequence, y->sequence);
    }
    return order != 0 ? order : compare_u64(x->offset, y->offset);
}

static bool is_to_recover(const struct durable *durable, uint32_t from)
{
    return from > 0 && durable->sequence >= from - 1 && !durable->pieces;
}

/* Makes writer->recovered: the chunks whose places are not known any more, sorted by digest, so
 * that they are found when they are described anew and are not written twice. It is made once and
 * whole, because workers read it. It never takes objects that an earlier opening of the same step
 * has left, because gc may have decided to remove them. */
static void recover(struct writer *writer, uint32_t from)
{
    size_t count = 0;
    for (size_t i = 0; i < writer->durable_count; i++) {
        const struct durable *durable = &writer->durables[i];
        count += is_to_recover(durable, from) ? durable->envelope_count : 0;
    }
    if (writer->recovered || count == 0 || writer->ingest->lanes == 0) {
        return;
    }
    struct recovered *recovered = calloc(count, sizeof(*recovered));
    size_t filled = 0;
    for (size_t i = 0; recovered && i < writer->durable_count; i++) {
        const struct durable *durable = &writer->durables[i];
        for (uint32_t e = 0; is_to_recover(durable, from) && e < durable->envelope_count; e++) {
            const struct envelope *envelope = &durable->envelopes[e];
            if (envelope->digest_alg == DIGEST_XXH3_128) {
                recovered[filled++] = (struct recovered){.digest = envelope->digest,
                                                         .plain_bytes = envelope->plain_bytes,
                                                         .sequence = durable->sequence,
                                                         .offset = envelope->offset};
            }
        }
    }
    CHECK(filled <= count);
    if (recovered) { /* without memory they are written again */
        qsort(recovered, filled, sizeof(*recovered), recovered_order);
    }
    writer->recovered = recovered;
    writer->recovered_count = filled;
}

/* Answers all questions that wait. For a client that wants only placed objects the chunks of the
 * others are made findable by digest first. */
static void answer(struct writer *writer, int status, const struct diag *diag)
{
    uint32_t *sequences = calloc(writer->durable_count + 1, sizeof(*sequences));
    if (!sequences) {
        status = CAIRN_E_NO_MEMORY;
    }
    struct list *node;
    while ((node = list_pop(&writer->haves))) {
        struct writer_have *have = list_item(node, struct writer_have, link);
        if (status == 0 && have->placed) {
            recover(writer, have->from);
        }
        size_t count = status == 0 ? list_held(writer, have->placed, sequences) : 0;
        have->done(have, status, diag, count, sequences);
    }
    free(sequences);
}

/* Ends the question about stored objects and answers the client. */
static void finish(struct asking *asking, int status, const struct diag *diag)
{
    struct writer *writer = asking->writer;
    CHECK(writer->asking);
    writer->asking = false;
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

/* Ends the question with BUSY if the store cannot answer at the moment. Its objects are not lost,
 * so the client asks again instead of sending them again, which a save in waves could not do.
 * Returns true if that was so. */
static bool is_for_the_moment(struct asking *asking)
{
    static const int codes[] = {CAIRN_E_TIMED_OUT,   CAIRN_E_BUSY,     CAIRN_E_NO_MEMORY,
                                CAIRN_E_UNREACHABLE, CAIRN_E_NO_SPACE, CAIRN_E_QUOTA};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        if (asking->req.status == codes[i]) {
            struct diag diag = DIAG_INIT;
            finish(asking,
                   diag_set(&diag, CAIRN_E_BUSY,
                            "the list of durable objects cannot be read at the moment: %s",
                            asking->req.diag.text),
                   &diag);
            return true;
        }
    }
    return false;
}

/* Takes the envelopes of an object that the store has, and goes on to the next object. */
static void on_footer(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    if (is_for_the_moment(asking)) {
        return;
    }
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
            /* A failure leaves the object out, and the client sends its chunks again. */
            struct durable durable = {.sequence = footer.id.sequence,
                                      .envelope_count = footer.envelope_count,
                                      .envelopes = envelopes};
            err_ignore(writer_add_durable(asking->writer, &durable));
        }
    }
    scratch_fini(&scratch);
    asking->at++;
    next_object(asking);
}

/* Finds the footer of an object by its trailer and reads it. */
static void on_trailer(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    uint64_t offset = 0, bytes = 0;
    int status = req->status;
    if (is_for_the_moment(asking)) {
        return;
    }
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

/* Reads the trailer of an object, now that its size is known. */
static void on_stat(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    if (is_for_the_moment(asking)) {
        return;
    }
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

/* Returns whether the store is to be asked for an object: it is this writer's, and nothing is known
 * of it yet. One that is under way tells of its own end, with the fate of each of its chunks; a
 * store may list it before its SEAL is answered. */
static bool is_wanted(struct writer *writer, const struct object_id *id)
{
    return id->rank == writer->key.rank && id->writer == writer->key.writer &&
           !writer_find_object(writer, id->sequence) && !writer_find_durable(writer, id->sequence);
}

/* Asks for the size of the next object of this writer. Ends the question after the last one. */
static void next_object(struct asking *asking)
{
    while (asking->at < asking->count && !is_wanted(asking->writer, &asking->objects[asking->at])) {
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

/* Called with the list of the checkpoint's objects. */
static void on_list(struct store_req *req)
{
    struct asking *asking = container_of(req, struct asking, req);
    if (is_for_the_moment(asking)) {
        return;
    }
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
    /* If a hand-over is running, its end begins the question. */
    if (!writer->asking && !writer->hand) {
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
    CHECK(!writer->asking);
    CHECK(!writer->hand);
    writer->asking = true;
    writer_ref(writer);
    asking->writer = writer;
    asking->req = (struct store_req){
        .op = STORE_LIST_OBJECTS, .done = on_list, .run = writer->run, .id = writer->key.id};
    store_submit(writer->ingest->store, &asking->req);
}
