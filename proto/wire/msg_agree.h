/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages by which the ranks of a save agree on who writes what a group of them holds, and by
 * which replicas are compared. Part of msg.h, which has the rules; the walk is in PROTOCOL.md 5.
 * A group is a set of ranks, known by the XXH3-128 of their numbers; a tensor in it is known by its
 * key, the XXH3-128 of its name, coordinate, dtype, placement, shape and boxes.
 */
#ifndef CAIRN_WIRE_MSG_AGREE_H
#define CAIRN_WIRE_MSG_AGREE_H

#include "format/ids.h"
#include "hash/hash.h"

/* What this rank holds with others, a group an entry. -> AGREED when all of them have come (or all
 * ranks of the world, so that who holds nothing of a group is known too). */
struct msg_agree {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t check; /* enum msg_check */
    uint32_t count;
    struct msg_agree_group {
        struct xxh128 group, list_hash;
        uint32_t members, member; /* how many ranks, and which of them this one is */
        bool copied; /* it copies by what was agreed before, and does not wait for the verdict */
    } * groups;
};
enum msg_check { CHECK_NONE, CHECK_WARN, CHECK_FAIL };

enum msg_agree_verdict {
    AGREE_KEEP = 1,   /* all copied by what was agreed before: that stays */
    AGREE_ALIKE = 2,  /* nobody copied, and the lists are equal: divide them anew */
    AGREE_ANEW = 3,   /* nobody copied, and the lists differ: send LISTS */
    AGREE_MIXED = 4,  /* some copied, some have other lists: send LISTS */
    AGREE_UNKNOWN = 5 /* the server cannot tell (its memory is bounded) */
};
struct msg_agreed {
    uint32_t count;
    uint32_t *verdicts; /* by entry of AGREE */
};

/* The keys of one group's list in ascending order of (name, coordinate), in frames of at most
 * MSG_KEYS_MAX, all on one stream, the first with first = 0 (which starts over). -> HOLDERS to the
 * last of them, when all members' have come. */
enum { MSG_KEYS_MAX = 16384 };
struct msg_lists {
    struct ckpt_id id;
    uint64_t open_id;
    struct xxh128 group;
    uint32_t total, first, count;
    struct xxh128 *keys;
    uint64_t *divisions; /* the open_id of the save that divided it, and committed; 0: none */
};
/* The same with the digest of what this rank holds of each. -> COMPARED */
struct msg_digests {
    struct ckpt_id id;
    uint64_t open_id;
    struct xxh128 group;
    uint32_t total, first, count;
    struct xxh128 *keys, *digests;
};

/* Rows of a key and a set of members (bit i of byte i / 8: member i). HOLDERS: these members divide
 * the tensor among them, or, with a division, who took part in that writes it as then; a tensor
 * without a row: as the rank said, or else the whole group. COMPARED: the members whose bytes are
 * alike, a row for each such class of a tensor that differs, the largest class first. In frames
 * until `last`; code != 0: no answer, and why. */
struct msg_sets {
    uint32_t count;
    struct msg_set {
        struct xxh128 key;
        uint64_t division; /* HOLDERS; 0: none */
        uint32_t bytes;
        const uint8_t *bits;
    } * rows;
    bool last;
    int32_t code;
    const char *text;
};

#endif
