/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a message as text, from the struct alone: numbers as their bytes in hex. The rows
 * of messages.def give each field once; what a struct has beyond them is written by hand here.
 */
#include "base/check.h"
#include "hash/hash.h"
#include "sample.h"
#include "wire/frame.h"

#include <stdio.h>

#define HEX(object, field) dump_field(buf, #field, sizeof((object)->field), &(object)->field)

static void dump_hex(struct buf *buf, const char *name, size_t bytes, const void *data)
{
    const uint8_t *at = data;
    buf_printf(buf, "%s=", name);
    for (size_t i = 0; i < bytes; i++) {
        buf_printf(buf, "%02x", at[i]);
    }
    buf_printf(buf, "\n");
}

static void dump_field(struct buf *buf, const char *name, size_t bytes, const void *data)
{
    bool any = false;
    for (size_t i = 0; i < bytes; i++) {
        any |= ((const uint8_t *)data)[i] != 0;
    }
    if (any) {
        dump_hex(buf, name, bytes, data);
    }
}

/* The first field of a part that rows do not begin: it also tells where an entry of a list begins.
 */
#define FIRST(object, field) dump_hex(buf, #field, sizeof((object)->field), &(object)->field)

static void dump_text(struct buf *buf, const char *name, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        buf_printf(buf, "%s=<%s>\n", name, text);
    }
}

/* --- by hand --- */

static void dump_run_name(const struct run_name *r, struct buf *buf)
{
    dump_text(buf, "project", r->project);
    dump_text(buf, "run", r->run);
}

static void dump_selector(const struct selector *s, struct buf *buf)
{
    FIRST(s, kind), HEX(s, id.term), HEX(s, id.step);
}

static void dump_plan_want(const struct plan_want *w, struct buf *buf)
{
    FIRST(w, is_blob), dump_text(buf, "name", w->name), dump_text(buf, "at", w->coordinate);
    HEX(w, dtype), HEX(w, shape.ndim), HEX(w, box.ndim);
    HEX(w, shape.length), HEX(w, box.offset), HEX(w, box.length);
}

static void dump_msg_sets(const struct msg_sets *s, struct buf *buf)
{
    HEX(s, count), HEX(s, last), HEX(s, code), dump_text(buf, "text", s->text);
    for (uint32_t i = 0; i < s->count; i++) {
        FIRST(&s->rows[i], key), HEX(&s->rows[i], division);
        dump_hex(buf, "bits", s->rows[i].bytes, s->rows[i].bits);
    }
}

static void dump_envelope(const struct envelope *e, struct buf *buf)
{
    FIRST(e, offset), HEX(e, stored_bytes), HEX(e, plain_bytes), HEX(e, stored_crc), HEX(e, key_id);
    HEX(e, encoding), HEX(e, digest_alg), HEX(e, element_bytes), HEX(e, digest), HEX(e, nonce);
    HEX(e, tag);
}

static void dump_mark_record(const struct msg_mark_record *r, struct buf *buf)
{
    FIRST(r, id.term), HEX(r, id.step), HEX(r, wall_ns), HEX(r, reasons), HEX(r, outcome);
}

static void dump_key(const struct xxh128 *key, struct buf *buf)
{
    dump_hex(buf, "key", sizeof(*key), key);
}

static void dump_number(const uint64_t *number, struct buf *buf)
{
    dump_hex(buf, "number", sizeof(*number), number);
}

/* --- by rows --- */

#define BEGIN_(type)                                                  \
    static void dump_##type(const struct type *self, struct buf *buf) \
    {                                                                 \
        buf_printf(buf, #type "\n");
#define EACH_(f, count, statement)               \
    HEX(self, count);                            \
    for (uint32_t i = 0; i < self->count; i++) { \
        statement;                               \
    }
#define MESSAGE(number, NAME, name, Pb, payload) BEGIN_(msg_##name)
#define PART(type, name, Pb)                     BEGIN_(type)
#define END                                      }
#define VALUE(n, kind, type, p, f)               HEX(self, f);
#define FIXED_IF(n, type, f, when)               HEX(self, f);
#define TEXT(n, f)                               dump_text(buf, #f, self->f);
#define NAME(n, f, least, most)                  dump_text(buf, #f, self->f);
#define DATA(n, f, count, most)                  dump_field(buf, #f, self->count, self->f);
#define HAS(f)                                   HEX(self, has_##f);
#define SUB(n, type, Pb, p, f, when, need)       dump_##type(&self->f, buf);
#define LIST(n, type, Pb, f, count, most)        EACH_(f, count, dump_##type(&self->f[i], buf))
#define TAGS(n, f, count)                        EACH_(f, count, dump_text(buf, #f, self->f[i]))
#define NUMBERS(n, f, count, most) \
    EACH_(f, count, dump_hex(buf, #f, sizeof(self->f[i]), &self->f[i]))
#define PACKED_AS(n, kind, type, p, f, count, most) EACH_(f, count, dump_##kind(&self->f[i], buf))
#define PACKED_TOO(n, kind, type, f, count)         EACH_(f, count, dump_##kind(&self->f[i], buf))
#include "wire/messages.def"

void sample_dump(const struct msg *msg, struct buf *buf)
{
    buf_printf(buf, "%s\n", msg_name((uint32_t)msg->type));
    switch (msg->type) {
#define CASE_(NAME, type, name)         \
    case MSG_##NAME:                    \
        dump_##type(&msg->u.name, buf); \
        break;
#define MESSAGE(number, NAME, name, Pb, payload)      CASE_(NAME, msg_##name, name)
#define MESSAGE_BY_HAND(number, NAME, type, name, Pb) CASE_(NAME, type, name)
#define EMPTY(number, NAME, name, Pb) \
    case MSG_##NAME:                  \
        break;
#include "wire/messages.def"
    }
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
