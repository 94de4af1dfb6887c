/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a message as text, from the struct alone.
 */
#include "base/check.h"
#include "hash/hash.h"
#include "sample.h"
#include "wire/frame.h"

#include <stdio.h>

#define U(object, field) buf_printf(buf, #field "=%llu\n", (unsigned long long)(object)->field)
#define I(object, field) buf_printf(buf, #field "=%lld\n", (long long)(object)->field)
#define T(object, field) buf_printf(buf, #field "=<%s>\n", (object)->field)
#define H(object, field) dump_hex(buf, #field, sizeof((object)->field), &(object)->field)
#define CKPT(object, field)                                                          \
    buf_printf(buf, #field "=%llu@%llu\n", (unsigned long long)(object)->field.step, \
               (unsigned long long)(object)->field.term)

static void dump_hex(struct buf *buf, const char *name, size_t bytes, const void *data)
{
    const uint8_t *at = data;
    buf_printf(buf, "%s=", name);
    for (size_t i = 0; i < bytes; i++) {
        buf_printf(buf, "%02x", at[i]);
    }
    buf_printf(buf, "\n");
}

static void dump_object(struct buf *buf, const struct object_id *o)
{
    U(o, term), U(o, step), U(o, writer), U(o, rank), U(o, sequence);
}

static void dump_labels(struct buf *buf, uint32_t tag_count, const char *const *tags,
                        uint32_t metric_count, const struct metric *metrics)
{
    buf_printf(buf, "tag_count=%u\nmetric_count=%u\n", tag_count, metric_count);
    for (uint32_t i = 0; i < tag_count; i++) {
        buf_printf(buf, "tag=<%s>\n", tags[i]);
    }
    for (uint32_t i = 0; i < metric_count; i++) {
        buf_printf(buf, "metric=<%s> value=%a\n", metrics[i].name, metrics[i].value);
    }
}

static void dump_info(struct buf *buf, const struct ckpt_info *i)
{
    CKPT(i, id), CKPT(i, parent), U(i, seq), U(i, plain_bytes), U(i, stored_bytes),
        U(i, manifest_bytes);
    H(i, manifest_sha256), I(i, wall_ns), U(i, world_size), U(i, state), U(i, health),
        U(i, sealed_count);
    U(i, on_lineage), U(i, is_latest), U(i, pinned), T(i, text), U(i, note_version);
    CKPT(i, base), U(i, base_seq);
    dump_labels(buf, i->tag_count, i->tags, i->metric_count, i->metrics);
}

static void dump_session(const struct msg *msg, struct buf *buf)
{
    const struct msg_hello *h = &msg->u.hello;
    const struct msg_welcome *w = &msg->u.welcome;
    const struct msg_join *j = &msg->u.join;
    const struct msg_joined *d = &msg->u.joined;
    switch ((unsigned)msg->type) {
    case MSG_HELLO:
        U(h, version_min), U(h, version_max), U(h, features), T(h, agent);
        break;
    case MSG_WELCOME:
        U(w, version), U(w, features), H(w, store_uuid), U(w, heartbeat_ms), U(w, dead_after_ms);
        U(w, payload_max), U(w, message_max), T(w, agent);
        break;
    case MSG_ERROR:
        I(&msg->u.error, code), T(&msg->u.error, text);
        break;
    case MSG_JOIN:
        T(j, run.project), T(j, run.run), U(j, viewer), H(j, token), U(j, rank), U(j, world_size);
        U(j, writer), T(j, label);
        break;
    case MSG_JOINED:
        U(d, exists), H(d, run_uuid), U(d, chunk_bytes), U(d, newest_term), CKPT(d, latest);
        U(d, object_bytes);
        break;
    default:
        break;
    }
}

