/* SPDX-License-Identifier: Apache-2.0
 *
 * The generator of sample messages. Order and arithmetic of the draws are part of the golden files:
 * new fields are drawn at the end of their message.
 */
#include "sample_private.h"

#include "base/check.h"
#include "wire/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint32_t SAMPLE_TYPES[] = {
    MSG_HELLO,          MSG_WELCOME,    MSG_ERROR,          MSG_PING,
    MSG_PONG,           MSG_BYE,        MSG_JOIN,           MSG_JOINED,
    MSG_OPEN,           MSG_OPENED,     MSG_WANT,           MSG_GRANT,
    MSG_DATA,           MSG_OBJECT_END, MSG_OBJECT_DURABLE, MSG_HAVE,
    MSG_HELD,           MSG_PART,       MSG_SEAL,           MSG_SEALED,
    MSG_WAIT,           MSG_OUTCOME,    MSG_ABORT,          MSG_STATUS,
    MSG_STATUS_REPLY,   MSG_LIST,       MSG_LIST_REPLY,     MSG_RUNS,
    MSG_RUNS_REPLY,     MSG_RESTORE,    MSG_RESOLVED,       MSG_REPORT,
    MSG_VERDICT,        MSG_FETCH,      MSG_BYTES,          MSG_PLAN,
    MSG_PLAN_REPLY,     MSG_READ,       MSG_READ_REPLY,     MSG_AGREE,
    MSG_AGREED,         MSG_LISTS,      MSG_HOLDERS,        MSG_DIGESTS,
    MSG_COMPARED,       MSG_ARENA,      MSG_DESCRIBE,       MSG_COMPLETE,
    MSG_HANDED,         MSG_ANNOTATE,   MSG_ANNOTATED,      MSG_USAGE,
    MSG_USAGE_REPLY,    MSG_MARK,       MSG_MARKED,         MSG_PROGRESS,
    MSG_PROGRESS_REPLY, MSG_LANDING,    MSG_LANDED,         MSG_SCRUB,
    MSG_SCRUB_STATUS,   MSG_GC,         MSG_GC_REPORT,      MSG_SERVER,
    MSG_SERVER_STATUS,  MSG_REPAIR,     MSG_REPAIR_STATUS,  MSG_LOG,
    MSG_LOG_REPLY,      MSG_REMOVE,
};
const size_t SAMPLE_TYPE_COUNT = ARRAY_LEN(SAMPLE_TYPES);

uint64_t sample_u64(struct sample *s)
{
    uint64_t z = (s->state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sample_below(struct sample *s, uint64_t n) { return sample_u64(s) % n; }
uint32_t sample_below32(struct sample *s, uint64_t n) { return (uint32_t)sample_below(s, n); }
bool sample_flip(struct sample *s) { return sample_below(s, 2) == 1; }

/* Small and large numbers alike. */
uint64_t sample_number(struct sample *s)
{
    uint64_t shift = sample_below(s, 64); /* first: C leaves the order of operands open */
    return sample_u64(s) >> shift;
}

void sample_fill(struct sample *s, size_t bytes, void *ret)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)ret)[i] = (uint8_t)sample_u64(s);
    }
}

void *sample_take(struct sample *s, size_t count, size_t size)
{
    void *memory = scratch_array(s->scratch, count, size);
    CHECK(memory != NULL);
    return memory;
}

const char *sample_text(struct sample *s, size_t least, size_t most)
{
    static const char *const PIECES[] = {"a",    "layer.", "0", "ü",  "重",
                                         "🪨", " ",      "/", "\n", "w"};
    char *ret = sample_take(s, most + 8, 1);
    size_t want = least + sample_below(s, most - least + 1), used = 0;
    while (used < want) {
        const char *piece = PIECES[sample_below(s, ARRAY_LEN(PIECES))];
        if (used + strlen(piece) > most) {
            piece = "x";
        }
        memcpy(ret + used, piece, strlen(piece));
        used += strlen(piece);
    }
    return ret;
}

struct ckpt_id sample_ckpt(struct sample *s)
{
    return (struct ckpt_id){1 + sample_number(s) / 2, sample_number(s)};
}
static struct ckpt_id maybe_ckpt(struct sample *s)
{
    return sample_flip(s) ? sample_ckpt(s) : (struct ckpt_id){0, 0};
}

static struct object_id object(struct sample *s)
{
    return (struct object_id){1 + sample_number(s) / 2, sample_number(s), sample_u64(s),
                              sample_below32(s, LIMIT_WORLD_SIZE), (uint32_t)sample_number(s)};
}

