/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws messages. The rows of messages.def say which fields there are and what a field may hold:
 * a number outside of its range is moved into it, and a struct that breaks a rule is drawn again.
 * What rows cannot say is drawn by hand, as parts.c has it.
 */
#include "sample.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits that only the codecs know: codec_private.h. */
enum {
    WIRE_REPEATED_MAX = 65536,
    WIRE_STATE_MAX = 4,
    DESCRIBE_ENCODE_MAX = 2,
    MSG_MARK_VALUE_BYTES_MAX = 1024,
    MSG_POLICY_PATTERN_BYTES_MAX = 100
};
enum { ENTRIES = 4 /* of an array, at most */ };

const uint32_t SAMPLE_TYPES[] = {
#define MESSAGE(number, NAME, name, Pb, payload)      MSG_##NAME,
#define EMPTY(number, NAME, name, Pb)                 MSG_##NAME,
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb) MSG_##NAME,
#include "wire/messages.def"
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
static uint32_t below32(struct sample *s, uint64_t n) { return (uint32_t)sample_below(s, n); }
static bool flip(struct sample *s) { return sample_below(s, 2) == 1; }

static void fill(struct sample *s, size_t bytes, void *ret)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)ret)[i] = (uint8_t)sample_u64(s);
    }
}

static void *take(struct sample *s, size_t count, size_t size)
{
    void *memory = scratch_array(s->scratch, count, size);
    CHECK(memory != NULL);
    return memory;
}

