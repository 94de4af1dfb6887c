/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-128 by libxxhash. On amd64 the library's own dispatcher is used, because the plain symbols
 * are built for the oldest processor and reach two thirds of the rate. Results are canonical
 * (big-endian) bytes, the same on every machine. Pure; any thread; a stream belongs to one thread.
 */
#include "hash/hash.h"

#include "base/check.h"

#include <string.h>
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h> /* redirects XXH3_128bits and XXH3_128bits_update */
#endif

/* Small enough that the second pass over a slice finds it in the second-level cache or, with a
 * copy, in the first-level cache: a tenth of the time was measured to depend on that. */
enum { BOTH_SLICE_BYTES = 64 << 10, COPY_SLICE_BYTES = 16 << 10 };

/* The library's state is opaque to programs that link it dynamically, so it lives on the heap. */
struct xxh3_stream {
    XXH3_state_t *state;
};

static void hash_slices(size_t bytes, const uint8_t *from, uint8_t *to, struct xxh128 *ret_digest,
                        uint32_t *ret_crc);

static struct xxh128 xxh128_of(XXH128_hash_t hash)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    struct xxh128 digest;
    _Static_assert(sizeof(canonical.digest) == sizeof(digest.bytes), "128 bits");
    __builtin_memcpy(digest.bytes, canonical.digest, sizeof(digest.bytes));
    return digest;
}

static void state_add(XXH3_state_t *state, size_t bytes, const void *data)
{
    if (bytes > 0) { /* the library refuses NULL, which an empty range may be */
        CHECK(XXH3_128bits_update(state, data, bytes) == XXH_OK);
    }
}

struct xxh128 xxh3_128(size_t bytes, const void *data)
{
    return xxh128_of(XXH3_128bits(bytes > 0 ? data : "", bytes));
}

void hash_both(size_t bytes, const void *data, struct xxh128 *ret_digest, uint32_t *ret_crc)
{
    hash_slices(bytes, data, NULL, ret_digest, ret_crc);
}

void hash_both_copy(size_t bytes, const void *data, void *to, struct xxh128 *ret_digest,
                    uint32_t *ret_crc)
{
    hash_slices(bytes, data, to, ret_digest, ret_crc);
}

/* Hashes slice by slice. If `to` is not NULL, each slice is copied there first and hashed there. */
static void hash_slices(size_t bytes, const uint8_t *from, uint8_t *to, struct xxh128 *ret_digest,
                        uint32_t *ret_crc)
{
    XXH3_state_t *state = bytes > BOTH_SLICE_BYTES ? XXH3_createState() : NULL;
    /* Few bytes, or no memory for the state: two passes give the same answer. */
    if (state == NULL) {
        const uint8_t *data = to != NULL && bytes > 0 ? memcpy(to, from, bytes) : from;
        *ret_digest = xxh3_128(bytes, data);
        *ret_crc = crc32c(0, bytes, data);
        return;
    }
    CHECK(XXH3_128bits_reset(state) == XXH_OK);
    const size_t most = to != NULL ? COPY_SLICE_BYTES : BOTH_SLICE_BYTES;
    uint32_t crc = 0;
    for (size_t at = 0; at < bytes;) {
        size_t slice = bytes - at < most ? bytes - at : most;
        const uint8_t *data = to != NULL ? memcpy(to + at, from + at, slice) : from + at;
        crc = crc32c(crc, slice, data);
        state_add(state, slice, data);
        at += slice;
    }
    *ret_digest = xxh128_of(XXH3_128bits_digest(state));
    *ret_crc = crc;
    CHECK(XXH3_freeState(state) == XXH_OK);
}

struct xxh3_stream *xxh3_stream_new(void)
{
    struct xxh3_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return NULL;
    }
    stream->state = XXH3_createState();
    if (stream->state == NULL) {
        free(stream);
        return NULL;
    }
    xxh3_stream_reset(stream);
    return stream;
}

void xxh3_stream_reset(struct xxh3_stream *stream)
{
    CHECK(XXH3_128bits_reset(stream->state) == XXH_OK);
}

void xxh3_stream_add(struct xxh3_stream *stream, size_t bytes, const void *data)
{
    state_add(stream->state, bytes, data);
}

struct xxh128 xxh3_stream_digest(const struct xxh3_stream *stream)
{
    return xxh128_of(XXH3_128bits_digest(stream->state));
}

void xxh3_stream_free(struct xxh3_stream *stream)
{
    if (stream != NULL) {
        CHECK(XXH3_freeState(stream->state) == XXH_OK);
        free(stream);
    }
}
