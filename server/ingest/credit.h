/* SPDX-License-Identifier: Apache-2.0
 *
 * credit: the byte budget of payload buffers and its fair rotation. A grant is a buffer that was
 * taken from the pool for one session. Sessions that want buffers take turns, and their reads queue
 * in the same rotation.
 */
#ifndef CAIRN_INGEST_CREDIT_H
#define CAIRN_INGEST_CREDIT_H

#include "base/list.h"
#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>

/* The most buffers that one session may have granted, or may ask for, at a time. */
enum { CREDIT_HELD_MAX = 64 };

struct credit {
    struct pool *pool;
    struct list waiting; /* credit_user.link of the users that want a buffer, in turn */
    uint32_t users;
    bool pumping;
};

/* One session's share of the budget. */
struct credit_user {
    struct credit *credit;
    struct list link;
    uint32_t wanted; /* buffers that the peer asked for and has not been granted */
    uint32_t held_count;
    void *held[CREDIT_HELD_MAX]; /* granted and not yet used */
    uint32_t reading;            /* buffers that its reads are using */
    struct list reads;           /* credit_read.link; each read waits for one buffer */
    void (*on_grant)(struct credit_user *user, uint32_t buffers);
};

/* A read that waits for a buffer; embedded in its owner. */
struct credit_read {
    struct list link;
    void (*on_buffer)(struct credit_read *read, void *buffer);
};

/* Makes the pool. Returns CONFIG if bytes_total holds fewer than four buffers. */
int MUST_USE credit_init(struct credit *credit, uint64_t bytes_total, uint32_t buffer_bytes,
                         struct diag *diag);
void credit_fini(struct credit *credit); /* every buffer must have been given back */
void credit_user_init(struct credit_user *user, struct credit *credit,
                      void (*on_grant)(struct credit_user *, uint32_t));
/* Gives back the buffers that the user holds and drops its queued reads, which their owner frees.
 */
void credit_user_fini(struct credit_user *user);
/* Asks for so many more buffers; on_grant tells when one is granted. */
void credit_want(struct credit_user *user, uint32_t buffers);
void *credit_use(struct credit_user *user); /* takes a granted buffer; NULL if there is none */
/* Gives back a buffer that credit_use() returned. */
void credit_put(struct credit *credit, void *buffer);
/* Gives back the buffer of a read. `user` is NULL if the session has ended. */
void credit_read_put(struct credit *credit, struct credit_user *user, void *buffer);
/* Queues a read. on_buffer is called with a buffer, inside this call or when a buffer becomes free.
 */
void credit_read(struct credit_user *user, struct credit_read *read,
                 void (*on_buffer)(struct credit_read *, void *));

#endif
