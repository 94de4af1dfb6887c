/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the messages of a save: opening, credit, data, objects, part, seal, outcome, abort.
 * Pure.
 */
#include "codec_private.h"

#include <string.h>

static void open_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_open *open = &msg->u.open;
    Cairn__Open pb = CAIRN__OPEN__INIT;
    Cairn__CkptId parent;
    pb.step = open->step;
    pb.ordinal = open->ordinal;
    pb.parent = enc_ckpt(open->parent, &parent);
    pb.newest_seen = open->newest_seen;
    pb.open_id = open->open_id;
    pb.deadline_ms = open->deadline_ms;
    pb.wait_ms = open->wait_ms;
    pb.list_hash = enc_bytes(sizeof(open->list_hash), &open->list_hash);
    pb.metadata = enc_bytes(open->metadata_bytes, open->metadata);
    pb.tags = enc_tags(enc, open->tag_count, open->tags, &pb.n_tags);
    pb.metrics = enc_metrics(enc, open->metric_count, open->metrics, &pb.n_metrics);
    pb.full = open->full;
    pb.blocked_ms = open->blocked_ms;
    pb.persist_ms = open->persist_ms;
    pb.plain_bytes = open->plain_bytes;
    enc_pack(enc, &pb.base);
}

static void open_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Open *pb = message;
    struct msg_open open = {.step = pb->step,
                            .ordinal = pb->ordinal,
                            .parent = dec_ckpt(dec, "parent", pb->parent, DEC_OPTIONAL),
                            .newest_seen = pb->newest_seen,
                            .open_id = pb->open_id,
                            .deadline_ms = pb->deadline_ms,
                            .wait_ms = pb->wait_ms,
                            .full = pb->full,
                            .blocked_ms = pb->blocked_ms,
                            .persist_ms = pb->persist_ms,
                            .plain_bytes = pb->plain_bytes};
    dec_fixed(dec, "list_hash", pb->list_hash, sizeof(open.list_hash), &open.list_hash);
    uint8_t *metadata = dec_array(dec, "metadata", pb->metadata.len, 1, LIMIT_METADATA_BYTES);
    if (metadata != NULL && pb->metadata.len > 0) {
        memcpy(metadata, pb->metadata.data, pb->metadata.len);
        open.metadata = metadata;
        open.metadata_bytes = (uint32_t)pb->metadata.len;
    }
    open.tags = dec_tags(dec, "tags", pb->n_tags, pb->tags, &open.tag_count);
    open.metrics = dec_metrics(dec, pb->n_metrics, pb->metrics, &open.metric_count);
    ret->u.open = open;
}

static void opened_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_opened *opened = &msg->u.opened;
    Cairn__Opened pb = CAIRN__OPENED__INIT;
    Cairn__CkptId id, base;
    Cairn__ObjectId *sparse = enc_array(enc, opened->sparse_count, sizeof(*sparse));
    pb.sparse = enc_array(enc, opened->sparse_count, sizeof(*pb.sparse));
    for (uint32_t i = 0; enc->status == 0 && i < opened->sparse_count; i++) {
        pb.sparse[i] = enc_object(&opened->sparse[i], &sparse[i]);
        pb.n_sparse = i + 1;
    }
    pb.base_id = enc_ckpt(opened->base, &base);
    pb.id = enc_ckpt(opened->id, &id);
    pb.open_id = opened->open_id;
    pb.state = opened->state;
    pb.sealed = opened->sealed;
    pb.new_term = opened->new_term;
    pb.new_lineage = opened->new_lineage;
    pb.seq = opened->seq;
    pb.deadline_ms = opened->deadline_ms;
    pb.chunk_bytes = opened->chunk_bytes;
    pb.run_uuid = enc_bytes(sizeof(opened->run_uuid), &opened->run_uuid);
    enc_pack(enc, &pb.base);
}

