/* SPDX-License-Identifier: Apache-2.0
 *
 * gc: frees the space that no checkpoint needs: objects, parts, pages and manifests of checkpoints
 * that were reclaimed, and of openings that were never committed. Invariant I6: nothing that a
 * committed or open checkpoint refers to is ever removed.
 *
 * A pass goes run by run. It lists names first, then reads the record, and then removes only names
 * that were listed and are dead in the record. Names are never used twice, and things that are made
 * after the listing are not in it. README.md says why that is enough. Nothing of a pass has to
 * survive: if it is killed anywhere, the next pass finds the rest. The functions here are called on
 * the loop's thread; a pass is straight-line code on a thread of its own.
 */
#ifndef CAIRN_GC_GC_H
#define CAIRN_GC_GC_H

#include "run/run_counts.h"
#include "run/run_usage.h"

struct gc;

/* The actor and the reason of a reclaim, as the chain records them. */
struct gc_reclaim {
    const char *actor, *reason;
};

struct gc_options {
    struct loop *loop;
    struct catalog *catalog;
    struct work_pool *thread; /* of one thread, which may wait, and which nobody else uses */
    /* Between two passes, each of which begins a cycle; 0 means only when asked. */
    uint64_t every_ms;
    uint64_t keep_cycles;  /* cycles until a forgotten checkpoint is reclaimed; at least 1 */
    uint64_t lease_cycles; /* cycles until an unfinished restore is given up; 0 means never */
    const char *actor;     /* who reclaims, for the chain: "cairnd" */
    /* Bytes that sessions have moved so far; NULL if there are no sessions. */
    uint64_t (*load)(void *user);
    bool (*may_run)(void *user); /* asked between any two steps; NULL means always */
    /* Name of the daemon that may run if this one may not; "" or NULL if not known. */
    const char *(*holder)(void *user);
    /* Percent of the store, or of a project's quota; 0 means off. While less than that is free,
     * forgotten checkpoints are reclaimed before their time, oldest first (pressure.c). */
    uint64_t pressure;
    const struct quota_table *quotas; /* NULL if there are none */
    /* Returns how often the store has so far refused for lack of room, if it still does, and 0
     * otherwise. *ret_bytes is the size that it had no room for, or 0 if that is not known. NULL if
     * nobody watches the store. */
    uint64_t (*refusals)(void *user, uint64_t *ret_bytes);
    bool dry_twice;            /* a dry run reports at once what a second pass would remove */
    void (*ended)(void *user); /* a pass has ended; gc_status() has its result */
    /* Called when a checkpoint was reclaimed and cannot be undeleted any more. May be NULL. */
    void (*reclaimed)(void *user, const struct run_name *run, struct ckpt_id id,
                      const struct gc_reclaim *why);
    void *user;
};

enum { GC_TEXT_MAX = DIAG_TEXT_MAX + RUN_NAME_TEXT_MAX + 64 };

struct gc_status {
    bool running, waiting, dry_run; /* waiting: another daemon has the duty */
    bool now;                       /* the pass reclaims without waiting for cycles */
    bool pressed;                   /* it reclaims because room is wanted */
    uint64_t every_ms, keep_cycles;
    uint64_t pass; /* number of passes of this daemon; 0 before the first */
    int64_t begun_wall_ns, ended_wall_ns;
    /* Of the pass that is running, or of the last one: */
    uint64_t runs, ckpts;     /* that were examined */
    uint64_t reclaimed;       /* checkpoints; in a dry run those that would be */
    uint64_t objects, smalls; /* removed; in a dry run those that would be */
    uint64_t bytes;           /* of the objects among them */
    uint64_t bytes_read;      /* of object tables */
    uint64_t held; /* forgotten ones that stay because an open save or a restore uses them */
    uint64_t kept; /* found dead for the first time; the next pass removes them */
    uint64_t errors;
    uint64_t objects_total, smalls_total, bytes_total, reclaimed_total, errors_total;
    /* At present: the checkpoints that wait to be reclaimed. This daemon's schedule reclaims the
     * first at first_wall_ns and the last at last_wall_ns; both are 0 without a schedule. */
    uint64_t forgotten, forgotten_bytes;
    int64_t first_wall_ns, last_wall_ns;
    uint64_t pressure;            /* percent, as in the options */
    uint64_t pressed_total;       /* checkpoints reclaimed under pressure */
    uint64_t pressed_bytes_total; /* bytes that this freed */
    int64_t pressed_wall_ns;      /* last time that this happened; 0 if never */
    struct run_name run;          /* the run that the pass is at */
    int code;                     /* of the last error, damage first; 0 if none */
    char text[GC_TEXT_MAX];       /* its complete text */
};

/* Starts the schedule; the first pass begins soon, to remove what a crash has left. The options are
 * copied. Returns NO_MEMORY. */
int MUST_USE gc_new(const struct gc_options *options, struct gc **ret);
/* Returns false if another daemon has the duty; nothing that is asked for here begins before this
 * daemon has it. *ret_holder names that daemon, or is "" if it is not known. */
bool gc_is_ours(const struct gc *gc, const char **ret_holder);
/* Begins a pass now, without a new cycle (gc_cycle begins one). Returns false if a pass is running.
 * A dry run writes and removes nothing. */
bool gc_now(struct gc *gc, bool dry_run);
/* Begins a pass and a cycle with it, for a caller without a schedule that holds the store's lock.
 */
bool gc_cycle(struct gc *gc, bool dry_run);

/* An order to reclaim now. `runs` limits it to these runs; with run_count 0 it is for all runs.
 * Everything is copied. */
struct gc_order {
    bool dry_run;
    const char *actor; /* who asked for it, for the chain */
    const struct run_name *runs;
    size_t run_count;
};
/* Reclaims the forgotten checkpoints, however recent, unless an open save or a restore uses them,
 * and frees their space. Nothing brings them back afterwards. Begins no cycle. If a pass is
 * running, the order waits for its end. Returns NO_MEMORY, or BUSY if another order waits. */
int MUST_USE gc_reclaim_now(struct gc *gc, const struct gc_order *order);
/* Called when a save was refused because a project lacks so many bytes of its quota; `project` is
 * NULL if the store lacks room. gc searches soon for forgotten checkpoints to reclaim. */
void gc_press(struct gc *gc, const char *project, uint64_t bytes);
/* Gives the wall times at which the schedule will reclaim the first and the last forgotten
 * checkpoint; 0 if there is no schedule. */
void gc_waits(const struct gc *gc, const struct forgotten_total *forgotten, int64_t *ret_first,
              int64_t *ret_last);
/* Gives the schedule; every_ms is 0 if there is none. */
void gc_schedule(const struct gc *gc, uint64_t *ret_every_ms, uint64_t *ret_keep_cycles);
/* Sets the schedule, with the meaning of gc_options. The next cycle begins no later than every_ms
 * from now. */
void gc_set_schedule(struct gc *gc, uint64_t every_ms, uint64_t keep_cycles, uint64_t lease_cycles);
/* Sets the pressure in percent, from the next check for room on; 0 means off. */
void gc_set_pressure(struct gc *gc, uint64_t pressure);
void gc_status(const struct gc *gc, struct gc_status *ret);
/* Ends after the question in flight, frees, then calls done. */
void gc_close(struct gc *gc, void (*done)(void *user), void *user);

#endif
