/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of every type with pseudo-random, valid contents, and their fields as text: the text is
 * made from the struct alone, so that a field which both codec directions forget is seen.
 */
#ifndef CAIRN_TESTS_WIRE_SAMPLE_H
#define CAIRN_TESTS_WIRE_SAMPLE_H

#include "wire/msg.h"
#include "wire/plan.h"

struct sample {
    uint64_t
        state; /* of the generator; the same seed makes the same messages for ever (golden files) */
    struct scratch *scratch;
    unsigned grown; /* with fields that were added to a message after its golden files so far: 0
                     * none, 1 those of its first growth, and so on; UINT_MAX all */
};

extern const uint32_t SAMPLE_TYPES[];
extern const size_t SAMPLE_TYPE_COUNT;
/* How often it has grown; its golden files are NAME.bin, NAME.grown.bin, NAME.grown2.bin ... */
unsigned sample_growths(uint32_t type);
void sample_golden_name(uint32_t type, unsigned grown, size_t size, char *ret);

uint64_t sample_u64(struct sample *s);
/* 0..n-1 */
uint64_t sample_below(struct sample *s, uint64_t n);
/* payload_bytes: one that fits the message (0 where it has none). */
void sample_make(struct sample *s, uint32_t type, struct msg *ret, uint32_t *ret_payload_bytes);
void sample_plan_read(struct sample *s, struct plan_read *ret);
void sample_dump(const struct msg *msg, struct buf *buf);
/* By msg_encode, with frame header in front; the payload is left out. */
void sample_frame(const struct msg *msg, uint32_t stream, uint64_t sequence, uint32_t payload_bytes,
                  struct buf *buf);

#endif