static void opened_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Opened *pb = message;
    struct msg_opened opened = {.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                .open_id = pb->open_id,
                                .state = pb->state,
                                .sealed = pb->sealed,
                                .new_term = pb->new_term,
                                .new_lineage = pb->new_lineage,
                                .seq = pb->seq,
                                .deadline_ms = pb->deadline_ms,
                                .chunk_bytes = pb->chunk_bytes};
    dec_range(dec, "state", pb->state, 0, WIRE_STATE_MAX);
    dec_range(dec, "chunk_bytes", pb->chunk_bytes, LIMIT_CHUNK_BYTES_MIN, LIMIT_CHUNK_BYTES);
    dec_fixed(dec, "run_uuid", pb->run_uuid, sizeof(opened.run_uuid), &opened.run_uuid);
    opened.base = dec_ckpt(dec, "base_id", pb->base_id, DEC_OPTIONAL);
    opened.sparse =
        dec_array(dec, "sparse", pb->n_sparse, sizeof(*opened.sparse), OPENED_SPARSE_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_sparse; i++) {
        opened.sparse[i] = dec_object(dec, pb->sparse[i]);
    }
    opened.sparse_count = (uint32_t)pb->n_sparse;
    ret->u.opened = opened;
}

static void want_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Want pb = CAIRN__WANT__INIT;
    pb.buffers = msg->u.want.buffers;
    enc_pack(enc, &pb.base);
}

static void want_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Want *pb = message;
    dec_range(dec, "buffers", pb->buffers, 0, WIRE_REPEATED_MAX);
    ret->u.want = (struct msg_want){.buffers = pb->buffers};
}

static void grant_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Grant pb = CAIRN__GRANT__INIT;
    pb.buffers = msg->u.grant.buffers;
    enc_pack(enc, &pb.base);
}

static void grant_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Grant *pb = message;
    dec_range(dec, "buffers", pb->buffers, 0, WIRE_REPEATED_MAX);
    ret->u.grant = (struct msg_grant){.buffers = pb->buffers};
}

static ProtobufCBinaryData envelopes_encode(struct enc *enc, const struct msg_data *data)
{
    uint8_t *records = enc_array(enc, data->envelope_count, ENVELOPE_BYTES);
    for (uint32_t i = 0; records != NULL && i < data->envelope_count; i++) {
        envelope_encode(&data->envelopes[i], records + (size_t)i * ENVELOPE_BYTES);
    }
    return enc_bytes(records != NULL ? (size_t)data->envelope_count * ENVELOPE_BYTES : 0, records);
}

static void data_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_data *data = &msg->u.data;
    Cairn__Data pb = CAIRN__DATA__INIT;
    Cairn__ObjectId object;
    pb.object = enc_object(&data->object, &object);
    pb.offset = data->offset;
    pb.object_bytes = data->object_bytes;
    pb.envelopes = envelopes_encode(enc, data);
    enc_pack(enc, &pb.base);
}

/* Decodes the envelopes of a DATA, which are records of 96 bytes. */
static void envelopes_decode(struct dec *dec, ProtobufCBinaryData records, struct msg_data *data)
{
    if (records.len == 0 || records.len % ENVELOPE_BYTES != 0) {
        dec_fail(dec, "envelopes", "not one or more records of 96 bytes");
    }
    size_t count = records.len / ENVELOPE_BYTES;
    data->envelopes =
        dec_array(dec, "envelopes", count, sizeof(*data->envelopes), LIMIT_OBJECT_ENVELOPES);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        dec->status =
            envelope_decode(records.data + i * ENVELOPE_BYTES, &data->envelopes[i], dec->diag);
        if (dec->status != 0) {
            diag_add(dec->diag, "%s.envelopes[%zu]", dec->name, i);
        }
    }
    data->envelope_count = (uint32_t)count;
}

/* Checks the fields that DATA and DESCRIBE share. */
static void place_check(struct dec *dec, uint64_t offset, uint64_t object_bytes)
{
    dec_range(dec, "offset", offset, 0, LIMIT_OBJECT_BYTES);
    dec_range(dec, "object_bytes", object_bytes, 0, LIMIT_OBJECT_BYTES);
    if (offset % LIMIT_ALIGN_BYTES != 0) {
        dec_fail(dec, "offset", "not a multiple of 4096");
    }
}

static void data_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Data *pb = message;
    struct msg_data data = {.object = dec_object(dec, pb->object),
                            .offset = pb->offset,
                            .object_bytes = pb->object_bytes};
    place_check(dec, pb->offset, pb->object_bytes);
    envelopes_decode(dec, pb->envelopes, &data);
    ret->u.data = data;
}

