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

#include "run/run_counts.h"
#include "run/run_usage.h"

struct gc;

/* Who reclaims and why, as the chain says it. */
struct gc_reclaim {
    const char *actor, *reason;
};

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
    /* Under pressure what is forgotten goes before its time, oldest first (pressure.c). */
    uint64_t pressure; /* percent of the store, or of a project's quota: less is free; 0: off */
    const struct quota_table *quotas; /* NULL: none */
    /* How often the store has refused for want of room so far, while it still does; else 0.
     * *ret_bytes: for how many bytes it lacked room; 0: not known. NULL: nobody knows. */
    uint64_t (*refusals)(void *user, uint64_t *ret_bytes);
    bool dry_twice; /* of what a second pass would remove, a dry run tells in the first */
    void (*ended)(void *user); /* a pass has ended: ask gc_status */
    /* A checkpoint was reclaimed: it cannot be brought back any more. NULL: nobody is told. */
    void (*reclaimed)(void *user, const struct run_name *run, struct ckpt_id id,
                      const struct gc_reclaim *why);
    void *user;
};

enum { GC_TEXT_MAX = DIAG_TEXT_MAX + RUN_NAME_TEXT_MAX + 64 };

struct gc_status {
    bool running, waiting, dry_run; /* waiting: it is another daemon's duty */
    bool now;                       /* the pass reclaims without waiting for cycles */
    bool pressed;                   /* because room is wanted */
    uint64_t every_ms, keep_cycles;
    uint64_t pass; /* of this daemon; 0: none yet */
    int64_t begun_wall_ns, ended_wall_ns;
    /* of the pass that runs, or the last one: */
    uint64_t runs, ckpts;     /* looked at */
    uint64_t reclaimed;       /* checkpoints; dry run: that would be */
    uint64_t objects, smalls; /* removed; dry run: that would be */
    uint64_t bytes;           /* of the objects among them */
    uint64_t bytes_read;      /* of object tables */
    uint64_t held;            /* forgotten, and left because an open save or a restore uses them */
    uint64_t kept;            /* found dead for the first time: they go in the next pass */
    uint64_t errors;
    uint64_t objects_total, smalls_total, bytes_total, reclaimed_total, errors_total;
    /* Now: what waits to be reclaimed; the first of it until then, the last until then, by the
     * schedule of this daemon (0: it has none). */
    uint64_t forgotten, forgotten_bytes;
    int64_t first_wall_ns, last_wall_ns;
    uint64_t pressure;            /* percent, as in the options */
    uint64_t pressed_total;       /* checkpoints reclaimed for want of room, */
    uint64_t pressed_bytes_total; /* bytes that it gave back, */
    int64_t pressed_wall_ns;      /* and when the last time was; 0: never */
    struct run_name run;          /* where it is */
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

/* What is to be reclaimed now. runs: of these only; none: of all. Copied. */
struct gc_order {
    bool dry_run;
    const char *actor; /* for the chain */
    const struct run_name *runs;
    size_t run_count;
};
/* What is forgotten is reclaimed, however short it has waited, unless an open save or a restore
 * uses it, and its space given back; nothing brings it back afterwards. Begins no cycle. While a
 * pass runs it waits for its end. BUSY: another one waits already; NO_MEMORY. */
int MUST_USE gc_reclaim_now(struct gc *gc, const struct gc_order *order);
/* A save was refused: a project lacks so many bytes of its quota (NULL: the store lacks room). What
 * is forgotten is looked at soon. */
void gc_press(struct gc *gc, const char *project, uint64_t bytes);
/* When the first and the last of what is forgotten will be reclaimed by the schedule; wall times, 0
 * where there is none. */
void gc_waits(const struct gc *gc, const struct forgotten_sight *forgotten, int64_t *ret_first,
              int64_t *ret_last);
/* From now on, with the meaning that they have in gc_options. The next cycle begins no later than
 * every_ms from now. */
void gc_set_schedule(struct gc *gc, uint64_t every_ms, uint64_t keep_cycles, uint64_t lease_cycles);
/* From the next look on; percent, 0: off. */
void gc_set_pressure(struct gc *gc, uint64_t pressure);
void gc_status(const struct gc *gc, struct gc_status *ret);
/* Ends after the operation in flight. Frees. */
void gc_close(struct gc *gc, void (*done)(void *user), void *user);

#endif
