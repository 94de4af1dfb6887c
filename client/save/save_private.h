/* SPDX-License-Identifier: Apache-2.0
 *
 * A save that is under way: the machine at the root, which talks with the server (save.c has the
 * drawing), and the parts that it calls. A part knows nothing of this struct; it reports through
 * the events in save_common.h. Loop's thread; works touch only what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_PRIVATE_H
#define CAIRN_SAVE_SAVE_PRIVATE_H

#include "save/save_part_private.h"
#include "save/save_stage_private.h"

enum {
    SV_QUEUE,
    SV_LINK,
    SV_OPEN,
    SV_AGREE,
    SV_HAVE,
    SV_SEND,
    SV_PART,
    SV_SEAL,
    SV_WAIT,
    SV_ABORT,
    SV_DRAIN,
    SV_END
};

/* How long a save waits before it repeats a request that was refused for the moment. */
enum { SAVE_RETRY_MS = 200 };

/* The request of the present state. */
enum answer_state {
    ANSWER_NONE,  /* nothing was asked yet */
    ANSWER_ASKED, /* the request was sent */
    ANSWER_COME   /* the reply is there */
};

struct answer { /* the reply to the request of the present state */
    enum answer_state state;
    int code;
    struct diag diag;
    struct msg_opened opened; /* without the arrays that it points to */
    uint32_t outcome_state;
    int outcome_code;
};

/* Invariant: the fields are changed on the loop's thread only. A work holds its own member, and the
 * save is not freed before every work has ended (DRAIN). */
struct save {
    struct save_common common;
    struct sm sm;
    struct save_agree agree;
    struct save_check check;
    struct save_room room;
    struct save_base base;
    struct save_send send;
    struct save_part part;
    struct save_tell tell;
    struct save_stage stage;
    /* First the deadline, then the grace for the server's word: in ABORT the server is waited for
     * while it runs. */
    struct timer timer;
    struct timer retry;
    struct request request;
    struct answer answer;
    struct diag why;         /* the last refusal for the moment; code 0 means none since */
    uint64_t opening;        /* the open_id that this rank has drawn */
    uint32_t first_sequence; /* no object of this save has a smaller sequence */
    uint32_t seal_tries;
    bool lost; /* the connection went, and what was said on it counts no more */
};

/* save_open.c */
enum sm_result save_on_link(struct sm *sm);
void save_enter_open(struct sm *sm);
enum sm_result save_on_open(struct sm *sm);
enum sm_result save_on_agree(struct sm *sm);
void save_enter_have(struct sm *sm);
enum sm_result save_on_have(struct sm *sm);

/* save_send.c */
void save_enter_send(struct sm *sm);
enum sm_result save_on_send(struct sm *sm);
enum sm_result save_on_part(struct sm *sm);
void save_enter_seal(struct sm *sm);
enum sm_result save_on_seal(struct sm *sm);

/* save_end.c */
void save_enter_wait(struct sm *sm);
enum sm_result save_on_wait(struct sm *sm);
enum sm_result save_on_abort(struct sm *sm);
void save_enter_drain(struct sm *sm);
enum sm_result save_on_drain(struct sm *sm);
bool save_is_drained(const struct save *save); /* no worker and no socket touches its memory */
void save_enter_end(struct sm *sm);
/* Ends the save as committed, by the server's word or because the same content was committed
 * before. Returns SM_AGAIN. */
enum sm_result save_end_committed(struct save *save);
void save_free(struct save_common *common); /* frees the save; nothing of it may run any more */

/* save_ask.c */
extern const struct request_ops save_request_ops;
struct save *save_of_sm(struct sm *sm);
/* Runs the machines of the save: staging first, then this one. */
void save_run(struct save_common *common);
/* Begins to find the base, once the save is opened and laid out; does nothing before. */
void save_find_base(struct save *save);
/* Fails the save; only the first failure counts. What it means for the save depends on how far it
 * came. */
void save_take_failure(struct save_common *common, int status, const struct diag *diag);
/* Moves, and ends the request of the present state. Returns SM_AGAIN. */
enum sm_result save_move(struct save *save, unsigned state);
/* Called first in every state between OPEN and WAIT. Returns true if it has moved the save, because
 * it failed or lost its connection. */
bool save_stops(struct save *save);
/* Sends the one request of the present state; its reply wakes the save. */
void save_ask(struct save *save, const struct msg *msg);
bool save_is_refused_for_now(const struct save *save);
/* The run's record takes no update, so waiting does not help. */
bool save_is_stuck(const struct save *save);
/* If the answer is a refusal for the moment, goes back to LINK to ask again a little later, and
 * returns true. */
bool save_tries_again(struct save *save);
/* Fails the save with the answer's error. An abort by another rank goes to WAIT first, which tells
 * why. */
enum sm_result save_fail_with_answer(struct save *save, const char *what);

#endif