static void dump_open(const struct msg_open *o, struct buf *buf)
{
    U(o, step), U(o, ordinal), CKPT(o, parent), U(o, newest_seen), U(o, open_id), U(o, deadline_ms);
    U(o, wait_ms), H(o, list_hash), U(o, metadata_bytes);
    dump_hex(buf, "metadata", o->metadata_bytes, o->metadata);
    dump_labels(buf, o->tag_count, o->tags, o->metric_count, o->metrics);
    U(o, full), U(o, blocked_ms), U(o, persist_ms), U(o, plain_bytes);
}

static void dump_data(const struct msg_data *d, struct buf *buf)
{
    dump_object(buf, &d->object);
    U(d, offset), U(d, object_bytes), U(d, envelope_count);
    for (uint32_t i = 0; i < d->envelope_count; i++) {
        const struct envelope *e = &d->envelopes[i];
        U(e, offset), U(e, stored_bytes), U(e, plain_bytes), U(e, stored_crc), U(e, key_id),
            U(e, encoding);
        U(e, digest_alg), U(e, element_bytes), H(e, digest), H(e, nonce), H(e, tag);
    }
}

static void dump_save(const struct msg *msg, struct buf *buf)
{
    const struct msg_opened *o = &msg->u.opened;
    switch ((unsigned)msg->type) {
    case MSG_OPEN:
        dump_open(&msg->u.open, buf);
        break;
    case MSG_OPENED:
        CKPT(o, id), U(o, open_id), U(o, state), U(o, sealed), U(o, new_term), U(o, new_lineage),
            U(o, seq);
        U(o, deadline_ms), U(o, chunk_bytes), H(o, run_uuid);
        CKPT(o, base), U(o, sparse_count);
        for (uint32_t i = 0; i < o->sparse_count; i++) {
            dump_object(buf, &o->sparse[i]);
        }
        break;
    case MSG_WANT:
        U(&msg->u.want, buffers);
        break;
    case MSG_GRANT:
        U(&msg->u.grant, buffers);
        break;
    case MSG_DATA:
        dump_data(&msg->u.data, buf);
        break;
    case MSG_OBJECT_END:
        dump_object(buf, &msg->u.object_end.object);
        U(&msg->u.object_end, data_bytes), U(&msg->u.object_end, envelope_count);
        break;
    case MSG_OBJECT_DURABLE:
        dump_object(buf, &msg->u.object_durable.object);
        break;
    case MSG_HAVE:
        CKPT(&msg->u.have, id), U(&msg->u.have, rank), U(&msg->u.have, writer);
        U(&msg->u.have, placed), U(&msg->u.have, from);
        break;
    case MSG_HELD:
        U(&msg->u.held, count);
        for (uint32_t i = 0; i < msg->u.held.count; i++) {
            U(&msg->u.held, sequences[i]);
        }
        break;
    default:
        break;
    }
}

static void dump_save_end(const struct msg *msg, struct buf *buf)
{
    const struct msg_outcome *o = &msg->u.outcome;
    const struct msg_abort *a = &msg->u.abort;
    switch ((unsigned)msg->type) {
    case MSG_PART:
        CKPT(&msg->u.part, id), U(&msg->u.part, open_id), U(&msg->u.part, offset);
        U(&msg->u.part, total_bytes);
        break;
    case MSG_SEAL:
        CKPT(&msg->u.seal, id), U(&msg->u.seal, open_id), U(&msg->u.seal, part_bytes);
        H(&msg->u.seal, part_sha256);
        break;
    case MSG_SEALED:
        CKPT(&msg->u.sealed, id), U(&msg->u.sealed, stored_bytes);
        U(&msg->u.sealed, shared_bytes);
        break;
    case MSG_WAIT:
        CKPT(&msg->u.wait, id), U(&msg->u.wait, open_id);
        break;
    case MSG_OUTCOME:
        CKPT(o, id), U(o, open_id), U(o, state), I(o, code), T(o, text), U(o, seq);
        break;
    case MSG_ABORT:
        CKPT(a, id), U(a, open_id), I(a, code), T(a, reason);
        break;
    case MSG_ARENA:
        U(&msg->u.arena, arena_id), U(&msg->u.arena, bytes);
        break;
    case MSG_DESCRIBE:
        dump_data(&msg->u.describe.data, buf);
        U(&msg->u.describe, arena_id), U(&msg->u.describe, arena_offset);
        U(&msg->u.describe, bytes), U(&msg->u.describe, encode);
        U(&msg->u.describe, tensor), U(&msg->u.describe, dtype_count);
        for (uint32_t i = 0; i < msg->u.describe.dtype_count; i++) {
            U(&msg->u.describe, dtypes[i]);
        }
        break;
    case MSG_COMPLETE:
        CKPT(&msg->u.complete, id), U(&msg->u.complete, open_id);
        U(&msg->u.complete, part_bytes);
        break;
    case MSG_HANDED:
        CKPT(&msg->u.handed, id);
        break;
    default:
        break;
    }
}