static const char *text(struct sample *s, size_t least, size_t most)
{
    static const char *const PIECES[] = {"a",    "layer.", "0", "ü",  "重",
                                         "🪨", " ",      "/", "\n", "w"};
    char *ret = take(s, most + 8, 1);
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

/* 1 to LIMIT_RUN_NAME_BYTES characters. */
static void draw_word(struct sample *s, char *ret)
{
    static const char LETTERS[] = "abcxyz0189._-";
    size_t bytes = 1 + sample_below(s, LIMIT_RUN_NAME_BYTES);
    memset(ret, 'p', bytes); /* a name starts with a letter */
    ret[bytes] = '\0';
    for (size_t i = 1; i < bytes; i++) {
        ret[i] = LETTERS[sample_below(s, sizeof(LETTERS) - 1)];
    }
}

static const char *name(struct sample *s, size_t least, size_t most)
{
    if (flip(s)) {
        return text(s, least, most < 100 ? most : 100);
    }
    char *word = take(s, LIMIT_RUN_NAME_BYTES + 1, 1);
    draw_word(s, word);
    return word;
}

/* --- numbers, by their kind in protobuf; small and large ones alike --- */

static uint64_t draw_uint64(struct sample *s)
{
    uint64_t shift = sample_below(s, 64); /* first: C leaves the order of operands open */
    uint64_t number = sample_u64(s) >> shift;
    return flip(s) ? number : number - number % LIMIT_ALIGN_BYTES;
}

static uint32_t draw_uint32(struct sample *s) { return (uint32_t)draw_uint64(s); }
static uint64_t draw_fixed64(struct sample *s) { return sample_u64(s); }
static int64_t draw_sint64(struct sample *s) { return (int64_t)draw_uint64(s); }
static bool draw_bool(struct sample *s) { return flip(s); }
#define draw__Bool draw_bool /* what bool becomes on its way through a list of X() */
static double draw_double(struct sample *s) { return (double)(int64_t)sample_u64(s) / 1024.0; }
/* All of this kind are codes of errors. */
static int32_t draw_sint32(struct sample *s) { return -(int32_t)sample_below(s, 100); }

static uint64_t within(uint64_t value, uint64_t least, uint64_t most)
{
    value = value < least ? least : value;
    return value > most ? least + value % (most - least + 1) : value;
}

/* --- by hand --- */

static void draw_run_name(struct sample *s, struct run_name *ret)
{
    *ret = (struct run_name){.project = ""};
    draw_word(s, ret->project);
    draw_word(s, ret->run);
}

static void draw_selector(struct sample *s, struct selector *ret)
{
    *ret = (struct selector){.kind = (enum select_kind)sample_below(s, 3)};
    ret->id.term = ret->kind == SELECT_EXACT ? 1 + draw_uint64(s) / 2 : 0;
    ret->id.step = ret->kind == SELECT_LATEST ? 0 : draw_uint64(s);
}

static void draw_plan_want(struct sample *s, struct plan_want *ret)
{
    *ret = (struct plan_want){.is_blob = sample_below(s, 4) == 0, .name = text(s, 1, 60)};
    ret->coordinate = text(s, 0, 10);
    if (ret->is_blob) {
        return;
    }
    ret->dtype = CAIRN_F32;
    ret->shape.ndim = ret->box.ndim = below32(s, LIMIT_NDIM + 1);
    for (uint32_t i = 0; i < ret->shape.ndim; i++) {
        uint64_t length = sample_below(s, 100), offset = sample_below(s, length + 1);
        ret->shape.length[i] = (int64_t)length;
        ret->box.offset[i] = (int64_t)offset;
        ret->box.length[i] = (int64_t)sample_below(s, length - offset + 1);
    }
}

static void draw_key(struct sample *s, uint32_t i, struct xxh128 *keys)
{
    fill(s, sizeof(keys[i]), &keys[i]);
}

static void draw_number(struct sample *s, uint32_t i, uint64_t *numbers)
{
    numbers[i] = draw_uint64(s);
}

static void draw_mark_record(struct sample *s, uint32_t i, struct msg_mark_record *records)
{
    records[i] = (struct msg_mark_record){.id = {draw_uint64(s), draw_uint64(s)},
                                          .wall_ns = draw_sint64(s),
                                          .reasons = draw_uint64(s),
                                          .outcome = draw_uint32(s)};
}

/* Each behind the one before it in the payload. */
static void draw_envelope(struct sample *s, uint32_t i, struct envelope *envelopes)
{
    const struct envelope *before = i > 0 ? &envelopes[i - 1] : NULL;
    struct envelope *e = &envelopes[i];
    *e = (struct envelope){
        .stored_bytes = 1 + below32(s, 100000),
        .stored_crc = (uint32_t)sample_u64(s),
        .encoding = (uint8_t)sample_below(s, 3),
        .digest_alg = flip(s) ? DIGEST_XXH3_128 : DIGEST_SHA256,
        .element_bytes = (uint8_t)(1u << sample_below(s, 4)),
    };
    if (before != NULL) {
        e->offset = round_up_u64(before->offset + before->stored_bytes, LIMIT_ALIGN_BYTES);
    }
    e->plain_bytes =
        e->encoding == ENCODING_RAW ? e->stored_bytes : 1 + below32(s, LIMIT_CHUNK_BYTES);
    fill(s, e->digest_alg == DIGEST_SHA256 ? 32 : 16, e->digest.bytes);
}

static void draw_sets(struct sample *s, bool holders, struct msg_sets *ret)
{
    *ret = (struct msg_sets){
        .count = below32(s, 9), .last = flip(s), .code = draw_sint32(s), .text = text(s, 0, 100)};
    ret->rows = take(s, ret->count, sizeof(*ret->rows));
    for (uint32_t i = 0; i < ret->count; i++) {
        uint32_t bytes = below32(s, 30);
        uint8_t *bits = take(s, bytes, 1);
        fill(s, bytes, bits);
        ret->rows[i] = (struct msg_set){.bytes = bytes, .bits = bits};
        draw_key(s, 0, &ret->rows[i].key);
        ret->rows[i].division = holders ? draw_uint64(s) : 0;
    }
}

/* --- by rows --- */

#define BEGIN_(type)                                             \
    static void draw_##type(struct sample *s, struct type *self) \
    {                                                            \
        for (bool kept = false; !kept;) {                        \
            kept = true;                                         \
            memset(self, 0, sizeof(*self));
#define MESSAGE(number, NAME, name, Pb, payload) BEGIN_(msg_##name)
#define PART(type, name, Pb)                     BEGIN_(type)
#define END \
    }       \
    }
#define ARRAY_(f, statement)                      \
    self->f = take(s, ENTRIES, sizeof(*self->f)); \
    for (uint32_t i = 0; i < ENTRIES; i++) {      \
        statement;                                \
    }
#define ARRAY_OF_(f, count, statement)     \
    self->count = below32(s, ENTRIES + 1); \
    ARRAY_(f, statement)
#define VALUE(n, kind, type, p, f) self->f = (type)draw_##kind(s);
#define FIXED_IF(n, type, f, when)          \
    if (when) {                             \
        fill(s, sizeof(self->f), &self->f); \
    }
#define TEXT(n, f)              self->f = text(s, 0, 100);
#define NAME(n, f, least, most) self->f = name(s, least, most);
#define DATA(n, f, count, most)   \
    uint8_t *f = take(s, 400, 1); \
    fill(s, 400, f);              \
    self->f = f;                  \
    self->count = below32(s, 400);
#define HAS(f) self->has_##f = flip(s);
#define SUB(n, type, Pb, p, f, when, need)    \
    if ((need) || flip(s)) {                  \
        draw_##type(s, &self->f);             \
    }                                         \
    if (!(when)) {                            \
        memset(&self->f, 0, sizeof(self->f)); \
    }
#define LIST(n, type, Pb, f, count, most)           ARRAY_OF_(f, count, draw_##type(s, &self->f[i]))
#define TAGS(n, f, count)                           ARRAY_OF_(f, count, self->f[i] = name(s, 1, 40))
#define NUMBERS(n, f, count, most)                  ARRAY_OF_(f, count, self->f[i] = draw_uint32(s))
#define PACKED_AS(n, kind, type, p, f, count, most) ARRAY_OF_(f, count, draw_##kind(s, i, self->f))
#define PACKED_TOO(n, kind, type, f, count)         ARRAY_(f, draw_##kind(s, i, self->f))
#define RANGE_OF(label, value, least, most) \
    value = (__typeof__(value))within((uint64_t)(value), least, most);
#define RANGE_EACH(f, count, least, most)                       \
    for (uint32_t i = 0; i < self->count; i++) {                \
        self->f[i] = (uint32_t)within(self->f[i], least, most); \
    }
#define RULE(label, holds, why) kept = kept && (holds);
#include "wire/messages.def"

static void draw(struct sample *s, struct msg *ret)
{
    switch (ret->type) {
#define MESSAGE(number, NAME, name, Pb, payload) \
    case MSG_##NAME:                             \
        draw_msg_##name(s, &ret->u.name);        \
        break;
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb)          \
    case MSG_##NAME:                                           \
        draw_sets(s, MSG_##NAME == MSG_HOLDERS, &ret->u.name); \
        break;
#define EMPTY(number, NAME, name, Pb) \
    case MSG_##NAME:                  \
        break;
#include "wire/messages.def"
    }
}

static uint32_t draw_payload(struct sample *s, const struct msg *msg)
{
    switch ((uint32_t)msg->type) {
    case MSG_DATA: {
        const struct envelope *last = &msg->u.data.envelopes[msg->u.data.envelope_count - 1];
        return (uint32_t)(last->offset + last->stored_bytes + sample_below(s, LIMIT_ALIGN_BYTES));
    }
    case MSG_PART:
        return (uint32_t)within(draw_uint32(s), 0, msg->u.part.total_bytes - msg->u.part.offset);
    case MSG_BYTES:
        return (uint32_t)within(draw_uint32(s), 0, msg->u.bytes.total_bytes - msg->u.bytes.offset);
    case MSG_PLAN_REPLY:
        return msg->u.plan_reply.record_count * PLAN_READ_BYTES;
    case MSG_READ_REPLY:
        return msg->u.read_reply.bytes;
    default:
        return 0;
    }
}

void sample_make(struct sample *s, uint32_t type, struct msg *ret, uint32_t *ret_payload_bytes)
{
    do {
        *ret = (struct msg){.type = (enum msg_type)type};
        draw(s, ret);
        *ret_payload_bytes = draw_payload(s, ret);
    } while (msg_check(ret, NULL) != 0 || msg_check_payload(ret, *ret_payload_bytes, NULL) != 0);
}

void sample_plan_read(struct sample *s, struct plan_read *ret)
{
    struct envelope e;
    draw_envelope(s, 0, &e);
    *ret =
        (struct plan_read){.want = draw_uint32(s),
                           .stored_bytes = e.stored_bytes,
                           .plain_bytes = e.plain_bytes,
                           .stored_crc = e.stored_crc,
                           .offset = sample_below(s, (uint64_t)LIMIT_OBJECT_BYTES - e.stored_bytes),
                           .encoding = e.encoding,
                           .digest_alg = e.digest_alg,
                           .digest = e.digest,
                           .blob_offset = draw_uint64(s)};
    draw_object_id(s, &ret->object);
    ret->cell.ndim = below32(s, LIMIT_NDIM + 1);
    for (uint32_t i = 0; i < ret->cell.ndim; i++) {
        ret->cell.offset[i] = (int64_t)(draw_uint64(s) >> 2);
        ret->cell.length[i] = (int64_t)(draw_uint64(s) >> 2);
    }
}

void sample_golden_name(uint32_t type, unsigned grown, size_t size, char *ret)
{
    char number[16] = "";
    if (grown > 1) {
        snprintf(number, sizeof(number), "%u", grown);
    }
    snprintf(ret, size, "%s%s%s", msg_name(type), grown > 0 ? ".grown" : "", number);
}
