/* SPDX-License-Identifier: Apache-2.0
 *
 * keyset: tensors by key, each with the set of group members that named it, one row for each
 * different value that they named it with. Memory is taken from a budget. Pure.
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
    uint32_t next;     /* row of the same key with another value; KEYSET_NONE: none */
    uint32_t count;    /* members in its set */
    bool is_first;     /* of its key */
    bool added;        /* lists: somebody named it without the division */
    uint64_t division; /* lists: that somebody named; 0: nobody did */
};

struct keyset {
    struct keyset_row *rows;
    uint8_t *bits; /* stride bytes a row */
    uint32_t *slots;
    uint32_t count, cap, slot_cap, stride;
    uint64_t *bytes_used; /* the budget; what this set took of it is given back at the end */
    uint64_t bytes_max, bytes;
};

void keyset_init(struct keyset *set, uint32_t members, uint64_t *io_bytes_used, uint64_t bytes_max);
void keyset_fini(struct keyset *set);
/* Member `member` names the key with that value. TOO_LARGE: the budget; NO_MEMORY. */
int MUST_USE keyset_add(struct keyset *set, uint32_t member, const struct xxh128 *key,
                        const struct xxh128 *value, struct keyset_row **ret);
/* The first row of a key; KEYSET_NONE. */
uint32_t keyset_find(const struct keyset *set, const struct xxh128 *key);
const uint8_t *keyset_bits(const struct keyset *set, uint32_t row);
/* Without the zeros at its end. */
uint32_t keyset_bits_bytes(const struct keyset *set, uint32_t row);

#endif
