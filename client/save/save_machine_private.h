/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of a save: its states, by the files that do them (save.c draws them), and what these
 * share. Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_MACHINE_PRIVATE_H
#define CAIRN_SAVE_SAVE_MACHINE_PRIVATE_H

#include "engine/operations.h"

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
enum sm_result save_on_part(struct sm *sm);
enum sm_result save_on_seal(struct sm *sm);
bool save_is_sent(const struct save *save); /* the part may be made */
/* save_end.c */
enum sm_result save_on_wait(struct sm *sm);
enum sm_result save_on_abort(struct sm *sm);
enum sm_result save_on_drain(struct sm *sm);
enum sm_result save_on_end(struct sm *sm);
/* The server's word, or the same content was there before. */
void save_end_committed(struct save *save);
void save_on_deliver(struct post *post); /* tells the caller what there is to tell */

/* save.c */
struct save *save_of_link(struct list *node);
struct save *save_of_sm(struct sm *sm);
void save_move(struct save *save, unsigned state); /* ends the request of the present state */
void save_wake(struct save *save);
/* The first failure counts. What it means for the save as a whole depends on how far it came. */
void save_fail(struct save *save, int status, const struct diag *diag);
/* What every state between OPEN and WAIT looks at first. True: it was moved. */
bool save_stops(struct save *save);
bool save_is_sending(const struct save *save);
bool save_is_before_sending(const struct save *save); /* and not over */
bool save_is_over(const struct save *save);           /* failed, or done but for the draining */
bool save_is_queued(const struct save *save);         /* waits, and has no room yet */
bool save_is_staging(const struct save *save);        /* has not left the queue for the arena */
struct object_id save_object_id(const struct save *save, uint32_t object);
struct save_slot *save_slot_take(struct save *save); /* NULL: all are under way */

/* save_ask.c */
extern const struct request_ops save_request_ops;
/* Sends once a state; the reply wakes the save. */
void save_ask(struct save *save, const struct msg *msg);
bool save_is_refused_for_now(const struct save *save);
bool save_is_stuck(const struct save *save); /* the record takes no update: waiting does not help */
/* Nothing else goes on over the connection, which may still be good for it. */
bool save_is_alone(const struct save *save);
/* An answer that is refused for the moment is asked again a little later, from LINK on. True: that
 * was it. */
bool save_tries_again(struct save *save);
enum sm_result save_fail_with_answer(struct save *save, const char *what);

#endif