struct run_name sample_run(struct sample *s)
{
    static const char LETTERS[] = "abcxyz0189._-";
    struct run_name ret = {"p", "r"};
    size_t project = sample_below(s, LIMIT_RUN_NAME_BYTES),
           name = sample_below(s, LIMIT_RUN_NAME_BYTES);
    for (size_t i = 0; i < project; i++) {
        ret.project[1 + i] = LETTERS[sample_below(s, sizeof(LETTERS) - 1)];
    }
    for (size_t i = 0; i < name; i++) {
        ret.run[1 + i] = LETTERS[sample_below(s, sizeof(LETTERS) - 1)];
    }
    return ret;
}

static uint64_t chunk_bytes(struct sample *s)
{
    return LIMIT_CHUNK_BYTES_MIN + sample_below(s, LIMIT_CHUNK_BYTES - LIMIT_CHUNK_BYTES_MIN + 1);
}

static int32_t code(struct sample *s) { return -(int32_t)sample_below(s, 100); }

static struct ckpt_info info(struct sample *s)
{
    struct ckpt_info ret = {.id = sample_ckpt(s),
                            .parent = maybe_ckpt(s),
                            .seq = sample_number(s),
                            .plain_bytes = sample_number(s)};
    ret.stored_bytes = sample_number(s);
    ret.manifest_bytes = sample_number(s);
    sample_fill(s, sizeof(ret.manifest_sha256), &ret.manifest_sha256);
    ret.wall_ns = (int64_t)sample_u64(s);
    ret.world_size = sample_below32(s, LIMIT_WORLD_SIZE + 1);
    ret.state = sample_below32(s, CKPT_FORGOTTEN + 1);
    ret.health = sample_below32(s, HEALTH_DAMAGED + 1);
    ret.sealed_count = (uint32_t)sample_number(s);
    ret.on_lineage = sample_flip(s);
    ret.is_latest = sample_flip(s);
    ret.pinned = s->grown && sample_flip(s);
    ret.base = s->grown ? maybe_ckpt(s) : (struct ckpt_id){0};
    ret.base_seq = s->grown ? sample_number(s) : 0;
    ret.text = sample_text(s, 0, 300);
    ret.forgotten_wall_ns = s->grown >= 2 ? (int64_t)sample_u64(s) : 0;
    ret.until_wall_ns = s->grown >= 2 ? (int64_t)sample_u64(s) : 0;
    return ret;
}

static const char **labels(struct sample *s, uint32_t *ret_count)
{
    uint32_t count = sample_below32(s, 5);
    const char **ret = sample_take(s, count, sizeof(*ret));
    for (uint32_t i = 0; i < count; i++) {
        ret[i] = sample_text(s, 1, 40);
    }
    *ret_count = count;
    return ret;
}

static struct metric *metrics(struct sample *s, uint32_t *ret_count)
{
    uint32_t count = sample_below32(s, 5);
    struct metric *ret = sample_take(s, count, sizeof(*ret));
    for (uint32_t i = 0; i < count; i++) {
        ret[i].name = sample_text(s, 1, 40);
        ret[i].value = (double)(int64_t)sample_u64(s) / 1024.0;
    }
    *ret_count = count;
    return ret;
}

static void make_open(struct sample *s, struct msg_open *open)
{
    *open = (struct msg_open){
        .step = sample_number(s), .ordinal = (uint32_t)sample_number(s), .parent = maybe_ckpt(s)};
    open->newest_seen = sample_number(s);
    open->open_id = sample_u64(s);
    open->deadline_ms = sample_number(s);
    open->wait_ms = sample_number(s);
    sample_fill(s, sizeof(open->list_hash), &open->list_hash);
    open->metadata_bytes = sample_below32(s, 400);
    uint8_t *metadata = sample_take(s, open->metadata_bytes, 1);
    sample_fill(s, open->metadata_bytes, metadata);
    open->metadata = metadata;
    open->tags = labels(s, &open->tag_count);
    open->metrics = metrics(s, &open->metric_count);
    open->full = s->grown >= 1 && sample_flip(s);
    open->blocked_ms = s->grown >= 2 ? sample_number(s) : 0;
    open->persist_ms = s->grown >= 2 ? sample_number(s) : 0;
    open->plain_bytes = s->grown >= 3 ? sample_number(s) : 0;
}

