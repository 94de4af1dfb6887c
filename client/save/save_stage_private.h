/* SPDX-License-Identifier: Apache-2.0
 *
 * Staging: a save gets its division, its layout and its room in the arena, and is copied there. It
 * is a machine of its own, beside the one in save.c that talks with the server:
 *
 *   TURN -> AGREE -> ROOM -> WATCH -> COPY -> COMPARE -> STAGED
 *
 *   TURN, AGREE -> DECLINED    the caller refuses (TURN), or there is no room (AGREE)
 *   TURN to ROOM, COPY -> DECLINED    no server answers, and the caller does not wait for one
 *   ROOM -> RESERVE -> ROOM    the arena grows first
 *   ROOM -> COPY               no changes are watched for
 *   ROOM -> COMPARE            there is nothing to copy
 *   TURN to COMPARE -> OVER    the save is over; from RESERVE by way of ROOM
 *
 * TURN waits for the first JOIN and for the saves before this one; AGREE for who writes what; ROOM
 * for room in the arena, which RESERVE enlarges on a worker. WATCH takes the digests by which a
 * lazy save notices changes; COPY copies; COMPARE waits for workers that digest replicas in the
 * caller's memory. STAGED: the caller was told that its memory is its own again. DECLINED: there
 * was no room or no server, and the policy is not to wait; or the caller itself refuses. A save
 * that is over goes to OVER once no worker has its memory; STAGED and DECLINED are final as well.
 * Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_STAGE_PRIVATE_H
#define CAIRN_SAVE_SAVE_STAGE_PRIVATE_H

#include "save/save_check_private.h"
#include "save/save_send_private.h"
#include "save/save_tell_private.h"

/* In this order: up to COPY a save is staging, and the saves behind it wait. */
enum stage_state {
    ST_TURN,
    ST_AGREE,
    ST_ROOM,
    ST_RESERVE,
    ST_WATCH,
    ST_COPY,
    ST_COMPARE,
    ST_STAGED,
    ST_DECLINED,
    ST_OVER
};

struct save_stage {
    struct sm sm;
    struct save_common *common;
    struct save_agree *agree;
    struct save_check *check;
    struct save_room *room;
    struct save_send *send;
    struct save_tell *tell;
    struct snapshot snapshot;
    struct watch watch;  /* for a lazy save that detects changes */
    struct work reserve; /* work: arena_reserve, writes reserve_diag and reserve_status */
    struct diag reserve_diag;
    int reserve_status;
    struct diag declined;  /* why it was declined; code 0 if it was not */
    struct timer patience; /* while it waits, where the caller does not want to wait for a server */
};

/* Prepares the machine. The parts that it works with have been prepared. */
void save_stage_init(struct save_stage *stage, struct save_check *check, struct save_send *send,
                     struct save_tell *tell);
/* Goes as far as it can. */
void save_stage_run(struct save_stage *stage);
/* Tells the caller of a lazy save that it may go on, if everything that it must wait for is
 * done. */
void save_stage_check_released(struct save_stage *stage);
/* Returns whether saves behind this one must wait for their turn. */
bool save_stage_is_staging(const struct save_stage *stage);
/* Returns whether the copy has begun, and everything is laid out and has its place. */
bool save_stage_has_begun(const struct save_stage *stage);
/* Returns whether the step may be opened: the copy has begun, or it needs the server's verdict, or
 * there is a refusal that the other ranks must hear of. */
bool save_stage_may_open(const struct save_stage *stage);
/* Returns whether no worker has the caller's memory or the arena. */
bool save_stage_is_at_rest(const struct save_stage *stage);
/* Called when there may be more room: a save in waves takes it, and copies on. */
void save_stage_more(struct save_stage *stage);
/* Gives the copy of a lazy save all workers. */
void save_stage_hurry(struct save_stage *stage);

#endif
