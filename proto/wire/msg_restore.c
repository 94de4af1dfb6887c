/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the messages of a restore: session, verdict, fetch, plan, read. Pure.
 */
#include "codec_private.h"

static void restore_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_restore *restore = &msg->u.restore;
    Cairn__Restore pb = CAIRN__RESTORE__INIT;
    Cairn__Selector selector;
    Cairn__CkptId id;
    pb.ordinal = restore->ordinal;
    pb.selector = enc_selector(restore->selector, &selector, &id);
    pb.allow_older = restore->allow_older;
    pb.wait_ms = restore->wait_ms;
    enc_pack(enc, &pb.base);
}

static void restore_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Restore *pb = message;
    ret->u.restore = (struct msg_restore){.ordinal = pb->ordinal,
                                          .selector = dec_selector(dec, pb->selector),
                                          .allow_older = pb->allow_older,
                                          .wait_ms = pb->wait_ms};
}

static void resolved_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_resolved *resolved = &msg->u.resolved;
    Cairn__Resolved pb = CAIRN__RESOLVED__INIT;
    Cairn__CkptId id;
    struct ckpt_info_pb info;
    pb.empty = resolved->empty;
    pb.fell_back = resolved->fell_back;
    pb.id = enc_ckpt(resolved->id, &id);
    pb.try_count = resolved->try_count;
    pb.newest_term = resolved->newest_term;
    ckpt_info_to_pb(enc, &resolved->info, &info);
    pb.info = &info.info;
    enc_pack(enc, &pb.base);
}

static void resolved_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Resolved *pb = message;
    ret->u.resolved = (struct msg_resolved){
        .empty = pb->empty,
        .fell_back = pb->fell_back,
        .id = dec_ckpt(dec, "id", pb->id, pb->empty ? DEC_OPTIONAL : DEC_REQUIRED),
        .try_count = pb->try_count,
        .newest_term = pb->newest_term};
    ckpt_info_from_pb(dec, pb->info, &ret->u.resolved.info);
}

static void report_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_report *report = &msg->u.report;
    Cairn__Report pb = CAIRN__REPORT__INIT;
    pb.ordinal = report->ordinal;
    pb.try_count = report->try_count;
    pb.code = report->code;
    pb.reason = enc_text(enc, report->reason);
    pb.wait_ms = report->wait_ms;
    enc_pack(enc, &pb.base);
}

static void report_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Report *pb = message;
    ret->u.report = (struct msg_report){.ordinal = pb->ordinal,
                                        .try_count = pb->try_count,
                                        .code = dec_code(dec, pb->code, DEC_OPTIONAL),
                                        .reason = dec_text(dec, "reason", pb->reason),
                                        .wait_ms = pb->wait_ms};
}

static void verdict_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_verdict *verdict = &msg->u.verdict;
    Cairn__Verdict pb = CAIRN__VERDICT__INIT;
    Cairn__CkptId id;
    struct ckpt_info_pb info;
    pb.done = verdict->done;
    pb.fell_back = verdict->fell_back;
    pb.code = verdict->code;
    pb.text = enc_text(enc, verdict->text);
    pb.id = enc_ckpt(verdict->id, &id);
    pb.try_count = verdict->try_count;
    pb.newest_term = verdict->newest_term;
    ckpt_info_to_pb(enc, &verdict->info, &info);
    pb.info = &info.info;
    enc_pack(enc, &pb.base);
}

static void verdict_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Verdict *pb = message;
    if (pb->done && pb->code != 0) {
        dec_fail(dec, "done", "set together with an error");
    }
    ret->u.verdict = (struct msg_verdict){
        .done = pb->done,
        .fell_back = pb->fell_back,
        .code = dec_code(dec, pb->code, DEC_OPTIONAL),
        .text = dec_text(dec, "text", pb->text),
        .id = dec_ckpt(dec, "id", pb->id, pb->code != 0 ? DEC_OPTIONAL : DEC_REQUIRED),
        .try_count = pb->try_count,
        .newest_term = pb->newest_term};
    ckpt_info_from_pb(dec, pb->info, &ret->u.verdict.info);
}

static void fetch_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Fetch pb = CAIRN__FETCH__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.fetch.id, &id);
    pb.kind = msg->u.fetch.kind;
    pb.number = msg->u.fetch.number;
    enc_pack(enc, &pb.base);
}

static void fetch_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Fetch *pb = message;
    dec_range(dec, "kind", pb->kind, 1, 3);
    ret->u.fetch = (struct msg_fetch){
        .id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED), .kind = pb->kind, .number = pb->number};
}

static void bytes_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Bytes pb = CAIRN__BYTES__INIT;
    pb.offset = msg->u.bytes.offset;
    pb.total_bytes = msg->u.bytes.total_bytes;
    enc_pack(enc, &pb.base);
}

