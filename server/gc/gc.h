/* SPDX-License-Identifier: Apache-2.0
 *
 * gc: gives back the space of what no checkpoint needs: the objects, parts, pages and manifests of
 * checkpoints that were reclaimed and of openings that came to nothing. Invariant I6: what a
 * committed or open checkpoint refers to is never removed.
 *
 * A pass goes run by run. Names are listed first, then the record is read, then only what was
 * listed and is dead in the record is removed: names are never used twice, and whatever is made
 * after the list is not on it. README.md says why that is enough. Nothing of a pass needs to
 * survive: killed anywhere, the next one finds what is left. One loop's thread.
 */
#ifndef CAIRN_GC_GC_H
#define CAIRN_GC_GC_H

#include "run/run.h"

struct gc;

struct gc_options {
    struct loop *loop;
    struct catalog *catalog;
    uint64_t every_ms;    /* between two passes, each of which begins a cycle; 0: only when asked */
    uint64_t keep_cycles; /* a forgotten checkpoint is reclaimed after so many; at least 1 */
    uint64_t lease_cycles; /* a restore that nobody ends is given up after so many; 0: never */
    const char *actor;     /* who reclaims, for the chain: "cairnd" */
    uint64_t (*load)(void *user); /* bytes that sessions have moved so far; NULL: nobody else */
    bool (*may_run)(void *user);  /* between any two steps; NULL: always */
    const char *(*holder)(void *user); /* who may, where we may not; "" or NULL: not known */
    bool dry_twice; /* of what a second pass would remove, a dry run tells in the first */
    void (*ended)(void *user); /* a pass has ended: ask gc_status */
    void *user;
};

enum { GC_TEXT_MAX = DIAG_TEXT_MAX + RUN_NAME_TEXT_MAX + 64 };

struct gc_status {
    bool running, waiting, dry_run; /* waiting: it is another daemon's duty */
    uint64_t every_ms, keep_cycles;
    uint64_t pass; /* of this daemon; 0: none yet */
    int64_t begun_wall_ns, ended_wall_ns;
    /* of the pass that runs, or the last one: */
    uint64_t runs, ckpts;     /* looked at */
    uint64_t reclaimed;       /* checkpoints; dry run: that would be */
    uint64_t objects, smalls; /* removed; dry run: that would be */
    uint64_t bytes;           /* of the objects among them */
    uint64_t bytes_read;      /* of object tables */
    uint64_t kept;            /* found dead for the first time: they go in the next pass */
    uint64_t errors;
    uint64_t objects_total, smalls_total, bytes_total, reclaimed_total, errors_total;
    struct run_name run;    /* where it is */
    int code;               /* of the last error, or of damage where there was some; 0: none */
    char text[GC_TEXT_MAX]; /* of the same error, whole */
};

int MUST_USE gc_new(const struct gc_options *options, struct gc **ret);
/* False: it is another daemon's duty, and nothing that is asked for here begins before it is ours.
 * *ret_holder: whose; "" where that is not known. */
bool gc_is_ours(const struct gc *gc, const char **ret_holder);
/* A pass begins now; it begins no cycle (gc_cycle does). False: one is running. dry_run: nothing is
 * written or removed. */
bool gc_now(struct gc *gc, bool dry_run);
/* The same, and a cycle begins with it: for who has no clock, under the store's lock. */
bool gc_cycle(struct gc *gc, bool dry_run);
void gc_status(const struct gc *gc, struct gc_status *ret);
/* Ends after the operation in flight. Frees. */
void gc_close(struct gc *gc, void (*done)(void *user), void *user);

#endif
