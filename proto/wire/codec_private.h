/* SPDX-License-Identifier: Apache-2.0
 *
 * What the message codecs share: sticky contexts for both directions, helpers for fields, and the
 * row of the table that msg.c dispatches by. The generated header stays in this folder.
 */
#ifndef CAIRN_WIRE_CODEC_PRIVATE_H
#define CAIRN_WIRE_CODEC_PRIVATE_H

#include "base/check.h"
#include "wire/msg.h"

#include "cairn.pb-c.h"

enum {
    WIRE_TEXT_BYTES = 1024, /* texts for people: errors, reasons, agent, label */
    WIRE_REPEATED_MAX = 65536,
    WIRE_STATE_MAX = 4,      /* enum save_state and ckpt_state have the same rows */
    DESCRIBE_ENCODE_MAX = 2, /* enum encode_mode of pipeline/adapt.h */
    MSG_MARK_VALUE_BYTES_MAX = 1024,
    MSG_POLICY_PATTERN_BYTES_MAX = 100
};

/* The context of encoding. status is sticky; arrays live in scratch. */
struct enc {
    struct buf *buf;
    struct scratch *scratch;
    int status;
};

/* Packs the message into the buffer, unless an error is set. */
void enc_pack(struct enc *enc, const ProtobufCMessage *message);
/* Returns NULL if no items are wanted, or if status is set. */
void *enc_array(struct enc *enc, size_t count, size_t size);
ProtobufCBinaryData enc_bytes(size_t bytes, const void *data);
ProtobufCBinaryData enc_name(const char *text); /* unchanged; NULL becomes "" */
/* Encodes a text for people: it is cut to WIRE_TEXT_BYTES and broken UTF-8 is replaced, so that a
 * path with odd bytes in an error message is not taken for a broken protocol. */
ProtobufCBinaryData enc_text(struct enc *enc, const char *text);
ProtobufCBinaryData *enc_tags(struct enc *enc, uint32_t count, const char *const *tags,
                              size_t *ret_count);

/* The context of decoding and of checking rules. The first failure stays, and its text names the
 * message and the field. */
struct dec {
    const char *name;            /* of the message */
    const struct dec_part *part; /* that is being looked at; NULL in the message itself */
    struct scratch *scratch;
    struct diag *diag;
    int status;
};
/* Names a part of a message, for the texts of errors: by its field, and by the part that holds that
 * field. `outer` is NULL if the message itself holds it. */
struct dec_part {
    const char *field;
    const struct dec_part *outer;
};

/* Set an error whose text begins with message and field, unless there is one: dec_refuse with any
 * code and the rest of the text, dec_fail with PROTOCOL, dec_range if the value is outside. */
void dec_refuse(struct dec *dec, int code, const char *field, const char *fmt, ...) PRINTF(4, 5);
void dec_fail(struct dec *dec, const char *field, const char *why);
void dec_range(struct dec *dec, const char *field, uint64_t value, uint64_t least, uint64_t most);
/* Takes over the status of a function that filled dec->diag, and adds message and field to it. */
void dec_take(struct dec *dec, const char *field, int status);
/* Return memory or texts from the scratch, after checking their number or length. NULL or "" on
 * failure. */
void *dec_array(struct dec *dec, const char *field, size_t count, size_t size, size_t most);
const char *dec_name(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t least,
                     size_t most);
const char *dec_text(struct dec *dec, const char *field, ProtobufCBinaryData data);
const uint8_t *dec_bytes(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t most);
const char **dec_tags(struct dec *dec, const char *field, size_t count,
                      const ProtobufCBinaryData *tags);
uint32_t *dec_numbers(struct dec *dec, const char *field, size_t count, const uint32_t *numbers,
                      size_t most);
/* Copies exactly `bytes` bytes, or fails. */
void dec_fixed(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t bytes,
               void *ret);
/* Fails with INVALID unless the text is "" or may be the project of a run. */
void dec_project(struct dec *dec, const char *project);

/* Records of a fixed length inside a field, with their bytes on the wire (parts.c). */
enum { envelope_BYTES = ENVELOPE_BYTES, key_BYTES = 16, number_BYTES = 8, mark_record_BYTES = 40 };
void envelope_put(const struct envelope *envelope, uint8_t *ret);
void envelope_get(struct dec *dec, size_t i, const uint8_t *bytes, struct envelope *ret);
void key_put(const struct xxh128 *key, uint8_t *ret);
void key_get(struct dec *dec, size_t i, const uint8_t *bytes, struct xxh128 *ret);
void number_put(const uint64_t *number, uint8_t *ret);
void number_get(struct dec *dec, size_t i, const uint8_t *bytes, uint64_t *ret);
void mark_record_put(const struct msg_mark_record *record, uint8_t *ret);
void mark_record_get(struct dec *dec, size_t i, const uint8_t *bytes, struct msg_mark_record *ret);

/* The codecs that messages.def leaves to parts.c. */
#define CODEC_BY_HAND(type, name, Pb)                                               \
    void name##_to_pb(struct enc *enc, const struct type *self, Cairn__##Pb *pb);   \
    void name##_from_pb(struct dec *dec, const Cairn__##Pb *pb, struct type *self); \
    void name##_check(struct dec *dec, const struct type *self);
CODEC_BY_HAND(run_name, run_name, RunName)
CODEC_BY_HAND(selector, selector, Selector)
CODEC_BY_HAND(plan_want, plan_want, PlanWant)
CODEC_BY_HAND(msg_sets, holders, Holders)
CODEC_BY_HAND(msg_sets, compared, Compared)
#undef CODEC_BY_HAND

/* One row of the table of messages. A message without fields has no functions. */
struct msg_codec {
    const char *name;
    bool has_payload;
    const ProtobufCMessageDescriptor *descriptor;
    void (*encode)(struct enc *enc, const struct msg *msg);
    void (*decode)(struct dec *dec, const void *message, struct msg *ret);
    void (*check)(struct dec *dec, const struct msg *msg);
};
/* Returns the row of a type, or NULL for a number that is no message. */
const struct msg_codec *msg_codec_of(uint32_t type);

#endif
