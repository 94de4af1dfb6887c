/* SPDX-License-Identifier: Apache-2.0
 *
 * The message that forgets, brings back, pins and unpins checkpoints, and its answer. Part of
 * msg.h, which has the rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_MARK_H
#define CAIRN_WIRE_MSG_MARK_H

#include "format/ids.h"

enum msg_mark_kind { MSG_MARK_FORGET = 1, MSG_MARK_UNDELETE, MSG_MARK_PIN, MSG_MARK_UNPIN };

enum { MSG_MARK_SELECTORS_MAX = 1000, MSG_MARK_OPTIONS_MAX = 64, MSG_MARK_RECORDS_MAX = 20000 };

/* Names checkpoints, or gives a policy for FORGET, with its options as the command line has them
 * ("keep-last", "3"). UNDELETE without names means all that can be brought back, which only a dry
 * run may ask. */
struct msg_mark {
    uint32_t kind; /* enum msg_mark_kind */
    bool dry_run;  /* decides, and writes nothing */
    uint32_t selector_count, option_count;
    struct selector *selectors;
    struct msg_mark_option {
        const char *name, *value;
    } * options;
    uint32_t keep_least; /* FORGET by name: good ones that must stay; 0 means the default */
    const char *actor, *reason;
};

/* What became of one checkpoint, and why. */
struct msg_mark_record {
    struct ckpt_id id;
    int64_t wall_ns;
    uint64_t reasons; /* core/retention.h */
    uint32_t outcome; /* core/commit.h, enum mark_outcome; unknown values are passed on */
};
/* The answer to MARK. */
struct msg_marked {
    uint64_t head_seq; /* of the chain, when this was decided */
    uint32_t done_count, refused_count;
    uint32_t record_count; /* at most the newest MSG_MARK_RECORDS_MAX */
    uint32_t total_count;
    struct msg_mark_record *records;
    uint64_t bytes; /* stored by those that were done */
    /* For FORGET: what is forgotten in the run and waits to be reclaimed; the first of it is
     * reclaimed at first_wall_ns and the last at last_wall_ns. 0 means that this server's schedule
     * does not reclaim it. */
    uint64_t forgotten, forgotten_bytes;
    int64_t first_wall_ns, last_wall_ns;
};

#endif
