/* SPDX-License-Identifier: Apache-2.0
 *
 * store_memory: the store contract in memory, for tests, for the simulator and as the measure of
 * what the contract means. What is sealed, published and recorded lives in a medium, which may
 * outlive the store: opening it again is a restart. Operations run on a work pool, as those of any
 * store.
 */
#ifndef CAIRN_STORE_MEMORY_H
#define CAIRN_STORE_MEMORY_H

#include "store/store.h"

struct memory_medium;

/* The media of a memory store: what survives a restart. Free it after the store on it is closed. */
int MUST_USE memory_medium_new(struct memory_medium **ret);
void memory_medium_free(struct memory_medium *medium);

/* Flips one bit of a published thing or of a sealed object, as a bad disk would. False when there
 * is no such byte. */
bool memory_medium_flip_small(struct memory_medium *medium, const struct store_name *name,
                              uint64_t byte);
bool memory_medium_flip_object(struct memory_medium *medium, const struct run_name *run,
                               const struct object_id *id, uint64_t byte);

/* As somebody does who puts a backup back, or as a disk does that lied: a copy of a run's record as
 * it is now (NULL: there is none); and the record becomes `record`, which is taken (NULL: it is
 * gone). lost_from: the end of it is lost from that update on (store.h, ret_lost_from). */
struct record *memory_medium_copy_record(struct memory_medium *medium, const struct run_name *run);
void memory_medium_set_record(struct memory_medium *medium, const struct run_name *run,
                              struct record *record, uint64_t lost_from);
/* From now on the record whose end is lost is told to be in a folder that cannot be read. */
void memory_medium_set_unreadable(struct memory_medium *medium, const struct run_name *run);

/* medium NULL: the store owns one and its contents end with it. One store at a time on a medium:
 * STORE_LOCKED. */
int MUST_USE store_memory_new(struct loop *loop, struct work_pool *pool,
                              struct memory_medium *medium, struct store **ret, struct diag *diag);

#endif
