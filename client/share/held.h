/* SPDX-License-Identifier: Apache-2.0
 *
 * held: the tensors that a rank holds together with other ranks, in groups, each with its tensors
 * in order, and the keys by which ranks compare tensors (PROTOCOL.md 5, "who writes what"). Pure.
 */
#ifndef CAIRN_SHARE_HELD_H
#define CAIRN_SHARE_HELD_H

#include "share/registered.h"

#define HELD_ALONE UINT32_MAX

/* A set of two or more ranks that hold the same boxes of some tensors. */
struct held_group {
    const uint32_t *ranks;    /* borrowed from the set */
    uint32_t members, member; /* members ranks; this one is number `member` among them */
    struct xxh128 key, list_hash;
    uint32_t tensor_count;
    uint32_t *tensors; /* indices in the set, ascending */
};

/* The groups of a set, in the order in which they are found. The arrays live in `scratch`; the
 * ranks are the set's. */
struct held {
    struct scratch scratch;
    uint32_t group_count;
    struct held_group *groups; /* of two ranks or more */
    uint32_t *group_of;        /* by tensor; HELD_ALONE if only this rank holds it */
    struct xxh128 *keys;       /* by tensor */
};

/* Finds the groups of the set, and borrows from it. Fails with TOO_LARGE (too many groups) or
 * NO_MEMORY. */
int MUST_USE held_init(struct held *held, const struct registered *set, struct diag *diag);
void held_fini(struct held *held); /* a zeroed struct is allowed */

#endif
