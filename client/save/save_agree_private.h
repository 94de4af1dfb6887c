/* SPDX-License-Identifier: Apache-2.0
 *
 * Agreement of a save's ranks on who writes what, a machine of its own, run by callbacks only:
 *
 *   IDLE ---> WAIT ---> DECIDED <---> SEALED        every state may go to END
 *     '-------------------^
 *
 * IDLE: it is not this save's turn. WAIT: a list is not the one agreed, and the verdict is not
 * there; the timer ends that. DECIDED: `share` is valid. SEALED: this rank is done and waits for
 * the others, which may be waiting for it at the first server; the timer lets it go there. A lost
 * connection leads from SEALED back to DECIDED. END: nothing is asked any more.
 *
 * The exchange with the server starts anew on each connection (enum agree_talk). Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_AGREE_PRIVATE_H
#define CAIRN_SAVE_SAVE_AGREE_PRIVATE_H

#include "save/save_common.h"
#include "share/held.h"
#include "share/share.h"

enum agree_state { AG_IDLE, AG_WAIT, AG_DECIDED, AG_SEALED, AG_END };

/* How far the exchange with the server has come on the present connection. */
enum agree_talk { TALK_NOTHING, TALK_ASKED /* AGREE was sent */, TALK_ANSWERED };

/* The agreement that the division of this save is based on. */
enum agree_ground {
    GROUND_PRIOR,   /* all lists are those agreed before, or there is nobody to ask */
    GROUND_VERDICT, /* a list was not covered, so the rank had to wait for the verdict */
    GROUND_ALONE    /* it waited, and the verdict or a list did not come */
};

struct agree_lists;

struct save_agree {
    struct sm sm;
    struct save_common *common;
    struct held held;
    struct share share;     /* valid once decided */
    struct scratch scratch; /* owns the arrays below, and the bits in rules */
    struct agree_rule *rules;
    struct agree_lists *lists;
    /* By group: this rank copies by what was agreed before, without waiting. */
    bool *copies;
    uint32_t *verdicts; /* by group; 0 means that none came */
    struct request request;
    struct timer timer; /* the end of the wait for the verdict, or the next try to gather */
    enum agree_talk talk;
    enum agree_ground ground;
    bool met;        /* has asked to be at the first server */
    bool differs;    /* the server found lists that are not equal */
    uint64_t since;  /* the newest restore before this save; see agreement.h */
    uint64_t end_ms; /* of the wait for the verdict */
};

void save_agree_init(struct save_agree *agree, struct save_common *common);
/* Called when it is this save's turn to stage. Finds out which groups must wait for a verdict, and
 * decides at once if none must. Wakes the save when it is decided. Fails with NO_MEMORY. */
int MUST_USE save_agree_begin(struct save_agree *agree, struct diag *diag);
bool save_agree_is_decided(const struct save_agree *agree);
/* Returns whether the save's caller wants replicas compared, and this rank has some. */
bool save_agree_compares(const struct save_agree *agree);
void save_agree_opened(struct save_agree *agree); /* sends AGREE on this connection, once */
void save_agree_down(struct save_agree *agree);   /* the connection was lost */
/* Called when the save is sealed and waits for the other ranks. */
void save_agree_await(struct save_agree *agree);
/* Called when the save is laid out. Its division becomes what is agreed, if the save is
 * committed. */
void save_agree_adopt(struct save_agree *agree, const struct layout *layout);
/* Called when the status is final: later saves learn from it. */
void save_agree_end(struct save_agree *agree);
void save_agree_fini(struct save_agree *agree);

#endif