static uint32_t make_data(struct sample *s, struct msg_data *data)
{
    *data =
        (struct msg_data){.object = object(s), .offset = sample_below(s, 1000) * LIMIT_ALIGN_BYTES};
    data->object_bytes = sample_flip(s) ? 0 : LIMIT_ALIGN_BYTES * (1 + sample_below(s, 20000));
    data->envelope_count = 1 + sample_below32(s, 6);
    data->envelopes = sample_take(s, data->envelope_count, sizeof(*data->envelopes));
    uint64_t at = 0;
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        struct envelope *e = &data->envelopes[i];
        e->offset = at;
        e->stored_bytes = 1 + sample_below32(s, 100000);
        e->plain_bytes = 1 + sample_below32(s, LIMIT_CHUNK_BYTES);
        e->stored_crc = (uint32_t)sample_u64(s);
        e->encoding = (uint8_t)sample_below(s, 3);
        if (e->encoding == ENCODING_RAW) {
            e->plain_bytes = e->stored_bytes;
        }
        e->digest_alg = sample_flip(s) ? DIGEST_XXH3_128 : DIGEST_SHA256;
        e->element_bytes = (uint8_t)(1u << sample_below(s, 4));
        sample_fill(s, e->digest_alg == DIGEST_SHA256 ? 32 : 16, e->digest.bytes);
        at = round_up_u64(at + e->stored_bytes, LIMIT_ALIGN_BYTES);
    }
    return (uint32_t)at;
}

static void make_want(struct sample *s, struct plan_want *want)
{
    *want = (struct plan_want){.is_blob = sample_below(s, 4) == 0, .name = sample_text(s, 1, 60)};
    want->coordinate = sample_text(s, 0, 10);
    if (want->is_blob) {
        return;
    }
    want->dtype = CAIRN_F32;
    want->shape.ndim = want->box.ndim = sample_below32(s, LIMIT_NDIM + 1);
    for (uint32_t i = 0; i < want->shape.ndim; i++) {
        want->shape.length[i] = (int64_t)sample_below(s, 100);
        want->box.offset[i] = (int64_t)sample_below(s, (uint64_t)want->shape.length[i] + 1);
        want->box.length[i] =
            (int64_t)sample_below(s, (uint64_t)(want->shape.length[i] - want->box.offset[i]) + 1);
    }
}

static void make_session(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_HELLO) {
        uint32_t least = 1 + sample_below32(s, 5);
        ret->u.hello = (struct msg_hello){least, least + sample_below32(s, 5), sample_u64(s),
                                          sample_text(s, 0, 40)};
    } else if (type == MSG_WELCOME) {
        struct msg_welcome *w = &ret->u.welcome;
        *w = (struct msg_welcome){.version = 1 + sample_below32(s, 5), .features = sample_u64(s)};
        sample_fill(s, sizeof(w->store_uuid), &w->store_uuid);
        w->heartbeat_ms = sample_below32(s, 10000);
        w->dead_after_ms = w->heartbeat_ms + sample_below32(s, 10000);
        w->payload_max = 1 + sample_below32(s, 1 << 30);
        w->message_max = 1 + sample_below32(s, 1 << 30);
        w->agent = sample_text(s, 0, 40);
    } else if (type == MSG_ERROR) {
        ret->u.error = (struct msg_error){code(s) - 1, sample_text(s, 0, 400)};
    } else if (type == MSG_JOIN) {
        struct msg_join *j = &ret->u.join;
        *j = (struct msg_join){
            .run = sample_run(s), .viewer = sample_flip(s), .label = sample_text(s, 0, 60)};
        if (!j->viewer) {
            sample_fill(s, sizeof(j->token), &j->token);
            j->world_size = 1 + sample_below32(s, LIMIT_WORLD_SIZE);
            j->rank = sample_below32(s, j->world_size);
            j->writer = sample_u64(s);
        }
    } else if (type == MSG_JOINED) {
        struct msg_joined *j = &ret->u.joined;
        *j = (struct msg_joined){.exists = sample_flip(s),
                                 .chunk_bytes = chunk_bytes(s),
                                 .newest_term = sample_number(s)};
        sample_fill(s, sizeof(j->run_uuid), &j->run_uuid);
        j->latest = maybe_ckpt(s);
        j->object_bytes = sample_below(s, (uint64_t)LIMIT_OBJECT_BYTES + 1);
    }
}

static void make_hand_over(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_ARENA) {
        ret->u.arena = (struct msg_arena){.arena_id = 1 + sample_number(s) / 2};
        ret->u.arena.bytes = sample_number(s);
    } else if (type == MSG_DESCRIBE) {
        struct msg_describe *d = &ret->u.describe;
        *d = (struct msg_describe){.bytes = 0};
        make_data(s, &d->data);
        d->arena_id = sample_u64(s);
        d->arena_offset = sample_below(s, 1 << 20) * LIMIT_ALIGN_BYTES;
        d->bytes = 1 + sample_below32(s, LIMIT_CHUNK_BYTES);
        d->encode = s->grown ? sample_below32(s, 3) : 0;
        d->dtype_count = s->grown && sample_flip(s) ? d->data.envelope_count : 0;
        d->dtypes = sample_take(s, d->dtype_count, sizeof(*d->dtypes));
        for (uint32_t i = 0; i < d->dtype_count; i++) {
            d->dtypes[i] = sample_below32(s, 30);
        }
        d->tensor = s->grown ? (uint32_t)sample_number(s) : 0;
    } else if (type == MSG_COMPLETE) {
        ret->u.complete = (struct msg_complete){.id = sample_ckpt(s)};
        ret->u.complete.open_id = sample_u64(s);
        ret->u.complete.part_bytes = 1 + sample_below(s, LIMIT_PART_BYTES);
    } else if (type == MSG_HANDED) {
        ret->u.handed.id = sample_ckpt(s);
    }
}

