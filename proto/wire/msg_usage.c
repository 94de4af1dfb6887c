/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of USAGE and its answer. Pure.
 */
#include "codec_private.h"

static void usage_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_usage *usage = &msg->u.usage;
    Cairn__Usage pb = CAIRN__USAGE__INIT;
    Cairn__RunName after;
    pb.project = enc_name(usage->project);
    pb.after = usage->after.project[0] != '\0' ? enc_run(&usage->after, &after) : NULL;
    pb.since_ns = usage->since_ns;
    enc_pack(enc, &pb.base);
}

static void usage_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Usage *pb = message;
    struct msg_usage usage = {.project =
                                  dec_name(dec, "project", pb->project, 0, LIMIT_RUN_NAME_BYTES),
                              .since_ns = pb->since_ns};
    if (pb->after != NULL) {
        usage.after = dec_run(dec, "after", pb->after);
    }
    ret->u.usage = usage;
}

/* A row as protobuf sees it; its pointers point into it. */
struct row_pb {
    Cairn__UsageRow row;
    Cairn__RunName run;
};

static void row_to_pb(struct enc *enc, const struct msg_usage_row *row, struct row_pb *ret)
{
    Cairn__UsageRow *pb = &ret->row;
    cairn__usage_row__init(pb);
    pb->run = enc_run(&row->run, &ret->run);
    pb->code = row->code;
    pb->text = enc_text(enc, row->text);
    pb->saves = row->saves;
    pb->saves_aborted = row->saves_aborted;
    pb->restores = row->restores;
    pb->restores_failed = row->restores_failed;
    pb->written_bytes = row->written_bytes;
    pb->byte_hours = row->byte_hours;
    pb->checkpoints = row->checkpoints;
    pb->forgotten = row->forgotten;
    pb->plain_bytes = row->plain_bytes;
    pb->stored_bytes = row->stored_bytes;
    pb->shared_bytes = row->shared_bytes;
    pb->reclaimable_bytes = row->reclaimable_bytes;
    pb->newest_wall_ns = row->newest_wall_ns;
    pb->timed_saves = row->timed_saves;
    pb->blocked_ms = row->blocked_ms;
    pb->persist_ms = row->persist_ms;
}

static void row_from_pb(struct dec *dec, const Cairn__UsageRow *pb, struct msg_usage_row *ret)
{
    *ret = (struct msg_usage_row){.run = dec_run(dec, "rows.run", pb->run),
                                  .code = dec_code(dec, pb->code, DEC_OPTIONAL),
                                  .text = dec_text(dec, "rows.text", pb->text),
                                  .saves = pb->saves,
                                  .saves_aborted = pb->saves_aborted,
                                  .restores = pb->restores,
                                  .restores_failed = pb->restores_failed,
                                  .written_bytes = pb->written_bytes,
                                  .byte_hours = pb->byte_hours,
                                  .checkpoints = pb->checkpoints,
                                  .forgotten = pb->forgotten,
                                  .plain_bytes = pb->plain_bytes,
                                  .stored_bytes = pb->stored_bytes,
                                  .shared_bytes = pb->shared_bytes,
                                  .reclaimable_bytes = pb->reclaimable_bytes,
                                  .newest_wall_ns = pb->newest_wall_ns,
                                  .timed_saves = pb->timed_saves,
                                  .blocked_ms = pb->blocked_ms,
                                  .persist_ms = pb->persist_ms};
    if (!(pb->byte_hours >= 0)) {
        dec_fail(dec, "rows.byte_hours", "not a number of 0 or more");
    }
}

static void encode_quotas(struct enc *enc, const struct msg_usage_reply *reply,
                          Cairn__UsageReply *pb)
{
    Cairn__UsageQuota *quotas = enc_array(enc, reply->quota_count, sizeof(*quotas));
    pb->quotas = enc_array(enc, reply->quota_count, sizeof(Cairn__UsageQuota *));
    for (uint32_t i = 0; enc->status == 0 && i < reply->quota_count; i++) {
        cairn__usage_quota__init(&quotas[i]);
        quotas[i].project = enc_name(reply->quotas[i].project);
        quotas[i].bytes = reply->quotas[i].bytes;
        quotas[i].checkpoints = reply->quotas[i].checkpoints;
        pb->quotas[i] = &quotas[i];
        pb->n_quotas = i + 1;
    }
}

static void usage_reply_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_usage_reply *reply = &msg->u.usage_reply;
    Cairn__UsageReply pb = CAIRN__USAGE_REPLY__INIT;
    struct row_pb *rows = enc_array(enc, reply->count, sizeof(*rows));
    pb.rows = enc_array(enc, reply->count, sizeof(Cairn__UsageRow *));
    for (uint32_t i = 0; enc->status == 0 && i < reply->count; i++) {
        row_to_pb(enc, &reply->rows[i], &rows[i]);
        pb.rows[i] = &rows[i].row;
        pb.n_rows = i + 1;
    }
    pb.more = reply->more;
    pb.now_ns = reply->now_ns;
    encode_quotas(enc, reply, &pb);
    enc_pack(enc, &pb.base);
}

static void usage_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__UsageReply *pb = message;
    struct msg_usage_reply reply = {.count = (uint32_t)pb->n_rows,
                                    .more = pb->more,
                                    .now_ns = pb->now_ns,
                                    .quota_count = (uint32_t)pb->n_quotas};
    reply.rows = dec_array(dec, "rows", pb->n_rows, sizeof(*reply.rows), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_rows; i++) {
        row_from_pb(dec, pb->rows[i], &reply.rows[i]);
    }
    reply.quotas = dec_array(dec, "quotas", pb->n_quotas, sizeof(*reply.quotas), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_quotas; i++) {
        const Cairn__UsageQuota *quota = pb->quotas[i];
        reply.quotas[i] = (struct msg_usage_quota){
            .project = dec_name(dec, "quotas.project", quota->project, 1, LIMIT_RUN_NAME_BYTES),
            .bytes = quota->bytes,
            .checkpoints = quota->checkpoints};
    }
    ret->u.usage_reply = reply;
}

static const struct msg_codec CODECS[] = {
    {MSG_USAGE, "USAGE", false, &cairn__usage__descriptor, usage_encode, usage_decode},
    {MSG_USAGE_REPLY, "USAGE_REPLY", false, &cairn__usage_reply__descriptor, usage_reply_encode,
     usage_reply_decode},
};
const struct msg_family msg_family_usage = {CODECS, ARRAY_LEN(CODECS)};
