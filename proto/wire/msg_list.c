/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the messages that tell the truth about checkpoints and list them. Pure.
 */
#include "codec_private.h"

void ckpt_info_to_pb(struct enc *enc, const struct ckpt_info *info, struct ckpt_info_pb *ret)
{
    Cairn__CkptInfo *pb = &ret->info;
    cairn__ckpt_info__init(pb);
    pb->id = enc_ckpt(info->id, &ret->id);
    pb->parent = enc_ckpt(info->parent, &ret->parent);
    pb->base_id = enc_ckpt(info->base, &ret->base);
    pb->base_seq = info->base_seq;
    pb->seq = info->seq;
    pb->plain_bytes = info->plain_bytes;
    pb->stored_bytes = info->stored_bytes;
    pb->manifest_bytes = info->manifest_bytes;
    pb->manifest_sha256 = enc_bytes(sizeof(info->manifest_sha256), &info->manifest_sha256);
    pb->wall_ns = info->wall_ns;
    pb->world_size = info->world_size;
    pb->state = info->state;
    pb->health = info->health;
    pb->sealed_count = info->sealed_count;
    pb->on_lineage = info->on_lineage;
    pb->is_latest = info->is_latest;
    pb->pinned = info->pinned;
    pb->text = enc_text(enc, info->text);
    pb->note_version = info->note_version;
    pb->tags = enc_tags(enc, info->tag_count, info->tags, &pb->n_tags);
    pb->metrics = enc_metrics(enc, info->metric_count, info->metrics, &pb->n_metrics);
}

void ckpt_info_from_pb(struct dec *dec, const Cairn__CkptInfo *pb, struct ckpt_info *ret)
{
    if (pb == NULL) {
        dec_fail(dec, "info", "missing");
        return;
    }
    *ret = (struct ckpt_info){.id = dec_ckpt(dec, "info.id", pb->id, DEC_OPTIONAL),
                              .parent = dec_ckpt(dec, "info.parent", pb->parent, DEC_OPTIONAL),
                              .base = dec_ckpt(dec, "info.base_id", pb->base_id, DEC_OPTIONAL),
                              .base_seq = pb->base_seq,
                              .seq = pb->seq,
                              .plain_bytes = pb->plain_bytes,
                              .stored_bytes = pb->stored_bytes,
                              .manifest_bytes = pb->manifest_bytes,
                              .wall_ns = pb->wall_ns,
                              .world_size = pb->world_size,
                              .state = pb->state,
                              .health = pb->health,
                              .sealed_count = pb->sealed_count,
                              .on_lineage = pb->on_lineage,
                              .is_latest = pb->is_latest,
                              .pinned = pb->pinned,
                              .text = dec_text(dec, "info.text", pb->text),
                              .note_version = pb->note_version};
    ret->tags = dec_tags(dec, "info.tags", pb->n_tags, pb->tags, &ret->tag_count);
    ret->metrics = dec_metrics(dec, pb->n_metrics, pb->metrics, &ret->metric_count);
    dec_fixed(dec, "info.manifest_sha256", pb->manifest_sha256, sizeof(ret->manifest_sha256),
              &ret->manifest_sha256);
    dec_range(dec, "info.state", pb->state, CKPT_NONE, CKPT_FORGOTTEN);
    dec_range(dec, "info.health", pb->health, HEALTH_VERIFIED, HEALTH_DAMAGED);
    dec_range(dec, "info.world_size", pb->world_size, 0, LIMIT_WORLD_SIZE);
}

static void status_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Status pb = CAIRN__STATUS__INIT;
    Cairn__CkptId id;
    pb.id = enc_ckpt(msg->u.status.id, &id);
    enc_pack(enc, &pb.base);
}

static void status_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Status *pb = message;
    ret->u.status = (struct msg_status){.id = dec_ckpt(dec, "id", pb->id, DEC_REQUIRED)};
}

static void status_reply_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__StatusReply pb = CAIRN__STATUS_REPLY__INIT;
    struct ckpt_info_pb info;
    ckpt_info_to_pb(enc, &msg->u.status_reply.info, &info);
    pb.info = &info.info;
    enc_pack(enc, &pb.base);
}

static void status_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__StatusReply *pb = message;
    ret->u.status_reply = (struct msg_status_reply){.info = {.state = CKPT_NONE}};
    ckpt_info_from_pb(dec, pb->info, &ret->u.status_reply.info);
}

static void list_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__List pb = CAIRN__LIST__INIT;
    pb.before_seq = msg->u.list.before_seq;
    pb.limit = msg->u.list.limit;
    enc_pack(enc, &pb.base);
}

static void list_decode(struct dec *dec, const void *message, struct msg *ret)
{
    (void)dec;
    const Cairn__List *pb = message;
    ret->u.list = (struct msg_list){.before_seq = pb->before_seq, .limit = pb->limit};
}

static void list_reply_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_list_reply *reply = &msg->u.list_reply;
    Cairn__ListReply pb = CAIRN__LIST_REPLY__INIT;
    struct ckpt_info_pb *infos = enc_array(enc, reply->count, sizeof(*infos));
    pb.entries = enc_array(enc, reply->count, sizeof(*pb.entries));
    for (uint32_t i = 0; enc->status == 0 && i < reply->count; i++) {
        ckpt_info_to_pb(enc, &reply->entries[i], &infos[i]);
        pb.entries[i] = &infos[i].info;
        pb.n_entries = i + 1;
    }
    pb.more = reply->more;
    pb.mark = enc_text(enc, reply->mark);
    enc_pack(enc, &pb.base);
}

