/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs that other daemons have made. Only the store knows them, so a refresh lists the store. One
 * listing is under way at a time. A refresh that is asked for meanwhile waits for the next listing,
 * because the present one may have begun before the run was made. No refresh is answered before the
 * start-up has read every record, because a record says whether its run was removed. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

enum { REFRESH_EVERY_MS = 5000 };

static void turn(struct catalog *catalog);

/* Posts a turn. The catalogue is held until it has run. */
static void post_turn(struct catalog *catalog)
{
    if (!catalog->refresh.posted) {
        catalog->refresh.posted = true;
        catalog_hold(catalog);
        loop_post(catalog->loop, &catalog->refresh.post);
    }
}

static void on_post(struct post *post)
{
    struct catalog *catalog = container_of(post, struct catalog, refresh.post);
    CHECK(catalog->refresh.posted);
    catalog->refresh.posted = false;
    turn(catalog);
    catalog_drop(catalog);
}

static void on_timer(struct timer *timer)
{
    struct catalog *catalog = container_of(timer, struct catalog, refresh.timer);
    if (!catalog->refresh.busy) {
        turn(catalog);
    }
    timer_start(&catalog->refresh.timer, REFRESH_EVERY_MS);
}

void catalog_refresh_init(struct catalog *catalog)
{
    list_init(&catalog->refresh.waiting);
    list_init(&catalog->refresh.asked);
    catalog->refresh.post.cb = on_post;
    timer_init(&catalog->refresh.timer, catalog->loop, on_timer);
}

void catalog_refresh_start(struct catalog *catalog)
{
    if (catalog->options.poll_ms != 0 && !catalog->closing) {
        timer_start(&catalog->refresh.timer, REFRESH_EVERY_MS);
    }
}

/* Answers all refreshes of the list. */
static void answer(struct list *refreshes, int status, const struct diag *diag)
{
    struct list *node;
    while ((node = list_pop(refreshes))) {
        struct catalog_refresh *refresh = list_item(node, struct catalog_refresh, link);
        refresh->status = status;
        if (diag) {
            err_ignore(
                diag_copy(&refresh->diag, diag)); /* the refresh's own status carries the result */
        }
        refresh->done(refresh);
    }
}

/* Called when the runs were listed again. Runs that this daemon did not know were made by other
 * daemons. */
static void on_listed(struct store_req *req)
{
    struct catalog *catalog = container_of(req, struct catalog, refresh.req);
    int status = req->status;
    CHECK(catalog->refresh.busy);
    catalog->refresh.busy = false;
    for (size_t i = 0; status == 0 && !catalog->closing && i < req->ret_count; i++) {
        if (!catalog_hold_run(catalog, &req->ret_runs[i], true)) {
            status = diag_no_memory(&req->diag, "the list of runs");
        }
    }
    free(req->ret_runs);
    req->ret_runs = NULL;
    if (status != 0) {
        LOG(LOG_DEBUG, "run", "the runs of the store cannot be listed",
            ls("err", diag_text(&req->diag, status)));
    }
    answer(&catalog->refresh.asked, status, status != 0 ? &req->diag : NULL);
    if (!list_is_empty(&catalog->refresh.waiting) && !catalog->closing) {
        post_turn(catalog);
    }
    catalog_drop(catalog);
}

/* Starts a listing for the waiting refreshes, or answers them if no other daemon makes runs. */
static void turn(struct catalog *catalog)
{
    if (catalog->closing || !catalog->swept) {
        return; /* catalog_refresh_close() has answered them; or catalog_refresh_swept() will come
                 */
    }
    struct list *node;
    while (!catalog->refresh.busy && (node = list_pop(&catalog->refresh.waiting))) {
        list_add_tail(&catalog->refresh.asked, node);
    }
    if (catalog->options.poll_ms == 0) {
        answer(&catalog->refresh.asked, 0, NULL);
    } else if (!catalog->refresh.busy) {
        catalog->refresh.busy = true;
        catalog->refresh.req = (struct store_req){
            .op = STORE_LIST_RUNS, .deadline_ms = RUN_STORE_DEADLINE_MS, .done = on_listed};
        catalog_hold(catalog);
        store_submit(catalog->store, &catalog->refresh.req);
    }
}

void catalog_refresh_swept(struct catalog *catalog)
{
    if (!list_is_empty(&catalog->refresh.waiting) && !catalog->closing) {
        post_turn(catalog);
    }
}

void catalog_refresh(struct catalog *catalog, struct catalog_refresh *refresh)
{
    CHECK(refresh->done != NULL);
    refresh->status = 0;
    list_init(&refresh->link);
    list_add_tail(&catalog->refresh.waiting, &refresh->link);
    post_turn(catalog);
}

void catalog_refresh_cancel(struct catalog_refresh *refresh)
{
    if (refresh->link.next) {
        list_remove(&refresh->link);
    }
}

void catalog_refresh_close(struct catalog *catalog)
{
    timer_stop(&catalog->refresh.timer);
    answer(&catalog->refresh.waiting, CAIRN_E_SHUTTING_DOWN, NULL);
    answer(&catalog->refresh.asked, CAIRN_E_SHUTTING_DOWN, NULL);
}