static void make_opened(struct sample *s, struct msg_opened *o)
{
    *o = (struct msg_opened){
        .id = sample_ckpt(s), .open_id = sample_u64(s), .state = sample_below32(s, 5)};
    o->sealed = sample_flip(s);
    o->new_term = sample_flip(s);
    o->new_lineage = sample_flip(s);
    o->seq = sample_number(s);
    o->deadline_ms = sample_number(s);
    o->chunk_bytes = chunk_bytes(s);
    sample_fill(s, sizeof(o->run_uuid), &o->run_uuid);
    o->base = s->grown ? maybe_ckpt(s) : (struct ckpt_id){0};
    o->sparse_count = s->grown ? sample_below32(s, 4) : 0;
    o->sparse = sample_take(s, o->sparse_count, sizeof(*o->sparse));
    for (uint32_t i = 0; i < o->sparse_count; i++) {
        o->sparse[i] = object(s);
    }
}

static void make_save(struct sample *s, uint32_t type, struct msg *ret, uint32_t *ret_payload)
{
    if (type == MSG_OPEN) {
        make_open(s, &ret->u.open);
    } else if (type == MSG_OPENED) {
        make_opened(s, &ret->u.opened);
    } else if (type == MSG_WANT) {
        ret->u.want.buffers = sample_below32(s, 65537);
    } else if (type == MSG_GRANT) {
        ret->u.grant.buffers = sample_below32(s, 65537);
    } else if (type == MSG_DATA) {
        *ret_payload = make_data(s, &ret->u.data);
    } else if (type == MSG_OBJECT_END) {
        ret->u.object_end =
            (struct msg_object_end){object(s), LIMIT_ALIGN_BYTES * (1 + sample_below(s, 1000)),
                                    1 + sample_below32(s, LIMIT_OBJECT_ENVELOPES)};
    } else if (type == MSG_OBJECT_DURABLE) {
        ret->u.object_durable.object = object(s);
    } else if (type == MSG_HAVE) {
        ret->u.have = (struct msg_have){sample_ckpt(s), sample_below32(s, LIMIT_WORLD_SIZE),
                                        sample_u64(s), false, 0};
        ret->u.have.from = ret->u.have.placed = s->grown && sample_flip(s);
    } else if (type == MSG_HELD) {
        struct msg_held *h = &ret->u.held;
        h->count = sample_below32(s, 200);
        h->sequences = sample_take(s, h->count, sizeof(*h->sequences));
        for (uint32_t i = 0; i < h->count; i++) {
            h->sequences[i] = (uint32_t)sample_number(s);
        }
    } else if (type == MSG_PART) {
        *ret_payload = 1 + sample_below32(s, 100000);
        struct msg_part *p = &ret->u.part;
        *p = (struct msg_part){sample_ckpt(s), sample_u64(s), sample_below(s, 1 << 20), 0};
        p->total_bytes = p->offset + *ret_payload + sample_below(s, 1 << 20);
    } else if (type == MSG_SEAL) {
        ret->u.seal = (struct msg_seal){.id = sample_ckpt(s), .open_id = sample_u64(s)};
        ret->u.seal.part_bytes = 1 + sample_below(s, LIMIT_PART_BYTES);
        sample_fill(s, sizeof(ret->u.seal.part_sha256), &ret->u.seal.part_sha256);
    } else if (type == MSG_SEALED) {
        ret->u.sealed.id = sample_ckpt(s);
        ret->u.sealed.stored_bytes = s->grown ? sample_number(s) : 0;
        ret->u.sealed.shared_bytes = s->grown ? sample_number(s) : 0;
    } else if (type == MSG_WAIT) {
        ret->u.wait = (struct msg_wait){sample_ckpt(s), sample_u64(s)};
    } else if (type == MSG_OUTCOME) {
        struct msg_outcome *o = &ret->u.outcome;
        *o = (struct msg_outcome){
            .id = sample_ckpt(s), .open_id = sample_u64(s), .state = sample_below32(s, 5)};
        o->code = code(s);
        o->text = sample_text(s, 0, 200);
        o->seq = sample_number(s);
    } else if (type == MSG_ABORT) {
        ret->u.abort =
            (struct msg_abort){sample_ckpt(s), sample_u64(s), code(s), sample_text(s, 0, 200)};
    } else {
        make_hand_over(s, type, ret);
    }
}