static void dump_annotate(const struct msg_annotate *a, struct buf *buf)
{
    U(a, selector.kind), CKPT(a, selector.id), U(a, removed_count);
    dump_labels(buf, a->tag_count, a->tags, a->metric_count, a->metrics);
    for (uint32_t i = 0; i < a->removed_count; i++) {
        T(a, removed[i]);
    }
}

static void dump_list(const struct msg *msg, struct buf *buf)
{
    switch ((unsigned)msg->type) {
    case MSG_STATUS:
        CKPT(&msg->u.status, id);
        break;
    case MSG_STATUS_REPLY:
        dump_info(buf, &msg->u.status_reply.info);
        break;
    case MSG_LIST:
        U(&msg->u.list, before_seq), U(&msg->u.list, limit);
        break;
    case MSG_LIST_REPLY:
        U(&msg->u.list_reply, count), U(&msg->u.list_reply, more), T(&msg->u.list_reply, mark);
        for (uint32_t i = 0; i < msg->u.list_reply.count; i++) {
            dump_info(buf, &msg->u.list_reply.entries[i]);
        }
        break;
    case MSG_RUNS:
        T(&msg->u.runs, project);
        break;
    case MSG_RUNS_REPLY:
        U(&msg->u.runs_reply, count);
        for (uint32_t i = 0; i < msg->u.runs_reply.count; i++) {
            T(&msg->u.runs_reply, names[i].project), T(&msg->u.runs_reply, names[i].run);
        }
        break;
    case MSG_ANNOTATE:
        dump_annotate(&msg->u.annotate, buf);
        break;
    case MSG_ANNOTATED:
        dump_info(buf, &msg->u.annotated.info);
        break;
    default:
        break;
    }
}

static void dump_plan(const struct msg_plan *p, struct buf *buf)
{
    CKPT(p, id), U(p, want_count);
    for (uint32_t i = 0; i < p->want_count; i++) {
        const struct plan_want *w = &p->wants[i];
        U(w, is_blob), T(w, name), T(w, coordinate), U(w, dtype), U(w, shape.ndim), U(w, box.ndim);
        for (uint32_t k = 0; k < LIMIT_NDIM; k++) {
            I(w, shape.length[k]), I(w, box.offset[k]), I(w, box.length[k]);
        }
    }
}

