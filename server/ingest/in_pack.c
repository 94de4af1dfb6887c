/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests, compares and encodes a payload that the client has described (DESCRIBE) and that lies in
 * the client's arena. Digests are always made. The chunks are compared with those that are already
 * durable, and encoded, only where pack_is_due() says so. The worker touches only the write, the
 * arena (read-only) and the writer's immutable fields.
 *
 * What adaptive encoding has learnt about a tensor outlives saves, in a table of fixed size. Two
 * tensors that share a slot learn anew in turn, which costs a sample each time.
 */
#include "ingest/ingest_private.h"

#include "base/check.h"
#include "pipeline/chunk.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLE_EVERY = 64 };

/* --- what is learnt --- */

/* Returns what was learnt about the write's tensor. Begins anew if another tensor has the slot.
 * Returns NULL if there is no memory. */
static struct encode_state *state_of(struct ingest *ingest, const struct mapped_write *write)
{
    if (!ingest->learnt) {
        ingest->learnt = calloc(LEARNT_ENTRIES, sizeof(*ingest->learnt));
    }
    if (!ingest->learnt) {
        return NULL;
    }
    uint64_t key = write->tensor;
    struct learnt *learnt = &ingest->learnt[key % LEARNT_ENTRIES];
    if (learnt->key != key || learnt->state.policy.mode != write->encode) {
        struct encode_policy policy = {.mode = write->encode, .sample_every = SAMPLE_EVERY};
        learnt->key = key;
        encode_state_init(&learnt->state, &policy);
    }
    return &learnt->state;
}

static bool is_whole(const struct mapped_write *write)
{
    return write->base.envelope_count == 1 &&
           write->base.envelopes[0].plain_bytes >= LIMIT_PACK_PIECE_BYTES;
}

static struct encode_sink sink_of(const struct ingest *ingest)
{
    return (struct encode_sink){.bytes_per_s = ingest->encode_pool.rate.bytes_per_s,
                                .workers = ingest->lanes > 0 ? ingest->lanes : 1};
}

/* Returns true if a sample is due: for a tensor that has none yet, and each time the encoder's
 * policy asks for one. */
static bool sample_is_due(struct encode_state *state)
{
    bool is_new = true;
    for (unsigned i = 0; i < ENCODE_CANDIDATES; i++) {
        is_new = is_new && state->candidates[i].sample.plain_bytes == 0;
    }
    return encode_state_next(state) || is_new;
}

/* --- what is due --- */

/* Returns true if a chunk of the write may be stored already, so that it is worth packing. */
static bool has_known(const struct mapped_write *write)
{
    if (write->base.object->writer->recovered) {
        return true;
    }
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        const struct digest *digest = &write->base.envelopes[i].digest;
        if (!is_all_zero(sizeof(digest->bytes), digest->bytes)) {
            return true;
        }
    }
    return false;
}

bool pack_is_due(const struct ingest *ingest, const struct mapped_write *write)
{
    if (has_known(write) || write->encode == ENCODE_DENSEST) {
        return true;
    }
    if (write->encode != ENCODE_ADAPTIVE || !is_whole(write) || !ingest->learnt) {
        return false;
    }
    const struct learnt *learnt = &ingest->learnt[write->tensor % LEARNT_ENTRIES];
    struct encode_sink sink = sink_of(ingest);
    return learnt->key == write->tensor && learnt->state.policy.mode == write->encode &&
           encode_state_choose(&learnt->state, &sink) != ENCODING_RAW;
}

/* Sets what the worker shall try. Returns true if it needs an encoder. */
static bool note_state(struct ingest *ingest, struct mapped_write *write)
{
    struct encode_state *state = NULL;
    write->seal = (struct payload_seal){.piece_count = write->base.envelope_count};
    if (write->encode == ENCODE_NEVER || ingest->lanes == 0) {
        return false;
    }
    if (!is_whole(write)) {
        return write->pack != PACK_NOT && write->encode == ENCODE_DENSEST;
    }
    state = state_of(ingest, write);
    if (!state) {
        return false;
    }
    write->seal.sample = sample_is_due(state);
    write->seal.state = *state;
    write->seal.sink = sink_of(ingest);
    return write->seal.sample || (write->pack != PACK_NOT &&
                                  encode_state_choose(state, &write->seal.sink) != ENCODING_RAW);
}

bool pack_begin(struct mapped_write *write)
{
    const struct writer *writer = write->base.object->writer;
    struct ingest *ingest = writer->ingest;
    CHECK(!write->encoder);
    CHECK(!write->buffer);
    write->recovered = writer->recovered;
    write->recovered_count = writer->recovered_count;
    bool encodes = note_state(ingest, write);
    bool needs_buffer = write->pack != PACK_NOT &&
                        (encodes || (write->base.envelope_count > 1 && has_known(write)));
    if (encodes) {
        write->encoder = encode_pool_take_encoder(&ingest->encode_pool);
    }
    if (needs_buffer) {
        write->buffer = encode_pool_take_buffer(&ingest->encode_pool);
    }
    if (write->pack == PACK_NOT && !write->encoder) {
        write->seal.sample = false; /* another time: the write does not wait for a sample */
        return true;
    }
    if ((needs_buffer && !write->buffer) || (encodes && !write->encoder)) {
        encode_pool_give_encoder(write->encoder);
        encode_pool_give_buffer(write->buffer);
        write->encoder = NULL;
        write->buffer = NULL;
        return false;
    }
    return true;
}

/* --- on a worker --- */

