/* SPDX-License-Identifier: Apache-2.0
 *
 * planes_split: sorts the bytes of elements by their place in the element, and back. It is a
 * permutation of bits: every value, NaN payloads and negative zero included, comes back unchanged.
 * Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_PLANES_SPLIT_H
#define CAIRN_PIPELINE_PLANES_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLANES_WIDTH_MAX = 8 };

/* How elements are cut. If rotate is set, each is first rotated left by one bit, which puts a
 * float's sign behind its mantissa and aligns its exponent with the highest byte; not for width
 * 1. */
struct planes_shape {
    uint8_t width; /* 1, 2, 4 or 8 bytes */
    bool rotate;
};

/* Writes the bytes of the elements as width planes of `elements` bytes each, one after the other.
 * Plane 0 has the lowest byte of each (rotated) element. plain needs no alignment; the two memories
 * do not overlap. */
void planes_split(struct planes_shape shape, size_t elements, const uint8_t *plain,
                  uint8_t *ret_planes);
/* Does the inverse, from planes that may lie anywhere except in ret_plain. */
void planes_join(struct planes_shape shape, size_t elements,
                 const uint8_t *const planes[PLANES_WIDTH_MAX], uint8_t *ret_plain);

#endif
