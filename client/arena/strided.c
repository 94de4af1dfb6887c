/* SPDX-License-Identifier: Apache-2.0
 *
 * One loop for all shapes. Dimensions of length 1 vanish, inner dimensions without holes on both
 * sides become one memcpy, and the other dimensions count like an odometer. Pure; any thread.
 */
#include "arena/strided.h"

#include "base/check.h"

#include <string.h>

struct strided strided_packed(void *data, const struct box *box, uint32_t element_bytes)
{
    struct strided packed = {.data = data};
    int64_t stride = element_bytes;
    for (uint32_t d = box->ndim; d-- > 0;) {
        packed.stride[d] = stride;
        stride *= box->length[d];
    }
    return packed;
}

/* Returns the address of the part's first element. The part must lie inside the box. */
static uint8_t *corner(const struct strided *memory, const struct box *box, const struct box *part)
{
    uint8_t *at = memory->data;
    for (uint32_t d = 0; d < box->ndim; d++) {
        CHECK(part->offset[d] >= box->offset[d]);
        CHECK(part->offset[d] + part->length[d] <= box->offset[d] + box->length[d]);
        at += (part->offset[d] - box->offset[d]) * memory->stride[d];
    }
    return at;
}

/* The dimensions of the loop, innermost first, and the bytes of one memcpy. */
struct odometer {
    uint32_t ndim;
    int64_t length[LIMIT_NDIM], to[LIMIT_NDIM], from[LIMIT_NDIM];
    size_t run_bytes;
};

/* Sets up the loop: drops dimensions of length 1, and joins the inner dimensions that have no holes
 * on either side into one run. */
static void odometer_init(struct odometer *odometer, const struct strided_copy *copy)
{
    memset(odometer, 0, sizeof *odometer);
    odometer->run_bytes = copy->element_bytes;
    for (uint32_t d = copy->part->ndim; d-- > 0;) {
        int64_t length = copy->part->length[d], run = (int64_t)odometer->run_bytes;
        if (length == 1) {
            continue;
        }
        if (odometer->ndim == 0 && copy->to.stride[d] == run && copy->from.stride[d] == run) {
            odometer->run_bytes *= (size_t)length;
            continue;
        }
        CHECK(odometer->ndim < LIMIT_NDIM);
        uint32_t n = odometer->ndim++;
        odometer->length[n] = length;
        odometer->to[n] = copy->to.stride[d];
        odometer->from[n] = copy->from.stride[d];
    }
}

/* Copies one run. Small sizes are constants, so that the compiler makes a plain move of a single
 * element. */
static inline void copy_run(uint8_t *to, const uint8_t *from, size_t bytes)
{
    switch (bytes) {
    case 1:
        *to = *from;
        break;
    case 2:
        memcpy(to, from, 2);
        break;
    case 4:
        memcpy(to, from, 4);
        break;
    case 8:
        memcpy(to, from, 8);
        break;
    default:
        memcpy(to, from, bytes);
        break;
    }
}

void strided_copy(const struct strided_copy *copy)
{
    struct odometer odometer;
    CHECK(copy->element_bytes > 0);
    CHECK(copy->part->ndim == copy->to_box->ndim);
    CHECK(copy->part->ndim == copy->from_box->ndim);
    int64_t at[LIMIT_NDIM] = {0};
    if (box_elements(copy->part) == 0) {
        return;
    }
    odometer_init(&odometer, copy);
    uint8_t *to = corner(&copy->to, copy->to_box, copy->part);
    const uint8_t *from = corner(&copy->from, copy->from_box, copy->part);
    for (;;) {
        copy_run(to, from, odometer.run_bytes);
        uint32_t d = 0;
        while (d < odometer.ndim && at[d] + 1 == odometer.length[d]) {
            to -= at[d] * odometer.to[d];
            from -= at[d] * odometer.from[d];
            at[d++] = 0;
        }
        if (d == odometer.ndim) {
            return;
        }
        at[d]++;
        to += odometer.to[d];
        from += odometer.from[d];
    }
}

bool strided_run(const struct box *box, const struct box *part, uint32_t element_bytes,
                 uint64_t *ret_offset)
{
    uint64_t offset = 0;
    bool partial =
        false; /* a dimension further out has more than one row: inner ones must be whole */
    for (uint32_t d = 0; d < box->ndim; d++) {
        bool whole = part->length[d] == box->length[d];
        if (partial && !whole) {
            return false;
        }
        partial = partial || part->length[d] > 1;
        offset = offset * (uint64_t)box->length[d] + (uint64_t)(part->offset[d] - box->offset[d]);
    }
    *ret_offset = offset * element_bytes;
    return true;
}
