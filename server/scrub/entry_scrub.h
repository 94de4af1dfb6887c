/* SPDX-License-Identifier: Apache-2.0
 *
 * entry_scrub: how far a scrub's pass has come, the value of `scrub` in the store's record, so that
 * a restart, or another daemon, goes on where the last one was. A pass goes through the runs by
 * name, through a run's checkpoints by their sequence, through a checkpoint by rank and object.
 * Bytes: FORMAT.md 9.2. Pure.
 */
#ifndef CAIRN_SCRUB_ENTRY_SCRUB_H
#define CAIRN_SCRUB_ENTRY_SCRUB_H

#include "format/ids.h"
#include "format/record.h"

#define SCRUB_ALL UINT32_MAX
enum scrub_pass { SCRUB_RUNNING = 1, SCRUB_ENDED = 2 };

struct entry_scrub {
    uint64_t pass;                        /* from 1 */
    uint32_t state;                       /* enum scrub_pass */
    int64_t begun_wall_ns, ended_wall_ns; /* ended: of the last pass that did; 0: none yet */
    struct run_name run;    /* at which it is; "" before the first, and when it has ended */
    uint64_t seq;           /* the last checkpoint of it that is done; 0: none */
    uint32_t rank, objects; /* of the next one: ranks that are done, objects of the next rank's */
    uint32_t found;         /* of the next one: findings so far */
    uint64_t bytes, ckpts, findings; /* of the pass so far */
};

static const char SCRUB_KEY[] = "scrub";

void entry_scrub_encode(const struct entry_scrub *entry, struct buf *buf);
/* FORMAT, UNSUPPORTED. */
int MUST_USE entry_scrub_decode(struct record_value value, struct entry_scrub *ret,
                                struct diag *diag);

#endif
