/* SPDX-License-Identifier: Apache-2.0
 *
 * The element types: look-ups in the one table, dtype.def. Values are stored and sent, so an
 * unknown one is normal input from a newer version, and never a broken CHECK. Pure; any thread.
 */
#include "ids.h"

#include <string.h>

#include "base/check.h"

struct dtype_row {
    uint32_t bits;
    const char *name, *safetensors;
};

static const struct dtype_row dtype_rows[] = {
#define CAIRN_DTYPE(name, value, bits, text, st) [(value)] = {(bits), (text), (st)},
#include "dtype.def"
#undef CAIRN_DTYPE
};

bool dtype_is_known(uint32_t dtype)
{
    return dtype < ARRAY_LEN(dtype_rows) && dtype_rows[dtype].bits != 0;
}

uint32_t dtype_bits(uint32_t dtype) { return dtype_is_known(dtype) ? dtype_rows[dtype].bits : 0; }

const char *dtype_name(uint32_t dtype)
{
    return dtype_is_known(dtype) ? dtype_rows[dtype].name : "unknown";
}

const char *dtype_safetensors(uint32_t dtype)
{
    if (!dtype_is_known(dtype) || dtype_rows[dtype].safetensors[0] == '\0') {
        return NULL;
    }
    return dtype_rows[dtype].safetensors;
}

uint32_t dtype_parse(const char *name)
{
    for (uint32_t i = 1; i < ARRAY_LEN(dtype_rows); i++) {
        if (dtype_is_known(i) && strcmp(dtype_rows[i].name, name) == 0) {
            return i;
        }
    }
    return 0;
}
