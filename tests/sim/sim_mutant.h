/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_mutant: small deliberate bugs, put around the parts from outside, to prove that the simulator
 * finds such bugs. None is in the shipped code. One thread.
 */
#ifndef CAIRN_TEST_SIM_MUTANT_H
#define CAIRN_TEST_SIM_MUTANT_H

#include "sim/env/sim.h"
#include "store/store.h"

enum mutant {
    MUTANT_NO_FSYNC,      /* data of some files is not synced */
    MUTANT_NO_DIR_FSYNC,  /* some names are not */
    MUTANT_FSYNC_LIES,    /* a sync that failed is said to have worked */
    MUTANT_EARLY_SEAL,    /* an object is said to be durable before it is */
    MUTANT_EARLY_PUBLISH, /* the same of parts, pages and manifests */
    MUTANT_LOST_UPDATE,   /* some updates of a record are acknowledged and forgotten */
    MUTANT_MISREAD,       /* some reads of objects bring another place's bytes */
    MUTANT_BAD_DISK,      /* some writes change a bit */
    MUTANT_LATE_CHANGE,   /* the trainer changes its state before it is staged */
    MUTANT_NO_VERDICT,    /* ranks with other lists do not wait for the verdict */
    MUTANT_ANY_REFERENCE, /* a part may refer to whatever it likes: sim_plant.c */
    MUTANT_LOST_SWEEP,    /* start-up is not told of a run that a job came to first: sim_plant.c */
    /* of retention and garbage collection: sim_plant.c */
    MUTANT_NO_CLAIMS,     /* forget and reclaim do not know the bases of open saves */
    MUTANT_NO_LEASES,     /* nor what is being restored */
    MUTANT_EARLY_RECLAIM, /* what was forgotten is reclaimed by the next pass */
    MUTANT_FORGET_LAST,   /* the newest and last good ones are forgotten like others */
    MUTANT_FORGET_PINNED, /* so are pinned ones */
    MUTANT_ONE_CYCLE,     /* what is dead goes in the first pass that finds it so */
    MUTANT_TAKE_OPEN,     /* the objects of open saves are taken for dead ones */
    MUTANT_COUNT_DISK,    /* the ones above are looked for with one daemon on a disk */
    MUTANT_FENCE_UNGUARDED = MUTANT_COUNT_DISK, /* a term is granted without a look at the newest */
    MUTANT_COMMIT_UNGUARDED, /* a commit lands on whatever version the record has by then */
    MUTANT_LATE_COMMIT,      /* a commit does not look for what happened since it was prepared */
    MUTANT_ABORT_BY_READING, /* "aborted" is said of what is not committed, nothing is written */
    MUTANT_SWEEP_UNGUARDED,  /* open saves are swept */
    MUTANT_COUNT
};

struct sim_mutant {
    enum mutant kind;
    const char *name;
    bool rare;     /* takes hundreds of seeds to be found: looked for in the full campaign only */
    uint64_t seed; /* the one that found it last: a search begins there, and goes on behind it */
};

const struct sim_mutant *mutant_get(enum mutant kind);
static inline bool mutant_is_shared(const struct sim_mutant *mutant)
{
    return mutant && mutant->kind >= MUTANT_COUNT_DISK;
}
/* Is it found only where something is forgotten and collected? */
bool mutant_needs_upkeep(const struct sim_mutant *mutant);
bool mutant_is(const struct sim_mutant *mutant, enum mutant kind);
/* Before the host's vfs is used. */
void mutant_on_host(const struct sim_mutant *mutant, struct sim_host *host);
/* A decorator around the store where the mutant is one, else the store itself. */
struct store *mutant_on_store(const struct sim_mutant *mutant, struct loop *loop,
                              struct store *store);

#endif
