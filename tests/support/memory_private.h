/* SPDX-License-Identifier: Apache-2.0
 *
 * What memory_medium.c and store_memory.c share: the tables of a medium. All of it is guarded by
 * the medium's lock; operations hold it from beginning to end, so each is atomic.
 */
#ifndef CAIRN_STORE_MEMORY_PRIVATE_H
#define CAIRN_STORE_MEMORY_PRIVATE_H

#include "support/store_memory.h"

#include <pthread.h>

enum { MEMORY_BUCKETS = 4096 };

/* An object or a small thing. */
struct memory_thing {
    struct memory_thing *next;
    bool is_object, sealed, voided;
    struct run_name run;
    struct object_id object; /* is_object */
    struct store_name name;  /* otherwise */
    uint64_t bytes_max;      /* that may be written while it is unsealed */
    uint64_t bytes;          /* the greatest end of a write */
    uint8_t *data;
};

struct memory_run {
    struct memory_run *next;
    struct run_name name;
    struct record *record;
    uint64_t lost_from;
    bool is_unreadable; /* 0: all of it is there */
};

struct memory_medium {
    pthread_mutex_t lock;
    bool in_use;
    struct uuid uuid;
    uint64_t epoch;
    struct memory_thing *things[MEMORY_BUCKETS];
    struct memory_run *runs; /* sorted by name */
};

int memory_run_compare(const struct run_name *a, const struct run_name *b);
/* Pointers to the link that holds the thing, or to the NULL where it would be added. */
struct memory_thing **memory_find_object(struct memory_medium *medium, const struct run_name *run,
                                         const struct object_id *id);
struct memory_thing **memory_find_small(struct memory_medium *medium,
                                        const struct store_name *name);
/* Unlinks and frees *link. */
void memory_drop(struct memory_thing **link);
/* The link of the run, or the place where it belongs. */
struct memory_run **memory_find_run(struct memory_medium *medium, const struct run_name *name);
/* What a restart does: unsealed objects go away. */
void memory_restart(struct memory_medium *medium);

#endif
