/* SPDX-License-Identifier: Apache-2.0
 *
 * Two parts of a save: agreeing on who writes what (save_agree.c), and comparing replicas
 * (save_check.c). Loop's thread; works touch only what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_AGREE_PRIVATE_H
#define CAIRN_SAVE_SAVE_AGREE_PRIVATE_H

#include "engine/operations.h"
#include "share/held.h"
#include "share/share.h"

struct agree_lists;

struct save_agree { /* agreement on who writes what (save_agree.c) */
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
    uint32_t lists_open;
    /* asked: AGREE was sent on this connection. answered: its reply came. decided: share is
     * valid. */
    bool begun, asked, answered, decided;
    bool waited;     /* a list of this rank was new, so it had to wait */
    bool alone;      /* the verdict did not come in time */
    bool met;        /* has asked to be at the first server */
    bool differs;    /* the server found lists that are not equal */
    uint64_t end_ms; /* of the wait for the verdict */
};

struct check_group;
enum { CHECK_WORKS = 2 };
struct check_work { /* work: reads held and the tensors, writes digests */
    struct work work;
    struct save *save;
    bool failed;
};

struct save_check { /* comparing replicas (save_check.c) */
    struct check_work works[CHECK_WORKS];
    _Atomic uint32_t next; /* the next tensor that no worker has taken */
    unsigned running;
    struct xxh128 *digests; /* by tensor; in agree.scratch, as are groups */
    struct check_group *groups;
    /* groups_open: groups whose answer is missing. differing: tensors that differ. */
    uint32_t groups_open, differing;
    /* begun: the comparison is wanted. made: all digests are there. asked: DIGESTS were sent on
     * this connection. over: there is a result. */
    bool begun, failed, made, asked, over;
    bool copied;        /* the copy is complete; it is told when the digests are */
    struct timer timer; /* from the first DIGESTS until the answer */
    uint64_t wait_ms;   /* how long the timer runs */
    char text[600];
};

/* save_agree.c */
void save_agree_init(struct save *save);
/* Called when it is this save's turn to stage. Finds out which groups must wait for a verdict, and
 * decides at once if none must. */
int MUST_USE save_agree_begin(struct save *save, struct diag *diag);
void save_agree_opened(struct save *save); /* sends AGREE on this connection, once */
void save_agree_down(struct save *save);   /* the connection was lost */
/* Called when the save is sealed and waits for the other ranks. */
void save_agree_await(struct save *save);
/* Called when the save is laid out. Its division becomes what is agreed, if the save is
 * committed. */
void save_agree_adopt(struct save *save);
void save_agree_end(struct save *save); /* called when the status is final */
void save_agree_fini(struct save *save);

/* save_check.c */
void save_check_init(struct save *save);
bool save_check_is_wanted(const struct save *save); /* there is something to compare */
void save_check_begin(struct save *save);
void save_check_go(struct save *save); /* compares, once digests and connection are there */
void save_check_down(struct save *save);
bool save_check_is_over(const struct save *save); /* nothing is being compared any more */

#endif
