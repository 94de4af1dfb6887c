/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte planes by SSE2, which every x86-64 has: log2(width) passes that separate even and odd bytes,
 * over 16 elements at a time. The portable form takes the rest, or everything on another machine;
 * both give the same bytes. Pure; any thread.
 */
#include "planes_split.h"

#include <string.h>

#include "base/check.h"

enum { BLOCK = 16 };

static void check_shape(struct planes_shape shape)
{
    CHECK(shape.width == 1 || shape.width == 2 || shape.width == 4 || shape.width == 8);
    CHECK(!shape.rotate || shape.width > 1);
}

/* Rotates an element. The bits above the element are then garbage, which no caller reads. */
static uint64_t rotate_left(struct planes_shape shape, uint64_t value)
{
    unsigned highest = (8u * shape.width - 1) % 64;
    return shape.rotate ? (value << 1) | (value >> highest) : value;
}

static uint64_t rotate_right(struct planes_shape shape, uint64_t value)
{
    unsigned highest = (8u * shape.width - 1) % 64;
    return shape.rotate ? (value >> 1) | ((value & 1) << highest) : value;
}

static void split_portably(struct planes_shape shape, size_t first, size_t elements,
                           const uint8_t *plain, uint8_t *planes)
{
    for (size_t i = first; i < elements; i++) {
        uint64_t value = 0;
        memcpy(&value, plain + i * shape.width, shape.width);
        value = rotate_left(shape, value);
        for (unsigned plane = 0; plane < shape.width; plane++) {
            planes[plane * elements + i] = (uint8_t)(value >> (8 * plane));
        }
    }
}

static void join_portably(struct planes_shape shape, size_t first, size_t elements,
                          const uint8_t *const planes[PLANES_WIDTH_MAX], uint8_t *plain)
{
    for (size_t i = first; i < elements; i++) {
        uint64_t value = 0;
        for (unsigned plane = 0; plane < shape.width; plane++) {
            value |= (uint64_t)planes[plane][i] << (8 * plane);
        }
        value = rotate_right(shape, value);
        memcpy(plain + i * shape.width, &value, shape.width);
    }
}

#if defined(__SSE2__)
#include <emmintrin.h>

/* Everything below is inlined with a constant shape, so that the vectors stay in registers. */
#define WITH_CONSTANT_SHAPE static inline __attribute__((always_inline))

WITH_CONSTANT_SHAPE __m128i rotate_vector_left(unsigned width, __m128i v)
{
    if (width == 2) {
        return _mm_or_si128(_mm_slli_epi16(v, 1), _mm_srli_epi16(v, 15));
    }
    if (width == 4) {
        return _mm_or_si128(_mm_slli_epi32(v, 1), _mm_srli_epi32(v, 31));
    }
    return _mm_or_si128(_mm_slli_epi64(v, 1), _mm_srli_epi64(v, 63));
}

WITH_CONSTANT_SHAPE __m128i rotate_vector_right(unsigned width, __m128i v)
{
    if (width == 2) {
        return _mm_or_si128(_mm_srli_epi16(v, 1), _mm_slli_epi16(v, 15));
    }
    if (width == 4) {
        return _mm_or_si128(_mm_srli_epi32(v, 1), _mm_slli_epi32(v, 31));
    }
    return _mm_or_si128(_mm_srli_epi64(v, 1), _mm_slli_epi64(v, 63));
}

/* Makes one pass, which puts the even bytes of all vectors before the odd ones. After log2(width)
 * passes vector k holds the bytes k of the 16 elements. */
WITH_CONSTANT_SHAPE void pack_pass(size_t width, __m128i v[PLANES_WIDTH_MAX])
{
    const __m128i low = _mm_set1_epi16(0xff);
    __m128i to[PLANES_WIDTH_MAX];
#pragma GCC unroll 4
    for (size_t i = 0; i < width / 2; i++) {
        __m128i a = v[2 * i], b = v[2 * i + 1];
        to[i] = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
        to[width / 2 + i] = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < width; i++) {
        v[i] = to[i];
    }
}

