/* SPDX-License-Identifier: Apache-2.0
 *
 * See dtype_value.h.
 */
#include "dtype_value.h"

#include "format/ids.h"

#include <math.h>
#include <string.h>

enum specials { SPECIAL_IEEE, SPECIAL_FN, SPECIAL_FNUZ };

struct minifloat {
    unsigned exponent_bits, mantissa_bits;
    int bias;
    enum specials specials; /* IEEE: inf and NaN; FN: NaN at all ones; FNUZ: NaN at minus zero */
};

static double minifloat(struct minifloat kind, uint32_t bits)
{
    uint32_t ones = (1u << kind.exponent_bits) - 1, fractions = (1u << kind.mantissa_bits) - 1;
    uint32_t exponent = bits >> kind.mantissa_bits & ones, mantissa = bits & fractions;
    bool negative = (bits >> (kind.exponent_bits + kind.mantissa_bits) & 1) != 0;
    if (kind.specials == SPECIAL_IEEE && exponent == ones) {
        return mantissa != 0 ? NAN : negative ? -INFINITY : INFINITY;
    }
    if (kind.specials == SPECIAL_FN && exponent == ones && mantissa == fractions) {
        return NAN;
    }
    if (kind.specials == SPECIAL_FNUZ && negative && exponent == 0 && mantissa == 0) {
        return NAN;
    }
    double value = exponent == 0 ? ldexp(mantissa, 1 - kind.bias - (int)kind.mantissa_bits)
                                 : ldexp(mantissa + fractions + 1.0,
                                         (int)exponent - kind.bias - (int)kind.mantissa_bits);
    return negative ? -value : value;
}

static uint64_t load(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)data[i] << (8 * i);
    }
    return value;
}

static double load_f32(const uint8_t *data)
{
    float value;
    memcpy(&value, data, sizeof(value)); /* the host is little-endian (base/check.h) */
    return (double)value;
}

static double load_f64(const uint8_t *data)
{
    double value;
    memcpy(&value, data, sizeof(value));
    return value;
}

static double load_bf16(const uint8_t *data)
{
    uint32_t bits = (uint32_t)load(data, 2) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

unsigned dtype_components(uint32_t dtype)
{
    if (dtype == CAIRN_C32 || dtype == CAIRN_C64 || dtype == CAIRN_C128) {
        return 2;
    }
    return dtype_is_known(dtype) && dtype != CAIRN_F4_E2M1FN_X2 ? 1 : 0;
}

static double load_float(uint32_t dtype, const uint8_t *at)
{
    static const struct minifloat f16 = {5, 10, 15, SPECIAL_IEEE}, e5m2 = {5, 2, 15, SPECIAL_IEEE},
                                  e4m3fn = {4, 3, 7, SPECIAL_FN},
                                  e4m3fnuz = {4, 3, 8, SPECIAL_FNUZ},
                                  e5m2fnuz = {5, 2, 16, SPECIAL_FNUZ};
    switch (dtype) {
    case CAIRN_F16:
    case CAIRN_C32:
        return minifloat(f16, (uint32_t)load(at, 2));
    case CAIRN_BF16:
        return load_bf16(at);
    case CAIRN_F32:
    case CAIRN_C64:
        return load_f32(at);
    case CAIRN_F64:
    case CAIRN_C128:
        return load_f64(at);
    case CAIRN_F8_E4M3FN:
        return minifloat(e4m3fn, at[0]);
    case CAIRN_F8_E5M2:
        return minifloat(e5m2, at[0]);
    case CAIRN_F8_E4M3FNUZ:
        return minifloat(e4m3fnuz, at[0]);
    case CAIRN_F8_E5M2FNUZ:
        return minifloat(e5m2fnuz, at[0]);
    case CAIRN_F8_E8M0FNU:
        return at[0] == 255 ? (double)NAN : ldexp(1.0, (int)at[0] - 127);
    default:
        return (double)NAN;
    }
}

double dtype_component(uint32_t dtype, const uint8_t *data, size_t idx)
{
    unsigned components = dtype_components(dtype);
    size_t bytes = dtype_bits(dtype) / 8 / (components == 0 ? 1 : components);
    const uint8_t *at = data + idx * bytes;
    uint64_t value = bytes <= 8 ? load(at, bytes) : 0;
    switch (dtype) {
    case CAIRN_BOOL:
    case CAIRN_U8:
    case CAIRN_U16:
    case CAIRN_U32:
    case CAIRN_U64:
        return (double)value;
    case CAIRN_I8:
        return (double)(int8_t)value;
    case CAIRN_I16:
        return (double)(int16_t)value;
    case CAIRN_I32:
        return (double)(int32_t)value;
    case CAIRN_I64:
        return (double)(int64_t)value;
    default:
        return load_float(dtype, at);
    }
}
