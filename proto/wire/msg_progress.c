/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of PROGRESS and its answer. Pure.
 */
#include "codec_private.h"

static void progress_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Progress pb = CAIRN__PROGRESS__INIT;
    pb.project = enc_name(msg->u.progress.project);
    enc_pack(enc, &pb.base);
}

static void progress_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Progress *pb = message;
    ret->u.progress = (struct msg_progress){
        .project = dec_name(dec, "project", pb->project, 0, LIMIT_RUN_NAME_BYTES)};
}

struct row_pb { /* the pointers are into it */
    Cairn__ProgressRow row;
    Cairn__RunName run;
    Cairn__CkptId id;
};

static void row_to_pb(const struct msg_progress_row *row, struct row_pb *ret)
{
    Cairn__ProgressRow *pb = &ret->row;
    cairn__progress_row__init(pb);
    pb->run = enc_run(&row->run, &ret->run);
    pb->id = enc_ckpt(row->id, &ret->id);
    pb->rank = row->rank;
    pb->world_size = row->world_size;
    pb->received_bytes = row->received_bytes;
    pb->durable_bytes = row->durable_bytes;
    pb->age_ms = row->age_ms;
    pb->quiet_ms = row->quiet_ms;
    pb->connected = row->connected;
    pb->handed_over = row->handed_over;
}

static void row_from_pb(struct dec *dec, const Cairn__ProgressRow *pb, struct msg_progress_row *ret)
{
    *ret = (struct msg_progress_row){.run = dec_run(dec, "rows.run", pb->run),
                                     .id = dec_ckpt(dec, "rows.id", pb->id, DEC_OPTIONAL),
                                     .rank = pb->rank,
                                     .world_size = pb->world_size,
                                     .received_bytes = pb->received_bytes,
                                     .durable_bytes = pb->durable_bytes,
                                     .age_ms = pb->age_ms,
                                     .quiet_ms = pb->quiet_ms,
                                     .connected = pb->connected,
                                     .handed_over = pb->handed_over};
    dec_range(dec, "rows.world_size", pb->world_size, 0, LIMIT_WORLD_SIZE);
}

static void progress_reply_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_progress_reply *reply = &msg->u.progress_reply;
    Cairn__ProgressReply pb = CAIRN__PROGRESS_REPLY__INIT;
    struct row_pb *rows = enc_array(enc, reply->count, sizeof(*rows));
    pb.rows = enc_array(enc, reply->count, sizeof(Cairn__ProgressRow *));
    for (uint32_t i = 0; enc->status == 0 && i < reply->count; i++) {
        row_to_pb(&reply->rows[i], &rows[i]);
        pb.rows[i] = &rows[i].row;
        pb.n_rows = i + 1;
    }
    pb.more = reply->more;
    enc_pack(enc, &pb.base);
}

static void progress_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ProgressReply *pb = message;
    struct msg_progress_reply reply = {.count = (uint32_t)pb->n_rows, .more = pb->more};
    reply.rows = dec_array(dec, "rows", pb->n_rows, sizeof(*reply.rows), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_rows; i++) {
        row_from_pb(dec, pb->rows[i], &reply.rows[i]);
    }
    ret->u.progress_reply = reply;
}

static const struct msg_codec CODECS[] = {
    {MSG_PROGRESS, "PROGRESS", false, &cairn__progress__descriptor, progress_encode,
     progress_decode},
    {MSG_PROGRESS_REPLY, "PROGRESS_REPLY", false, &cairn__progress_reply__descriptor,
     progress_reply_encode, progress_reply_decode},
};
const struct msg_family msg_family_progress = {CODECS, ARRAY_LEN(CODECS)};
