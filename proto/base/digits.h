/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers in text, as names, keys, addresses and options spell them: read from a place in a
 * NUL-terminated text, which moves behind what was read. One spelling a number: no sign, no space,
 * no leading zero in decimals, lower-case digits of a fixed count in hexadecimals. Pure; any
 * thread.
 */
#ifndef CAIRN_BASE_DIGITS_H
#define CAIRN_BASE_DIGITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All decimal digits at *at, up to max; false, with *at and *ret as they were, when there is none,
 * when a zero leads others, and when the number is larger. */
bool digits_read_decimal(const char **at, uint64_t max, uint64_t *ret);
/* Exactly count (1 to 16) hexadecimal digits at *at; more may follow. False as above. */
bool digits_read_hex(const char **at, size_t count, uint64_t *ret);
/* The literal at *at. */
bool digits_skip(const char **at, const char *literal);
/* The whole text is one decimal number up to max. */
bool digits_parse_decimal(const char *text, uint64_t max, uint64_t *ret);

/* What a noun ends with that is counted in a message: "3 runs", "1 run". */
static inline const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

#endif
