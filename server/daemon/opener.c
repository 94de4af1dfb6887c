/* SPDX-License-Identifier: Apache-2.0
 *
 * opener: see opener.h.
 */
#include "daemon/opener.h"

#include "base/check.h"

#include <stdlib.h>

struct opener {
    struct opener_options options;
    struct work work;
    struct timer timer;
    bool running, ended, closing;
    struct store *store;
    int status;
    struct diag diag;
    void (*closed)(void *user);
    void *closed_user;
};

/* Returns true for an error that neither time nor work on the cluster mends. */
static bool is_final(int status)
{
    return status == CAIRN_E_NO_STORE || status == CAIRN_E_STORE_MISMATCH ||
           status == CAIRN_E_STORE_FEATURES || status == CAIRN_E_FORMAT ||
           status == CAIRN_E_DAMAGED || status == CAIRN_E_INTERNAL;
}

static void run_open(struct work *work)
{
    struct opener *opener = container_of(work, struct opener, work);
    opener->status = store_open(&opener->options.open, &opener->store, &opener->diag);
}

static void free_opener(struct opener *opener)
{
    CHECK(!opener->running);
    void (*closed)(void *user) = opener->closed;
    void *user = opener->closed_user;
    free(opener);
    if (closed) {
        closed(user);
    }
}

static void on_store_closed(void *user) { free_opener(user); }

/* Called when a try has ended: tells the result, or tries again later. While the opener closes, a
 * store that has just been opened is closed again. */
static void on_opened(struct work *work)
{
    struct opener *opener = container_of(work, struct opener, work);
    const struct opener_options *options = &opener->options;
    CHECK(opener->running);
    CHECK((opener->status == 0) == (opener->store != NULL));
    opener->running = false;
    if (opener->closing && opener->status == 0) {
        store_close(opener->store, on_store_closed, opener);
    } else if (opener->closing) {
        free_opener(opener);
    } else if (opener->status == 0 || is_final(opener->status)) {
        opener->ended = true;
        options->ended(options->user, opener->status, opener->store, &opener->diag);
    } else {
        timer_start(&opener->timer, options->again_ms);
        options->failed(options->user, &opener->diag);
    }
}

static void try_now(struct opener *opener)
{
    CHECK(!opener->running);
    CHECK(!opener->ended);
    CHECK(!opener->closing);
    opener->running = true;
    opener->store = NULL;
    diag_clear(&opener->diag);
    opener->work = (struct work){.run = run_open, .done = on_opened};
    work_submit(opener->options.open.pool, &opener->work);
}

static void on_timer(struct timer *timer) { try_now(container_of(timer, struct opener, timer)); }

int opener_new(const struct opener_options *options, struct opener **ret)
{
    CHECK(options->ended != NULL);
    CHECK(options->failed != NULL);
    struct opener *opener = calloc(1, sizeof(*opener));
    if (!opener) {
        return CAIRN_E_NO_MEMORY;
    }
    opener->options = *options;
    timer_init(&opener->timer, options->open.loop, on_timer);
    *ret = opener;
    try_now(opener);
    return 0;
}

void opener_close(struct opener *opener, void (*done)(void *user), void *user)
{
    CHECK(!opener->closing);
    CHECK(done != NULL || opener->ended);
    opener->closing = true;
    opener->closed = done;
    opener->closed_user = user;
    timer_stop(&opener->timer);
    if (!opener->running) {
        free_opener(opener);
    }
}
