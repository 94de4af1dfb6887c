/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of every type with pseudo-random, valid contents, drawn by the rows of messages.def; and
 * the fields of a message as text. The text is made from the struct alone, so that a field which
 * both codec directions forget is seen.
 */
#ifndef CAIRN_TESTS_WIRE_SAMPLE_H
#define CAIRN_TESTS_WIRE_SAMPLE_H

#include "wire/msg.h"
#include "wire/plan.h"

struct sample {
    uint64_t state; /* of the generator; the same seed draws the same message */
    struct scratch *scratch;
};

extern const uint32_t SAMPLE_TYPES[];
extern const size_t SAMPLE_TYPE_COUNT;

uint64_t sample_u64(struct sample *s);
/* 0..n-1 */
uint64_t sample_below(struct sample *s, uint64_t n);
/* payload_bytes: one that fits the message (0 where it has none). */
void sample_make(struct sample *s, uint32_t type, struct msg *ret, uint32_t *ret_payload_bytes);
void sample_plan_read(struct sample *s, struct plan_read *ret);
/* A field that is zero or empty is left out, so that the text of an old frame stays as it is when
 * the message grows. */
void sample_dump(const struct msg *msg, struct buf *buf);
/* By msg_encode, with frame header in front; the payload is left out. */
void sample_frame(const struct msg *msg, uint32_t stream, uint64_t sequence, uint32_t payload_bytes,
                  struct buf *buf);
/* The name of a golden frame without its ending: NAME, and for each time that the message has
 * grown NAME.grown, NAME.grown2 ... */
void sample_golden_name(uint32_t type, unsigned grown, size_t size, char *ret);

#endif