enum { DESCRIBE_ENCODE_MAX = 2 }; /* enum encode_mode of pipeline/adapt.h */

static void describe_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_describe *describe = &msg->u.describe;
    Cairn__Describe pb = CAIRN__DESCRIBE__INIT;
    Cairn__ObjectId object;
    pb.object = enc_object(&describe->data.object, &object);
    pb.offset = describe->data.offset;
    pb.object_bytes = describe->data.object_bytes;
    pb.envelopes = envelopes_encode(enc, &describe->data);
    pb.arena_id = describe->arena_id;
    pb.arena_offset = describe->arena_offset;
    pb.bytes = describe->bytes;
    pb.encode = describe->encode;
    pb.n_dtypes = describe->dtype_count;
    pb.dtypes = describe->dtypes;
    pb.tensor = describe->tensor;
    enc_pack(enc, &pb.base);
}

static void describe_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Describe *pb = message;
    struct msg_describe describe = {.data = {.object = dec_object(dec, pb->object),
                                             .offset = pb->offset,
                                             .object_bytes = pb->object_bytes},
                                    .arena_id = pb->arena_id,
                                    .arena_offset = pb->arena_offset,
                                    .bytes = pb->bytes,
                                    .encode = pb->encode,
                                    .dtype_count = (uint32_t)pb->n_dtypes,
                                    .tensor = pb->tensor};
    place_check(dec, pb->offset, pb->object_bytes);
    dec_range(dec, "bytes", pb->bytes, 1, LIMIT_CHUNK_BYTES);
    if (pb->arena_offset % LIMIT_ALIGN_BYTES != 0) {
        dec_fail(dec, "arena_offset", "not a multiple of 4096");
    }
    envelopes_decode(dec, pb->envelopes, &describe.data);
    dec_range(dec, "encode", pb->encode, 0, DESCRIBE_ENCODE_MAX);
    if (pb->n_dtypes != 0 && pb->n_dtypes != describe.data.envelope_count) {
        dec_fail(dec, "dtypes", "not one a chunk");
    }
    describe.dtypes =
        dec_array(dec, "dtypes", pb->n_dtypes, sizeof(*describe.dtypes), LIMIT_OBJECT_ENVELOPES);
    if (describe.dtypes != NULL && pb->n_dtypes > 0) {
        memcpy(describe.dtypes, pb->dtypes, pb->n_dtypes * sizeof(*describe.dtypes));
    }
    ret->u.describe = describe;
}

static void arena_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Arena pb = CAIRN__ARENA__INIT;
    pb.arena_id = msg->u.arena.arena_id;
    pb.bytes = msg->u.arena.bytes;
    enc_pack(enc, &pb.base);
}

static void arena_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Arena *pb = message;
    dec_range(dec, "arena_id", pb->arena_id, 1, UINT64_MAX);
    ret->u.arena = (struct msg_arena){.arena_id = pb->arena_id, .bytes = pb->bytes};
}

static void complete_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Complete pb = CAIRN__COMPLETE__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.complete.id, &id);
    pb.open_id = msg->u.complete.open_id;
    pb.part_bytes = msg->u.complete.part_bytes;
    enc_pack(enc, &pb.base);
}

static void complete_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Complete *pb = message;
    dec_range(dec, "part_bytes", pb->part_bytes, 1, LIMIT_PART_BYTES);
    ret->u.complete = (struct msg_complete){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                            .open_id = pb->open_id,
                                            .part_bytes = pb->part_bytes};
}

static void handed_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Handed pb = CAIRN__HANDED__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.handed.id, &id);
    enc_pack(enc, &pb.base);
}

static void handed_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Handed *pb = message;
    ret->u.handed = (struct msg_handed){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED)};
}

static void object_end_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_object_end *end = &msg->u.object_end;
    Cairn__ObjectEnd pb = CAIRN__OBJECT_END__INIT;
    Cairn__ObjectId object;
    pb.object = enc_object(&end->object, &object);
    pb.data_bytes = end->data_bytes;
    pb.envelope_count = end->envelope_count;
    enc_pack(enc, &pb.base);
}

