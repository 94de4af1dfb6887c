/* SPDX-License-Identifier: Apache-2.0
 *
 * See tree_builder.h. Child counts are the caller's promise: tree_end() checks the whole.
 */
#include "tree_builder.h"

#include "hash/hash.h"

#include <string.h>

void tree_begin(struct tree_builder *builder, struct buf *buf)
{
    *builder = (struct tree_builder){buf, buf->bytes, 0};
    buf_put_u32(buf, TREE_MAGIC);
    buf_put_u32(buf, TREE_VERSION);
    buf_put_zero(buf, TREE_HEADER_BYTES - 8);
}

void tree_put(struct tree_builder *builder, enum tree_kind kind, uint32_t child_count, size_t bytes,
              const void *data)
{
    struct buf *buf = builder->buf;
    if (bytes > UINT32_MAX) {
        buf->status = buf->status != 0 ? buf->status : CAIRN_E_TOO_LARGE;
        return;
    }
    buf_put_u8(buf, (uint8_t)kind);
    buf_put_zero(buf, 3);
    buf_put_u32(buf, child_count);
    buf_put_u32(buf, (uint32_t)bytes);
    if (bytes > 0) {
        buf_put(buf, bytes, data);
    }
    builder->nodes++;
}

void tree_put_int(struct tree_builder *builder, int64_t value)
{
    uint8_t data[8];
    size_t bytes = 8;
    store_u64(data, (uint64_t)value);
    /* Drop top bytes that only repeat the sign. */
    while (bytes > 1 && data[bytes - 1] == ((data[bytes - 2] & 0x80) != 0 ? 0xff : 0x00)) {
        bytes--;
    }
    tree_put(builder, TREE_INT, 0, bytes, data);
}

void tree_put_float(struct tree_builder *builder, double value)
{
    tree_put(builder, TREE_FLOAT, 0, sizeof value, &value);
}

void tree_put_str(struct tree_builder *builder, const char *text)
{
    tree_put(builder, TREE_STR, 0, strlen(text), text);
}

void tree_end(struct tree_builder *builder)
{
    struct buf *buf = builder->buf;
    if (buf_status(buf) != 0) {
        return;
    }
    size_t body = buf->bytes - builder->start - TREE_HEADER_BYTES;
    if (body > UINT32_MAX) {
        buf->status = CAIRN_E_TOO_LARGE;
        return;
    }
    buf_patch_u32(buf, builder->start + 8, builder->nodes);
    buf_patch_u32(buf, builder->start + 12, (uint32_t)body);
    buf_patch_u32(buf, builder->start + 16,
                  crc32c(0, body, buf->data + builder->start + TREE_HEADER_BYTES));
    int rc = tree_check(buf->bytes - builder->start, buf->data + builder->start, NULL);
    if (rc != 0) {
        buf->status = CAIRN_E_INVALID;
    }
}
