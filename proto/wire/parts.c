/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs that rows of messages.def cannot say: names of runs, selectors, boxes, sets of ranks,
 * and records of a fixed length. Invariant: a decoded part has every field within its range. Pure;
 * any thread.
 */
#include "codec_private.h"

#include <string.h>

enum { SET_BYTES_MAX = (LIMIT_WORLD_SIZE + 7) / 8 };
static_assert(MSG_MARK_RECORDS_MAX * mark_record_BYTES + 4096 <= LIMIT_MESSAGE_BYTES,
              "an answer fits into a message");
static_assert(key_BYTES == sizeof(struct xxh128), "a key is sent as it lies in memory");

const char *server_health_name(uint32_t health)
{
    static const char *const names[] = {[SERVER_HEALTH_UNKNOWN] = "unknown",
                                        [SERVER_GREEN] = "green",
                                        [SERVER_YELLOW] = "yellow",
                                        [SERVER_RED] = "red"};
    return names[health < ARRAY_LEN(names) ? health : SERVER_HEALTH_UNKNOWN];
}

/* --- run_name --------------------------------------------------------------------------------- */

void run_name_to_pb(struct enc *enc, const struct run_name *self, Cairn__RunName *pb)
{
    CHECK(enc != NULL);
    cairn__run_name__init(pb);
    pb->project = enc_name(self->project);
    pb->run = enc_name(self->run);
}

void run_name_from_pb(struct dec *dec, const Cairn__RunName *pb, struct run_name *self)
{
    const char *project = dec_name(dec, "project", pb->project, 1, LIMIT_RUN_NAME_BYTES);
    const char *name = dec_name(dec, "run", pb->run, 1, LIMIT_RUN_NAME_BYTES);
    if (dec->status == 0) {
        dec_take(dec, "run", run_name_set(project, name, self, dec->diag));
    }
}

void run_name_check(struct dec *dec, const struct run_name *self)
{
    CHECK(dec->name != NULL);
    (void)self; /* every struct run_name was made by run_name_set() */
}

/* --- selector --------------------------------------------------------------------------------- */

void selector_to_pb(struct enc *enc, const struct selector *self, Cairn__Selector *pb)
{
    cairn__selector__init(pb);
    pb->kind = (uint32_t)self->kind;
    if ((self->id.term | self->id.step) != 0 && (pb->id = enc_array(enc, 1, sizeof(*pb->id)))) {
        cairn__ckpt_id__init(pb->id);
        pb->id->term = self->id.term;
        pb->id->step = self->id.step;
    }
}

void selector_from_pb(struct dec *dec, const Cairn__Selector *pb, struct selector *self)
{
    static const enum select_kind KINDS[] = {SELECT_LATEST, SELECT_STEP, SELECT_EXACT};
    dec_range(dec, "kind", pb->kind, 0, ARRAY_LEN(KINDS) - 1);
    *self = (struct selector){.kind = dec->status == 0 ? KINDS[pb->kind] : SELECT_LATEST};
    if (pb->id != NULL) {
        self->id = (struct ckpt_id){pb->id->term, pb->id->step};
    }
    selector_check(dec, self);
}

void selector_check(struct dec *dec, const struct selector *self)
{
    if (self->kind == SELECT_EXACT && self->id.term == 0) {
        dec_fail(dec, "id", "no checkpoint is named (terms start at 1)");
    }
    if (self->kind != SELECT_EXACT && self->id.term != 0) {
        dec_fail(dec, "id", "a term is named, but not by the kind STEP@TERM");
    }
}

/* --- plan_want -------------------------------------------------------------------------------- */

