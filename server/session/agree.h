/* SPDX-License-Identifier: Apache-2.0
 *
 * agree: collects what the ranks of one opening have said about their lists and replicas, and
 * derives the answers. Nothing here is durable or has to be: the coverage check at the commit
 * decides, and after a restart of the daemon the ranks agree anew. Memory is bounded by a budget
 * that all openings share; a list that does not fit is answered "unknown". One loop's thread.
 */
#ifndef CAIRN_SESSION_AGREE_H
#define CAIRN_SESSION_AGREE_H

#include "base/list.h"
#include "run/run.h"
#include "wire/msg.h"

#define AGREE_BUDGET_BYTES ((uint64_t)64 << 20)

struct agree_book { /* all agreements of a server */
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
/* Gives a reference to the agreement of that opening, and makes it if it is new. `over` is called
 * for each wait when the save has ended, with the reason. Returns NO_MEMORY if there is no
 * memory. */
int MUST_USE agree_hold(struct agree_book *book, const struct agree_key *key, struct agree **ret);
struct agree *agree_ref(struct agree *agree);
void agree_drop(struct agree *agree); /* accepts NULL */

/* A wait for an answer. `ready` means that the answer should be looked up again; it may free the
 * agreement. `over` means that the save has ended; its code is 0 after a commit. The wait is out of
 * the list before either is called, and neither is called inside agree_wait(). */
struct agree_wait {
    struct list link;
    bool (*is_ready)(struct agree_wait *wait);
    void (*ready)(struct agree_wait *wait); /* the wait is out of the list */
    void (*over)(struct agree_wait *wait, int code, const char *why);
};
void agree_wait(struct agree *agree, struct agree_wait *wait);
/* Called when a message has come: tells the waits that are ready. */
void agree_poll(struct agree *agree);

/* These take what a rank says. They return PROTOCOL or INVALID if the rank contradicts itself or
 * others. */
int MUST_USE agree_join(struct agree *agree, uint32_t rank, const struct msg_agree *msg,
                        struct diag *diag);
int MUST_USE agree_list(struct agree *agree, uint32_t rank, const struct msg_lists *msg,
                        struct diag *diag);
int MUST_USE agree_digests(struct agree *agree, uint32_t rank, const struct msg_digests *msg,
                           struct diag *diag);

/* Returns 0 if the group has not been decided yet. */
enum msg_agree_verdict agree_verdict(const struct agree *agree, struct xxh128 group);
bool agree_has_lists(const struct agree *agree, struct xxh128 group);
bool agree_has_digests(const struct agree *agree, struct xxh128 group);
/* These give the next frame of the answer. *io_at has to be 0 at the first call. The rows point
 * into the agreement. */
int MUST_USE agree_holders(const struct agree *agree, struct xxh128 group, uint32_t *io_at,
                           struct scratch *scratch, struct msg_sets *ret);
int MUST_USE agree_compared(const struct agree *agree, struct xxh128 group, uint32_t *io_at,
                            struct scratch *scratch, struct msg_sets *ret);

#endif