static void dump_restore(const struct msg *msg, struct buf *buf)
{
    const struct msg_restore *r = &msg->u.restore;
    const struct msg_resolved *d = &msg->u.resolved;
    const struct msg_report *p = &msg->u.report;
    const struct msg_verdict *v = &msg->u.verdict;
    switch ((unsigned)msg->type) {
    case MSG_RESTORE:
        U(r, ordinal), U(r, selector.kind), CKPT(r, selector.id), U(r, allow_older), U(r, wait_ms);
        break;
    case MSG_RESOLVED:
        U(d, empty), U(d, fell_back), CKPT(d, id), U(d, try_count), U(d, newest_term);
        dump_info(buf, &d->info);
        break;
    case MSG_REPORT:
        U(p, ordinal), U(p, try_count), I(p, code), T(p, reason), U(p, wait_ms);
        break;
    case MSG_VERDICT:
        U(v, done), U(v, fell_back), I(v, code), T(v, text), CKPT(v, id), U(v, try_count),
            U(v, newest_term);
        dump_info(buf, &v->info);
        break;
    case MSG_FETCH:
        CKPT(&msg->u.fetch, id), U(&msg->u.fetch, kind), U(&msg->u.fetch, number);
        break;
    case MSG_BYTES:
        U(&msg->u.bytes, offset), U(&msg->u.bytes, total_bytes);
        break;
    case MSG_PLAN:
        dump_plan(&msg->u.plan, buf);
        break;
    case MSG_PLAN_REPLY:
        U(&msg->u.plan_reply, record_count), U(&msg->u.plan_reply, last);
        break;
    case MSG_READ:
        dump_object(buf, &msg->u.read.object);
        U(&msg->u.read, offset), U(&msg->u.read, bytes);
        U(&msg->u.read, landing_id), U(&msg->u.read, landing_offset), U(&msg->u.read, to_end);
        break;
    case MSG_LANDING:
        U(&msg->u.landing, landing_id), U(&msg->u.landing, bytes);
        break;
    case MSG_LANDED:
        U(&msg->u.landed, bytes);
        break;
    case MSG_READ_REPLY:
        U(&msg->u.read_reply, bytes);
        break;
    default:
        break;
    }
}

static void dump_sets(const struct msg_sets *s, struct buf *buf)
{
    U(s, count), U(s, last), I(s, code), T(s, text);
    for (uint32_t i = 0; i < s->count; i++) {
        H(&s->rows[i], key), U(&s->rows[i], division);
        dump_hex(buf, "bits", s->rows[i].bytes, s->rows[i].bits);
    }
}

static void dump_mark(const struct msg *msg, struct buf *buf)
{
    const struct msg_mark *m = &msg->u.mark;
    const struct msg_marked *d = &msg->u.marked;
    if (msg->type == MSG_MARK) {
        U(m, kind), U(m, dry_run), U(m, keep_least), T(m, actor), T(m, reason);
        U(m, selector_count), U(m, option_count);
        for (uint32_t i = 0; i < m->selector_count; i++) {
            U(m, selectors[i].kind), U(m, selectors[i].id.term), U(m, selectors[i].id.step);
        }
        for (uint32_t i = 0; i < m->option_count; i++) {
            T(m, options[i].name), T(m, options[i].value);
        }
    } else if (msg->type == MSG_MARKED) {
        U(d, head_seq), U(d, done_count), U(d, refused_count), U(d, total_count);
        U(d, record_count), U(d, bytes), U(d, forgotten), U(d, forgotten_bytes);
        I(d, first_wall_ns), I(d, last_wall_ns);
        for (uint32_t i = 0; i < d->record_count; i++) {
            U(d, records[i].id.term), U(d, records[i].id.step), U(d, records[i].wall_ns);
            U(d, records[i].reasons), U(d, records[i].outcome);
        }
    }
}

static void dump_usage(const struct msg *msg, struct buf *buf)
{
    const struct msg_usage *u = &msg->u.usage;
    const struct msg_usage_reply *r = &msg->u.usage_reply;
    if (msg->type == MSG_USAGE) {
        T(u, project), T(u, after.project), T(u, after.run), I(u, since_ns);
    } else if (msg->type == MSG_USAGE_REPLY) {
        U(r, count), U(r, more), I(r, now_ns), U(r, quota_count);
        for (uint32_t i = 0; i < r->count; i++) {
            const struct msg_usage_row *w = &r->rows[i];
            T(w, run.project), T(w, run.run), I(w, code), T(w, text), U(w, saves);
            U(w, saves_aborted), U(w, restores), U(w, restores_failed), U(w, written_bytes);
            buf_printf(buf, "byte_hours=%a\n", w->byte_hours);
            U(w, checkpoints), U(w, forgotten), U(w, plain_bytes), U(w, stored_bytes);
            U(w, shared_bytes), U(w, reclaimable_bytes), I(w, newest_wall_ns);
            U(w, timed_saves), U(w, blocked_ms), U(w, persist_ms);
        }
        for (uint32_t i = 0; i < r->quota_count; i++) {
            T(&r->quotas[i], project), U(&r->quotas[i], bytes), U(&r->quotas[i], checkpoints);
        }
    }
}

