/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c for the typed tree: eight tables, eight bytes a step. The extension may use only cairn.h,
 * so it does not share the library's. The tables are built once, under the GIL, at import.
 */
#include "py_private.h"

static uint32_t tables[8][256];

static void build(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? UINT32_C(0x82f63b78) : 0);
        }
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        for (int k = 1; k < 8; k++) {
            uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
        }
    }
}

uint32_t py_crc32c(uint32_t crc, size_t bytes, const void *data)
{
    const uint8_t *at = data;
    if (tables[0][1] == 0) {
        build();
    }
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = tables[7][low & 0xff] ^ tables[6][(low >> 8) & 0xff] ^ tables[5][(low >> 16) & 0xff] ^
              tables[4][low >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; bytes > 0; bytes--, at++) {
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 0xff];
    }
    return ~crc;
}