static struct selector selector(struct sample *s)
{
    struct selector ret = {.kind = (enum select_kind)sample_below(s, 3)};
    if (ret.kind != SELECT_LATEST) {
        ret.id = sample_ckpt(s);
        ret.id.term = ret.kind == SELECT_STEP ? 0 : ret.id.term;
    }
    return ret;
}

static void make_list(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_STATUS) {
        ret->u.status.id = sample_ckpt(s);
    } else if (type == MSG_STATUS_REPLY) {
        ret->u.status_reply.info = info(s);
    } else if (type == MSG_LIST) {
        ret->u.list = (struct msg_list){sample_number(s), (uint32_t)sample_number(s), s->grown};
    } else if (type == MSG_LOG || type == MSG_LOG_REPLY) {
        sample_make_log(s, type, ret);
    } else if (type == MSG_LIST_REPLY) {
        struct msg_list_reply *l = &ret->u.list_reply;
        l->count = sample_below32(s, 6);
        l->entries = sample_take(s, l->count, sizeof(*l->entries));
        for (uint32_t i = 0; i < l->count; i++) {
            l->entries[i] = info(s);
        }
        l->more = sample_flip(s);
        l->mark = s->grown ? sample_text(s, 0, 300) : "";
    } else if (type == MSG_RUNS) {
        ret->u.runs = (struct msg_runs){sample_flip(s) ? "" : "project-7", s->grown};
    } else if (type == MSG_RUNS_REPLY) {
        struct msg_runs_reply *r = &ret->u.runs_reply;
        r->count = sample_below32(s, 9);
        r->names = sample_take(s, r->count, sizeof(*r->names));
        for (uint32_t i = 0; i < r->count; i++) {
            r->names[i] = sample_run(s);
        }
    } else if (type == MSG_ANNOTATE) {
        struct msg_annotate *a = &ret->u.annotate;
        a->selector = selector(s);
        a->metrics = metrics(s, &a->metric_count);
        a->tags = labels(s, &a->tag_count);
        a->removed_tags = labels(s, &a->removed_count);
    } else if (type == MSG_ANNOTATED) {
        struct ckpt_info *i = &ret->u.annotated.info;
        *i = info(s);
        i->note_version = sample_number(s);
        i->tags = labels(s, &i->tag_count);
        i->metrics = metrics(s, &i->metric_count);
    }
}

static void make_mark(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_REMOVE) {
        ret->u.remove = (struct msg_remove){sample_flip(s), "ada@login1", sample_text(s, 0, 60)};
    } else if (type == MSG_MARK) {
        struct msg_mark *m = &ret->u.mark;
        *m = (struct msg_mark){.kind = 1 + sample_below32(s, 4),
                               .dry_run = sample_flip(s),
                               .selector_count = sample_below32(s, 4),
                               .option_count = sample_below32(s, 4),
                               .keep_least = sample_below32(s, 3),
                               .actor = sample_flip(s) ? "cron@node7" : "",
                               .reason = sample_flip(s) ? "disk is full" : "",
                               .all = s->grown};
        m->selectors = sample_take(s, m->selector_count, sizeof(*m->selectors));
        m->options = sample_take(s, m->option_count, sizeof(*m->options));
        for (uint32_t i = 0; i < m->selector_count; i++) {
            m->selectors[i] = selector(s);
        }
        for (uint32_t i = 0; i < m->option_count; i++) {
            m->options[i] = (struct msg_mark_option){"keep-tag", sample_flip(s) ? "a,b" : ""};
        }
    } else if (type == MSG_MARKED) {
        struct msg_marked *m = &ret->u.marked;
        *m = (struct msg_marked){.head_seq = sample_number(s),
                                 .done_count = sample_below32(s, 99),
                                 .refused_count = sample_below32(s, 99),
                                 .record_count = sample_below32(s, 5)};
        m->total_count = m->record_count + sample_below32(s, 3);
        m->records = sample_take(s, m->record_count, sizeof(*m->records));
        for (uint32_t i = 0; i < m->record_count; i++) {
            m->records[i] = (struct msg_mark_record){.id = sample_ckpt(s),
                                                     .wall_ns = (int64_t)sample_number(s),
                                                     .reasons = sample_number(s),
                                                     .outcome = sample_below32(s, 20)};
        }
        if (s->grown >= 1) {
            m->bytes = sample_number(s), m->forgotten = sample_number(s);
            m->forgotten_bytes = sample_number(s);
            m->first_wall_ns = (int64_t)sample_number(s);
            m->last_wall_ns = (int64_t)sample_number(s);
        }
        m->removed = s->grown >= 2;
        m->why = s->grown >= 3 ? sample_text(s, 0, 200) : "";
    }
}