static void dump_progress(const struct msg *msg, struct buf *buf)
{
    const struct msg_progress *p = &msg->u.progress;
    const struct msg_progress_reply *r = &msg->u.progress_reply;
    if (msg->type == MSG_PROGRESS) {
        T(p, project);
    } else if (msg->type == MSG_PROGRESS_REPLY) {
        U(r, count), U(r, more);
        for (uint32_t i = 0; i < r->count; i++) {
            const struct msg_progress_row *w = &r->rows[i];
            T(w, run.project), T(w, run.run), CKPT(w, id), U(w, rank), U(w, world_size);
            U(w, received_bytes), U(w, durable_bytes), U(w, age_ms), U(w, quiet_ms);
            U(w, connected), U(w, handed_over);
        }
    }
}

static void dump_agree(const struct msg *msg, struct buf *buf)
{
    const struct msg_agree *a = &msg->u.agree;
    const struct msg_lists *l = &msg->u.lists;
    const struct msg_digests *d = &msg->u.digests;
    switch ((unsigned)msg->type) {
    case MSG_AGREE:
        CKPT(a, id), U(a, open_id), U(a, check), U(a, count);
        for (uint32_t i = 0; i < a->count; i++) {
            const struct msg_agree_group *g = &a->groups[i];
            H(g, group), H(g, list_hash), U(g, members), U(g, member), U(g, copied);
        }
        break;
    case MSG_AGREED:
        U(&msg->u.agreed, count);
        dump_hex(buf, "verdicts", msg->u.agreed.count * sizeof(uint32_t), msg->u.agreed.verdicts);
        break;
    case MSG_LISTS:
        CKPT(l, id), U(l, open_id), H(l, group), U(l, total), U(l, first), U(l, count);
        dump_hex(buf, "keys", l->count * sizeof(*l->keys), l->keys);
        dump_hex(buf, "divisions", l->count * sizeof(*l->divisions), l->divisions);
        break;
    case MSG_DIGESTS:
        CKPT(d, id), U(d, open_id), H(d, group), U(d, total), U(d, first), U(d, count);
        dump_hex(buf, "keys", d->count * sizeof(*d->keys), d->keys);
        dump_hex(buf, "digests", d->count * sizeof(*d->digests), d->digests);
        break;
    case MSG_HOLDERS:
        dump_sets(&msg->u.holders, buf);
        break;
    case MSG_COMPARED:
        dump_sets(&msg->u.compared, buf);
        break;
    default:
        break;
    }
}

#define FIELD(type, name) buf_printf(buf, #name "=%llx\n", (unsigned long long)info->name);

static void dump_scrub_info(const struct scrub_info *info, struct buf *buf)
{
    SCRUB_INFO_FIELDS(FIELD)
    T(info, run.project), T(info, run.run), CKPT(info, id), U(info, recent_count);
    for (uint32_t i = 0; i < info->recent_count; i++) {
        const struct scrub_finding_info *f = &info->recent[i];
        T(f, run.project), T(f, run.run), CKPT(f, id), U(f, health), I(f, wall_ns), T(f, text);
    }
}

static void dump_gc_info(const struct gc_info *info, struct buf *buf)
{
    GC_INFO_FIELDS(FIELD)
    GC_INFO_MORE_FIELDS(FIELD)
    T(info, run.project), T(info, run.run), T(info, text), I(info, code);
}

