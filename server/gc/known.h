/* SPDX-License-Identifier: Apache-2.0
 *
 * known: what earlier passes found out about checkpoints: since when something of one has been
 * dead, and which have nothing dead at all. In memory only: what is forgotten is found out again,
 * one pass later. `mark` says what made it so (the end of an opening, a commit); when that has
 * changed, what was known is void.
 */
#ifndef CAIRN_GC_KNOWN_H
#define CAIRN_GC_KNOWN_H

#include "format/ids.h"

struct known_ckpt {
    struct ckpt_id id;
    uint64_t mark, pass; /* pass: the first that found it dead */
    bool settled;        /* nothing of it is dead while the mark is this one */
    bool stuck;          /* forgotten, and its space cannot be given back */
};

struct known_run {
    struct known_run *next;
    struct run_name name;
    size_t count, cap;
    struct known_ckpt *ckpts; /* by id */
};

struct known {
    struct known_run *runs;
};

/* NULL: nothing is known. */
const struct known_ckpt *known_find(const struct known *known, const struct run_name *run,
                                    struct ckpt_id id);
/* Without memory nothing is noted: then it is found out again. */
void known_put(struct known *known, const struct run_name *run, const struct known_ckpt *ckpt);
/* What is stuck is tried again. */
void known_unstick(struct known *known);
void known_fini(struct known *known);

#endif
