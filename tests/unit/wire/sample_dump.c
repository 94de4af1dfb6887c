/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a message as text, from the struct alone.
 */
#include "hash/hash.h"
#include "sample.h"

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
    U(i, on_lineage), U(i, is_latest), T(i, text), U(i, note_version);
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
        CKPT(&msg->u.sealed, id);
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
        U(&msg->u.describe, bytes);
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
        U(&msg->u.list_reply, count), U(&msg->u.list_reply, more);
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

void sample_dump(const struct msg *msg, struct buf *buf)
{
    buf_printf(buf, "%s\n", msg_name((uint32_t)msg->type));
    dump_session(msg, buf);
    dump_save(msg, buf);
    dump_save_end(msg, buf);
    dump_list(msg, buf);
    dump_restore(msg, buf);
    dump_agree(msg, buf);
}