static void object_end_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ObjectEnd *pb = message;
    dec_range(dec, "data_bytes", pb->data_bytes, LIMIT_ALIGN_BYTES, LIMIT_OBJECT_BYTES);
    if (pb->data_bytes % LIMIT_ALIGN_BYTES != 0) {
        dec_fail(dec, "data_bytes", "not a multiple of 4096");
    }
    dec_range(dec, "envelope_count", pb->envelope_count, 1, LIMIT_OBJECT_ENVELOPES);
    ret->u.object_end = (struct msg_object_end){.object = dec_object(dec, pb->object),
                                                .data_bytes = pb->data_bytes,
                                                .envelope_count = pb->envelope_count};
}

static void object_durable_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__ObjectDurable pb = CAIRN__OBJECT_DURABLE__INIT;
    Cairn__ObjectId object;
    pb.object = enc_object(&msg->u.object_durable.object, &object);
    enc_pack(enc, &pb.base);
}

static void object_durable_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ObjectDurable *pb = message;
    ret->u.object_durable = (struct msg_object_durable){.object = dec_object(dec, pb->object)};
}

static void have_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Have pb = CAIRN__HAVE__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.have.id, &id);
    pb.rank = msg->u.have.rank;
    pb.writer = msg->u.have.writer;
    pb.placed = msg->u.have.placed;
    pb.from = msg->u.have.from;
    enc_pack(enc, &pb.base);
}

static void have_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Have *pb = message;
    dec_range(dec, "rank", pb->rank, 0, LIMIT_WORLD_SIZE - 1);
    ret->u.have = (struct msg_have){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                    .rank = pb->rank,
                                    .writer = pb->writer,
                                    .placed = pb->placed,
                                    .from = pb->from};
}

static void held_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Held pb = CAIRN__HELD__INIT;
    pb.n_sequences = msg->u.held.count;
    pb.sequences = msg->u.held.sequences;
    enc_pack(enc, &pb.base);
}

static void held_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Held *pb = message;
    uint32_t *sequences =
        dec_array(dec, "sequences", pb->n_sequences, sizeof(*sequences), WIRE_REPEATED_MAX);
    if (sequences != NULL && pb->n_sequences > 0) {
        memcpy(sequences, pb->sequences, pb->n_sequences * sizeof(*sequences));
    }
    ret->u.held = (struct msg_held){.count = (uint32_t)pb->n_sequences, .sequences = sequences};
}

static void part_encode_msg(struct enc *enc, const struct msg *msg)
{
    Cairn__Part pb = CAIRN__PART__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.part.id, &id);
    pb.open_id = msg->u.part.open_id;
    pb.offset = msg->u.part.offset;
    pb.total_bytes = msg->u.part.total_bytes;
    enc_pack(enc, &pb.base);
}

static void part_decode_msg(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Part *pb = message;
    dec_range(dec, "total_bytes", pb->total_bytes, 1, LIMIT_PART_BYTES);
    dec_range(dec, "offset", pb->offset, 0, pb->total_bytes);
    ret->u.part = (struct msg_part){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                    .open_id = pb->open_id,
                                    .offset = pb->offset,
                                    .total_bytes = pb->total_bytes};
}

static void seal_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_seal *seal = &msg->u.seal;
    Cairn__Seal pb = CAIRN__SEAL__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(seal->id, &id);
    pb.open_id = seal->open_id;
    pb.part_bytes = seal->part_bytes;
    pb.part_sha256 = enc_bytes(sizeof(seal->part_sha256), &seal->part_sha256);
    enc_pack(enc, &pb.base);
}

static void seal_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Seal *pb = message;
    struct msg_seal seal = {.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                            .open_id = pb->open_id,
                            .part_bytes = pb->part_bytes};
    dec_range(dec, "part_bytes", pb->part_bytes, 1, LIMIT_PART_BYTES);
    dec_fixed(dec, "part_sha256", pb->part_sha256, sizeof(seal.part_sha256), &seal.part_sha256);
    ret->u.seal = seal;
}

static void sealed_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Sealed pb = CAIRN__SEALED__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.sealed.id, &id);
    pb.stored_bytes = msg->u.sealed.stored_bytes;
    pb.shared_bytes = msg->u.sealed.shared_bytes;
    enc_pack(enc, &pb.base);
}

