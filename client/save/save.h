/* SPDX-License-Identifier: Apache-2.0
 *
 * save: the saves of an engine, from the queue for the arena to the outcome. All functions and
 * callbacks run on the engine's loop; a callback never runs inside the call that asked for it.
 */
#ifndef CAIRN_SAVE_SAVE_H
#define CAIRN_SAVE_SAVE_H

#include "engine/engine.h"
#include "snapshot/watch.h"

/* What happens to a save that finds no room in the arena for its copy, because others are in
 * flight. */
enum when_full {
    WHEN_FULL_WAIT, /* it waits for room, within its deadline */
    WHEN_FULL_SKIP, /* it ends at once with SKIPPED, on all ranks */
    WHEN_FULL_FAIL  /* it ends at once with BUSY, on all ranks */
};

/* One save, embedded in the caller's operation. All inputs are borrowed until on_done. */
struct engine_save {
    uint64_t step, deadline_ms;
    bool full; /* only rank 0's counts: refers to no older checkpoint */
    /* A reference is held until on_done. The tensors' memory is read until on_staged. */
    struct registered *set;
    /* If its code is not 0, this rank cannot save: nothing is copied, and the step ends with this
     * error on all ranks. */
    struct diag refusal;
    enum when_full when_full;
    bool lazy;               /* one worker copies at a time, beside the caller's work */
    enum watch_kind watch;   /* for a lazy save: detects tensors that change before on_staged */
    uint32_t check_replicas; /* enum msg_check */
    /* A CUevent that copies from devices wait for, or NULL if they need not wait. */
    void *after;
    uint32_t metadata_bytes;
    const uint8_t *metadata;
    uint32_t tag_count;
    const char **tags;
    uint32_t metric_count;
    struct metric *metrics;
    /* May be NULL. Called at most once, before on_staged, when the caller of a lazy save may go on.
     * The eager tensors are copied by then and the others stay borrowed. */
    void (*on_released)(struct engine_save *save);
    /* Called once. If status is not 0, on_done follows, and what was sent is
     * given up. */
    void (*on_staged)(struct engine_save *save, int status);
    /* May be NULL. Called at most once, after on_staged, when the server can finish this rank's
     * part without this process. */
    void (*on_handed)(struct engine_save *save);
    /* Called last; 0 if it is committed, else why not. */
    void (*on_done)(struct engine_save *save, int status);
    struct diag diag;
    /* Result: what is no failure, such as replicas that differ. A code of 0 means that there is
     * nothing. */
    struct diag warning;
    struct ckpt_id id;
    bool new_lineage;
    /* on_staged has reported SKIPPED or BUSY for want of room, or the caller's own refusal; on_done
     * comes when all ranks know. */
    bool refused;
    /* Progress, written by the loop and readable by any thread. */
    _Atomic uint64_t total_bytes, staged_bytes, sent_bytes, durable_bytes;
    /* Bytes that were sent, without those that the base already had. */
    _Atomic uint64_t stored_bytes;
    struct save *impl;
    struct post no_memory; /* delivers NO_MEMORY if even impl cannot be allocated */
};
/* Starts a save. abort asks for the end; on_done still comes, with the true outcome. */
void engine_save_start(struct engine *engine, struct engine_save *save);
void engine_save_abort(struct engine_save *save);
/* Gives the copy of a lazy save all workers, because a caller is waiting for on_staged. */
void engine_save_hurry(struct engine_save *save);

#endif
