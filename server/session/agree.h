/* SPDX-License-Identifier: Apache-2.0
 *
 * agree: what the ranks of one opening have said of their lists and replicas, and what follows from
 * it. Nothing of it is durable or has to be: coverage at the commit decides, a restarted daemon
 * agrees anew. Memory is bounded by a budget that all openings share; what does not fit is answered
 * "unknown". One loop's thread.
 */
#ifndef CAIRN_SESSION_AGREE_H
#define CAIRN_SESSION_AGREE_H

#include "base/list.h"
#include "run/run.h"
#include "wire/msg.h"

#define AGREE_BUDGET_BYTES ((uint64_t)64 << 20)

struct agree_book { /* of a server */
    struct list all;
    uint64_t bytes_used, bytes_max;
};
void agree_book_init(struct agree_book *book, uint64_t bytes_max);

struct agree;

struct agree_key {
    struct run *run; /* stays while anybody holds the agreement */
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t world_size;
};
/* The one of that opening, made when new; a reference. over: called for each wait when the save has
 * ended, with the reason. NO_MEMORY. */
int MUST_USE agree_hold(struct agree_book *book, const struct agree_key *key, struct agree **ret);
struct agree *agree_ref(struct agree *agree);
void agree_drop(struct agree *agree); /* NULL is fine */

/* Somebody who waits for an answer. ready: look again (it may free itself); over: the save has
 * ended (code 0: well), the wait is out of the list. Neither comes inside agree_wait. */
struct agree_wait {
    struct list link;
    bool (*is_ready)(struct agree_wait *wait);
    void (*ready)(struct agree_wait *wait); /* out of the list */
    void (*over)(struct agree_wait *wait, int code, const char *why);
};
void agree_wait(struct agree *agree, struct agree_wait *wait);
void agree_poll(struct agree *agree); /* something has come */

/* What a rank says. PROTOCOL, INVALID: it contradicts itself or others. */
int MUST_USE agree_join(struct agree *agree, uint32_t rank, const struct msg_agree *msg,
                        struct diag *diag);
int MUST_USE agree_list(struct agree *agree, uint32_t rank, const struct msg_lists *msg,
                        struct diag *diag);
int MUST_USE agree_digests(struct agree *agree, uint32_t rank, const struct msg_digests *msg,
                           struct diag *diag);

/* 0: not decided. */
enum msg_agree_verdict agree_verdict(const struct agree *agree, struct xxh128 group);
bool agree_has_lists(const struct agree *agree, struct xxh128 group);
bool agree_has_digests(const struct agree *agree, struct xxh128 group);
/* The next frame of the answer; *io_at begins with 0. Rows point into the agreement. */
int MUST_USE agree_holders(const struct agree *agree, struct xxh128 group, uint32_t *io_at,
                           struct scratch *scratch, struct msg_sets *ret);
int MUST_USE agree_compared(const struct agree *agree, struct xxh128 group, uint32_t *io_at,
                            struct scratch *scratch, struct msg_sets *ret);

#endif
