/* SPDX-License-Identifier: Apache-2.0
 *
 * repair: mends the damaged things of a checkpoint from copies: the same chunk in another object of
 * the run, another store with the same things (a mirror), or, for footers and padding, the tables
 * above. A damaged object is built anew beside the old one, read back, and checked as a whole. The
 * replacement is noted in the run's chain, and only then do the two trade names in one step. The
 * damaged bytes are left under the new object's name, which garbage collection removes later.
 * Things that verify are never touched, and things without a copy are reported and left as they
 * are.
 *
 * One checkpoint at a time. The work is straight-line code on a thread of its own, which asks the
 * loop for everything (ask.c); the functions here are called on the loop's thread.
 */
#ifndef CAIRN_REPAIR_REPAIR_H
#define CAIRN_REPAIR_REPAIR_H

#include "run/run.h"

enum { REPAIR_TEXT_MAX = 640, REPAIR_LINES_MAX = 32, REPAIR_ACTOR_MAX = 65 };

struct repair;

struct repair_line {
    bool mended; /* false if it is left as it is */
    char text[REPAIR_TEXT_MAX];
};

struct repair_status {
    bool running;
    struct run_name run;
    /* The checkpoint at work, or the last one. Term 0 stands for the run's record, or for nothing
     * yet. */
    struct ckpt_id id;
    int code; /* why it could not be examined to the end; 0 if it was */
    char text[REPAIR_TEXT_MAX];
    uint64_t bytes_read;
    /* mended: objects, parts, pages and manifests. left: those, and chunks, that stay damaged. */
    uint32_t mended, left;
    bool healed; /* the record says "verified" again */
    uint32_t line_count;
    struct repair_line lines[REPAIR_LINES_MAX]; /* the first lines; further ones are only counted */
};

struct repair_options {
    struct loop *loop;
    struct catalog *catalog; /* outlives the repair */
    /* Opens the store that has the same things, read-only; NULL if there is none. Called on the
     * repair's thread, when a copy is needed; with mirror_first on the loop's thread, when a work
     * begins, which it refuses if it fails. `pool` has mirror_threads threads and lives as long as
     * the repair. */
    int (*open_mirror)(void *user, struct loop *loop, struct work_pool *pool, struct store **ret,
                       struct diag *diag);
    unsigned mirror_threads;
    bool mirror_first;
    const char *mirror; /* its name, for texts */
    /* Called on the loop's thread: the milliseconds until the repair may read or write on, and the
     * bytes that it has moved. NULL means as fast as possible. */
    uint64_t (*wait_ms)(void *user);
    void (*moved)(void *user, uint64_t bytes);
    void (*ended)(void *user, const struct repair_status *status); /* may be NULL */
    void *user;
};

/* Makes the repair with its thread. The options are copied. Returns NO_MEMORY, or the error of the
 * thread. */
int MUST_USE repair_new(const struct repair_options *options, struct repair **ret,
                        struct diag *diag);
/* Begins a repair of a checkpoint, or of the run's record if the id has term 0. `actor` is
 * "user@host", for the chain. Returns BUSY while another repair is running, or READ_ONLY. */
int MUST_USE repair_begin(struct repair *repair, const struct run_name *run, struct ckpt_id id,
                          const char *actor, struct diag *diag);
/* Copies the status. */
void repair_status(struct repair *repair, struct repair_status *ret);
bool repair_is_running(struct repair *repair);
/* Returns true if the mirror could not be asked when it was last needed, with the reason. */
bool repair_mirror_fails(struct repair *repair, char ret[REPAIR_TEXT_MAX]);
/* Ends at the next step and drops an object that is half built; frees, then calls done. */
void repair_close(struct repair *repair, void (*done)(void *user), void *user);

#endif