static struct msg_usage_row usage_row(struct sample *s)
{
    struct msg_usage_row row = {.run = sample_run(s)};
    row.code = sample_flip(s) ? code(s) : 0;
    row.text = sample_text(s, 0, 60);
    row.saves = sample_number(s), row.saves_aborted = sample_number(s);
    row.restores = sample_number(s), row.restores_failed = sample_number(s);
    row.written_bytes = sample_number(s), row.byte_hours = (double)sample_number(s) / 8;
    row.checkpoints = sample_number(s), row.forgotten = sample_number(s);
    row.plain_bytes = sample_number(s), row.stored_bytes = sample_number(s);
    row.shared_bytes = sample_number(s), row.reclaimable_bytes = sample_number(s);
    row.newest_wall_ns = (int64_t)sample_number(s);
    if (s->grown >= 1) {
        row.timed_saves = sample_number(s), row.blocked_ms = sample_number(s),
        row.persist_ms = sample_number(s);
    }
    return row;
}

static void make_usage(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_USAGE) {
        struct msg_usage *u = &ret->u.usage;
        *u = (struct msg_usage){.project = sample_flip(s) ? "vision" : "",
                                .since_ns = (int64_t)sample_number(s)};
        if (sample_flip(s)) {
            u->after = sample_run(s);
        }
    } else if (type == MSG_USAGE_REPLY) {
        struct msg_usage_reply *r = &ret->u.usage_reply;
        *r = (struct msg_usage_reply){.count = sample_below32(s, 5), .more = sample_flip(s)};
        r->now_ns = -(int64_t)sample_below(s, 1000);
        r->rows = sample_take(s, r->count, sizeof(*r->rows));
        for (uint32_t i = 0; i < r->count; i++) {
            r->rows[i] = usage_row(s);
        }
        r->quota_count = sample_below32(s, 3);
        r->quotas = sample_take(s, r->quota_count, sizeof(*r->quotas));
        for (uint32_t i = 0; i < r->quota_count; i++) {
            r->quotas[i] =
                (struct msg_usage_quota){i == 0 ? "*" : "nlp", sample_number(s), sample_number(s)};
        }
    }
}

static void make_progress(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_PROGRESS) {
        ret->u.progress = (struct msg_progress){.project = sample_flip(s) ? "vision" : ""};
        return;
    }
    struct msg_progress_reply *r = &ret->u.progress_reply;
    *r = (struct msg_progress_reply){.count = sample_below32(s, 5), .more = sample_flip(s)};
    r->rows = sample_take(s, r->count, sizeof(*r->rows));
    for (uint32_t i = 0; i < r->count; i++) {
        struct msg_progress_row *row = &r->rows[i];
        *row = (struct msg_progress_row){.run = sample_run(s), .id = sample_ckpt(s)};
        row->world_size = 1 + sample_below32(s, LIMIT_WORLD_SIZE);
        row->rank = sample_below32(s, row->world_size);
        row->received_bytes = sample_number(s), row->durable_bytes = sample_number(s);
        row->age_ms = sample_number(s), row->quiet_ms = sample_number(s);
        row->connected = sample_flip(s), row->handed_over = sample_flip(s);
    }
}

