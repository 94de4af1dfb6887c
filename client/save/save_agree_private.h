/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of a save: who writes what (save_agree.c), and are replicas equal (save_check.c). Loop's
 * thread; works touch only what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_AGREE_PRIVATE_H
#define CAIRN_SAVE_SAVE_AGREE_PRIVATE_H

#include "engine/operations.h"
#include "share/held.h"
#include "share/share.h"

struct agree_lists;

struct save_agree { /* save_agree.c: who writes what */
    struct held held;
    struct share share;     /* when decided */
    struct scratch scratch; /* the arrays, and the bits in rules */
    struct agree_rule *rules;
    struct agree_lists *lists;
    bool *copies;       /* by group: by what was agreed before */
    uint32_t *verdicts; /* by group; 0: none came */
    struct request request;
    struct timer timer;
    uint32_t lists_open;
    bool begun, asked, answered, decided;
    bool waited;     /* a list was new */
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

struct save_check { /* save_check.c: are replicas equal? */
    struct check_work works[CHECK_WORKS];
    _Atomic uint32_t next;
    unsigned running;
    struct xxh128 *digests; /* by tensor; agree.scratch's, as are groups */
    struct check_group *groups;
    uint32_t groups_open, differing;
    bool begun, failed, made, asked, over;
    bool copied;        /* the copy is made, and the digests are not */
    struct timer timer; /* from the first DIGESTS until the answer */
    uint64_t wait_ms;   /* its length */
    char text[600];
};

/* save_agree.c */
void save_agree_init(struct save *save);
/* Its turn to stage has come. */
int MUST_USE save_agree_begin(struct save *save, struct diag *diag);
void save_agree_opened(struct save *save); /* speaks on this connection */
void save_agree_down(struct save *save);
void save_agree_await(struct save *save); /* sealed: waits for the others */
/* It is laid out: its division is what is agreed when it is committed. */
void save_agree_adopt(struct save *save);
void save_agree_end(struct save *save); /* its status is final */
void save_agree_fini(struct save *save);

/* save_check.c */
void save_check_init(struct save *save);
bool save_check_is_wanted(const struct save *save); /* there is something to compare */
void save_check_begin(struct save *save);
void save_check_go(struct save *save); /* compares, when digests and connection are there */
void save_check_down(struct save *save);
bool save_check_is_over(const struct save *save); /* nothing is being compared any more */

#endif
