/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype_value: elements as numbers, for norms and for people. Pure.
 */
#ifndef CAIRN_TOOLS_DTYPE_VALUE_H
#define CAIRN_TOOLS_DTYPE_VALUE_H

#include <stddef.h>
#include <stdint.h>

/* Numbers in an element: 1, 2 (complex), 0 for what is no number here (packed 4-bit floats). */
unsigned dtype_components(uint32_t dtype);
/* Component number idx of a row of elements, little-endian. 64-bit integers are rounded. */
double dtype_component(uint32_t dtype, const uint8_t *data, size_t idx);

#endif
