/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the messages about a server's maintenance of its store. Pure.
 */
#include "codec_private.h"

struct scrub_info_pb {
    Cairn__ScrubInfo info;
    Cairn__RunName run;
    Cairn__CkptId id;
};
struct finding_pb {
    Cairn__ScrubFinding finding;
    Cairn__RunName run;
    Cairn__CkptId id;
};
struct gc_info_pb {
    Cairn__GcInfo info;
    Cairn__RunName run;
};

const char *server_health_name(uint32_t health)
{
    static const char *const names[] = {[SERVER_HEALTH_UNKNOWN] = "unknown",
                                        [SERVER_GREEN] = "green",
                                        [SERVER_YELLOW] = "yellow",
                                        [SERVER_RED] = "red"};
    return names[health < ARRAY_LEN(names) ? health : SERVER_HEALTH_UNKNOWN];
}

static bool is_named(const struct run_name *run) { return run->project[0] != '\0'; }

static void findings_to_pb(struct enc *enc, const struct scrub_info *info, Cairn__ScrubInfo *pb)
{
    struct finding_pb *room = enc_array(enc, info->recent_count, sizeof(*room));
    pb->recent = enc_array(enc, info->recent_count, sizeof(*pb->recent));
    if (!room || !pb->recent) {
        return;
    }
    pb->n_recent = info->recent_count;
    for (uint32_t i = 0; i < info->recent_count; i++) {
        const struct scrub_finding_info *from = &info->recent[i];
        Cairn__ScrubFinding *to = &room[i].finding;
        cairn__scrub_finding__init(to);
        to->run = enc_run(&from->run, &room[i].run);
        to->id = enc_ckpt(from->id, &room[i].id);
        to->health = from->health;
        to->wall_ns = from->wall_ns;
        to->text = enc_text(enc, from->text);
        pb->recent[i] = to;
    }
}

static Cairn__ScrubInfo *scrub_info_to_pb(struct enc *enc, const struct scrub_info *info,
                                          struct scrub_info_pb *ret)
{
    Cairn__ScrubInfo *pb = &ret->info;
    cairn__scrub_info__init(pb);
#define TAKE(type, name) pb->name = info->name;
    SCRUB_INFO_FIELDS(TAKE)
#undef TAKE
    pb->run = is_named(&info->run) ? enc_run(&info->run, &ret->run) : NULL;
    pb->id = enc_ckpt(info->id, &ret->id);
    findings_to_pb(enc, info, pb);
    return pb;
}

static void scrub_info_from_pb(struct dec *dec, const Cairn__ScrubInfo *pb, struct scrub_info *ret)
{
    *ret = (struct scrub_info){.running = false};
    if (!pb) {
        dec_fail(dec, "info", "missing");
        return;
    }
#define TAKE(type, name) ret->name = pb->name;
    SCRUB_INFO_FIELDS(TAKE)
#undef TAKE
    if (pb->run) {
        ret->run = dec_run(dec, "info.run", pb->run);
    }
    ret->id = dec_ckpt(dec, "info.id", pb->id, DEC_OPTIONAL);
    ret->recent =
        dec_array(dec, "info.recent", pb->n_recent, sizeof(*ret->recent), MSG_FINDINGS_MAX);
    for (size_t i = 0; ret->recent && i < pb->n_recent; i++) {
        const Cairn__ScrubFinding *from = pb->recent[i];
        dec_range(dec, "recent.health", from->health, HEALTH_VERIFIED, HEALTH_DAMAGED);
        ret->recent[i] =
            (struct scrub_finding_info){.run = dec_run(dec, "recent.run", from->run),
                                        .id = dec_ckpt(dec, "recent.id", from->id, DEC_OPTIONAL),
                                        .health = from->health,
                                        .wall_ns = from->wall_ns,
                                        .text = dec_text(dec, "recent.text", from->text)};
    }
    ret->recent_count = ret->recent ? (uint32_t)pb->n_recent : 0;
}

static void scrub_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Scrub pb = CAIRN__SCRUB__INIT;
    pb.begin = msg->u.scrub.begin;
    pb.rate = msg->u.scrub.rate;
    enc_pack(enc, &pb.base);
}

static void scrub_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Scrub *pb = message;
    (void)dec;
    ret->u.scrub = (struct msg_scrub){.begin = pb->begin, .rate = pb->rate};
}

static void scrub_status_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__ScrubStatus pb = CAIRN__SCRUB_STATUS__INIT;
    struct scrub_info_pb info;
    pb.info = scrub_info_to_pb(enc, &msg->u.scrub_status.info, &info);
    enc_pack(enc, &pb.base);
}

static void scrub_status_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ScrubStatus *pb = message;
    scrub_info_from_pb(dec, pb->info, &ret->u.scrub_status.info);
}

static Cairn__GcInfo *gc_info_to_pb(struct enc *enc, const struct gc_info *info,
                                    struct gc_info_pb *ret)
{
    Cairn__GcInfo *pb = &ret->info;
    cairn__gc_info__init(pb);
#define TAKE(type, name) pb->name = info->name;
    GC_INFO_FIELDS(TAKE)
    GC_INFO_MORE_FIELDS(TAKE)
#undef TAKE
    pb->run = is_named(&info->run) ? enc_run(&info->run, &ret->run) : NULL;
    pb->text = enc_text(enc, info->text);
    pb->code = info->code;
    return pb;
}

