/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples of the messages about a server, its maintenance of the store, and the log of a run.
 */
#include "sample_private.h"

static void make_scrub_info(struct sample *s, struct scrub_info *info)
{
#define FILL(number, kind, type, name) info->name = (type)sample_number(s);
    SCRUB_INFO_FIELDS(FILL)
    if (sample_flip(s)) {
        info->run = sample_run(s);
    }
    info->id = sample_ckpt(s);
    info->recent_count = sample_below32(s, 4);
    info->recent = sample_take(s, info->recent_count, sizeof(*info->recent));
    for (uint32_t i = 0; i < info->recent_count; i++) {
        struct scrub_finding_info *finding = &info->recent[i];
        *finding =
            (struct scrub_finding_info){.run = sample_run(s), .health = sample_below32(s, 3)};
        finding->id = sample_ckpt(s);
        finding->wall_ns = (int64_t)sample_number(s);
        finding->text = sample_text(s, 0, 60);
    }
}

static void make_gc_info(struct sample *s, unsigned grown, struct gc_info *info)
{
    GC_INFO_FIELDS(FILL)
    info->run = sample_run(s);
    info->text = sample_text(s, 0, 60);
    info->code = grown >= 1 ? -(int32_t)sample_below32(s, 50) : 0;
    if (grown >= 2) {
        GC_INFO_MORE_FIELDS(FILL)
    }
}

static void make_repair_status(struct sample *s, struct msg_repair_status *info)
{
    info->running = (bool)sample_number(s);
    info->healed = (bool)sample_number(s);
    info->code = (int32_t)sample_number(s);
    info->bytes_read = sample_number(s);
    info->mended = (uint32_t)sample_number(s);
    info->left = (uint32_t)sample_number(s);
    info->id = sample_ckpt(s);
    info->lines = sample_take(s, info->line_count = 1, sizeof(*info->lines));
    info->lines->text = info->text = sample_text(s, 0, 60);
}

static void make_daemons(struct sample *s, struct msg_server_status *status)
{
    status->daemons = sample_take(s, status->daemon_count = 2, sizeof(*status->daemons));
    for (uint32_t i = 0; i < 2; i++) {
        status->daemons[i] = (struct daemon_info){.name = sample_text(s, 0, 30),
                                                  .addresses = sample_text(s, 0, 60),
                                                  .seen_ms = sample_number(s),
                                                  .scrubs = sample_flip(s),
                                                  .collects = sample_flip(s),
                                                  .is_self = i == 0};
    }
}

void sample_make_maintenance(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_SCRUB) {
        ret->u.scrub = (struct msg_scrub){.begin = sample_flip(s), .rate = sample_number(s)};
    } else if (type == MSG_SCRUB_STATUS) {
        make_scrub_info(s, &ret->u.scrub_status.info);
    } else if (type == MSG_GC) {
        ret->u.gc.begin = sample_flip(s);
        ret->u.gc.dry_run = sample_flip(s);
        ret->u.gc.actor = "";
        if (s->grown >= 1) {
            ret->u.gc.now = true;
            ret->u.gc.actor = "ada@login1";
            ret->u.gc.runs = sample_take(s, ret->u.gc.run_count = 2, sizeof(struct run_name));
            ret->u.gc.runs[0] = sample_run(s), ret->u.gc.runs[1] = sample_run(s);
        }
    } else if (type == MSG_GC_REPORT) {
        make_gc_info(s, s->grown, &ret->u.gc_report.info);
    } else if (type == MSG_REPAIR) {
        ret->u.repair =
            (struct msg_repair){.id = sample_ckpt(s), .begin = true, .actor = "ada@login1"};
        if (s->grown >= 1) { /* of a run's record */
            ret->u.repair.id = (struct ckpt_id){0, 0};
            ret->u.repair.run = sample_run(s);
        }
    } else if (type == MSG_REPAIR_STATUS) {
        make_repair_status(s, &ret->u.repair_status);
    } else if (type == MSG_SERVER_STATUS) {
        struct msg_server_status *status = &ret->u.server_status;
        status->agent = sample_text(s, 0, 20);
        status->store = sample_text(s, 0, 20);
        status->detail = sample_text(s, 0, 60);
        sample_fill(s, sizeof(status->store_uuid), &status->store_uuid);
        status->epoch = sample_number(s);
        status->total_bytes = sample_number(s);
        status->free_bytes = sample_number(s);
        status->uptime_ms = sample_number(s);
        status->bytes_in = sample_number(s);
        status->bytes_out = sample_number(s);
        status->sessions = sample_below32(s, 1000);
        status->saves_open = sample_below32(s, 1000);
        status->runs = sample_below32(s, 1000);
        status->read_only = sample_flip(s);
        status->has_scrub = sample_flip(s);
        status->has_gc = sample_flip(s);
        if (status->has_scrub) {
            make_scrub_info(s, &status->scrub);
        }
        if (status->has_gc) {
            make_gc_info(s, s->grown >= 4 ? 2 : s->grown >= 2, &status->gc);
        }
        status->health_text = status->health_remedy = "";
        if (s->grown) {
            status->health = sample_below32(s, 4);
            status->health_code = -(int32_t)sample_below32(s, 50);
            status->health_text = sample_text(s, 0, 60);
            status->health_remedy = sample_text(s, 0, 60);
            status->health_ms = sample_number(s);
            status->wall_ns = (int64_t)sample_number(s);
        }
        status->reserve_bytes = s->grown >= 3 ? sample_number(s) : 0;
        if (s->grown >= 5) {
            make_daemons(s, status);
        }
    }
}

void sample_make_log(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_LOG) {
        ret->u.log = (struct msg_log){sample_number(s), (uint32_t)sample_number(s)};
        return;
    }
    struct msg_log_reply *reply = &ret->u.log_reply;
    reply->count = 1 + sample_below32(s, 5);
    reply->rows = sample_take(s, reply->count, sizeof(*reply->rows));
    for (uint32_t i = 0; i < reply->count; i++) {
        struct msg_log_row *row = &reply->rows[i];
        *row = (struct msg_log_row){.kind = 1 + sample_below32(s, LOG_RESTORE)};
        row->seq = sample_number(s);
        row->wall_ns = (int64_t)sample_u64(s);
        row->id_count = sample_below32(s, 4);
        row->ids = sample_take(s, row->id_count, sizeof(*row->ids));
        for (uint32_t j = 0; j < row->id_count; j++) {
            row->ids[j] = sample_ckpt(s);
        }
        row->actor = sample_text(s, 0, 60);
        row->reason = sample_text(s, 0, 200);
        row->plain_bytes = sample_number(s);
        row->stored_bytes = sample_number(s);
        row->world_size = sample_below32(s, 1000);
        row->code = -(int32_t)sample_below32(s, 50);
        row->asked = sample_ckpt(s);
    }
    reply->more = sample_flip(s);
}
