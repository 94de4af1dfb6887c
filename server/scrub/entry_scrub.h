/* SPDX-License-Identifier: Apache-2.0
 *
 * entry_scrub: the position of a scrub's pass, stored under the key `scrub` in the store's record,
 * so that a restarted daemon, or another one, goes on where the last one stopped. A pass goes
 * through the runs by name, through the checkpoints of a run by their sequence, and through a
 * checkpoint by rank and object. Bytes: FORMAT.md 9.2. Pure.
 */
#ifndef CAIRN_SCRUB_ENTRY_SCRUB_H
#define CAIRN_SCRUB_ENTRY_SCRUB_H

#include "format/ids.h"
#include "format/record.h"

#define SCRUB_ALL UINT32_MAX
enum scrub_pass { SCRUB_RUNNING = 1, SCRUB_ENDED = 2 };

struct entry_scrub {
    uint64_t pass;                        /* number of the pass, from 1 */
    uint32_t state;                       /* enum scrub_pass */
    int64_t begun_wall_ns, ended_wall_ns; /* ended: of the last pass that ended; 0 if none has */
    /* The run that the pass is at; "" before the first run and after the end. */
    struct run_name run;
    uint64_t seq; /* the last checkpoint of that run that is done; 0 if none is */
    /* Of the next checkpoint: ranks that are done, and objects of the next rank. */
    uint32_t rank, objects;
    uint32_t found;                  /* of the next checkpoint: findings so far */
    uint64_t bytes, ckpts, findings; /* of the pass so far */
};

static const char SCRUB_KEY[] = "scrub";

void entry_scrub_encode(const struct entry_scrub *entry, struct buf *buf);
/* Returns FORMAT or UNSUPPORTED for a value that cannot be read. */
int MUST_USE entry_scrub_decode(struct record_value value, struct entry_scrub *ret,
                                struct diag *diag);

#endif
