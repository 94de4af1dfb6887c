/* SPDX-License-Identifier: Apache-2.0
 *
 * npz_write: the header of an .npy. Pure.
 */
#ifndef CAIRN_TOOLS_NPZ_WRITE_H
#define CAIRN_TOOLS_NPZ_WRITE_H

#include "base/buf.h"
#include "format/box.h"

/* Version 1, row-major; its length is a multiple of 64. Types that numpy lacks are written as V1,
 * V2
 * ...; true in that case. */
bool npy_put_header(struct buf *buf, uint32_t dtype, const struct shape *shape);

#endif
