/* SPDX-License-Identifier: Apache-2.0
 *
 * save: the saves of an engine, from the queue for the arena to the outcome. Functions and
 * callbacks on the engine's loop, callbacks never inside the call.
 */
#ifndef CAIRN_SAVE_SAVE_H
#define CAIRN_SAVE_SAVE_H

#include "engine/engine.h"
#include "snapshot/watch.h"

/* What a save does that finds no room in the arena for its copy, because others are in flight. */
enum when_full {
    WHEN_FULL_WAIT, /* for room, within its deadline */
    WHEN_FULL_SKIP, /* ends at once with SKIPPED, on all ranks */
    WHEN_FULL_FAIL  /* ends at once with BUSY, on all ranks */
};

/* Embedded in the caller's op; all inputs borrowed until on_done. */
struct engine_save {
    uint64_t step, deadline_ms;
    bool full; /* rank 0's counts: refers to no older checkpoint */
    struct registered
        *set; /* a reference is held until on_done; the tensors' memory is read until on_staged */
    enum when_full when_full;
    bool lazy;               /* one copy at a time, beside the caller's work */
    enum watch_kind watch;   /* lazy: detect tensors that change before on_staged */
    uint32_t check_replicas; /* enum msg_check */
    void *after; /* a CUevent: tensors on devices are read when it has come; NULL: at once */
    uint32_t metadata_bytes;
    const uint8_t *metadata;
    uint32_t tag_count;
    const char **tags;
    uint32_t metric_count;
    struct metric *metrics;
    /* NULL, or at most once, before on_staged: the caller may go on. lazy: eager tensors are
     * copied, the others are borrowed on; else all is copied, and the daemon's word is waited for.
     */
    void (*on_released)(struct engine_save *save);
    void (*on_staged)(struct engine_save *save,
                      int status); /* status != 0: on_done follows, what was sent is given up */
    void (*on_done)(struct engine_save *save, int status); /* last; committed, or why not */
    struct diag diag;
    struct diag
        warning; /* results: what is no failure, such as replicas that differ; code 0: none */
    struct ckpt_id id;
    bool new_lineage;
    bool refused; /* on_staged told SKIPPED or BUSY: no room; on_done comes when all ranks know */
    /* progress: written by the loop, readable by any thread */
    _Atomic uint64_t total_bytes, staged_bytes, sent_bytes, durable_bytes;
    _Atomic uint64_t stored_bytes; /* that it sent: less what was shared with its base */
    struct save *impl;
    struct post no_memory; /* tells of it when there is none even for impl */
};
void engine_save_start(struct engine *engine, struct engine_save *save);
void engine_save_abort(struct engine_save *save);
/* Somebody waits for on_staged of a lazy save: its copy gets all workers. */
void engine_save_hurry(struct engine_save *save);

#endif
