/* SPDX-License-Identifier: Apache-2.0
 *
 * part_seal: publishes a rank's part, which was checked, and enters its seal into the record: the
 * end of a rank's contribution, whether a client sent the part or the daemon filled it in. The
 * struct lives in its owner. One loop's thread.
 */
#ifndef CAIRN_INGEST_PART_SEAL_H
#define CAIRN_INGEST_PART_SEAL_H

#include "base/sm.h"
#include "ingest/ingest.h"
#include "store/store.h"

struct part_seal {
    /* Set by the caller, who keeps what is pointed to until `done`: the part, decoded and encoded.
     */
    struct writer *writer;
    const struct part *part;
    uint64_t bytes;
    const uint8_t *data;
    struct sha256 sha256;
    /* Called once, never inside part_seal_begin(); `seal` may be freed in it. CONFLICT means that a
     * part with other contents is stored for this opening. */
    void (*done)(struct part_seal *seal, int status, const struct diag *diag);
    /* The fields below belong to part_seal.c. */
    struct sm sm;
    struct store_req store;
    struct run_req run;
    struct event_seal entry;
    bool busy;      /* the store or the driver has it */
    bool cancelled; /* its answer is not wanted any more */
    unsigned tries; /* of publishing */
    int status;
    struct diag diag;
};

/* Starts to publish and to seal; `done` follows. */
void part_seal_begin(struct part_seal *seal);
/* Returns true if nothing is under way any more, so that `done` will not be called. Otherwise the
 * store still has the part, and `done` follows, with ABORTED. A part_seal that is all zero has
 * never begun. */
bool part_seal_cancel(struct part_seal *seal);

#endif