static void bytes_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Bytes *pb = message;
    dec_range(dec, "total_bytes", pb->total_bytes, 0, LIMIT_PART_BYTES);
    dec_range(dec, "offset", pb->offset, 0, pb->total_bytes);
    ret->u.bytes = (struct msg_bytes){.offset = pb->offset, .total_bytes = pb->total_bytes};
}

static void want_to_pb(struct enc *enc, const struct plan_want *want, Cairn__PlanWant *ret)
{
    cairn__plan_want__init(ret);
    ret->is_blob = want->is_blob;
    ret->name = enc_name(want->name);
    ret->coordinate = enc_name(want->coordinate);
    if (want->is_blob) {
        return;
    }
    CHECK(want->shape.ndim <= LIMIT_NDIM);
    CHECK(want->box.ndim == want->shape.ndim);
    uint32_t ndim = want->shape.ndim;
    ret->dtype = want->dtype;
    uint64_t *numbers = enc_array(enc, (size_t)3 * ndim, sizeof(*numbers));
    if (numbers == NULL) {
        return; /* a scalar, or out of memory */
    }
    for (uint32_t i = 0; i < ndim; i++) {
        numbers[i] = (uint64_t)want->shape.length[i];
        numbers[ndim + i] = (uint64_t)want->box.offset[i];
        numbers[2 * ndim + i] = (uint64_t)want->box.length[i];
    }
    ret->n_shape = ret->n_box_offset = ret->n_box_length = ndim;
    ret->shape = numbers;
    ret->box_offset = numbers + ndim;
    ret->box_length = numbers + (size_t)2 * ndim;
}

static void plan_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_plan *plan = &msg->u.plan;
    Cairn__Plan pb = CAIRN__PLAN__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(plan->id, &id);
    Cairn__PlanWant *wants = enc_array(enc, plan->want_count, sizeof(*wants));
    pb.wants = enc_array(enc, plan->want_count, sizeof(*pb.wants));
    for (uint32_t i = 0; enc->status == 0 && i < plan->want_count; i++) {
        want_to_pb(enc, &plan->wants[i], &wants[i]);
        pb.wants[i] = &wants[i];
        pb.n_wants = i + 1;
    }
    enc_pack(enc, &pb.base);
}

static void dims_from_pb(struct dec *dec, const char *field, size_t count, const uint64_t *from,
                         int64_t *ret)
{
    dec_range(dec, field, count, 0, LIMIT_NDIM);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        dec_range(dec, field, from[i], 0, INT64_MAX);
        ret[i] = (int64_t)from[i];
    }
}

static void want_from_pb(struct dec *dec, const Cairn__PlanWant *pb, struct plan_want *ret)
{
    *ret = (struct plan_want){
        .is_blob = pb->is_blob,
        .name = dec_name(dec, "wants.name", pb->name, 1, LIMIT_NAME_BYTES),
        .coordinate = dec_name(dec, "wants.coordinate", pb->coordinate, 0, LIMIT_COORDINATE_BYTES)};
    if (pb->is_blob) {
        return;
    }
    if (pb->n_box_offset != pb->n_shape || pb->n_box_length != pb->n_shape) {
        dec_fail(dec, "wants.box", "its dimensions differ from the shape's");
    }
    dims_from_pb(dec, "wants.shape", pb->n_shape, pb->shape, ret->shape.length);
    dims_from_pb(dec, "wants.box_offset", pb->n_box_offset, pb->box_offset, ret->box.offset);
    dims_from_pb(dec, "wants.box_length", pb->n_box_length, pb->box_length, ret->box.length);
    if (dec->status != 0) {
        return;
    }
    ret->dtype = pb->dtype;
    ret->shape.ndim = ret->box.ndim = (uint32_t)pb->n_shape;
    if (!dtype_is_known(pb->dtype)) {
        dec->status = diag_set(dec->diag, CAIRN_E_UNSUPPORTED,
                               "%s.wants.dtype is %u, which this version does not know", dec->name,
                               pb->dtype);
        return;
    }
    uint64_t bytes;
    dec->status = shape_check(&ret->shape, ret->dtype, &bytes, dec->diag);
    if (dec->status == 0) {
        dec->status = box_check(&ret->box, &ret->shape, dec->diag);
    }
    if (dec->status != 0) {
        diag_add(dec->diag, "%s.wants, %s", dec->name, ret->name);
    }
}

static void plan_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Plan *pb = message;
    struct msg_plan plan = {.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED),
                            .want_count = (uint32_t)pb->n_wants};
    plan.wants = dec_array(dec, "wants", pb->n_wants, sizeof(*plan.wants), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_wants; i++) {
        want_from_pb(dec, pb->wants[i], &plan.wants[i]);
    }
    ret->u.plan = plan;
}