static void dump_repair(const struct msg *msg, struct buf *buf)
{
    const struct msg_repair_status *r = &msg->u.repair_status;
    if (msg->type == MSG_REPAIR) {
        U(&msg->u.repair, begin), U(&msg->u.repair, id.term), U(&msg->u.repair, id.step);
        T(&msg->u.repair, actor), T(&msg->u.repair, run.project), T(&msg->u.repair, run.run);
    } else if (msg->type == MSG_REPAIR_STATUS) {
        T(r, run.project), T(r, run.run), U(r, id.term), U(r, id.step), T(r, text);
        U(r, running), U(r, healed), U(r, code), U(r, bytes_read), U(r, mended), U(r, left);
        for (uint32_t i = 0; i < r->line_count; i++) {
            U(&r->lines[i], mended), T(&r->lines[i], text);
        }
    }
}

static void dump_care(const struct msg *msg, struct buf *buf)
{
    const struct msg_server_status *s = &msg->u.server_status;
    switch ((unsigned)msg->type) {
    case MSG_SCRUB:
        U(&msg->u.scrub, begin), U(&msg->u.scrub, rate);
        break;
    case MSG_SCRUB_STATUS:
        dump_scrub_info(&msg->u.scrub_status.info, buf);
        break;
    case MSG_GC:
        U(&msg->u.gc, begin), U(&msg->u.gc, dry_run), U(&msg->u.gc, now), T(&msg->u.gc, actor);
        for (uint32_t i = 0; i < msg->u.gc.run_count; i++) {
            T(&msg->u.gc, runs[i].project), T(&msg->u.gc, runs[i].run);
        }
        break;
    case MSG_GC_REPORT:
        dump_gc_info(&msg->u.gc_report.info, buf);
        break;
    case MSG_SERVER_STATUS:
        T(s, agent), T(s, store), T(s, detail), H(s, store_uuid), U(s, epoch), U(s, total_bytes);
        U(s, free_bytes), U(s, uptime_ms), U(s, bytes_in), U(s, bytes_out), U(s, sessions);
        U(s, saves_open), U(s, runs), U(s, read_only), U(s, has_scrub), U(s, has_gc);
        if (s->has_scrub) {
            dump_scrub_info(&s->scrub, buf);
        }
        if (s->has_gc) {
            dump_gc_info(&s->gc, buf);
        }
        U(s, health), I(s, health_code), T(s, health_text), T(s, health_remedy), U(s, health_ms);
        I(s, wall_ns), U(s, reserve_bytes);
        break;
    default:
        break;
    }
}

void sample_dump(const struct msg *msg, struct buf *buf)
{
    buf_printf(buf, "%s\n", msg_name((uint32_t)msg->type));
    dump_session(msg, buf);
    dump_save(msg, buf);
    dump_save_end(msg, buf);
    dump_list(msg, buf);
    dump_restore(msg, buf);
    dump_agree(msg, buf);
    dump_care(msg, buf);
    dump_repair(msg, buf);
    dump_usage(msg, buf);
    dump_progress(msg, buf);
    dump_mark(msg, buf);
}

void sample_frame(const struct msg *msg, uint32_t stream, uint64_t sequence, uint32_t payload_bytes,
                  struct buf *buf)
{
    struct buf message;
    buf_init(&message, LIMIT_MESSAGE_BYTES);
    msg_encode(msg, &message);
    CHECK(buf_status(&message) == 0);
    struct frame frame = {.type = (uint16_t)msg->type,
                          .stream = stream,
                          .sequence = sequence,
                          .message_bytes = (uint32_t)message.bytes,
                          .payload_bytes = payload_bytes};
    uint8_t header[FRAME_HEADER_BYTES];
    frame_encode(&frame, message.data, header);
    buf_put(buf, sizeof(header), header);
    buf_put(buf, message.bytes, message.data);
    buf_fini(&message);
}
