/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether boxes tile a shape exactly is decided by corners. The function "how many boxes cover this
 * point" follows from the signed sum of the boxes' corners (+ for an even number of upper sides, -
 * for an odd one). So the boxes tile the shape exactly if this sum, less the shape's own corners,
 * is zero at every point. Sorting the corners decides that in O(n log n) for any arrangement. At
 * the first point, in row-major order, that is not zero, the sum is the number of boxes there minus
 * one: a hole or an overlap. Only dimensions that some box does not span take part, so slabs have
 * two corners each. Pure; any thread.
 */
#include "box.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

enum {
    TILE_CORNERS_MAX = 1 << 26
}; /* 512 MiB of corners: far above 65536 ranks in three dimensions */

struct tiling {
    const struct box *boxes;
    size_t count;
    struct box whole;
    uint32_t dims;
    uint32_t dim[LIMIT_NDIM]; /* the dimensions that take part, ascending */
};

/* Returns a corner: the index of the box (count stands for the whole shape), and a bit for each
 * dimension that takes part, which is set for the upper side. */
static uint64_t corner_make(size_t box, uint32_t mask)
{
    return (uint64_t)box << LIMIT_NDIM | mask;
}

static int64_t corner_at(const struct tiling *tiling, uint64_t corner, uint32_t i)
{
    size_t idx = (size_t)(corner >> LIMIT_NDIM);
    const struct box *box = idx == tiling->count ? &tiling->whole : &tiling->boxes[idx];
    uint32_t d = tiling->dim[i];
    return box->offset[d] + ((corner >> i & 1) != 0 ? box->length[d] : 0);
}

static int corner_compare(const void *a, const void *b, void *user)
{
    const struct tiling *tiling = user;
    for (uint32_t i = 0; i < tiling->dims; i++) {
        int64_t x = corner_at(tiling, *(const uint64_t *)a, i);
        int64_t y = corner_at(tiling, *(const uint64_t *)b, i);
        if (x != y) {
            return x < y ? -1 : 1;
        }
    }
    return 0;
}

static int corner_sign(const struct tiling *tiling, uint64_t corner)
{
    int sign = __builtin_parity((unsigned)(corner & ((1u << LIMIT_NDIM) - 1))) ? -1 : 1;
    return corner >> LIMIT_NDIM == tiling->count ? -sign : sign;
}

/* Finds the dimensions that take part: those that some box does not span. */
static void tiling_init(struct tiling *tiling, const struct shape *shape, size_t count,
                        const struct box *boxes)
{
    tiling->boxes = boxes;
    tiling->count = count;
    tiling->whole = box_whole(shape);
    tiling->dims = 0;
    for (uint32_t d = 0; d < shape->ndim; d++) {
        size_t spanning = 0;
        while (spanning < count && boxes[spanning].length[d] == shape->length[d]) {
            spanning++;
        }
        if (spanning < count) {
            tiling->dim[tiling->dims++] = d;
        }
    }
}

/* Writes all corners of all boxes with elements, and those of the shape. Returns their number. */
static size_t tiling_corners(const struct tiling *tiling, uint64_t *corners)
{
    size_t n = 0;
    for (size_t i = 0; i <= tiling->count; i++) {
        if (i < tiling->count && box_elements(&tiling->boxes[i]) == 0) {
            continue;
        }
        for (uint32_t mask = 0; mask < 1u << tiling->dims; mask++) {
            corners[n++] = corner_make(i, mask);
        }
    }
    return n;
}

static bool box_has_point(const struct box *box, const struct box *point)
{
    for (uint32_t d = 0; d < box->ndim; d++) {
        int64_t from = point->offset[d] - box->offset[d];
        if (from < 0 || from >= box->length[d]) {
            return false;
        }
    }
    return true;
}

/* Describes the first point whose sum is not zero. */
static void tiling_fault(const struct tiling *tiling, uint64_t corner, int64_t sum,
                         struct tile_fault *ret)
{
    ret->kind = sum < 0 ? TILE_HOLE : TILE_OVERLAP;
    ret->point = tiling->whole;
    for (uint32_t d = 0; d < tiling->whole.ndim; d++) {
        ret->point.length[d] = 1;
    }
    for (uint32_t i = 0; i < tiling->dims; i++) {
        ret->point.offset[tiling->dim[i]] = corner_at(tiling, corner, i);
    }
    size_t holders = 0;
    for (size_t i = 0; i < tiling->count && holders < 2; i++) {
        if (box_has_point(&tiling->boxes[i], &ret->point)) {
            ret->first = holders == 0 ? i : ret->first;
            ret->second = i;
            holders++;
        }
    }
    CHECK(holders == (sum < 0 ? 0 : 2));
}

int boxes_tile_fault(const struct shape *shape, size_t count, const struct box *boxes,
                     struct tile_fault *ret, struct diag *diag)
{
    struct tiling tiling;
    uint64_t corner_max = 0;
    memset(ret, 0, sizeof *ret);
    tiling_init(&tiling, shape, count, boxes);
    if (box_elements(&tiling.whole) == 0) {
        return 0; /* a box inside an empty shape is empty: nothing can be missing or double */
    }
    if (!mul_u64((uint64_t)count + 1, UINT64_C(1) << tiling.dims, &corner_max) ||
        corner_max > TILE_CORNERS_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the tensor has %zu boxes cut in %u dimensions, which are too many to "
                        "check; cut it along fewer dimensions",
                        count, tiling.dims);
    }
    uint64_t *corners = malloc((size_t)corner_max * sizeof *corners);
    if (corners == NULL) {
        return diag_no_memory(diag, "checking the coverage of %zu boxes", count);
    }
    size_t n = tiling_corners(&tiling, corners);
    qsort_r(corners, n, sizeof *corners, corner_compare, &tiling);
    for (size_t from = 0, to = 0; from < n && ret->kind == TILE_EXACT; from = to) {
        int64_t sum = 0;
        for (; to < n && corner_compare(&corners[from], &corners[to], &tiling) == 0; to++) {
            sum += corner_sign(&tiling, corners[to]);
        }
        if (sum != 0) {
            tiling_fault(&tiling, corners[from], sum, ret);
        }
    }
    free(corners);
    return 0;
}

int boxes_tile(const struct shape *shape, size_t count, struct box *boxes, struct diag *diag)
{
    struct tile_fault fault;
    char text[128], first[128], second[128];
    for (size_t i = 0; i < count; i++) {
        int rc = box_check(&boxes[i], shape, diag);
        if (rc != 0) {
            return rc;
        }
    }
    int rc = boxes_tile_fault(shape, count, boxes, &fault, diag);
    if (rc != 0 || fault.kind == TILE_EXACT) {
        return rc;
    }
    box_format(&fault.point, sizeof text, text);
    if (fault.kind == TILE_HOLE) {
        return diag_set(diag, CAIRN_E_COVERAGE, "no box holds the element %s", text);
    }
    box_format(&boxes[fault.first], sizeof first, first);
    box_format(&boxes[fault.second], sizeof second, second);
    return diag_set(diag, CAIRN_E_COVERAGE, "boxes %s and %s overlap at the element %s", first,
                    second, text);
}
