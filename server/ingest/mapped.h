/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped: memory that a client handed over: its arena, mapped read-only, or where reads of a
 * restore land, mapped to be written. It lives as long as somebody uses it: the session that got
 * it, and every payload that was described in it or READ that goes there. One loop's thread; the
 * bytes are touched by any.
 */
#ifndef CAIRN_INGEST_MAPPED_H
#define CAIRN_INGEST_MAPPED_H

#include "base/diag.h"
#include "base/list.h"
#include "wire/msg.h"

#include <stdbool.h>

enum { MAPPED_PER_OWNER_MAX = 4 };

struct mapped;

struct mapped_offer {
    int fd;         /* taken; -1: none came */
    uint64_t owner; /* who brought it */
    const struct msg_arena *arena;
    bool lands; /* it is to be written */
};

/* all: the list of those that are alive. BUSY: MAPPED_PER_OWNER_MAX of this owner are. INVALID: not
 * what memfd_map() wants. */
int MUST_USE mapped_new(struct list *all, const struct mapped_offer *offer, struct mapped **ret,
                        struct diag *diag);
struct mapped *mapped_ref(struct mapped *mapped);
void mapped_unref(struct mapped *mapped); /* accepts NULL */
uint64_t mapped_arena_id(const struct mapped *mapped);
/* Returns the `bytes` bytes at offset, or NULL where they leave the arena, or lie in a hole of it,
 * which this process would have to pay for. */
const uint8_t *mapped_at(const struct mapped *mapped, uint64_t offset, uint64_t bytes);
/* The same, to be written; NULL also where it may not be. */
uint8_t *mapped_room(const struct mapped *mapped, uint64_t offset, uint64_t bytes);

#endif
