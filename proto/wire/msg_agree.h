/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages by which the ranks of a save agree on who writes what a group of them holds, and by
 * which replicas are compared. Part of msg.h, which has the rules; the walk is in PROTOCOL.md 5. A
 * group is a set of ranks, named by the XXH3-128 of their numbers. A tensor in it is named by its
 * key, the XXH3-128 of its name, coordinate, dtype, placement, shape and boxes.
 */
#ifndef CAIRN_WIRE_MSG_AGREE_H
#define CAIRN_WIRE_MSG_AGREE_H

#include "format/ids.h"
#include "hash/hash.h"

/* What this rank holds together with others, one entry for each group. -> AGREED, when all ranks of
 * the groups have sent theirs, or all ranks of the world, because only then it is known which ranks
 * hold nothing of a group. */
struct msg_agree {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t check; /* enum msg_check */
    uint32_t count;
    struct msg_agree_group {
        struct xxh128 group, list_hash;
        uint32_t members, member; /* how many ranks, and which of them this one is */
        /* The rank copies by what was agreed before, and does not wait for the verdict. */
        bool copied;
    } * groups;
};
/* Whether replicas are compared, and what a difference does to the save. */
enum msg_check { CHECK_NONE, CHECK_WARN, CHECK_FAIL };

/* What the server says of one group. */
enum msg_agree_verdict {
    AGREE_KEEP = 1,   /* all copied by what was agreed before, and that stays */
    AGREE_ALIKE = 2,  /* none copied, and the lists are equal: divide them anew */
    AGREE_ANEW = 3,   /* none copied, and the lists differ: send LISTS */
    AGREE_MIXED = 4,  /* some copied, and some have other lists: send LISTS */
    AGREE_UNKNOWN = 5 /* the server cannot tell, because its memory is bounded */
};
/* The answer to AGREE. */
struct msg_agreed {
    uint32_t count;
    uint32_t *verdicts; /* by entry of AGREE */
};

/* The keys of one group's list in ascending order of (name, coordinate), in frames of at most
 * MSG_KEYS_MAX, all on one stream. The first frame has first = 0, which starts over. -> HOLDERS, to
 * the last frame, when all members have sent theirs. */
enum { MSG_KEYS_MAX = 16384 };
struct msg_lists {
    struct ckpt_id id;
    uint64_t open_id;
    struct xxh128 group;
    uint32_t total, first, count;
    struct xxh128 *keys;
    uint64_t *divisions; /* the open_id of the committed save that divided it; 0 means none */
};
/* The same, with the digest of each tensor as this rank holds it. -> COMPARED */
struct msg_digests {
    struct ckpt_id id;
    uint64_t open_id;
    struct xxh128 group;
    uint32_t total, first, count;
    struct xxh128 *keys, *digests;
};

/* Rows of a key and a set of members (bit i of byte i / 8 is member i). In HOLDERS, these members
 * divide the tensor among them; a row with a division means that the ranks of that division write
 * it as they did then; a tensor without a row stays as the rank said, or is divided by the whole
 * group. In COMPARED, the members have the same bytes; a tensor that differs has a row for each
 * such class, the largest first. The frames end with `last`; code != 0 means that there is no
 * answer, and why. */
struct msg_sets {
    uint32_t count;
    struct msg_set {
        struct xxh128 key; /* in HOLDERS; 0 means none */
        uint64_t division; /* HOLDERS; 0: none */
        uint32_t bytes;
        const uint8_t *bits;
    } * rows;
    bool last;
    int32_t code;
    const char *text;
};

#endif
