/* SPDX-License-Identifier: Apache-2.0
 *
 * base_part: this rank's part of a committed checkpoint that a later save refers to: what of it
 * lies where, with which digest. From the part that was just sealed, or fetched after a restore or
 * a restart. Counted references; immutable but for the marks of sparse objects, which are set
 * before anybody matches. Loop's thread; read by workers.
 */
#ifndef CAIRN_PACK_BASE_PART_H
#define CAIRN_PACK_BASE_PART_H

#include "format/part.h"

struct base_part {
    uint32_t refs;
    struct ckpt_id id;
    struct scratch scratch;
    struct part part;
};

/* Decodes a part; the bytes are the caller's and not needed afterwards. What part_decode says;
 * INVALID: it is of another checkpoint. */
int MUST_USE base_part_new(struct ckpt_id id, size_t bytes, const uint8_t *data,
                           struct base_part **ret, struct diag *diag);
struct base_part *base_part_ref(struct base_part *base);
void base_part_unref(struct base_part *base); /* NULL is fine */

struct base_place { /* of a box of a tensor, or of a blob */
    const char *name, *coordinate;
    uint32_t dtype;
    const struct box *box; /* NULL: a blob */
};
struct base_run { /* the chunks of one box or blob: they follow each other */
    uint32_t first, count;
};
/* count 0: the base has none there. O(log n). */
struct base_run base_part_run(const struct base_part *base, const struct base_place *place);
/* 1 + the index of the cell's chunk in the part, where that has so many plain bytes; 0: none. */
uint32_t base_part_cell(const struct base_part *base, struct base_run run, uint32_t cell,
                        uint32_t plain_bytes);

#endif