static void plan_reply_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__PlanReply pb = CAIRN__PLAN_REPLY__INIT;
    pb.record_count = msg->u.plan_reply.record_count;
    pb.last = msg->u.plan_reply.last;
    enc_pack(enc, &pb.base);
}

static void plan_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__PlanReply *pb = message;
    dec_range(dec, "record_count", pb->record_count, 0, WIRE_REPEATED_MAX);
    ret->u.plan_reply = (struct msg_plan_reply){.record_count = pb->record_count, .last = pb->last};
}

static void read_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Read pb = CAIRN__READ__INIT;
    Cairn__ObjectId object;
    pb.object = enc_object(&msg->u.read.object, &object);
    pb.offset = msg->u.read.offset;
    pb.bytes = msg->u.read.bytes;
    pb.landing_id = msg->u.read.landing_id;
    pb.landing_offset = msg->u.read.landing_offset;
    pb.to_end = msg->u.read.to_end;
    enc_pack(enc, &pb.base);
}

static void read_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Read *pb = message;
    dec_range(dec, "bytes", pb->bytes, 1, LIMIT_OBJECT_BYTES);
    dec_range(dec, "offset", pb->offset, 0,
              dec->status == 0 ? (uint64_t)LIMIT_OBJECT_BYTES - pb->bytes : UINT64_MAX);
    if (pb->landing_id != 0 &&
        (pb->landing_offset | pb->offset | pb->bytes) % LIMIT_ALIGN_BYTES != 0) {
        dec_fail(dec, "landing_offset", "it, offset or bytes is not a multiple of 4096");
    }
    ret->u.read = (struct msg_read){.object = dec_object(dec, pb->object),
                                    .offset = pb->offset,
                                    .bytes = pb->bytes,
                                    .landing_id = pb->landing_id,
                                    .landing_offset = pb->landing_offset,
                                    .to_end = pb->to_end != 0};
}

static void read_reply_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__ReadReply pb = CAIRN__READ_REPLY__INIT;
    pb.bytes = msg->u.read_reply.bytes;
    enc_pack(enc, &pb.base);
}

static void read_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ReadReply *pb = message;
    dec_range(dec, "bytes", pb->bytes, 1, LIMIT_OBJECT_BYTES);
    ret->u.read_reply = (struct msg_read_reply){.bytes = pb->bytes};
}

static void landing_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Landing pb = CAIRN__LANDING__INIT;
    pb.landing_id = msg->u.landing.landing_id;
    pb.bytes = msg->u.landing.bytes;
    enc_pack(enc, &pb.base);
}

static void landing_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Landing *pb = message;
    dec_range(dec, "landing_id", pb->landing_id, 1, UINT64_MAX);
    ret->u.landing = (struct msg_landing){.landing_id = pb->landing_id, .bytes = pb->bytes};
}

static void landed_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Landed pb = CAIRN__LANDED__INIT;
    pb.bytes = msg->u.landed.bytes;
    enc_pack(enc, &pb.base);
}

static void landed_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Landed *pb = message;
    dec_range(dec, "bytes", pb->bytes, 1, LIMIT_OBJECT_BYTES);
    ret->u.landed = (struct msg_landed){.bytes = pb->bytes};
}

static const struct msg_codec CODECS[] = {
    {MSG_RESTORE, "RESTORE", false, &cairn__restore__descriptor, restore_encode, restore_decode},
    {MSG_RESOLVED, "RESOLVED", false, &cairn__resolved__descriptor, resolved_encode,
     resolved_decode},
    {MSG_REPORT, "REPORT", false, &cairn__report__descriptor, report_encode, report_decode},
    {MSG_VERDICT, "VERDICT", false, &cairn__verdict__descriptor, verdict_encode, verdict_decode},
    {MSG_FETCH, "FETCH", false, &cairn__fetch__descriptor, fetch_encode, fetch_decode},
    {MSG_BYTES, "BYTES", true, &cairn__bytes__descriptor, bytes_encode, bytes_decode},
    {MSG_PLAN, "PLAN", false, &cairn__plan__descriptor, plan_encode, plan_decode},
    {MSG_PLAN_REPLY, "PLAN_REPLY", true, &cairn__plan_reply__descriptor, plan_reply_encode,
     plan_reply_decode},
    {MSG_READ, "READ", false, &cairn__read__descriptor, read_encode, read_decode},
    {MSG_READ_REPLY, "READ_REPLY", true, &cairn__read_reply__descriptor, read_reply_encode,
     read_reply_decode},
    {MSG_LANDING, "LANDING", false, &cairn__landing__descriptor, landing_encode, landing_decode},
    {MSG_LANDED, "LANDED", false, &cairn__landed__descriptor, landed_encode, landed_decode},
};
const struct msg_family msg_family_restore = {CODECS, ARRAY_LEN(CODECS)};
