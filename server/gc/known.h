/* SPDX-License-Identifier: Apache-2.0
 *
 * known: what earlier passes have found out about checkpoints: since which pass a part of one has
 * been dead, and which ones have nothing dead at all. It is kept in memory only; a restarted daemon
 * finds it out again, one pass later. `mark` identifies the event that made it so (the end of an
 * opening, a commit); if the mark has changed, the entry is void.
 */
#ifndef CAIRN_GC_KNOWN_H
#define CAIRN_GC_KNOWN_H

#include "format/ids.h"

struct known_ckpt {
    struct ckpt_id id;
    uint64_t mark, pass; /* pass: the first one that found it dead */
    bool settled;        /* nothing of it is dead while the mark is the same */
    bool stuck;          /* it is forgotten, and its space cannot be freed */
};

struct known_run {
    struct known_run *next;
    struct run_name name;
    size_t count, cap;
    struct known_ckpt *ckpts; /* sorted by id */
};

struct known {
    struct known_run *runs;
};

/* Returns NULL if nothing is known of the checkpoint. */
const struct known_ckpt *known_find(const struct known *known, const struct run_name *run,
                                    struct ckpt_id id);
/* Notes an entry. Without memory nothing is noted, and the next pass finds it out again. */
void known_put(struct known *known, const struct run_name *run, const struct known_ckpt *ckpt);
/* Clears `stuck` of all entries, so that they are tried again. */
void known_unstick(struct known *known);
void known_fini(struct known *known);

#endif