void plan_want_to_pb(struct enc *enc, const struct plan_want *self, Cairn__PlanWant *pb)
{
    cairn__plan_want__init(pb);
    pb->is_blob = self->is_blob;
    pb->name = enc_name(self->name);
    pb->coordinate = enc_name(self->coordinate);
    if (self->is_blob) {
        return;
    }
    CHECK(self->shape.ndim <= LIMIT_NDIM);
    CHECK(self->box.ndim == self->shape.ndim);
    uint32_t ndim = self->shape.ndim;
    pb->dtype = self->dtype;
    uint64_t *numbers = enc_array(enc, (size_t)3 * ndim, sizeof(*numbers));
    if (numbers == NULL) {
        return; /* a scalar, or out of memory */
    }
    for (uint32_t i = 0; i < ndim; i++) {
        numbers[i] = (uint64_t)self->shape.length[i];
        numbers[ndim + i] = (uint64_t)self->box.offset[i];
        numbers[2 * ndim + i] = (uint64_t)self->box.length[i];
    }
    pb->n_shape = pb->n_box_offset = pb->n_box_length = ndim;
    pb->shape = numbers;
    pb->box_offset = numbers + ndim;
    pb->box_length = numbers + (size_t)2 * ndim;
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

void plan_want_from_pb(struct dec *dec, const Cairn__PlanWant *pb, struct plan_want *self)
{
    *self = (struct plan_want){
        .is_blob = pb->is_blob,
        .name = dec_name(dec, "name", pb->name, 1, LIMIT_NAME_BYTES),
        .coordinate = dec_name(dec, "coordinate", pb->coordinate, 0, LIMIT_COORDINATE_BYTES)};
    if (pb->is_blob) {
        return;
    }
    if (pb->n_box_offset != pb->n_shape || pb->n_box_length != pb->n_shape) {
        dec_fail(dec, "box", "its dimensions differ from the shape's");
    }
    dims_from_pb(dec, "shape", pb->n_shape, pb->shape, self->shape.length);
    dims_from_pb(dec, "box_offset", pb->n_box_offset, pb->box_offset, self->box.offset);
    dims_from_pb(dec, "box_length", pb->n_box_length, pb->box_length, self->box.length);
    if (dec->status == 0) {
        self->dtype = pb->dtype;
        self->shape.ndim = self->box.ndim = (uint32_t)pb->n_shape;
        plan_want_check(dec, self);
    }
}

void plan_want_check(struct dec *dec, const struct plan_want *self)
{
    uint64_t bytes;
    if (!self->is_blob && !dtype_is_known(self->dtype)) {
        dec_refuse(dec, CAIRN_E_UNSUPPORTED, "dtype", " is %u, which this version does not know",
                   self->dtype);
    }
    if (dec->status != 0 || self->is_blob) {
        return;
    }
    dec->status = shape_check(&self->shape, self->dtype, &bytes, dec->diag);
    if (dec->status == 0) {
        dec->status = box_check(&self->box, &self->shape, dec->diag);
    }
    if (dec->status != 0) {
        diag_add(dec->diag, "%s.wants, %s", dec->name, self->name);
    }
}

/* --- msg_sets --------------------------------------------------------------------------------- */

/* Copies the sets into rows, and their keys, which are as many. */
static struct msg_sets sets_from_pb(struct dec *dec, ProtobufCBinaryData keys, size_t count,
                                    const ProtobufCBinaryData *sets)
{
    struct msg_sets ret = {.count = (uint32_t)count};
    if (keys.len != count * key_BYTES) {
        dec_fail(dec, "keys", "not 16 bytes for each set");
    }
    ret.rows = dec_array(dec, "sets", count, sizeof(*ret.rows), MSG_KEYS_MAX);
    for (size_t i = 0; dec->status == 0 && i < count; i++) {
        uint8_t *bits = dec_array(dec, "sets", sets[i].len, 1, SET_BYTES_MAX);
        if (bits != NULL && sets[i].len > 0) {
            memcpy(bits, sets[i].data, sets[i].len);
        }
        ret.rows[i] = (struct msg_set){.bytes = (uint32_t)sets[i].len, .bits = bits};
        key_get(dec, i, keys.data + i * key_BYTES, &ret.rows[i].key);
    }
    return ret;
}

/* HOLDERS and COMPARED have these fields in common, but no type. */
#define SETS_TO_PB(enc, self, pb)                                               \
    struct xxh128 *keys = enc_array(enc, (self)->count, sizeof(*keys));         \
    (pb)->sets = enc_array(enc, (self)->count, sizeof(*(pb)->sets));            \
    for (uint32_t i = 0; (enc)->status == 0 && i < (self)->count; i++) {        \
        keys[i] = (self)->rows[i].key;                                          \
        (pb)->sets[i] = enc_bytes((self)->rows[i].bytes, (self)->rows[i].bits); \
        (pb)->n_sets = i + (size_t)1;                                           \
    }                                                                           \
    (pb)->keys = enc_bytes((self)->count * sizeof(*keys), keys);                \
    (pb)->last = (self)->last;                                                  \
    (pb)->code = (self)->code;                                                  \
    (pb)->text = enc_text(enc, (self)->text)

void compared_to_pb(struct enc *enc, const struct msg_sets *self, Cairn__Compared *pb)
{
    cairn__compared__init(pb);
    SETS_TO_PB(enc, self, pb);
}

void compared_from_pb(struct dec *dec, const Cairn__Compared *pb, struct msg_sets *self)
{
    *self = sets_from_pb(dec, pb->keys, pb->n_sets, pb->sets);
    self->last = pb->last;
    self->code = pb->code;
    self->text = dec_text(dec, "text", pb->text);
    compared_check(dec, self);
}

void compared_check(struct dec *dec, const struct msg_sets *self)
{
    if (self->code > 0) {
        dec_fail(dec, "code", "not the number of an error");
    }
}

void holders_to_pb(struct enc *enc, const struct msg_sets *self, Cairn__Holders *pb)
{
    cairn__holders__init(pb);
    SETS_TO_PB(enc, self, pb);
    uint8_t *divisions = enc_array(enc, self->count, number_BYTES);
    for (uint32_t i = 0; divisions != NULL && i < self->count; i++) {
        number_put(&self->rows[i].division, divisions + (size_t)i * number_BYTES);
    }
    pb->divisions =
        enc_bytes(divisions != NULL ? (size_t)self->count * number_BYTES : 0, divisions);
}

void holders_from_pb(struct dec *dec, const Cairn__Holders *pb, struct msg_sets *self)
{
    *self = sets_from_pb(dec, pb->keys, pb->n_sets, pb->sets);
    if (pb->divisions.len != pb->n_sets * number_BYTES) {
        dec_fail(dec, "divisions", "not 8 bytes for each key");
    }
    for (size_t i = 0; dec->status == 0 && i < pb->n_sets; i++) {
        number_get(dec, i, pb->divisions.data + i * number_BYTES, &self->rows[i].division);
    }
    self->last = pb->last;
    self->code = pb->code;
    self->text = dec_text(dec, "text", pb->text);
    compared_check(dec, self);
}

void holders_check(struct dec *dec, const struct msg_sets *self) { compared_check(dec, self); }

/* --- records of a fixed length ---------------------------------------------------------------- */

void envelope_put(const struct envelope *envelope, uint8_t *ret) { envelope_encode(envelope, ret); }

void envelope_get(struct dec *dec, size_t i, const uint8_t *bytes, struct envelope *ret)
{
    dec->status = envelope_decode(bytes, ret, dec->diag);
    if (dec->status != 0) {
        diag_add(dec->diag, "%s.envelopes[%zu]", dec->name, i);
    }
}

void key_put(const struct xxh128 *key, uint8_t *ret) { memcpy(ret, key, key_BYTES); }

void key_get(struct dec *dec, size_t i, const uint8_t *bytes, struct xxh128 *ret)
{
    (void)dec;
    (void)i;
    memcpy(ret, bytes, key_BYTES);
}

void number_put(const uint64_t *number, uint8_t *ret) { store_u64(ret, *number); }

void number_get(struct dec *dec, size_t i, const uint8_t *bytes, uint64_t *ret)
{
    (void)dec;
    (void)i;
    *ret = load_u64(bytes);
}

void mark_record_put(const struct msg_mark_record *record, uint8_t *ret)
{
    store_u64(ret, record->id.term);
    store_u64(ret + 8, record->id.step);
    store_u64(ret + 16, (uint64_t)record->wall_ns);
    store_u64(ret + 24, record->reasons);
    store_u32(ret + 32, record->outcome);
    store_u32(ret + 36, 0);
}

void mark_record_get(struct dec *dec, size_t i, const uint8_t *bytes, struct msg_mark_record *ret)
{
    (void)dec;
    (void)i;
    *ret = (struct msg_mark_record){.id = {load_u64(bytes), load_u64(bytes + 8)},
                                    .wall_ns = (int64_t)load_u64(bytes + 16),
                                    .reasons = load_u64(bytes + 24),
                                    .outcome = load_u32(bytes + 32)};
}