static void make_restore(struct sample *s, uint32_t type, struct msg *ret, uint32_t *ret_payload)
{
    if (type == MSG_RESTORE) {
        struct msg_restore *r = &ret->u.restore;
        *r = (struct msg_restore){.ordinal = (uint32_t)sample_number(s)};
        r->selector = selector(s);
        r->allow_older = sample_flip(s);
        r->wait_ms = sample_number(s);
    } else if (type == MSG_RESOLVED) {
        struct msg_resolved *r = &ret->u.resolved;
        *r = (struct msg_resolved){
            .empty = sample_flip(s), .fell_back = sample_flip(s), .id = sample_ckpt(s)};
        r->try_count = (uint32_t)sample_number(s);
        r->newest_term = sample_number(s);
        r->info = info(s);
    } else if (type == MSG_REPORT) {
        struct msg_report *r = &ret->u.report;
        *r = (struct msg_report){(uint32_t)sample_number(s), (uint32_t)sample_number(s), code(s),
                                 sample_text(s, 0, 200), sample_number(s)};
    } else if (type == MSG_VERDICT) {
        struct msg_verdict *v = &ret->u.verdict;
        *v = (struct msg_verdict){.done = sample_flip(s),
                                  .fell_back = sample_flip(s),
                                  .id = sample_ckpt(s),
                                  .text = sample_text(s, 0, 99)};
        v->code = v->done ? 0 : code(s);
        v->try_count = (uint32_t)sample_number(s);
        v->newest_term = sample_number(s);
        v->info = info(s);
    } else if (type == MSG_FETCH) {
        ret->u.fetch = (struct msg_fetch){sample_ckpt(s), 1 + sample_below32(s, 3),
                                          (uint32_t)sample_number(s)};
    } else if (type == MSG_BYTES) {
        *ret_payload = sample_below32(s, 10000);
        ret->u.bytes.offset = sample_below(s, 1 << 20);
        ret->u.bytes.total_bytes = ret->u.bytes.offset + *ret_payload;
    } else if (type == MSG_PLAN) {
        struct msg_plan *p = &ret->u.plan;
        *p = (struct msg_plan){.id = sample_ckpt(s), .want_count = sample_below32(s, 10)};
        p->wants = sample_take(s, p->want_count, sizeof(*p->wants));
        for (uint32_t i = 0; i < p->want_count; i++) {
            make_want(s, &p->wants[i]);
        }
    } else if (type == MSG_PLAN_REPLY) {
        ret->u.plan_reply = (struct msg_plan_reply){sample_below32(s, 1000), sample_flip(s)};
        *ret_payload = ret->u.plan_reply.record_count * PLAN_READ_BYTES;
    } else if (type == MSG_READ) {
        ret->u.read = (struct msg_read){.object = object(s)};
        ret->u.read.offset = sample_below(s, 1 << 20);
        ret->u.read.bytes = 1 + sample_below32(s, LIMIT_CHUNK_BYTES);
        if (s->grown) {
            struct msg_read *r = &ret->u.read;
            r->landing_id = sample_u64(s);
            r->landing_offset = sample_below(s, 1 << 20) * LIMIT_ALIGN_BYTES;
            r->offset *= LIMIT_ALIGN_BYTES / 16;
            r->offset -= r->offset % LIMIT_ALIGN_BYTES;
            r->bytes = (1 + sample_below32(s, 1024)) * LIMIT_ALIGN_BYTES;
            r->to_end = s->grown >= 2 && sample_flip(s);
        }
    } else if (type == MSG_LANDING) {
        ret->u.landing = (struct msg_landing){.landing_id = 1 + sample_number(s) / 2};
        ret->u.landing.bytes = sample_number(s);
    } else if (type == MSG_LANDED) {
        ret->u.landed.bytes = 1 + sample_below32(s, 100000);
    } else if (type == MSG_READ_REPLY) {
        ret->u.read_reply.bytes = *ret_payload = 1 + sample_below32(s, 100000);
    }
}

static struct xxh128 *hashes(struct sample *s, uint32_t count)
{
    struct xxh128 *ret = sample_take(s, count, sizeof(*ret));
    sample_fill(s, count * sizeof(*ret), ret);
    return ret;
}

static void make_agree(struct sample *s, struct msg_agree *agree)
{
    *agree = (struct msg_agree){.id = sample_ckpt(s), .open_id = sample_u64(s)};
    agree->check = sample_below32(s, 3);
    agree->count = sample_below32(s, 6);
    agree->groups = sample_take(s, agree->count, sizeof(*agree->groups));
    for (uint32_t i = 0; i < agree->count; i++) {
        struct msg_agree_group *group = &agree->groups[i];
        group->members = 2 + sample_below32(s, LIMIT_WORLD_SIZE - 1);
        group->member = sample_below32(s, group->members);
        group->copied = sample_flip(s);
        sample_fill(s, sizeof(group->group), &group->group);
        sample_fill(s, sizeof(group->list_hash), &group->list_hash);
    }
}

static void make_sets(struct sample *s, bool holders, struct msg_sets *sets)
{
    *sets =
        (struct msg_sets){.count = sample_below32(s, 9), .last = sample_flip(s), .code = code(s)};
    sets->text = sample_text(s, 0, 100);
    sets->rows = sample_take(s, sets->count, sizeof(*sets->rows));
    for (uint32_t i = 0; i < sets->count; i++) {
        uint32_t bytes = sample_below32(s, 30);
        uint8_t *bits = sample_take(s, bytes, 1);
        sample_fill(s, bytes, bits);
        sets->rows[i] = (struct msg_set){.key = *hashes(s, 1), .bytes = bytes, .bits = bits};
        sets->rows[i].division = holders ? sample_number(s) : 0;
    }
}