static struct chunk_plain plain_of(const struct mapped_write *write, uint32_t idx)
{
    const struct envelope *envelope = &write->base.envelopes[idx];
    return (struct chunk_plain){.bytes = envelope->plain_bytes,
                                .data = write->base.payload + envelope->offset,
                                .shape = planes_shape_of_dtype(write->dtypes[idx]),
                                .element_bytes = envelope->element_bytes,
                                .digest_alg = DIGEST_XXH3_128};
}

/* Checks that the payload is zero between its chunks, because it may be written as it is. */
static int check_padding(struct mapped_write *write)
{
    uint64_t at = 0, padded = round_up_u64(write->base.payload_bytes, LIMIT_ALIGN_BYTES);
    bool is_zero = true;
    for (uint32_t i = 0; i < write->base.envelope_count && is_zero; i++) {
        const struct envelope *envelope = &write->base.envelopes[i];
        is_zero = is_all_zero(envelope->offset - at, write->base.payload + at);
        at = envelope->offset + envelope->stored_bytes;
    }
    if (!is_zero || !is_all_zero(padded - at, write->base.payload + at)) {
        return diag_set(&write->diag, CAIRN_E_DIGEST_MISMATCH,
                        "the padding beside a chunk is not zero");
    }
    return 0;
}

/* Makes the envelopes of chunks that are stored as they are, and samples if they are due. */
static void digest_raw(struct mapped_write *write, struct encoder *encoder)
{
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        struct envelope *envelope = &write->base.envelopes[i];
        struct chunk_plain plain = plain_of(write, i);
        uint64_t offset = envelope->offset;
        chunk_seal_raw(plain.bytes, plain.data, plain.element_bytes, envelope);
        envelope->offset = offset;
        if (encoder && write->seal.sample) {
            payload_seal_sample(&write->seal, encoder, &plain);
        }
    }
}

/* Returns the first recovered chunk with the same bytes, or NULL. `known` is the digest of the
 * base's chunk; a chunk that equals it is not looked for. */
static const struct recovered *find_recovered(const struct mapped_write *write,
                                              const struct chunk_plain *plain,
                                              const struct digest *known)
{
    struct envelope envelope;
    size_t low = 0, high = write->recovered_count;
    if (high == 0) {
        return NULL;
    }
    chunk_seal_raw(plain->bytes, plain->data, plain->element_bytes, &envelope);
    if (known && digest_equal(known, &envelope.digest)) {
        return NULL;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (memcmp(&write->recovered[middle].digest, &envelope.digest, sizeof(struct digest)) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct recovered *found = &write->recovered[low];
    return low < write->recovered_count && found->plain_bytes == plain->bytes &&
                   digest_equal(&found->digest, &envelope.digest)
               ? found
               : NULL;
}

/* Leaves out the chunks that are already durable and encodes the others. The envelopes of the
 * stored chunks move to the front. */
static void pack(struct mapped_write *write, struct encoder *encoder)
{
    struct payload_seal *seal = &write->seal;
    seal->room = write->buffer ? write->buffer->memory : NULL;
    seal->encoder = seal->room ? encoder : NULL;
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        struct envelope *to = &write->base.envelopes[seal->new_count], made;
        struct in_piece *piece = &write->pieces[i];
        const struct digest known = write->base.envelopes[i].digest;
        uint64_t offset = write->base.envelopes[i].offset;
        struct payload_piece one = {.plain = plain_of(write, i)};
        one.known = is_all_zero(sizeof(known.bytes), known.bytes) ? NULL : &known;
        const struct recovered *older = find_recovered(write, &one.plain, one.known);
        one.is_left_out = older != NULL;
        if (payload_seal_piece(seal, &one, &made)) {
            piece->where = WHERE_STORED;
            piece->at = offset; /* offset in the payload, for now */
            *to = made;
        } else if (older) {
            piece->where = WHERE_OLDER;
            piece->older = (uint32_t)(older - write->recovered);
        } else {
            piece->where = WHERE_BASE;
            piece->digest = known;
        }
    }
    if (!seal->is_moved) { /* everything is stored as it is */
        for (uint32_t i = 0; i < seal->new_count; i++) {
            write->base.envelopes[i].offset = write->pieces[i].at;
        }
    } else if (seal->new_count > 0) {
        CHECK(seal->room != NULL); /* the memory that it was moved to */
        memset(seal->room + seal->bytes, 0,
               round_up_u64(seal->bytes, LIMIT_ALIGN_BYTES) - seal->bytes);
    }
}

void pack_run(struct work *work)
{
    struct mapped_write *write = container_of(work, struct mapped_write, work);
    uint32_t most = 1;
    write->status = check_padding(write);
    if (write->status != 0) {
        return;
    }
    for (uint32_t i = 0; i < write->base.envelope_count; i++) {
        uint32_t bytes = write->base.envelopes[i].plain_bytes;
        most = bytes > most ? bytes : most;
    }
    struct encoder *encoder = write->encoder ? pool_encoder_get(write->encoder, most) : NULL;
    if (write->pack != PACK_NOT) {
        pack(write, encoder);
    } else {
        digest_raw(write, encoder);
    }
}

/* --- back on the loop --- */

void pack_end(struct mapped_write *write)
{
    struct ingest *ingest = write->base.object->writer->ingest;
    if (write->encoder && is_whole(write)) {
        struct encode_state *state = state_of(ingest, write);
        if (state) {
            payload_seal_learn(&write->seal, state);
        }
    }
    encode_pool_give_encoder(write->encoder);
    write->encoder = NULL;
    if (write->pack == PACK_NOT) {
        return;
    }
    if (!write->seal.is_moved || write->seal.new_count == 0 || write->status != 0) {
        encode_pool_give_buffer(write->buffer);
        write->buffer = NULL;
    } else {
        CHECK(write->buffer != NULL);
        write->base.payload = write->buffer->memory;
        write->base.payload_bytes = write->seal.bytes;
    }
}
