/* SPDX-License-Identifier: Apache-2.0
 *
 * A decoded part with a count of references; proto/pipeline/part_place.c finds the chunks in it.
 * Pure, except for that count.
 */
#include "pack/base_part.h"

#include <stdlib.h>

enum { BASE_SCRATCH_FACTOR = 4 };

int base_part_new(struct ckpt_id id, size_t bytes, const uint8_t *data, struct base_part **ret,
                  struct diag *diag)
{
    struct base_part *base = calloc(1, sizeof *base);
    if (!base) {
        return diag_no_memory(diag, "a base of %zu bytes", bytes);
    }
    base->refs = 1;
    base->id = id;
    scratch_init(&base->scratch, bytes * BASE_SCRATCH_FACTOR + KIB(64));
    int rc = part_decode(bytes, data, &base->scratch, &base->part, diag);
    if (rc == 0 && !ckpt_id_equal(base->part.id, id)) {
        rc =
            diag_set(diag, CAIRN_E_INVALID, "the server sent the part of another step as the base");
    }
    if (rc != 0) {
        base_part_unref(base);
        return rc;
    }
    *ret = base;
    return 0;
}

struct base_part *base_part_ref(struct base_part *base)
{
    base->refs++;
    return base;
}

void base_part_unref(struct base_part *base)
{
    if (base && --base->refs == 0) {
        scratch_fini(&base->scratch);
        free(base);
    }
}
