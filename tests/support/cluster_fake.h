/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster_fake: RADOS in memory behind struct cluster, with the bad habits of the real one on
 * demand. The medium outlives its clients and may have several, so that restarts and several
 * daemons on one cluster can be tested. Any thread.
 */
#ifndef CAIRN_TEST_CLUSTER_FAKE_H
#define CAIRN_TEST_CLUSTER_FAKE_H

#include "store/rados/cluster.h"

struct fake_medium;

struct fake_medium *fake_medium_new(void);
void fake_medium_free(struct fake_medium *medium);
struct cluster *fake_cluster_new(struct fake_medium *medium);

enum fake_fault {
    FAKE_LOST,       /* ETIMEDOUT, and it never happens */
    FAKE_UNANSWERED, /* ETIMEDOUT, and it happened */
    FAKE_LATE,       /* ETIMEDOUT, and it happens after `later` further calls */
    FAKE_REFUSED,    /* the errno of `error`, and it did not happen */
    FAKE_FAULTS
};

struct fake_plan {
    uint64_t seed;
    unsigned spare;                /* so many changing calls go well first */
    unsigned percent[FAKE_FAULTS]; /* of the changing calls; REFUSED: of all */
    unsigned later_max;            /* 1 to this many calls */
    int error;                     /* of FAKE_REFUSED: ENOSPC, EDQUOT, EACCES ... */
};
/* NULL means no faults. Late ones that wait still land in their time. */
void fake_medium_plan(struct fake_medium *medium, const struct fake_plan *plan);
/* All late ones land now. */
void fake_medium_settle(struct fake_medium *medium);
/* The data pool is erasure-coded by nature; so is the metadata pool, if told: no keys. */
void fake_medium_erasure_coded_meta(struct fake_medium *medium, bool is);
/* Bytes that may be stored in all; 0: no bound. Beyond: ENOSPC. */
void fake_medium_capacity(struct fake_medium *medium, uint64_t bytes);
uint64_t fake_medium_used(struct fake_medium *medium); /* bytes of objects, not of keys */

/* Flips a bit of the `at`th byte of what lies there of runs, counted through pieces, parts,
 * manifests, indexes and records; false: there are fewer. */
bool fake_medium_flip(struct fake_medium *medium, uint64_t at, unsigned bit);
/* One fault of one object, by its number (below fake_medium_objects()). */
enum fake_damage {
    FAKE_DELETED,
    FAKE_EMPTIED,    /* it is there, without bytes and keys */
    FAKE_FLIPPED,    /* a bit of the `at`th byte of it or of its keys' values */
    FAKE_UNREADABLE, /* EIO, until it is removed */
    FAKE_KEY_LOST,   /* the `at`th */
    FAKE_DAMAGES
};
/* False: it has no such byte or key. */
bool fake_medium_damage(struct fake_medium *medium, size_t number, enum fake_damage damage,
                        size_t at);
struct fake_medium *fake_medium_copy(struct fake_medium *medium); /* of its objects */
struct fake_object {
    char space[CLUSTER_NAMESPACE_MAX], name[CLUSTER_OBJECT_NAME_MAX];
    size_t bytes, keys; /* bytes: of its keys' values, too */
};
void fake_medium_get(struct fake_medium *medium, size_t number, struct fake_object *ret);
uint64_t fake_medium_bytes(struct fake_medium *medium);      /* that flip counts */
size_t fake_medium_objects(struct fake_medium *medium);      /* alive, of both pools */
uint64_t fake_medium_calls(struct fake_medium *medium);      /* so far: round trips */
uint64_t fake_medium_read_bytes(struct fake_medium *medium); /* so far, of objects */
uint64_t fake_medium_landed_late(struct fake_medium *medium);

#endif
