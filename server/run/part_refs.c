/* SPDX-License-Identifier: Apache-2.0
 *
 * part_refs: one sorted index over the chunks of the base. A part may have a hundred thousand
 * chunks, and each reference is looked up.
 */
#include "part_refs.h"

#include "base/check.h"
#include "format/envelope.h"

#include <stdlib.h>
#include <string.h>

static int place_compare(const struct part *base, uint32_t chunk, const struct object_id *id,
                         uint64_t offset)
{
    const struct part_chunk *at = &base->chunks[chunk];
    int order = object_id_compare(&base->objects[at->object].id, id);
    return order != 0 ? order : compare_u64(at->offset, offset);
}

static int chunk_order(const void *a, const void *b, void *user)
{
    const struct part *base = user;
    const struct part_chunk *chunk = &base->chunks[*(const uint32_t *)b];
    return place_compare(base, *(const uint32_t *)a, &base->objects[chunk->object].id,
                         chunk->offset);
}

int part_refs_init(struct part_refs *refs, const struct part *base, struct scratch *scratch,
                   struct diag *diag)
{
    uint32_t *order = scratch_array(scratch, (size_t)base->chunk_count + 1, sizeof(*order));
    if (!order) {
        return diag_no_memory(diag, "the %u chunks of a base", base->chunk_count);
    }
    for (uint32_t i = 0; i < base->chunk_count; i++) {
        order[i] = i;
    }
    qsort_r(order, base->chunk_count, sizeof(*order), chunk_order, (void *)(uintptr_t)base);
    *refs = (struct part_refs){.base = base, .order = order};
    return 0;
}

/* Returns the position of the first chunk at or behind the place. */
static uint32_t place_bound(const struct part_refs *refs, const struct object_id *id,
                            uint64_t offset)
{
    uint32_t low = 0, high = refs->base->chunk_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (place_compare(refs->base, refs->order[middle], id, offset) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool part_refs_has(const struct part_refs *refs, const struct object_id *id,
                   const struct part_chunk *chunk)
{
    const struct part *base = refs->base;
    uint32_t at = place_bound(refs, id, chunk->offset);
    if (at == base->chunk_count || place_compare(base, refs->order[at], id, chunk->offset) != 0) {
        return false;
    }
    const struct part_chunk *old = &base->chunks[refs->order[at]];
    return old->stored_bytes == chunk->stored_bytes && old->plain_bytes == chunk->plain_bytes &&
           old->stored_crc == chunk->stored_crc && old->encoding == chunk->encoding &&
           old->digest_alg == chunk->digest_alg &&
           memcmp(&old->digest, &chunk->digest, sizeof(old->digest)) == 0;
}

bool part_refs_is_sparse(const struct part_refs *refs, uint32_t object, uint64_t object_bytes)
{
    const struct part *base = refs->base;
    CHECK(object < base->object_count);
    const struct object_id *id = &base->objects[object].id;
    uint64_t used = 0, last = UINT64_MAX;
    uint32_t count = 0;
    for (uint32_t at = place_bound(refs, id, 0); at < base->chunk_count; at++) {
        const struct part_chunk *chunk = &base->chunks[refs->order[at]];
        if (!object_id_equal(&base->objects[chunk->object].id, id)) {
            break;
        }
        if (chunk->offset != last) { /* tied tensors may refer to one chunk twice */
            bool packed = chunk->stored_bytes < LIMIT_PACK_PIECE_BYTES;
            used +=
                packed ? chunk->stored_bytes : round_up_u64(chunk->stored_bytes, LIMIT_ALIGN_BYTES);
            count++;
        }
        last = chunk->offset;
    }
    /* The footer of the used chunks, and the padding behind the last pack, are not counted as
     * waste. */
    uint64_t own = object_footer_bytes(count) + LIMIT_ALIGN_BYTES;
    return object_bytes > own && used * 2 < object_bytes - own;
}
