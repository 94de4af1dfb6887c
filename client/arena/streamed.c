/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-temporal stores where the processor is known to have them (SSE2, all of amd64), memcpy
 * elsewhere. The C library has the same, but only for copies of many times a chunk. Invariant: all
 * stores are visible to other threads on return. Pure; any thread.
 */
#include "arena/streamed.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE_BYTES = 64, STREAMED_BYTES_MIN = 64 << 10 };

/* Copies 64 bytes past the caches. `to` must be a multiple of 16. */
static void copy_line(uint8_t *to, const uint8_t *from)
{
    __m128i a = _mm_loadu_si128((const void *)from);
    __m128i b = _mm_loadu_si128((const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const void *)(from + 48));
    _mm_stream_si128((void *)to, a);
    _mm_stream_si128((void *)(to + 16), b);
    _mm_stream_si128((void *)(to + 32), c);
    _mm_stream_si128((void *)(to + 48), d);
}

void streamed_copy(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    if (bytes >= STREAMED_BYTES_MIN) {
        size_t head = (LINE_BYTES - (uintptr_t)out % LINE_BYTES) % LINE_BYTES;
        memcpy(out, in, head);
        out += head;
        in += head;
        bytes -= head;
        for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES) {
            copy_line(out, in);
            out += LINE_BYTES;
            in += LINE_BYTES;
        }
        _mm_sfence();
    }
    memcpy(out, in, bytes);
}

#else

void streamed_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#endif
