/* SPDX-License-Identifier: Apache-2.0
 *
 * watch: detects that tensors change between the call of a lazy save and the end of its copy. A
 * digest of each chunk's source is taken before the call returns, another of the copy after it was
 * made, and the two are compared. So a byte in the copy that was not in memory at the call is seen,
 * whenever and by whomever it was changed. SAMPLED reads pieces up to 4 KiB whole, and 64 bytes of
 * every 64 KiB of others (8 places at least): it sees an optimizer's step, which changes a tensor
 * all over, and may miss a change of single elements. FULL reads every byte. Loop's thread; digests
 * on workers.
 */
#ifndef CAIRN_SNAPSHOT_WATCH_H
#define CAIRN_SNAPSHOT_WATCH_H

#include "env/work.h"
#include "share/layout.h"

#include <stdatomic.h>

/* How much of the memory is compared. */
enum watch_kind { WATCH_NONE, WATCH_SAMPLED, WATCH_FULL };
enum { WATCH_TASKS = 4 };

struct watch;
struct watch_task {
    struct work work;
    struct watch *watch;
    uint32_t payload_first, payload_count;
};

/* The digests of one lazy save. The caller sets the fields up to digests, and keeps them valid
 * until the last watch_compare() and watch_changed(), which come after on_done. */
struct watch {
    enum watch_kind kind;
    void *after; /* event that reads from devices wait for, or NULL */
    const struct registered *set;
    const struct layout *layout;
    struct work_pool *pool;
    void (*on_done)(struct watch *watch); /* called once, never inside watch_start */
    uint64_t *digests;                    /* by piece; in the caller's scratch */
    uint32_t next_payload, running;
    _Atomic uint32_t changed; /* 1 + the number of a piece that was changed; 0 means none so far */
    struct watch_task tasks[WATCH_TASKS];
};

/* Takes the digests of all payloads behind the eager ones. There must be one at least. */
void watch_start(struct watch *watch);
void watch_stop(struct watch *watch); /* begins no further task; on_done still comes */
/* Compares the copy of a payload with the digests of its source. Any thread. */
void watch_compare(struct watch *watch, uint32_t payload, const uint8_t *copy);
/* Returns the name of the tensor that was changed, or NULL. */
const char *watch_changed(const struct watch *watch);
/* Returns what is compared of one run of bytes. Pure; exposed for tests. */
uint64_t watch_digest(enum watch_kind kind, size_t bytes, const uint8_t *data);

#endif
