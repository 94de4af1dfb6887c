/* SPDX-License-Identifier: Apache-2.0
 *
 * credit: the one byte budget of payload buffers and its fair rotation. A grant is a buffer taken
 * from the pool for one session; sessions that want some take turns; reads queue in the same
 * rotation.
 */
#ifndef CAIRN_INGEST_CREDIT_H
#define CAIRN_INGEST_CREDIT_H

#include "base/list.h"
#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>

enum { CREDIT_HELD_MAX = 64 };

struct credit {
    struct pool *pool;
    struct list waiting; /* credit_user.link of those that want something, in turn */
    uint32_t users;
    bool pumping;
};

struct credit_user {
    struct credit *credit;
    struct list link;
    uint32_t wanted; /* buffers that the peer asked for and has not got */
    uint32_t held_count;
    void *held[CREDIT_HELD_MAX]; /* granted, not yet used */
    uint32_t reading;            /* buffers out for reads */
    struct list reads;           /* credit_read.link: each waits for one buffer */
    void (*on_grant)(struct credit_user *user, uint32_t buffers);
};

struct credit_read {
    struct list link;
    void (*on_buffer)(struct credit_read *read, void *buffer);
};

int MUST_USE credit_init(struct credit *credit, uint64_t bytes_total, uint32_t buffer_bytes,
                         struct diag *diag);
void credit_fini(struct credit *credit); /* every buffer must be back */
void credit_user_init(struct credit_user *user, struct credit *credit,
                      void (*on_grant)(struct credit_user *, uint32_t));
/* Returns what is held; queued reads are dropped (their owner frees them). */
void credit_user_fini(struct credit_user *user);
void credit_want(struct credit_user *user, uint32_t buffers);
void *credit_use(struct credit_user *user); /* a granted buffer; NULL: none was granted */
void credit_put(struct credit *credit, void *buffer);
/* Gives a read's buffer back. user: NULL when it has ended. */
void credit_read_put(struct credit *credit, struct credit_user *user, void *buffer);
/* on_buffer is called now or when a buffer comes free. */
void credit_read(struct credit_user *user, struct credit_read *read,
                 void (*on_buffer)(struct credit_read *, void *));

#endif
