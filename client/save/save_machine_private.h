/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of a save: its states, by the files that implement them (save.c has the drawing), and
 * the helpers that these files share. Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_MACHINE_PRIVATE_H
#define CAIRN_SAVE_SAVE_MACHINE_PRIVATE_H

#include "save/save_common.h"

struct save;

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

/* save_stage.c */
enum sm_result save_on_queue(struct sm *sm);
/* save_open.c */
enum sm_result save_on_link(struct sm *sm);
enum sm_result save_on_open(struct sm *sm);
enum sm_result save_on_agree(struct sm *sm);
enum sm_result save_on_have(struct sm *sm);
/* save_send.c */
enum sm_result save_on_send(struct sm *sm);
void save_enter_send(struct sm *sm);
enum sm_result save_on_part(struct sm *sm);
enum sm_result save_on_seal(struct sm *sm);
/* save_end.c */
enum sm_result save_on_wait(struct sm *sm);
enum sm_result save_on_abort(struct sm *sm);
void save_enter_drain(struct sm *sm);
enum sm_result save_on_drain(struct sm *sm);
bool save_is_drained(const struct save *save); /* no worker and no socket touches its memory */
void save_enter_end(struct sm *sm);
/* Ends the save as committed, by the server's word or because the same content was committed
 * before. */
void save_end_committed(struct save *save);
void save_on_deliver(struct post *post); /* runs the callbacks that are due */

/* save.c */
struct save *save_of_link(struct list *node);
struct save *save_of_sm(struct sm *sm);
/* Moves, and ends the request of the present state. */
void save_move(struct save *save, unsigned state);
/* Fails the save; only the first failure counts. What it means for the save depends on how far it
 * came. */
void save_fail(struct save *save, int status, const struct diag *diag);
/* Called first in every state between OPEN and WAIT. Returns true if it has moved the save, because
 * it failed or lost its connection. */
bool save_stops(struct save *save);
bool save_is_before_sending(const struct save *save); /* and has not ended */
bool save_is_queued(const struct save *save);         /* is waiting, and has no room yet */
bool save_is_staging(const struct save *save);        /* has not left the queue for the arena */

/* save_ask.c */
extern const struct request_ops save_request_ops;
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
