/* SPDX-License-Identifier: Apache-2.0
 *
 * A save that is under way, as its files share it; its states are in save_machine_private.h. All
 * arrays are allocated once, with the layout; nothing is allocated per chunk. Loop's thread; works
 * touch only what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_PRIVATE_H
#define CAIRN_SAVE_SAVE_PRIVATE_H

#include "save/save_check_private.h"
#include "save/save_machine_private.h"
#include "save/save_part_private.h"
#include "save/save_room_private.h"

struct answer { /* the reply to the request of the present state */
    /* asked: the state has sent its request. come: the reply is
     * there. */
    bool asked, come;
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
    struct snapshot snapshot;
    struct work reserve; /* work: arena_reserve, writes reserve_diag and reserve_status */
    struct diag reserve_diag;
    int reserve_status;
    struct watch watch; /* for a lazy save that detects changes */
    /* If its code is not 0, this rank found no room, and tells the other ranks so. */
    struct diag declined;
    struct timer timer; /* first the deadline, then the grace for the server's word */
    struct timer retry;
    struct post post;
    struct request request;
    struct answer answer;
    struct diag why; /* the last refusal for the moment; code 0 means none since */
    /* Durations of the previous save, as its OPEN tells them. */
    uint64_t told_blocked_ms, told_persist_ms;
    uint64_t free_ms; /* when the caller could go on; 0 means not yet */
    /* stage_begun: the copy has begun. staged: on_staged is due or was called. reserving: the arena
     * is being enlarged. copying: the copy or its digests run. copied: the copy is complete, and
     * "staged" is not told. lost: the connection went. grace: the server is not waited for any
     * longer. named: the diag names the rank. */
    bool stage_begun, staged, reserving, copying, lost, grace, named, copied;
    bool admitted; /* it may wait for its turn: there was room, or its policy is to wait */
    bool watched;  /* the digests before the copy are made, or none are asked for */
    bool released, hurry;
    bool tell_released, tell_staged, tell_done;
    bool stage_waits; /* all is copied, and "staged" waits for the daemon's word */
    struct timer stage_lag;
    int staged_status;
    uint64_t opening;        /* the open_id that this rank has drawn */
    uint32_t first_sequence; /* no object of this save has a smaller sequence */
    uint32_t seal_tries;
};

/* save_stage.c: the state QUEUE, and the copy. */
void save_set_released(struct save *save); /* tells the caller, once, that it may go on */
/* Tells the caller of a lazy save that it may go on, if everything that it must wait for is
 * done. */
void save_check_released(struct save *save);
void save_check_copied(struct save *save); /* digests or copy are complete; stages when both are */
void save_stage_go(struct save *save); /* once it is decided what to copy: goes as far as it can */
/* Keeps how long a committed save took, for the next OPEN to tell. */
void save_times_keep(struct save *save);
void save_times_tell(struct save *save, struct msg_open *io);
void save_set_staged(struct save *save, int status);
/* Stops the copy; pieces that are being copied still end. */
void save_stage_stop(struct save *save);

/* Finds the base, once the save is opened and laid out. */
void save_stage_base(struct save *save);
void save_stage_init(struct save *save);
void save_stage_staged(struct save *save); /* tells "staged" if it was waiting */
/* Takes further lots of a save in waves. */
void save_stage_more(struct save *save);

#endif
