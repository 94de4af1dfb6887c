/* SPDX-License-Identifier: Apache-2.0
 *
 * Strict readers of numbers in text, as names, keys, addresses and options spell them. They read
 * from *at, in a text that ends with NUL, and move *at behind what was read. A number has one
 * spelling: no sign, no space, no leading zero in decimals, lower-case digits of a fixed count in
 * hexadecimals. Pure; any thread.
 */
#ifndef CAIRN_BASE_DIGITS_H
#define CAIRN_BASE_DIGITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads all decimal digits at *at. Returns false, with *at and *ret unchanged, if there is none, if
 * a zero leads others, or if the number is larger than max. */
bool digits_read_decimal(const char **at, uint64_t max, uint64_t *ret);
/* Reads exactly count (1 to 16) hexadecimal digits at *at; more may follow. Returns false as
 * above. */
bool digits_read_hex(const char **at, size_t count, uint64_t *ret);
/* Steps over the literal if it stands at *at, else returns false. */
bool digits_skip(const char **at, const char *literal);
/* Reads a text that is one decimal number up to max, and nothing else. */
bool digits_parse_decimal(const char *text, uint64_t max, uint64_t *ret);

/* Returns the ending of a counted noun in a message: "1 run", "3 runs". */
static inline const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

#endif
