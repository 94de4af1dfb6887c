/* SPDX-License-Identifier: Apache-2.0
 *
 * keyset: a set of tensor keys. Each key has one row for each different value that it was named
 * with, and each row holds the set of group members that named it. The memory is taken from a
 * budget. Pure.
 */
#ifndef CAIRN_SESSION_KEYSET_H
#define CAIRN_SESSION_KEYSET_H

#include "base/err.h"
#include "hash/hash.h"

#include <stdbool.h>
#include <stdint.h>

#define KEYSET_NONE UINT32_MAX

struct keyset_row {
    struct xxh128 key, value;
    uint32_t next;     /* row of the same key with another value, or KEYSET_NONE */
    uint32_t count;    /* members in its set */
    bool is_first;     /* it is the first row of its key */
    bool added;        /* lists: a member named it without, or with another, division */
    uint64_t division; /* lists: the division that a member named; 0 if none did */
};

struct keyset {
    struct keyset_row *rows;
    uint8_t *bits; /* the member sets: `stride` bytes for each row */
    uint32_t *slots;
    uint32_t count, cap, slot_cap, stride;
    uint64_t *bytes_used; /* the budget; at the end this set gives back what it has taken */
    uint64_t bytes_max, bytes;
};

/* `members` is the number of group members; bytes_max bounds *io_bytes_used. */
void keyset_init(struct keyset *set, uint32_t members, uint64_t *io_bytes_used, uint64_t bytes_max);
void keyset_fini(struct keyset *set);
/* Notes that member `member` names the key with that value. Returns TOO_LARGE if the budget is used
 * up, or NO_MEMORY. */
int MUST_USE keyset_add(struct keyset *set, uint32_t member, const struct xxh128 *key,
                        const struct xxh128 *value, struct keyset_row **ret);
/* Returns the first row of a key, or KEYSET_NONE. */
uint32_t keyset_find(const struct keyset *set, const struct xxh128 *key);
/* Returns the member set of a row. */
const uint8_t *keyset_bits(const struct keyset *set, uint32_t row);
/* Returns the size of that set without the zero bytes at its end. */
uint32_t keyset_bits_bytes(const struct keyset *set, uint32_t row);

#endif