static void gc_info_from_pb(struct dec *dec, const Cairn__GcInfo *pb, struct gc_info *ret)
{
    *ret = (struct gc_info){.running = false};
    if (!pb) {
        dec_fail(dec, "info", "missing");
        return;
    }
#define TAKE(type, name) ret->name = pb->name;
    GC_INFO_FIELDS(TAKE)
    GC_INFO_MORE_FIELDS(TAKE)
#undef TAKE
    if (pb->run) {
        ret->run = dec_run(dec, "info.run", pb->run);
    }
    ret->text = dec_text(dec, "info.text", pb->text);
    ret->code = pb->code;
}

static void gc_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_gc *gc = &msg->u.gc;
    Cairn__Gc pb = CAIRN__GC__INIT;
    Cairn__RunName *runs = enc_array(enc, gc->run_count, sizeof(*runs));
    pb.runs = enc_array(enc, gc->run_count, sizeof(*pb.runs));
    for (uint32_t i = 0; enc->status == 0 && i < gc->run_count; i++) {
        pb.runs[i] = enc_run(&gc->runs[i], &runs[i]);
        pb.n_runs = i + 1;
    }
    pb.begin = gc->begin;
    pb.dry_run = gc->dry_run;
    pb.now = gc->now;
    pb.actor = enc_text(enc, gc->actor);
    enc_pack(enc, &pb.base);
}

static void gc_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Gc *pb = message;
    struct msg_gc gc = {.begin = pb->begin,
                        .dry_run = pb->dry_run,
                        .now = pb->now,
                        .run_count = (uint32_t)pb->n_runs,
                        .actor = dec_text(dec, "actor", pb->actor)};
    gc.runs = dec_array(dec, "runs", pb->n_runs, sizeof(*gc.runs), MSG_GC_RUNS_MAX);
    for (size_t i = 0; dec->status == 0 && i < pb->n_runs; i++) {
        gc.runs[i] = dec_run(dec, "runs", pb->runs[i]);
    }
    ret->u.gc = gc;
}

static void gc_report_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__GcReport pb = CAIRN__GC_REPORT__INIT;
    struct gc_info_pb info;
    pb.info = gc_info_to_pb(enc, &msg->u.gc_report.info, &info);
    enc_pack(enc, &pb.base);
}

static void gc_report_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__GcReport *pb = message;
    gc_info_from_pb(dec, pb->info, &ret->u.gc_report.info);
}

static void repair_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_repair *repair = &msg->u.repair;
    Cairn__Repair pb = CAIRN__REPAIR__INIT;
    Cairn__CkptId id;
    Cairn__RunName run;
    pb.id = enc_ckpt(repair->id, &id);
    pb.run = is_named(&repair->run) ? enc_run(&repair->run, &run) : NULL;
    pb.begin = repair->begin;
    pb.actor = enc_text(enc, repair->actor);
    enc_pack(enc, &pb.base);
}

static void repair_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Repair *pb = message;
    bool needs_id = pb->begin && !pb->run;
    ret->u.repair = (struct msg_repair){
        .id = dec_ckpt(dec, "id", pb->id, needs_id ? DEC_REQUIRED : DEC_OPTIONAL),
        .begin = pb->begin,
        .actor = dec_text(dec, "actor", pb->actor)};
    if (pb->run) {
        ret->u.repair.run = dec_run(dec, "run", pb->run);
    }
    if (pb->run && ret->u.repair.id.term != 0) {
        dec_fail(dec, "id", "a checkpoint of the joined run, or the record of `run`: not both");
    }
}

static void lines_to_pb(struct enc *enc, const struct msg_repair_status *status,
                        Cairn__RepairStatus *pb)
{
    Cairn__RepairLine *room = enc_array(enc, status->line_count, sizeof(*room));
    pb->lines = enc_array(enc, status->line_count, sizeof(*pb->lines));
    if (!room || !pb->lines) {
        return;
    }
    pb->n_lines = status->line_count;
    for (uint32_t i = 0; i < status->line_count; i++) {
        cairn__repair_line__init(&room[i]);
        room[i].mended = status->lines[i].mended;
        room[i].text = enc_text(enc, status->lines[i].text);
        pb->lines[i] = &room[i];
    }
}

static void repair_status_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_repair_status *status = &msg->u.repair_status;
    Cairn__RepairStatus pb = CAIRN__REPAIR_STATUS__INIT;
    Cairn__RunName run;
    Cairn__CkptId id;
    pb.run = is_named(&status->run) ? enc_run(&status->run, &run) : NULL;
    pb.id = enc_ckpt(status->id, &id);
#define TAKE(type, name) pb.name = status->name;
    REPAIR_STATUS_FIELDS(TAKE)
#undef TAKE
    pb.text = enc_text(enc, status->text);
    lines_to_pb(enc, status, &pb);
    enc_pack(enc, &pb.base);
}

