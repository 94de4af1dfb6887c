/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs of all messages, made from the rows of messages.def: struct to protobuf, protobuf to
 * struct, and the rules. Invariant: nothing is kept of a message before lengths and counts were
 * compared with their limits. Pure; any thread.
 */
#include "codec_private.h"

#include <string.h>

/* --- struct to protobuf: TYPE_to_pb() --------------------------------------------------------- */

#define BEGIN_(type, name, Pb)                                                          \
    static void type##_to_pb(struct enc *enc, const struct type *self, Cairn__##Pb *pb) \
    {                                                                                   \
        (void)enc;                                                                      \
        cairn__##name##__init(pb);
#define MESSAGE(number, NAME, name, Pb, payload) BEGIN_(msg_##name, name, Pb)
#define PART(type, name, Pb)                     BEGIN_(type, name, Pb)
#define END                                      }
#define VALUE(n, kind, type, p, f)               pb->p = self->f;
#define FIXED_IF(n, type, f, when)                    \
    if (when) {                                       \
        pb->f = enc_bytes(sizeof(self->f), &self->f); \
    }
#define TEXT(n, f)              pb->f = enc_text(enc, self->f);
#define NAME(n, f, least, most) pb->f = enc_name(self->f);
#define DATA(n, f, count, most) pb->f = enc_bytes(self->count, self->f);
#define SUB(n, type, Pb, p, f, when, need)                               \
    if ((when) && (pb->p = enc_array(enc, 1, sizeof(*pb->p))) != NULL) { \
        type##_to_pb(enc, &self->f, pb->p);                              \
    }
#define LIST(n, type, Pb, f, count, most)                            \
    Cairn__##Pb *f = enc_array(enc, self->count, sizeof(*f));        \
    pb->f = enc_array(enc, self->count, sizeof(*pb->f));             \
    for (uint32_t i = 0; enc->status == 0 && i < self->count; i++) { \
        type##_to_pb(enc, &self->f[i], &f[i]);                       \
        pb->f[i] = &f[i];                                            \
        pb->n_##f = i + (size_t)1;                                   \
    }
#define TAGS(n, f, count) pb->f = enc_tags(enc, self->count, self->f, &pb->n_##f);
#define NUMBERS(n, f, count, most) \
    pb->n_##f = self->count;       \
    pb->f = self->f;
#define PACKED_AS(n, kind, type, p, f, count, most)            \
    uint8_t *p = enc_array(enc, self->count, kind##_BYTES);    \
    for (uint32_t i = 0; p != NULL && i < self->count; i++) {  \
        kind##_put(&self->f[i], p + (size_t)i * kind##_BYTES); \
    }                                                          \
    pb->p = enc_bytes(p != NULL ? (size_t)self->count * kind##_BYTES : 0, p);
#define PACKED_TOO(n, kind, type, f, count) PACKED_AS(n, kind, type, f, f, count, 0)
#include "messages.def"
#undef BEGIN_

/* Rules, as decoding and checking have them. messages.def forgets its words at its end, so each
 * pass says again which of them it takes. */
#define RANGE_OF_(label, value, least, most) dec_range(dec, #label, value, least, most);
#define RANGE_EACH_(f, count, least, most)                         \
    for (size_t i = 0; dec->status == 0 && i < self->count; i++) { \
        dec_range(dec, #f, self->f[i], least, most);               \
    }
#define RULE_(label, holds, why)    \
    if (!(holds)) {                 \
        dec_fail(dec, #label, why); \
    }

/* --- protobuf to struct: TYPE_from_pb() ------------------------------------------------------- */

/* Runs the statement as one about the part in field f. */
#define INSIDE_(f, statement)                    \
    {                                            \
        struct dec_part part_ = {#f, dec->part}; \
        dec->part = &part_;                      \
        statement;                               \
        dec->part = part_.outer;                 \
    }
#define BEGIN_(type, name, Pb)                                                            \
    static void type##_from_pb(struct dec *dec, const Cairn__##Pb *pb, struct type *self) \
    {                                                                                     \
        (void)dec;                                                                        \
        memset(self, 0, sizeof(*self));
#define MESSAGE(number, NAME, name, Pb, payload) BEGIN_(msg_##name, name, Pb)
#define PART(type, name, Pb)                     BEGIN_(type, name, Pb)
#define END                                      }
#define VALUE(n, kind, type, p, f)               self->f = (type)pb->p;
#define FIXED_IF(n, type, f, when)                            \
    if (when) {                                               \
        dec_fixed(dec, #f, pb->f, sizeof(self->f), &self->f); \
    } else if (pb->f.len != 0) {                              \
        dec_fail(dec, #f, "not for this kind of message");    \
    }
#define TEXT(n, f)              self->f = dec_text(dec, #f, pb->f);
#define NAME(n, f, least, most) self->f = dec_name(dec, #f, pb->f, least, most);
#define DATA(n, f, count, most)                \
    self->f = dec_bytes(dec, #f, pb->f, most); \
    self->count = (uint32_t)pb->f.len;
#define HAS(f) self->has_##f = pb->f != NULL;
#define SUB(n, type, Pb, p, f, when, need)               \
    if (pb->p != NULL) {                                 \
        INSIDE_(p, type##_from_pb(dec, pb->p, &self->f)) \
    } else if (need) {                                   \
        dec_fail(dec, #p, "missing");                    \
    }
#define LIST(n, type, Pb, f, count, most)                            \
    self->f = dec_array(dec, #f, pb->n_##f, sizeof(*self->f), most); \
    for (size_t i = 0; dec->status == 0 && i < pb->n_##f; i++) {     \
        INSIDE_(f, type##_from_pb(dec, pb->f[i], &self->f[i]))       \
    }                                                                \
    self->count = (uint32_t)pb->n_##f;
#define TAGS(n, f, count)                          \
    self->f = dec_tags(dec, #f, pb->n_##f, pb->f); \
    self->count = (uint32_t)pb->n_##f;
#define NUMBERS(n, f, count, most)                          \
    self->f = dec_numbers(dec, #f, pb->n_##f, pb->f, most); \
    self->count = (uint32_t)pb->n_##f;
#define PACKED_AS(n, kind, type, p, f, count, most)                     \
    self->count = (uint32_t)(pb->p.len / kind##_BYTES);                 \
    if (pb->p.len % kind##_BYTES != 0) {                                \
        dec_fail(dec, #p, "not a whole number of records");             \
    }                                                                   \
    self->f = dec_array(dec, #p, self->count, sizeof(*self->f), most);  \
    for (size_t i = 0; dec->status == 0 && i < self->count; i++) {      \
        kind##_get(dec, i, pb->p.data + i * kind##_BYTES, &self->f[i]); \
    }
#define PACKED_TOO(n, kind, type, f, count)                                   \
    if (pb->f.len != (size_t)self->count * kind##_BYTES) {                    \
        dec_fail(dec, #f, "not one record for each key");                     \
    }                                                                         \
    self->f = dec_array(dec, #f, self->count, sizeof(*self->f), self->count); \
    for (size_t i = 0; dec->status == 0 && i < self->count; i++) {            \
        kind##_get(dec, i, pb->f.data + i * kind##_BYTES, &self->f[i]);       \
    }
#define RANGE_OF        RANGE_OF_
#define RANGE_EACH      RANGE_EACH_
#define RULE            RULE_
#define ALSO(statement) statement;
#include "messages.def"
#undef BEGIN_

/* --- the rules: TYPE_check() ------------------------------------------------------------------ */

#define BEGIN_(type)                                                   \
    static void type##_check(struct dec *dec, const struct type *self) \
    {                                                                  \
        (void)dec;                                                     \
        (void)self;
#define MESSAGE(number, NAME, name, Pb, payload) BEGIN_(msg_##name)
#define PART(type, name, Pb)                     BEGIN_(type)
#define END                                      }
#define SUB(n, type, Pb, p, f, when, need)      \
    if (when) {                                 \
        INSIDE_(p, type##_check(dec, &self->f)) \
    }
#define LIST(n, type, Pb, f, count, most)                          \
    for (size_t i = 0; dec->status == 0 && i < self->count; i++) { \
        INSIDE_(f, type##_check(dec, &self->f[i]))                 \
    }
#define RANGE_OF        RANGE_OF_
#define RANGE_EACH      RANGE_EACH_
#define RULE            RULE_
#define ALSO(statement) statement;
#include "messages.def"
#undef BEGIN_
#undef INSIDE_
#undef RANGE_OF_
#undef RANGE_EACH_
#undef RULE_

/* --- the table -------------------------------------------------------------------------------- */

#define CODEC_(name, Pb, prefix)                                                     \
    static void encode_##name(struct enc *enc, const struct msg *msg)                \
    {                                                                                \
        Cairn__##Pb pb;                                                              \
        prefix##name##_to_pb(enc, &msg->u.name, &pb);                                \
        enc_pack(enc, &pb.base);                                                     \
    }                                                                                \
    static void decode_##name(struct dec *dec, const void *message, struct msg *ret) \
    {                                                                                \
        prefix##name##_from_pb(dec, message, &ret->u.name);                          \
    }                                                                                \
    static void rules_##name(struct dec *dec, const struct msg *msg)                 \
    {                                                                                \
        prefix##name##_check(dec, &msg->u.name);                                     \
    }
#define MESSAGE(number, NAME, name, Pb, payload)      CODEC_(name, Pb, msg_)
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb) CODEC_(name, Pb, )
#include "messages.def"
#undef CODEC_

#define ROW_(NAME, payload, name) \
    {#NAME, payload, &cairn__##name##__descriptor, encode_##name, decode_##name, rules_##name},
#define MESSAGE(number, NAME, name, Pb, payload) [number] = ROW_(NAME, payload, name)
#define EMPTY(number, NAME, name, Pb) \
    [number] = {#NAME, false, &cairn__##name##__descriptor, NULL, NULL, NULL},
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb) [number] = ROW_(NAME, false, name)
static const struct msg_codec CODECS[] = {
#include "messages.def"
};
#undef ROW_

const struct msg_codec *msg_codec_of(uint32_t type)
{
    return type < ARRAY_LEN(CODECS) && CODECS[type].name != NULL ? &CODECS[type] : NULL;
}

#define PAIR_(request, reply) ((uint64_t)(request) << 32 | (reply))
#define REPLY(ASK, NAME)      case PAIR_(MSG_##ASK, MSG_##NAME):
bool msg_is_reply(uint32_t request, uint32_t reply)
{
    switch (PAIR_(request, reply)) {
#include "messages.def"
        return true;
    default:
        return reply == MSG_ERROR;
    }
}
