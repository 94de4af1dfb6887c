/* SPDX-License-Identifier: Apache-2.0
 *
 * ask: lets straight-line code on a thread use what lives on a loop: stores, runs, the catalogue.
 * Each call here posts one question to the loop and waits for its answer, one question at a time.
 * A store's requests have deadlines, and the loop runs until the thread has ended, so each wait
 * ends. Operations that move bytes wait for the pace that the owner keeps to.
 *
 * ask_init() and ask_fini() are called on the loop's thread, all else on the thread that asks.
 */
#ifndef CAIRN_READER_ASK_H
#define CAIRN_READER_ASK_H

#include "run/run.h"

#include <pthread.h>

enum { ASK_STORE_DEADLINE_MS = 60000 };
#define ASK_NEVER UINT64_MAX

struct ask_options {
    struct loop *loop;
    /* Called on the loop's thread. Returns the milliseconds until bytes may be moved, or ASK_NEVER
     * when the owner must end; operations that move bytes are then answered with CANCELLED. If it
     * is NULL, bytes may be moved at once. */
    uint64_t (*wait_ms)(void *user);
    /* Called on the loop's thread with the bytes that an operation has moved; may be NULL. */
    void (*moved)(void *user, uint64_t bytes);
    /* If set, every store operation waits for the pace, not only those that move bytes, and once
     * the owner must end, questions to a run are answered with CANCELLED as well. */
    bool is_strict;
    void *user;
};

struct ask {
    struct ask_options options;
    struct post post;
    struct timer timer;
    pthread_mutex_t lock; /* guards is_answered */
    pthread_cond_t answered;
    bool is_answered;
    /* The question: what the loop calls, and what it takes. */
    void (*start)(struct ask *ask);
    struct store *store;
    struct store_req *reqs; /* the thread's, NULL between questions; `at` is under way, in `req` */
    size_t count, at;
    struct store_req req;
    uint64_t began_ms, took_ms; /* the last store operation */
    struct run *run;
    struct run_req event;
    /* The thread's: the next ask_event() calls it on the loop's thread with options.user and the
     * verdict, if the event was accepted, and leaves the marks of the ids to it. */
    void (*hear)(void *user, const struct verdict *verdict);
    struct run_snapshot_req snapshot;
    void (*call)(void *user);
    void (*take)(void *user, const struct run_state *state);
    void *user;
    uint64_t sleep_ms, until_ms; /* until: 0 before the loop has begun to count */
    int status;
    struct diag diag;
};

void ask_init(struct ask *ask, const struct ask_options *options);
void ask_fini(struct ask *ask);

/* Runs a store operation; the answer is in io. Returns its status, or CANCELLED, with its text in
 * diag. */
int MUST_USE ask_store(struct ask *ask, struct store *store, struct store_req *io,
                       struct diag *diag);
/* Runs operations one after another, in one question. Each is answered in its place. After an
 * answer of CANCELLED or READ_ONLY the others are not asked, and have CANCELLED. */
void ask_stores(struct ask *ask, struct store *store, size_t count, struct store_req *io);
/* Decides an event and, unless it is a dry run, writes it. For a batch of ids the status is 0 only
 * if the first one was not refused. */
int MUST_USE ask_event(struct ask *ask, struct run *run, const struct event *event, bool dry_run,
                       struct diag *diag);
/* Has take(user, state) called on the loop's thread, with the state of the run. */
int MUST_USE ask_state(struct ask *ask, struct run *run,
                       void (*take)(void *user, const struct run_state *state), void *user,
                       struct diag *diag);
/* Has call(user) called on the loop's thread. */
void ask_call(struct ask *ask, void (*call)(void *user), void *user);
/* Waits so long. Returns CANCELLED if the owner is to end meanwhile. */
int MUST_USE ask_sleep(struct ask *ask, uint64_t ms);

#endif
