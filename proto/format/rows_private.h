/* SPDX-License-Identifier: Apache-2.0
 *
 * rows: row_put_x() writes and row_take_x() reads the fixed fields of a document or of a row in
 * one, as rows.def declares them. The caller checks the values that it reads. Pure; for the files
 * of this folder.
 */
#ifndef CAIRN_FORMAT_ROWS_PRIVATE_H
#define CAIRN_FORMAT_ROWS_PRIVATE_H

#include "base/buf.h"
#include "format/manifest.h"
#include "format/part.h"

#define ROW(name, structure)                                                         \
    static inline void row_put_##name(const struct structure *self, struct buf *buf) \
    {
#define U8(f)    buf_put_u8(buf, self->f);
#define U32(f)   buf_put_u32(buf, self->f);
#define U64(f)   buf_put_u64(buf, self->f);
#define S64(f)   buf_put_u64(buf, (uint64_t)self->f);
#define BYTES(f) buf_put(buf, sizeof self->f.bytes, self->f.bytes);
#define ID(f)    U64(f.term) U64(f.step)
#define ZEROS(n) buf_put_zero(buf, n);
#define END      }
#include "rows.def"

#define ROW(name, structure)                                                    \
    static inline void row_take_##name(struct cur *cur, struct structure *self) \
    {
#define U8(f)    self->f = cur_u8(cur);
#define U32(f)   self->f = cur_u32(cur);
#define U64(f)   self->f = cur_u64(cur);
#define S64(f)   self->f = (int64_t)cur_u64(cur);
#define BYTES(f) cur_copy(cur, sizeof self->f.bytes, self->f.bytes);
#define ID(f)    U64(f.term) U64(f.step)
#define ZEROS(n) cur_zeros(cur, n);
#define END      }
#include "rows.def"

#endif
