/* SPDX-License-Identifier: Apache-2.0
 *
 * buf and cur: the writer and the reader of control-plane bytes. Invariants: bytes <= cap <= max in
 * a buf, and at <= bytes in a cur; after its first failure a buf no longer changes, and a cur gives
 * zeros. An object belongs to one thread.
 */
#include "base/buf.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST_BYTES = 256 };

void buf_init(struct buf *buf, size_t max_bytes) { *buf = (struct buf){.max = max_bytes}; }

void buf_fini(struct buf *buf)
{
    if (buf != NULL) {
        free(buf->data);
        *buf = (struct buf){.max = buf->max};
    }
}

void buf_reset(struct buf *buf)
{
    buf->bytes = 0;
    buf->status = 0;
}

int buf_status(const struct buf *buf) { return buf->status; }

/* Makes room for more bytes and returns where they go, or NULL after a failure. Doubling keeps a
 * long sequence of small puts linear. */
static uint8_t *buf_extend(struct buf *buf, size_t more)
{
    if (buf->status != 0) {
        return NULL;
    }
    CHECK(buf->bytes <= buf->max);
    if (more > buf->max - buf->bytes) {
        buf->status = CAIRN_E_TOO_LARGE;
        return NULL;
    }
    size_t need = buf->bytes + more;
    if (need > buf->cap || buf->data == NULL) {
        size_t cap = buf->cap > buf->max / 2 ? buf->max : buf->cap * 2;
        cap = cap < BUF_FIRST_BYTES ? BUF_FIRST_BYTES : cap;
        cap = cap < need ? need : cap;
        uint8_t *data = realloc(buf->data, cap);
        if (data == NULL) {
            buf->status = CAIRN_E_NO_MEMORY;
            return NULL;
        }
        buf->data = data;
        buf->cap = cap;
    }
    uint8_t *at = buf->data + buf->bytes;
    buf->bytes = need;
    return at;
}

void buf_put(struct buf *buf, size_t bytes, const void *data)
{
    if (bytes == 0) {
        return;
    }
    uint8_t *at = buf_extend(buf, bytes);
    if (at != NULL) {
        memcpy(at, data, bytes);
    }
}

void buf_put_u8(struct buf *buf, uint8_t value) { buf_put(buf, sizeof(value), &value); }
void buf_put_u16(struct buf *buf, uint16_t value) { buf_put(buf, sizeof(value), &value); }
void buf_put_u32(struct buf *buf, uint32_t value) { buf_put(buf, sizeof(value), &value); }
void buf_put_u64(struct buf *buf, uint64_t value) { buf_put(buf, sizeof(value), &value); }

void buf_put_zero(struct buf *buf, size_t bytes)
{
    if (bytes == 0) {
        return;
    }
    uint8_t *at = buf_extend(buf, bytes);
    if (at != NULL) {
        memset(at, 0, bytes);
    }
}

void buf_printf(struct buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CHECK(length >= 0);

    /* vsnprintf writes a NUL, which is no part of the contents: it gets one byte more, which is
     * given back. A text that only just fits below max must not fail for that byte, so max is
     * raised meanwhile. */
    size_t max = buf->max;
    buf->max = max < SIZE_MAX ? max + 1 : max;
    uint8_t *at = buf_extend(buf, (size_t)length + 1);
    buf->max = max;
    if (at != NULL) {
        vsnprintf((char *)at, (size_t)length + 1, fmt, again);
        buf->bytes--;
    }
    va_end(again);
}

void buf_patch_u32(struct buf *buf, size_t offset, uint32_t value)
{
    if (buf->status == 0) {
        CHECK(buf->bytes >= sizeof(value));
        CHECK(offset <= buf->bytes - sizeof(value));
        store_u32(buf->data + offset, value);
    }
}

void buf_patch_u64(struct buf *buf, size_t offset, uint64_t value)
{
    if (buf->status == 0) {
        CHECK(buf->bytes >= sizeof(value));
        CHECK(offset <= buf->bytes - sizeof(value));
        store_u64(buf->data + offset, value);
    }
}

uint8_t *buf_take(struct buf *buf, size_t *ret_bytes)
{
    CHECK(buf->status == 0);
    uint8_t *data = buf->data;
    *ret_bytes = buf->bytes;
    *buf = (struct buf){.max = buf->max};
    return data;
}

void cur_init(struct cur *cur, size_t bytes, const void *data)
{
    if (bytes > 0) {
        CHECK(data != NULL);
    }
    /* An empty input may be NULL. Zero bytes read from it must not look like a failure. */
    static const uint8_t nothing[1] = {0};
    *cur = (struct cur){.data = data != NULL ? data : nothing, .bytes = bytes};
}

const uint8_t *cur_bytes(struct cur *cur, size_t bytes)
{
    CHECK(cur->at <= cur->bytes);
    if (cur->status != 0 || bytes > cur->bytes - cur->at) {
        cur->status = CAIRN_E_FORMAT;
        return NULL;
    }
    const uint8_t *at = cur->data + cur->at;
    cur->at += bytes;
    return at;
}

void cur_copy(struct cur *cur, size_t bytes, void *ret)
{
    const uint8_t *at = cur_bytes(cur, bytes);
    if (bytes == 0) {
        return;
    }
    if (at != NULL) {
        memcpy(ret, at, bytes);
    } else {
        memset(ret, 0, bytes);
    }
}

uint8_t cur_u8(struct cur *cur)
{
    uint8_t value;
    cur_copy(cur, sizeof(value), &value);
    return value;
}

uint16_t cur_u16(struct cur *cur)
{
    uint16_t value;
    cur_copy(cur, sizeof(value), &value);
    return value;
}

uint32_t cur_u32(struct cur *cur)
{
    uint32_t value;
    cur_copy(cur, sizeof(value), &value);
    return value;
}

uint64_t cur_u64(struct cur *cur)
{
    uint64_t value;
    cur_copy(cur, sizeof(value), &value);
    return value;
}

void cur_zeros(struct cur *cur, size_t bytes)
{
    const uint8_t *at = cur_bytes(cur, bytes);
    for (size_t i = 0; at != NULL && i < bytes; i++) {
        if (at[i] != 0) {
            cur->status = CAIRN_E_FORMAT;
            return;
        }
    }
}

void cur_seek(struct cur *cur, size_t at)
{
    if (cur->status == 0 && at <= cur->bytes) {
        cur->at = at;
    } else {
        cur->status = CAIRN_E_FORMAT;
    }
}

size_t cur_left(const struct cur *cur) { return cur->status == 0 ? cur->bytes - cur->at : 0; }

int cur_finish(const struct cur *cur)
{
    if (cur->status != 0 || cur->at != cur->bytes) {
        return CAIRN_E_FORMAT;
    }
    return 0;
}
