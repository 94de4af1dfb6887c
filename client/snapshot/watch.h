/* SPDX-License-Identifier: Apache-2.0
 *
 * watch: detects that tensors were changed between the call of a lazy save and the end of its copy.
 * A digest of each chunk's source is taken before the call returns, one of the copy after it was
 * made, and the two are compared: what is in the copy but was not in memory at the call is seen,
 * whenever and by whomever it was changed. SAMPLED looks at pieces up to 4 KiB whole, and at 64
 * bytes of every 64 KiB of others (8 places at least): an optimizer's step, which changes a tensor
 * all over, does not pass; a change of single elements may. FULL looks at every byte. Loop's
 * thread; digests on workers.
 */
#ifndef CAIRN_SNAPSHOT_WATCH_H
#define CAIRN_SNAPSHOT_WATCH_H

#include "env/work.h"
#include "share/layout.h"

#include <stdatomic.h>

enum watch_kind { WATCH_NONE, WATCH_SAMPLED, WATCH_FULL };
enum { WATCH_TASKS = 4 };

struct watch;
struct watch_task {
    struct work work;
    struct watch *watch;
    uint32_t payload_first, payload_count;
};

struct watch {
    enum watch_kind kind;
    void *after; /* event that reads of devices wait for */
    const struct registered *set;
    const struct layout *layout;
    struct work_pool *pool;
    void (*on_done)(struct watch *watch); /* once, never inside watch_start */
    uint64_t *digests;                    /* by piece; owned by the caller's scratch */
    uint32_t next_payload, running;
    _Atomic uint32_t changed; /* 1 + a piece that was changed; 0: none so far */
    struct watch_task tasks[WATCH_TASKS];
};

/* Takes the digests of all payloads behind the eager ones; there must be one. */
void watch_start(struct watch *watch);
void watch_stop(struct watch *watch); /* begins no further task; on_done comes soon */
/* Compares the copy of a payload with what its source was. Any thread. */
void watch_compare(struct watch *watch, uint32_t payload, const uint8_t *copy);
/* The tensor that was changed, or NULL. */
const char *watch_changed(const struct watch *watch);
/* What is compared of one run of bytes. Pure; exposed for tests. */
uint64_t watch_digest(enum watch_kind kind, size_t bytes, const uint8_t *data);

#endif