static void make_lists(struct sample *s, uint32_t type, struct msg *ret)
{
    if (type == MSG_AGREE) {
        make_agree(s, &ret->u.agree);
    } else if (type == MSG_AGREED) {
        struct msg_agreed *a = &ret->u.agreed;
        a->count = sample_below32(s, 9);
        a->verdicts = sample_take(s, a->count, sizeof(*a->verdicts));
        for (uint32_t i = 0; i < a->count; i++) {
            a->verdicts[i] = 1 + sample_below32(s, 5);
        }
    } else if (type == MSG_LISTS) {
        struct msg_lists *l = &ret->u.lists;
        *l = (struct msg_lists){
            .id = sample_ckpt(s), .open_id = sample_u64(s), .group = *hashes(s, 1)};
        l->first = sample_below32(s, 100);
        l->count = 1 + sample_below32(s, 9);
        l->total = l->first + l->count + sample_below32(s, 100);
        l->keys = hashes(s, l->count);
        l->divisions = sample_take(s, l->count, sizeof(*l->divisions));
        for (uint32_t i = 0; i < l->count; i++) {
            l->divisions[i] = sample_number(s);
        }
    } else if (type == MSG_DIGESTS) {
        struct msg_digests *d = &ret->u.digests;
        *d = (struct msg_digests){
            .id = sample_ckpt(s), .open_id = sample_u64(s), .group = *hashes(s, 1)};
        d->first = sample_below32(s, 100);
        d->count = 1 + sample_below32(s, 9);
        d->total = d->first + d->count + sample_below32(s, 100);
        d->keys = hashes(s, d->count);
        d->digests = hashes(s, d->count);
    } else {
        bool holders = type == MSG_HOLDERS;
        make_sets(s, holders, holders ? &ret->u.holders : &ret->u.compared);
    }
}

unsigned sample_growths(uint32_t type)
{
    switch (type) {
    case MSG_SERVER_STATUS:
        return 5;
    case MSG_OPEN:
    case MSG_MARKED:
        return 3;
    case MSG_GC_REPORT:
    case MSG_READ:
    case MSG_LIST_REPLY:
    case MSG_STATUS_REPLY:
        return 2;
    case MSG_OPENED:
    case MSG_DESCRIBE:
    case MSG_HAVE:
    case MSG_SEALED:
    case MSG_LIST:
    case MSG_RUNS:
    case MSG_MARK:
    case MSG_USAGE_REPLY:
    case MSG_REPAIR:
    case MSG_GC:
        return 1;
    default:
        return 0;
    }
}

void sample_golden_name(uint32_t type, unsigned grown, size_t size, char *ret)
{
    char suffix[32] = "";
    if (grown == 1) {
        snprintf(suffix, sizeof(suffix), ".grown");
    } else if (grown > 1) {
        snprintf(suffix, sizeof(suffix), ".grown%u", grown);
    }
    snprintf(ret, size, "%s%s.bin", msg_name(type), suffix);
}

void sample_make(struct sample *s, uint32_t type, struct msg *ret, uint32_t *ret_payload_bytes)
{
    memset(ret, 0, sizeof(*ret));
    ret->type = (enum msg_type)type;
    *ret_payload_bytes = 0;
    if (type < 20) {
        make_session(s, type, ret);
    } else if (type < 40) {
        make_save(s, type, ret, ret_payload_bytes);
    } else if (type < 60) {
        make_list(s, type, ret);
    } else if (type < 80) {
        make_restore(s, type, ret, ret_payload_bytes);
    } else if (type < 90) {
        make_lists(s, type, ret);
    } else if (type < 100) {
        make_mark(s, type, ret);
    } else if (type < 110) {
        sample_make_maintenance(s, type, ret);
    } else if (type < 120) {
        make_progress(s, type, ret);
    } else {
        make_usage(s, type, ret);
    }
}

void sample_plan_read(struct sample *s, struct plan_read *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->want = (uint32_t)sample_number(s);
    ret->object = object(s);
    ret->stored_bytes = 1 + sample_below32(s, LIMIT_CHUNK_BYTES);
    ret->plain_bytes = 1 + sample_below32(s, LIMIT_CHUNK_BYTES);
    ret->stored_crc = (uint32_t)sample_u64(s);
    ret->offset = sample_below(s, (uint64_t)LIMIT_OBJECT_BYTES - ret->stored_bytes);
    ret->encoding = (uint8_t)sample_below(s, 3);
    ret->digest_alg = sample_flip(s) ? DIGEST_XXH3_128 : DIGEST_SHA256;
    ret->plain_bytes = ret->encoding == ENCODING_RAW ? ret->stored_bytes : ret->plain_bytes;
    sample_fill(s, ret->digest_alg == DIGEST_SHA256 ? 32 : 16, ret->digest.bytes);
    ret->blob_offset = sample_number(s);
    ret->cell.ndim = sample_below32(s, LIMIT_NDIM + 1);
    for (uint32_t i = 0; i < ret->cell.ndim; i++) {
        ret->cell.offset[i] = (int64_t)(sample_number(s) >> 2);
        ret->cell.length[i] = (int64_t)(sample_number(s) >> 2);
    }
}
