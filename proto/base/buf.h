/* SPDX-License-Identifier: Apache-2.0
 *
 * buf: a growable byte buffer with a required maximum and a sticky error, for encoders of the
 * control plane: write the sequence, then check buf_status() once. cur: a reader with checked
 * bounds and a sticky error, for decoders of bytes from outside. All numbers are little-endian. An
 * object belongs to one thread.
 */
#ifndef CAIRN_BASE_BUF_H
#define CAIRN_BASE_BUF_H

#include "err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Initialize with buf_init(); a failed put changes nothing but the status. */
struct buf {
    uint8_t *data;   /* owned; NULL while empty */
    size_t bytes;    /* written so far */
    size_t cap, max; /* allocated, and the most that may be */
    int status;      /* 0, NO_MEMORY, or TOO_LARGE when max was reached; sticky */
};

/* Initialize an empty buffer that may grow to max_bytes, and free its memory. buf_fini accepts an
 * empty buffer. */
void buf_init(struct buf *buf, size_t max_bytes);
void buf_fini(struct buf *buf);
void buf_reset(struct buf *buf); /* empties it, keeps the memory, clears the error */
/* Returns 0, or the first error of the calls before. */
int MUST_USE buf_status(const struct buf *buf);
/* Append bytes, numbers, zeros or a text. They do nothing after the first error. */
void buf_put(struct buf *buf, size_t bytes, const void *data);
void buf_put_u8(struct buf *buf, uint8_t value);
void buf_put_u16(struct buf *buf, uint16_t value);
void buf_put_u32(struct buf *buf, uint32_t value);
void buf_put_u64(struct buf *buf, uint64_t value);
void buf_put_zero(struct buf *buf, size_t bytes);
void buf_printf(struct buf *buf, const char *fmt, ...) PRINTF(2, 3);
/* Overwrites four or eight bytes that were written before, such as a length. CHECKs the range. */
void buf_patch_u32(struct buf *buf, size_t offset, uint32_t value);
void buf_patch_u64(struct buf *buf, size_t offset, uint64_t value);
/* Moves the bytes to the caller, who frees them with free(). buf is empty afterwards. */
uint8_t *buf_take(struct buf *buf, size_t *ret_bytes);

/* A reader. Invariant: at <= bytes. */
struct cur {
    const uint8_t *data; /* borrowed */
    size_t bytes, at;    /* at: how many bytes were read */
    int status;          /* 0 or FORMAT; sticky: every read after the first failure gives 0 */
};

/* Begins to read the bytes, which must stay valid as long as the reader. */
void cur_init(struct cur *cur, size_t bytes, const void *data);
/* Read one number and move behind it. */
uint8_t cur_u8(struct cur *cur);
uint16_t cur_u16(struct cur *cur);
uint32_t cur_u32(struct cur *cur);
uint64_t cur_u64(struct cur *cur);
/* Returns a pointer into the input, or NULL after a failure. */
const uint8_t *cur_bytes(struct cur *cur, size_t bytes);
void cur_copy(struct cur *cur, size_t bytes, void *ret); /* zero-fills ret on failure */
void cur_zeros(struct cur *cur, size_t bytes);           /* fails unless all bytes are zero */
void cur_seek(struct cur *cur, size_t at);
size_t cur_left(const struct cur *cur);
/* Returns FORMAT if a read failed or bytes are left over, else 0. */
int MUST_USE cur_finish(const struct cur *cur);

/* Returns true if all bytes are 0, and for no bytes. */
static inline bool is_all_zero(size_t bytes, const void *data)
{
    const uint8_t *at = data;
    return bytes == 0 || (at[0] == 0 && __builtin_memcmp(at, at + 1, bytes - 1) == 0);
}

/* Unaligned little-endian access to memory whose bounds were checked before. */
static inline uint32_t load_u32(const void *p)
{
    uint32_t v;
    __builtin_memcpy(&v, p, 4);
    return v;
}
static inline uint64_t load_u64(const void *p)
{
    uint64_t v;
    __builtin_memcpy(&v, p, 8);
    return v;
}
static inline void store_u32(void *p, uint32_t v) { __builtin_memcpy(p, &v, 4); }
static inline void store_u64(void *p, uint64_t v) { __builtin_memcpy(p, &v, 8); }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Cairn's formats are little-endian");

#endif
