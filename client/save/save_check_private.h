/* SPDX-License-Identifier: Apache-2.0
 *
 * Comparing replicas (check_replicas), a machine of its own, run by callbacks only:
 *
 *   OFF ---> DIGEST ---> MADE ---> OVER
 *    '---------'-------------------^
 *
 * OFF: nothing is compared, or not yet. DIGEST: workers make the digests. MADE: all digests are
 * there, and the server is asked on each connection until it has answered. OVER: there is a result,
 * or the reason why there is none. Loop's thread; works touch only what their comment says.
 */
#ifndef CAIRN_SAVE_SAVE_CHECK_PRIVATE_H
#define CAIRN_SAVE_SAVE_CHECK_PRIVATE_H

#include "save/save_agree_private.h"

enum check_state { CH_OFF, CH_DIGEST, CH_MADE, CH_OVER };
enum { CHECK_WORKS = 2, CHECK_TEXT_BYTES = 600 };

struct save_check;
struct check_group;
struct check_work { /* work: reads held and the tensors, writes digests */
    struct work work;
    struct save_check *check;
    bool failed;
};

struct save_check {
    struct sm sm;
    struct save_common *common;
    struct save_agree *agree; /* its groups and lists; it owns the arrays below */
    struct check_work works[CHECK_WORKS];
    _Atomic uint32_t next; /* the next tensor that no worker has taken */
    unsigned running;
    struct xxh128 *digests; /* by tensor; NULL if none are made */
    struct check_group *groups;
    uint32_t differing; /* tensors that differ */
    bool asked;         /* DIGESTS were sent on this connection */
    struct timer timer; /* from the first DIGESTS until the answer */
    uint64_t wait_ms;   /* how long the timer runs */
    char text[CHECK_TEXT_BYTES];
};

void save_check_init(struct save_check *check, struct save_agree *agree);
/* Called when the copy begins: workers read the same memory beside it. Does nothing if nothing is
 * to be compared. */
void save_check_begin(struct save_check *check);
/* Compares, once digests and connection are there and AGREE was sent. */
void save_check_go(struct save_check *check);
void save_check_down(struct save_check *check);             /* the connection was lost */
bool save_check_is_reading(const struct save_check *check); /* workers read the caller's memory */
bool save_check_is_over(const struct save_check *check);    /* nothing is compared any more */
void save_check_end(struct save_check *check);              /* called when the status is final */

#endif
