/* SPDX-License-Identifier: Apache-2.0
 *
 * See npz_write.h.
 */
#include "formats/npz_write.h"

#include "base/check.h"
#include "format/ids.h"

#include <inttypes.h>
#include <stdio.h>

static const struct {
    uint32_t dtype;
    const char *descr;
} types[] = {{CAIRN_BOOL, "|b1"}, {CAIRN_U8, "|u1"},   {CAIRN_I8, "|i1"},  {CAIRN_U16, "<u2"},
             {CAIRN_I16, "<i2"},  {CAIRN_U32, "<u4"},  {CAIRN_I32, "<i4"}, {CAIRN_U64, "<u8"},
             {CAIRN_I64, "<i8"},  {CAIRN_F16, "<f2"},  {CAIRN_F32, "<f4"}, {CAIRN_F64, "<f8"},
             {CAIRN_C64, "<c8"},  {CAIRN_C128, "<c16"}};

enum { ALIGN = 64, FIXED = 10 };

bool npy_put_header(struct buf *buf, uint32_t dtype, const struct shape *shape)
{
    char descr[16], text[400];
    bool is_void = true;
    snprintf(descr, sizeof(descr), "|V%u", dtype_bits(dtype) / 8);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (types[i].dtype == dtype) {
            snprintf(descr, sizeof(descr), "%s", types[i].descr);
            is_void = false;
        }
    }
    size_t at = (size_t)snprintf(text, sizeof(text),
                                 "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (uint32_t i = 0; i < shape->ndim; i++) {
        at +=
            (size_t)snprintf(text + at, sizeof(text) - at, "%s%" PRId64 "%s", i > 0 ? " " : "",
                             shape->length[i], i + 1 < shape->ndim || shape->ndim == 1 ? "," : "");
    }
    at += (size_t)snprintf(text + at, sizeof(text) - at, "), }");
    size_t padding = (ALIGN - (FIXED + at + 1) % ALIGN) % ALIGN;
    CHECK(at < sizeof(text));
    buf_put(buf, 8, "\x93NUMPY\x01\x00");
    buf_put_u16(buf, (uint16_t)(at + padding + 1));
    buf_put(buf, at, text);
    buf_printf(buf, "%*s\n", (int)padding, "");
    return is_void;
}