static void sealed_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Sealed *pb = message;
    ret->u.sealed = (struct msg_sealed){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                        .stored_bytes = pb->stored_bytes,
                                        .shared_bytes = pb->shared_bytes};
}

static void wait_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Wait pb = CAIRN__WAIT__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.wait.id, &id);
    pb.open_id = msg->u.wait.open_id;
    enc_pack(enc, &pb.base);
}

static void wait_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Wait *pb = message;
    ret->u.wait =
        (struct msg_wait){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED), .open_id = pb->open_id};
}

static void outcome_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_outcome *outcome = &msg->u.outcome;
    Cairn__Outcome pb = CAIRN__OUTCOME__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(outcome->id, &id);
    pb.open_id = outcome->open_id;
    pb.state = outcome->state;
    pb.code = outcome->code;
    pb.text = enc_text(enc, outcome->text);
    pb.seq = outcome->seq;
    enc_pack(enc, &pb.base);
}

static void outcome_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Outcome *pb = message;
    dec_range(dec, "state", pb->state, 0, WIRE_STATE_MAX);
    ret->u.outcome = (struct msg_outcome){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                          .open_id = pb->open_id,
                                          .state = pb->state,
                                          .code = dec_code(dec, pb->code, DEC_OPTIONAL),
                                          .text = dec_text(dec, "text", pb->text),
                                          .seq = pb->seq};
}

static void abort_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Abort pb = CAIRN__ABORT__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.abort.id, &id);
    pb.open_id = msg->u.abort.open_id;
    pb.code = msg->u.abort.code;
    pb.reason = enc_text(enc, msg->u.abort.reason);
    enc_pack(enc, &pb.base);
}

static void abort_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Abort *pb = message;
    ret->u.abort = (struct msg_abort){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                                      .open_id = pb->open_id,
                                      .code = dec_code(dec, pb->code, DEC_OPTIONAL),
                                      .reason = dec_text(dec, "reason", pb->reason)};
}

static const struct msg_codec CODECS[] = {
    {MSG_OPEN, "OPEN", false, &cairn__open__descriptor, open_encode, open_decode},
    {MSG_OPENED, "OPENED", false, &cairn__opened__descriptor, opened_encode, opened_decode},
    {MSG_WANT, "WANT", false, &cairn__want__descriptor, want_encode, want_decode},
    {MSG_GRANT, "GRANT", false, &cairn__grant__descriptor, grant_encode, grant_decode},
    {MSG_DATA, "DATA", true, &cairn__data__descriptor, data_encode, data_decode},
    {MSG_OBJECT_END, "OBJECT_END", false, &cairn__object_end__descriptor, object_end_encode,
     object_end_decode},
    {MSG_OBJECT_DURABLE, "OBJECT_DURABLE", false, &cairn__object_durable__descriptor,
     object_durable_encode, object_durable_decode},
    {MSG_HAVE, "HAVE", false, &cairn__have__descriptor, have_encode, have_decode},
    {MSG_HELD, "HELD", false, &cairn__held__descriptor, held_encode, held_decode},
    {MSG_PART, "PART", true, &cairn__part__descriptor, part_encode_msg, part_decode_msg},
    {MSG_SEAL, "SEAL", false, &cairn__seal__descriptor, seal_encode, seal_decode},
    {MSG_SEALED, "SEALED", false, &cairn__sealed__descriptor, sealed_encode, sealed_decode},
    {MSG_WAIT, "WAIT", false, &cairn__wait__descriptor, wait_encode, wait_decode},
    {MSG_OUTCOME, "OUTCOME", false, &cairn__outcome__descriptor, outcome_encode, outcome_decode},
    {MSG_ABORT, "ABORT", false, &cairn__abort__descriptor, abort_encode, abort_decode},
    {MSG_ARENA, "ARENA", false, &cairn__arena__descriptor, arena_encode, arena_decode},
    {MSG_DESCRIBE, "DESCRIBE", false, &cairn__describe__descriptor, describe_encode,
     describe_decode},
    {MSG_COMPLETE, "COMPLETE", false, &cairn__complete__descriptor, complete_encode,
     complete_decode},
    {MSG_HANDED, "HANDED", false, &cairn__handed__descriptor, handed_encode, handed_decode},
};
const struct msg_family msg_family_save = {CODECS, ARRAY_LEN(CODECS)};
