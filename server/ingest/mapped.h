/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped: memory that a client has handed over. It is either the client's arena, mapped read-only,
 * or the memory that the reads of a restore go into, mapped for writing. It lives as long as it has
 * a user: the session that received it, every payload that was described in it, and every READ that
 * goes into it. One loop's thread; any thread touches the bytes.
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
    int fd;         /* taken; -1 if none came */
    uint64_t owner; /* the session that brought it */
    const struct msg_arena *arena;
    bool lands; /* it is mapped for writing */
};

/* Maps the memory and adds it to `all`, the list of the mappings that exist. Returns BUSY if this
 * owner has MAPPED_PER_OWNER_MAX of them already, and INVALID if memfd_map() refuses it. */
int MUST_USE mapped_new(struct list *all, const struct mapped_offer *offer, struct mapped **ret,
                        struct diag *diag);
struct mapped *mapped_ref(struct mapped *mapped);
void mapped_unref(struct mapped *mapped); /* accepts NULL */
uint64_t mapped_arena_id(const struct mapped *mapped);
/* Returns the `bytes` bytes at offset. Returns NULL if they leave the arena, or lie in a hole of
 * it: this process would have to pay for the memory of a hole. */
const uint8_t *mapped_at(const struct mapped *mapped, uint64_t offset, uint64_t bytes);
/* Returns the same memory for writing; NULL also if the mapping is read-only. */
uint8_t *mapped_room(const struct mapped *mapped, uint64_t offset, uint64_t bytes);

#endif
