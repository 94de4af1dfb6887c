/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot: copies what a rank writes out of the registered memory into its places in the arena, on
 * a bounded number of the work pool's threads. Afterwards the caller may change its tensors. If an
 * object has no place yet, the copy rests until snapshot_resume. Loop's thread; the copying itself
 * runs on workers.
 */
#ifndef CAIRN_SNAPSHOT_SNAPSHOT_H
#define CAIRN_SNAPSHOT_SNAPSHOT_H

#include "env/work.h"
#include "share/layout.h"
#include "snapshot/watch.h"

/* A task claims SNAPSHOT_CLAIM_BYTES at a time, and progress is told every SNAPSHOT_TELL_BYTES. */
enum { SNAPSHOT_TASKS = 4, SNAPSHOT_CLAIM_BYTES = 4 << 20, SNAPSHOT_TELL_BYTES = 32 << 20 };

struct snapshot;
struct snapshot_task {
    struct work work;
    struct snapshot *snapshot;
    /* The task is copying this payload or a later one. UINT32_MAX means that it copies none. */
    _Atomic uint32_t at;
    bool running;     /* submitted; loop's thread */
    struct diag diag; /* why its copy failed */
};

/* The copy of one save. The caller sets the fields up to tasks_max and keeps them valid until
 * on_progress says done. Invariant: payloads before ready_payload have places, and payloads from
 * next_payload on are claimed by no task. */
struct snapshot {
    const struct registered *set;
    const struct layout *layout;
    void *after; /* event that copies from devices wait for, or NULL */
    /* By object: where its first payload goes; NULL if it has no room yet. */
    uint8_t *const *places;
    struct loop *loop;
    struct work_pool *pool;
    struct watch *watch; /* compares what was copied, or NULL */
    /* Called now and then, and with done set at the end, also when the copy was stopped. Never
     * inside snapshot_start or snapshot_resume. */
    void (*on_progress)(struct snapshot *snapshot, uint64_t bytes, bool done);
    unsigned tasks_max; /* 1 to SNAPSHOT_TASKS at a time; may be raised before snapshot_resume */
    unsigned running;   /* tasks that run; loop's thread, as is started */
    bool started;
    _Atomic bool stopped;
    /* The first task that failed, whose diag says why; or NULL. */
    struct snapshot_task *_Atomic failed;
    _Atomic uint32_t next_payload;  /* payloads from here on are not claimed */
    _Atomic uint32_t ready_payload; /* payloads before this one have places */
    _Atomic uint64_t copied_bytes;  /* since on_progress was called last */
    struct post told;
    struct snapshot_task tasks[SNAPSHOT_TASKS];
};

/* The source of a copy, all borrowed. */
struct snapshot_source {
    const struct registered *set;
    const struct layout *layout;
    void *after;
};

/* Copies one piece, packed; from a device after the event `after`, which may be NULL. Fails only
 * for a tensor on a device. Any thread. */
int MUST_USE snapshot_copy_piece(const struct registered *set, const struct layout_piece *piece,
                                 void *after, uint8_t *to, struct diag *diag);
/* Copies one payload: its pieces, and zeros up to the next multiple of LIMIT_ALIGN_BYTES. Any
 * thread. */
int MUST_USE snapshot_copy_payload(const struct snapshot_source *source, uint32_t payload,
                                   uint8_t *to, struct diag *diag);
/* Starts the copy, with the fields above on_progress set. There must be at least one payload. */
void snapshot_start(struct snapshot *snapshot);
/* Goes on when more objects have places, or more tasks may run. Harmless if there is nothing to
 * do. */
void snapshot_resume(struct snapshot *snapshot);
/* Returns the number of the first payload that may not be copied yet; all before it are. */
uint32_t snapshot_copied(const struct snapshot *snapshot);
/* Begins no further task. Returns true if none runs, and then on_progress is not called any more;
 * otherwise on_progress tells when the last one has ended. */
bool snapshot_stop(struct snapshot *snapshot);

#endif
