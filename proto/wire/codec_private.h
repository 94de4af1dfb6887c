/* SPDX-License-Identifier: Apache-2.0
 *
 * What the families of message codecs share: sticky contexts for both directions, helpers for
 * fields, and the row of the table that msg.c dispatches by. The generated header stays in this
 * folder.
 */
#ifndef CAIRN_WIRE_CODEC_PRIVATE_H
#define CAIRN_WIRE_CODEC_PRIVATE_H

#include "base/check.h"
#include "wire/msg.h"

#include "cairn.pb-c.h"

enum {
    WIRE_TEXT_BYTES = 1024, /* texts for people: errors, reasons, agent, label */
    WIRE_REPEATED_MAX = 65536,
    WIRE_STATE_MAX = 4, /* enum save_state and ckpt_state have the same rows */
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
/* Fill *store and return it, or return NULL for an id that is not set. */
Cairn__CkptId *enc_ckpt(struct ckpt_id id, Cairn__CkptId *store);
Cairn__ObjectId *enc_object(const struct object_id *id, Cairn__ObjectId *store);
Cairn__RunName *enc_run(const struct run_name *run, Cairn__RunName *store);

/* The context of decoding. The first failure stays, and its text names the message and the
 * field. */
struct dec {
    const char *name; /* of the message */
    struct scratch *scratch;
    struct diag *diag;
    int status;
};

/* Set an error that names message and field: dec_fail always, dec_range if the value is outside. */
void dec_fail(struct dec *dec, const char *field, const char *why);
void dec_range(struct dec *dec, const char *field, uint64_t value, uint64_t least, uint64_t most);
/* Return memory or texts from the scratch, after checking their number or length. NULL or "" on
 * failure. */
void *dec_array(struct dec *dec, const char *field, size_t count, size_t size, size_t most);
const char *dec_name(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t least,
                     size_t most);
const char *dec_text(struct dec *dec, const char *field, ProtobufCBinaryData data);
/* Copies exactly `bytes` bytes, or fails. */
void dec_fixed(struct dec *dec, const char *field, ProtobufCBinaryData data, size_t bytes,
               void *ret);
enum dec_need { DEC_OPTIONAL, DEC_REQUIRED };
struct ckpt_id dec_ckpt(struct dec *dec, const char *field, const Cairn__CkptId *id,
                        enum dec_need need);
struct object_id dec_object(struct dec *dec, const Cairn__ObjectId *id);
struct run_name dec_run(struct dec *dec, const char *field, const Cairn__RunName *run);
/* Lists of tags and of metrics, as in OPEN, ANNOTATE and CkptInfo. */
ProtobufCBinaryData *enc_tags(struct enc *enc, uint32_t count, const char *const *tags,
                              size_t *ret_count);
Cairn__Metric **enc_metrics(struct enc *enc, uint32_t count, const struct metric *metrics,
                            size_t *ret_count);
const char **dec_tags(struct dec *dec, const char *field, size_t count,
                      const ProtobufCBinaryData *tags, uint32_t *ret_count);
struct metric *dec_metrics(struct dec *dec, size_t count, Cairn__Metric *const *metrics,
                           uint32_t *ret_count);
Cairn__Selector *enc_selector(struct selector selector, Cairn__Selector *store,
                              Cairn__CkptId *store_id);
struct selector dec_selector(struct dec *dec, const Cairn__Selector *pb);
/* Returns a code of err.def, which is negative, or 0 if none is meant. Unknown codes are kept. */
int32_t dec_code(struct dec *dec, int32_t code, enum dec_need need);

/* One row of the table of messages. */
struct msg_codec {
    enum msg_type type;
    const char *name;
    bool has_payload;
    const ProtobufCMessageDescriptor *descriptor;
    void (*encode)(struct enc *enc, const struct msg *msg);
    void (*decode)(struct dec *dec, const void *message, struct msg *ret);
};

struct msg_family {
    const struct msg_codec *codecs;
    size_t count;
};

extern const struct msg_family msg_family_session, msg_family_save, msg_family_list,
    msg_family_restore, msg_family_agree, msg_family_care, msg_family_progress, msg_family_usage;

/* In msg_mark.c; these are rows of msg_agree.c's family. */
void mark_encode(struct enc *enc, const struct msg *msg);
void mark_decode(struct dec *dec, const void *message, struct msg *ret);
void marked_encode(struct enc *enc, const struct msg *msg);
void marked_decode(struct dec *dec, const void *message, struct msg *ret);

/* In msg_list.c; also used by RESOLVED and VERDICT. ret->info points into ret. */
struct ckpt_info_pb {
    Cairn__CkptInfo info;
    Cairn__CkptId id, parent, base;
};
void ckpt_info_to_pb(struct enc *enc, const struct ckpt_info *info, struct ckpt_info_pb *ret);
void ckpt_info_from_pb(struct dec *dec, const Cairn__CkptInfo *pb, struct ckpt_info *ret);

#endif
