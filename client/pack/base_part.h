/* SPDX-License-Identifier: Apache-2.0
 *
 * base_part: this rank's part of a committed checkpoint that a later save refers to: which chunks
 * lie where, with which digests. It comes from the part that was just sealed, or is fetched after a
 * restore or a restart. References are counted. Immutable, except for the count. Loop's thread;
 * read by workers.
 */
#ifndef CAIRN_PACK_BASE_PART_H
#define CAIRN_PACK_BASE_PART_H

#include "pipeline/part_place.h"

/* A base. `part` and its arrays live in `scratch`, and go with the last reference. */
struct base_part {
    uint32_t refs;
    struct ckpt_id id;
    struct scratch scratch;
    struct part part;
};

/* Decodes a part; the bytes stay the caller's and are not needed afterwards. Fails as part_decode
 * does, or with INVALID if the part is of another checkpoint. */
int MUST_USE base_part_new(struct ckpt_id id, size_t bytes, const uint8_t *data,
                           struct base_part **ret, struct diag *diag);
struct base_part *base_part_ref(struct base_part *base);
void base_part_unref(struct base_part *base); /* NULL is allowed */

#endif