WITH_CONSTANT_SHAPE void unpack_pass(size_t width, __m128i v[PLANES_WIDTH_MAX])
{
    __m128i to[PLANES_WIDTH_MAX];
#pragma GCC unroll 4
    for (size_t i = 0; i < width / 2; i++) {
        to[2 * i] = _mm_unpacklo_epi8(v[i], v[width / 2 + i]);
        to[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[width / 2 + i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < width; i++) {
        v[i] = to[i];
    }
}

WITH_CONSTANT_SHAPE void split_blocks(struct planes_shape shape, size_t elements,
                                      const uint8_t *plain, uint8_t *planes)
{
    const unsigned width = shape.width;
    for (size_t at = 0; at + BLOCK <= elements; at += BLOCK) {
        __m128i v[PLANES_WIDTH_MAX];
#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++) {
            v[i] = _mm_loadu_si128((const void *)(plain + at * width + i * sizeof v[i]));
            v[i] = shape.rotate ? rotate_vector_left(width, v[i]) : v[i];
        }
#pragma GCC unroll 3
        for (unsigned done = 1; done < width; done *= 2) {
            pack_pass(width, v);
        }
#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++) {
            _mm_storeu_si128((void *)(planes + i * elements + at), v[i]);
        }
    }
}

WITH_CONSTANT_SHAPE void join_blocks(struct planes_shape shape, size_t elements,
                                     const uint8_t *const planes[PLANES_WIDTH_MAX], uint8_t *plain)
{
    const unsigned width = shape.width;
    for (size_t at = 0; at + BLOCK <= elements; at += BLOCK) {
        __m128i v[PLANES_WIDTH_MAX];
#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++) {
            v[i] = _mm_loadu_si128((const void *)(planes[i] + at));
        }
#pragma GCC unroll 3
        for (unsigned done = 1; done < width; done *= 2) {
            unpack_pass(width, v);
        }
#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++) {
            v[i] = shape.rotate ? rotate_vector_right(width, v[i]) : v[i];
            _mm_storeu_si128((void *)(plain + at * width + i * sizeof v[i]), v[i]);
        }
    }
}

/* Splits with vectors, and returns how many elements it has done. */
static size_t split_fast(struct planes_shape shape, size_t elements, const uint8_t *plain,
                         uint8_t *planes)
{
    switch (shape.width * 2 + shape.rotate) {
    case 4:
        split_blocks((struct planes_shape){2, false}, elements, plain, planes);
        break;
    case 5:
        split_blocks((struct planes_shape){2, true}, elements, plain, planes);
        break;
    case 8:
        split_blocks((struct planes_shape){4, false}, elements, plain, planes);
        break;
    case 9:
        split_blocks((struct planes_shape){4, true}, elements, plain, planes);
        break;
    case 16:
        split_blocks((struct planes_shape){8, false}, elements, plain, planes);
        break;
    case 17:
        split_blocks((struct planes_shape){8, true}, elements, plain, planes);
        break;
    default:
        UNREACHABLE();
    }
    return elements / BLOCK * BLOCK;
}

static size_t join_fast(struct planes_shape shape, size_t elements,
                        const uint8_t *const planes[PLANES_WIDTH_MAX], uint8_t *plain)
{
    switch (shape.width * 2 + shape.rotate) {
    case 4:
        join_blocks((struct planes_shape){2, false}, elements, planes, plain);
        break;
    case 5:
        join_blocks((struct planes_shape){2, true}, elements, planes, plain);
        break;
    case 8:
        join_blocks((struct planes_shape){4, false}, elements, planes, plain);
        break;
    case 9:
        join_blocks((struct planes_shape){4, true}, elements, planes, plain);
        break;
    case 16:
        join_blocks((struct planes_shape){8, false}, elements, planes, plain);
        break;
    case 17:
        join_blocks((struct planes_shape){8, true}, elements, planes, plain);
        break;
    default:
        UNREACHABLE();
    }
    return elements / BLOCK * BLOCK;
}
#else
static size_t split_fast(struct planes_shape shape, size_t elements, const uint8_t *plain,
                         uint8_t *planes)
{
    (void)shape, (void)elements, (void)plain, (void)planes;
    return 0;
}

static size_t join_fast(struct planes_shape shape, size_t elements,
                        const uint8_t *const planes[PLANES_WIDTH_MAX], uint8_t *plain)
{
    (void)shape, (void)elements, (void)planes, (void)plain;
    return 0;
}
#endif

void planes_split(struct planes_shape shape, size_t elements, const uint8_t *plain,
                  uint8_t *ret_planes)
{
    check_shape(shape);
    if (shape.width == 1) {
        memcpy(ret_planes, plain, elements);
        return;
    }
    size_t done = split_fast(shape, elements, plain, ret_planes);
    split_portably(shape, done, elements, plain, ret_planes);
}

void planes_join(struct planes_shape shape, size_t elements,
                 const uint8_t *const planes[PLANES_WIDTH_MAX], uint8_t *ret_plain)
{
    check_shape(shape);
    if (shape.width == 1) {
        memcpy(ret_plain, planes[0], elements);
        return;
    }
    size_t done = join_fast(shape, elements, planes, ret_plain);
    join_portably(shape, done, elements, planes, ret_plain);
}