static void repair_status_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__RepairStatus *pb = message;
    struct msg_repair_status *status = &ret->u.repair_status;
    *status = (struct msg_repair_status){.id = dec_ckpt(dec, "id", pb->id, DEC_OPTIONAL),
                                         .text = dec_text(dec, "text", pb->text)};
#define TAKE(type, name) status->name = pb->name;
    REPAIR_STATUS_FIELDS(TAKE)
#undef TAKE
    if (pb->run) {
        status->run = dec_run(dec, "run", pb->run);
    }
    status->lines = dec_array(dec, "lines", pb->n_lines, sizeof(*status->lines), MSG_FINDINGS_MAX);
    for (size_t i = 0; status->lines && i < pb->n_lines; i++) {
        status->lines[i] =
            (struct repair_line_info){.mended = pb->lines[i]->mended,
                                      .text = dec_text(dec, "lines.text", pb->lines[i]->text)};
    }
    status->line_count = status->lines ? (uint32_t)pb->n_lines : 0;
}

static void server_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Server pb = CAIRN__SERVER__INIT;
    (void)msg;
    enc_pack(enc, &pb.base);
}

static void server_decode(struct dec *dec, const void *message, struct msg *ret)
{
    (void)dec;
    (void)message;
    (void)ret;
}

#define SERVER_FIELDS(X) \
    X(epoch)             \
    X(total_bytes)       \
    X(free_bytes)        \
    X(uptime_ms)         \
    X(bytes_in)          \
    X(bytes_out)         \
    X(sessions) X(saves_open) X(runs) X(read_only) X(health_ms) X(wall_ns) X(reserve_bytes)

static void server_status_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_server_status *status = &msg->u.server_status;
    Cairn__ServerStatus pb = CAIRN__SERVER_STATUS__INIT;
    struct scrub_info_pb scrub;
    struct gc_info_pb gc;
    pb.agent = enc_text(enc, status->agent);
    pb.store = enc_text(enc, status->store);
    pb.detail = enc_text(enc, status->detail);
    pb.health = status->health;
    pb.health_code = status->health_code;
    pb.health_text = enc_text(enc, status->health_text);
    pb.health_remedy = enc_text(enc, status->health_remedy);
    pb.store_uuid = enc_bytes(sizeof(status->store_uuid), &status->store_uuid);
#define TAKE(name) pb.name = status->name;
    SERVER_FIELDS(TAKE)
#undef TAKE
    pb.scrub = status->has_scrub ? scrub_info_to_pb(enc, &status->scrub, &scrub) : NULL;
    pb.gc = status->has_gc ? gc_info_to_pb(enc, &status->gc, &gc) : NULL;
    enc_pack(enc, &pb.base);
}

static void server_status_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__ServerStatus *pb = message;
    struct msg_server_status *status = &ret->u.server_status;
    *status = (struct msg_server_status){
        .agent = dec_text(dec, "agent", pb->agent),
        .store = dec_text(dec, "store", pb->store),
        .detail = dec_text(dec, "detail", pb->detail),
        .health = pb->health,
        .health_code = pb->health_code,
        .health_text = dec_text(dec, "health_text", pb->health_text),
        .health_remedy = dec_text(dec, "health_remedy", pb->health_remedy),
        .has_scrub = pb->scrub != NULL,
        .has_gc = pb->gc != NULL};
    dec_range(dec, "health", pb->health, SERVER_HEALTH_UNKNOWN, SERVER_RED);
    dec_fixed(dec, "store_uuid", pb->store_uuid, sizeof(status->store_uuid), &status->store_uuid);
#define TAKE(name) status->name = pb->name;
    SERVER_FIELDS(TAKE)
#undef TAKE
    if (pb->scrub) {
        scrub_info_from_pb(dec, pb->scrub, &status->scrub);
    }
    if (pb->gc) {
        gc_info_from_pb(dec, pb->gc, &status->gc);
    }
}

static const struct msg_codec CODECS[] = {
    {MSG_SCRUB, "SCRUB", false, &cairn__scrub__descriptor, scrub_encode, scrub_decode},
    {MSG_SCRUB_STATUS, "SCRUB_STATUS", false, &cairn__scrub_status__descriptor, scrub_status_encode,
     scrub_status_decode},
    {MSG_GC, "GC", false, &cairn__gc__descriptor, gc_encode, gc_decode},
    {MSG_GC_REPORT, "GC_REPORT", false, &cairn__gc_report__descriptor, gc_report_encode,
     gc_report_decode},
    {MSG_REPAIR, "REPAIR", false, &cairn__repair__descriptor, repair_encode, repair_decode},
    {MSG_REPAIR_STATUS, "REPAIR_STATUS", false, &cairn__repair_status__descriptor,
     repair_status_encode, repair_status_decode},
    {MSG_SERVER, "SERVER", false, &cairn__server__descriptor, server_encode, server_decode},
    {MSG_SERVER_STATUS, "SERVER_STATUS", false, &cairn__server_status__descriptor,
     server_status_encode, server_status_decode},
};

const struct msg_family msg_family_care = {CODECS, ARRAY_LEN(CODECS)};
