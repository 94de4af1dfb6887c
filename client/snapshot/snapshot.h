/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot: copies what a rank writes out of the registered memory into its places in the arena, on
 * a bounded number of the work pool's threads. Afterwards the caller may change
 * its tensors. Where an object has no place yet the copy rests until snapshot_resume. Loop's
 * thread; the copying itself on workers.
 */
#ifndef CAIRN_SNAPSHOT_SNAPSHOT_H
#define CAIRN_SNAPSHOT_SNAPSHOT_H

#include "env/work.h"
#include "share/layout.h"
#include "snapshot/watch.h"

enum { SNAPSHOT_TASKS = 4, SNAPSHOT_CLAIM_BYTES = 4 << 20, SNAPSHOT_TELL_BYTES = 32 << 20 };

struct snapshot;
struct snapshot_task {
    struct work work;
    struct snapshot *snapshot;
    _Atomic uint32_t at; /* it is copying this payload or a later one; UINT32_MAX: none */
    bool running;        /* loop's thread: submitted */
    struct diag diag;    /* why its copy failed */
};

struct snapshot {
    const struct registered *set;
    const struct layout *layout;
    void *after;            /* event that copies from devices wait for; NULL: none */
    uint8_t *const *places; /* by object, where its first payload goes; NULL: no room yet */
    struct loop *loop;
    struct work_pool *pool;
    struct watch *watch; /* compares what was copied; NULL: nothing does */
    /* Now and then, and with done set at the end (also when stopped). Never inside snapshot_start
     * or snapshot_resume. */
    void (*on_progress)(struct snapshot *snapshot, uint64_t bytes, bool done);
    unsigned tasks_max; /* 1 to SNAPSHOT_TASKS at a time; may be raised before snapshot_resume */
    unsigned running;   /* tasks; loop's thread, as is started */
    bool started;
    _Atomic bool stopped;
    struct snapshot_task *_Atomic failed; /* the first, whose diag says why; NULL: none */
    _Atomic uint32_t next_payload;        /* not claimed yet */
    _Atomic uint32_t ready_payload;       /* those before it have places */
    _Atomic uint64_t copied_bytes;        /* since on_progress was called last */
    struct post told;
    struct snapshot_task tasks[SNAPSHOT_TASKS];
};

struct snapshot_source {
    const struct registered *set;
    const struct layout *layout;
    void *after;
};

/* Copies one piece, packed; from a device when the event `after` (may be NULL) has come. Fails only
 * for a tensor on a device. Any thread. */
int MUST_USE snapshot_copy_piece(const struct registered *set, const struct layout_piece *piece,
                                 void *after, uint8_t *to, struct diag *diag);
/* Copies one payload: its pieces, and zeroes up to the next multiple of LIMIT_ALIGN_BYTES. Any
 * thread. */
int MUST_USE snapshot_copy_payload(const struct snapshot_source *source, uint32_t payload,
                                   uint8_t *to, struct diag *diag);
/* There must be at least one payload. */
void snapshot_start(struct snapshot *snapshot);
/* More objects have places, or more tasks may run. Harmless when there is nothing to do. */
void snapshot_resume(struct snapshot *snapshot);
/* Payloads before this one are copied. */
uint32_t snapshot_copied(const struct snapshot *snapshot);
/* No further task is begun. True when none runs: on_progress is not called any more; otherwise it
 * tells when the last one ended. */
bool snapshot_stop(struct snapshot *snapshot);

#endif