static void list_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ListReply *pb = message;
    struct msg_list_reply reply = {.count = (uint32_t)pb->n_entries,
                                   .more = pb->more,
                                   .mark = dec_text(dec, "mark", pb->mark)};
    reply.entries =
        dec_array(dec, "entries", pb->n_entries, sizeof(*reply.entries), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_entries; i++) {
        ckpt_info_from_pb(dec, pb->entries[i], &reply.entries[i]);
    }
    ret->u.list_reply = reply;
}

static void runs_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Runs pb = CAIRN__RUNS__INIT;
    pb.project = enc_name(msg->u.runs.project);
    enc_pack(enc, &pb.base);
}

static void runs_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Runs *pb = message;
    struct msg_runs runs = {.project =
                                dec_name(dec, "project", pb->project, 0, LIMIT_RUN_NAME_BYTES)};
    struct run_name name;
    if (dec->status == 0 && runs.project[0] != '\0') {
        dec->status = run_name_set(runs.project, "any", &name, dec->diag);
        if (dec->status != 0) {
            diag_add(dec->diag, "%s.project", dec->name);
        }
    }
    ret->u.runs = runs;
}

static void runs_reply_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_runs_reply *reply = &msg->u.runs_reply;
    Cairn__RunsReply pb = CAIRN__RUNS_REPLY__INIT;
    Cairn__RunName *names = enc_array(enc, reply->count, sizeof(*names));
    pb.names = enc_array(enc, reply->count, sizeof(*pb.names));
    for (uint32_t i = 0; enc->status == 0 && i < reply->count; i++) {
        pb.names[i] = enc_run(&reply->names[i], &names[i]);
        pb.n_names = i + 1;
    }
    enc_pack(enc, &pb.base);
}

static void runs_reply_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__RunsReply *pb = message;
    struct msg_runs_reply reply = {.count = (uint32_t)pb->n_names};
    reply.names = dec_array(dec, "names", pb->n_names, sizeof(*reply.names), WIRE_REPEATED_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_names; i++) {
        reply.names[i] = dec_run(dec, "names", pb->names[i]);
    }
    ret->u.runs_reply = reply;
}

static void annotate_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_annotate *annotate = &msg->u.annotate;
    Cairn__Annotate pb = CAIRN__ANNOTATE__INIT;
    Cairn__Selector selector;
    Cairn__CkptId id;
    pb.selector = enc_selector(annotate->selector, &selector, &id);
    pb.metrics = enc_metrics(enc, annotate->metric_count, annotate->metrics, &pb.n_metrics);
    pb.tags = enc_tags(enc, annotate->tag_count, annotate->tags, &pb.n_tags);
    pb.removed_tags = enc_tags(enc, annotate->removed_count, annotate->removed, &pb.n_removed_tags);
    enc_pack(enc, &pb.base);
}

static void annotate_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Annotate *pb = message;
    struct msg_annotate annotate = {.selector = dec_selector(dec, pb->selector)};
    annotate.metrics = dec_metrics(dec, pb->n_metrics, pb->metrics, &annotate.metric_count);
    annotate.tags = dec_tags(dec, "tags", pb->n_tags, pb->tags, &annotate.tag_count);
    annotate.removed = dec_tags(dec, "removed_tags", pb->n_removed_tags, pb->removed_tags,
                                &annotate.removed_count);
    ret->u.annotate = annotate;
}

static void annotated_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Annotated pb = CAIRN__ANNOTATED__INIT;
    struct ckpt_info_pb info;
    ckpt_info_to_pb(enc, &msg->u.annotated.info, &info);
    pb.info = &info.info;
    enc_pack(enc, &pb.base);
}

static void annotated_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Annotated *pb = message;
    ret->u.annotated = (struct msg_annotated){.info = {.state = CKPT_NONE}};
    ckpt_info_from_pb(dec, pb->info, &ret->u.annotated.info);
}

static const struct msg_codec CODECS[] = {
    {MSG_STATUS, "STATUS", false, &cairn__status__descriptor, status_encode, status_decode},
    {MSG_STATUS_REPLY, "STATUS_REPLY", false, &cairn__status_reply__descriptor, status_reply_encode,
     status_reply_decode},
    {MSG_LIST, "LIST", false, &cairn__list__descriptor, list_encode, list_decode},
    {MSG_LIST_REPLY, "LIST_REPLY", false, &cairn__list_reply__descriptor, list_reply_encode,
     list_reply_decode},
    {MSG_RUNS, "RUNS", false, &cairn__runs__descriptor, runs_encode, runs_decode},
    {MSG_RUNS_REPLY, "RUNS_REPLY", false, &cairn__runs_reply__descriptor, runs_reply_encode,
     runs_reply_decode},
    {MSG_ANNOTATE, "ANNOTATE", false, &cairn__annotate__descriptor, annotate_encode,
     annotate_decode},
    {MSG_ANNOTATED, "ANNOTATED", false, &cairn__annotated__descriptor, annotated_encode,
     annotated_decode},
};
const struct msg_family msg_family_list = {CODECS, ARRAY_LEN(CODECS)};
