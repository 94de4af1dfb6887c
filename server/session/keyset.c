/* SPDX-License-Identifier: Apache-2.0
 *
 * keyset: rows in an array, in the order of their coming. Open addressing leads from a key to its
 * first row; the other rows of the key are chained behind it. Keys are hashes, so their first bytes
 * serve as the hash; a peer that makes them collide slows down its own save only. Pure.
 */
#include "session/keyset.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

void keyset_init(struct keyset *set, uint32_t members, uint64_t *io_bytes_used, uint64_t bytes_max)
{
    CHECK(members > 0);
    *set = (struct keyset){
        .stride = (members + 7) / 8, .bytes_used = io_bytes_used, .bytes_max = bytes_max};
}

void keyset_fini(struct keyset *set)
{
    free(set->rows);
    free(set->bits);
    free(set->slots);
    if (set->bytes_used) {
        CHECK(*set->bytes_used >= set->bytes);
        *set->bytes_used -= set->bytes;
    }
    memset(set, 0, sizeof *set);
}

/* Returns the slot that holds the key, or the free slot where it belongs. */
static uint32_t slot_of(const struct keyset *set, const struct xxh128 *key)
{
    CHECK(set->slot_cap > set->count); /* so that the search ends */
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof hash);
    uint32_t slot = (uint32_t)(hash % set->slot_cap);
    while (set->slots[slot] != KEYSET_NONE &&
           memcmp(&set->rows[set->slots[slot]].key, key, sizeof *key) != 0) {
        slot = slot + 1 == set->slot_cap ? 0 : slot + 1;
    }
    return slot;
}

uint32_t keyset_find(const struct keyset *set, const struct xxh128 *key)
{
    return set->count == 0 ? KEYSET_NONE : set->slots[slot_of(set, key)];
}

static void fill_slots(struct keyset *set)
{
    memset(set->slots, 0xff, set->slot_cap * sizeof *set->slots);
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->rows[i].is_first) {
            set->slots[slot_of(set, &set->rows[i].key)] = i;
        }
    }
}

/* Doubles the room of the set. Returns TOO_LARGE if the budget does not allow it; the set stays as
 * it is then. */
static int grow(struct keyset *set)
{
    uint64_t cap = set->cap == 0 ? 64 : (uint64_t)set->cap * 2;
    uint64_t row_bytes = sizeof *set->rows + set->stride + 2 * sizeof *set->slots;
    uint64_t more = (cap - set->cap) * row_bytes;
    if (cap > UINT32_MAX / 4 || more > set->bytes_max || *set->bytes_used > set->bytes_max - more) {
        return CAIRN_E_TOO_LARGE;
    }
    struct keyset_row *rows = realloc(set->rows, cap * sizeof *rows);
    set->rows = rows ? rows : set->rows;
    uint8_t *bits = rows ? realloc(set->bits, cap * set->stride) : NULL;
    set->bits = bits ? bits : set->bits;
    uint32_t *slots = bits ? realloc(set->slots, 2 * cap * sizeof *slots) : NULL;
    if (!slots) {
        return CAIRN_E_NO_MEMORY;
    }
    set->slots = slots;
    set->cap = (uint32_t)cap;
    set->slot_cap = (uint32_t)(2 * cap);
    set->bytes += more;
    *set->bytes_used += more;
    CHECK(*set->bytes_used <= set->bytes_max);
    fill_slots(set);
    return 0;
}

static uint32_t new_row(struct keyset *set, const struct xxh128 *key, const struct xxh128 *value)
{
    CHECK(set->count < set->cap);
    uint32_t row = set->count++;
    set->rows[row] = (struct keyset_row){.key = *key, .value = *value, .next = KEYSET_NONE};
    memset(set->bits + (size_t)row * set->stride, 0, set->stride);
    return row;
}

/* Returns the row of the key with that value, and makes it if it is new. The caller has made
 * room. */
static uint32_t find_row(struct keyset *set, const struct xxh128 *key, const struct xxh128 *value)
{
    uint32_t *first = &set->slots[slot_of(set, key)];
    if (*first == KEYSET_NONE) {
        *first = new_row(set, key, value);
        set->rows[*first].is_first = true;
        return *first;
    }
    uint32_t row = *first;
    while (memcmp(&set->rows[row].value, value, sizeof *value) != 0) {
        if (set->rows[row].next == KEYSET_NONE) {
            uint32_t made = new_row(set, key, value);
            set->rows[row].next = made;
            return made;
        }
        row = set->rows[row].next;
    }
    return row;
}

int keyset_add(struct keyset *set, uint32_t member, const struct xxh128 *key,
               const struct xxh128 *value, struct keyset_row **ret)
{
    CHECK(member < 8 * set->stride);
    int rc = set->count == set->cap ? grow(set) : 0;
    if (rc != 0) {
        return rc;
    }
    uint32_t row = find_row(set, key, value);
    uint8_t *byte = &set->bits[(size_t)row * set->stride + member / 8];
    uint8_t bit = (uint8_t)(1u << (member % 8));
    set->rows[row].count += (*byte & bit) == 0;
    *byte |= bit;
    CHECK(set->rows[row].count <= 8 * set->stride);
    *ret = &set->rows[row];
    return 0;
}

const uint8_t *keyset_bits(const struct keyset *set, uint32_t row)
{
    CHECK(row < set->count);
    return set->bits + (size_t)row * set->stride;
}

uint32_t keyset_bits_bytes(const struct keyset *set, uint32_t row)
{
    const uint8_t *bits = keyset_bits(set, row);
    uint32_t bytes = set->stride;
    while (bytes > 0 && bits[bytes - 1] == 0) {
        bytes--;
    }
    return bytes;
}
