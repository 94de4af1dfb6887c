/* SPDX-License-Identifier: Apache-2.0
 *
 * repair: puts right what is damaged of a checkpoint, from copies that there are: the same chunk in
 * another object of the run, another store with the same things (a mirror), or what can be said
 * from the tables above (footers, padding). A damaged object is built anew beside the old one, read
 * back and checked whole, written into the run's chain, and only then takes the old one's name in
 * one step; the damaged bytes keep the new one's, which garbage collection removes in its time.
 * What verifies is never touched, and what has no copy is named and left as it is.
 *
 * One checkpoint at a time. The work is straight-line code on a thread of its own, which asks the
 * loop for everything (ask.h); the functions here are the loop's.
 */
#ifndef CAIRN_REPAIR_REPAIR_H
#define CAIRN_REPAIR_REPAIR_H

#include "run/run.h"

enum { REPAIR_TEXT_MAX = 640, REPAIR_LINES_MAX = 32, REPAIR_URL_MAX = 512, REPAIR_ACTOR_MAX = 65 };

struct repair;

struct repair_line {
    bool mended; /* else it is left as it is */
    char text[REPAIR_TEXT_MAX];
};

struct repair_status {
    bool running;
    struct run_name run;
    struct ckpt_id id; /* that is at work, or was last; term 0: the run's record, or none yet */
    int code;          /* why it could not be looked at to the end; 0: it was */
    char text[REPAIR_TEXT_MAX];
    uint64_t bytes_read;
    uint32_t mended, left; /* objects, parts, pages, manifests; what is left: chunks */
    bool healed;           /* the record says verified again */
    uint32_t line_count;
    struct repair_line lines[REPAIR_LINES_MAX]; /* those beyond are counted only */
};

struct repair_options {
    struct loop *loop;
    struct catalog *catalog; /* outlives the repair */
    /* Opens the store that has the same things, read-only, on the loop's thread; NULL: there is
     * none. pool: of so many threads; its life is the repair's. */
    int (*open_mirror)(void *user, struct loop *loop, struct work_pool *pool, struct store **ret,
                       struct diag *diag);
    unsigned mirror_threads;
    const char *mirror; /* its name, for texts */
    /* Milliseconds until it may read or write on, and what it has moved; the loop's. NULL: as fast
     * as it goes. */
    uint64_t (*wait_ms)(void *user);
    void (*moved)(void *user, uint64_t bytes);
    void (*ended)(void *user, const struct repair_status *status); /* NULL: nobody asks */
    void *user;
};

int MUST_USE repair_new(const struct repair_options *options, struct repair **ret,
                        struct diag *diag);
/* BUSY while another one is at work; READ_ONLY. id: term 0: the run's record. actor: for the chain,
 * "user@host". */
int MUST_USE repair_begin(struct repair *repair, const struct run_name *run, struct ckpt_id id,
                          const char *actor, struct diag *diag);
/* A copy. */
void repair_status(struct repair *repair, struct repair_status *ret);
bool repair_is_running(struct repair *repair);
/* Ends at the next step; what is half built is dropped. Frees. */
void repair_close(struct repair *repair, void (*done)(void *user), void *user);

#endif
