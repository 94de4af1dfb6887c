/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs that other daemons have made. Only the store knows them, so a look lists the store. One
 * listing is under way at a time. A look that is asked for meanwhile waits for the next listing,
 * because the present one may have begun before the run was made. No look is answered before the
 * start-up has read every record, because a record says whether its run was removed. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

enum { LOOK_EVERY_MS = 5000 };

static void turn(struct catalog *catalog);

/* Posts a turn. The catalogue is held until it has run. */
static void post_turn(struct catalog *catalog)
{
    if (!catalog->look.posted) {
        catalog->look.posted = true;
        catalog_hold(catalog);
        loop_post(catalog->loop, &catalog->look.post);
    }
}

static void on_post(struct post *post)
{
    struct catalog *catalog = container_of(post, struct catalog, look.post);
    CHECK(catalog->look.posted);
    catalog->look.posted = false;
    turn(catalog);
    catalog_drop(catalog);
}

static void on_timer(struct timer *timer)
{
    struct catalog *catalog = container_of(timer, struct catalog, look.timer);
    if (!catalog->look.busy) {
        turn(catalog);
    }
    timer_start(&catalog->look.timer, LOOK_EVERY_MS);
}

void catalog_refresh_init(struct catalog *catalog)
{
    list_init(&catalog->look.waiting);
    list_init(&catalog->look.asked);
    catalog->look.post.cb = on_post;
    timer_init(&catalog->look.timer, catalog->loop, on_timer);
}

void catalog_refresh_start(struct catalog *catalog)
{
    if (catalog->options.poll_ms != 0 && !catalog->closing) {
        timer_start(&catalog->look.timer, LOOK_EVERY_MS);
    }
}

/* Answers all looks of the list. */
static void answer(struct list *looks, int status, const struct diag *diag)
{
    struct list *node;
    while ((node = list_pop(looks))) {
        struct catalog_refresh *look = list_item(node, struct catalog_refresh, link);
        look->status = status;
        if (diag) {
            err_ignore(diag_copy(&look->diag, diag)); /* the look's own status carries the result */
        }
        look->done(look);
    }
}

/* Called when the runs were listed again. Runs that this daemon did not know were made by other
 * daemons. */
static void on_listed(struct store_req *req)
{
    struct catalog *catalog = container_of(req, struct catalog, look.req);
    int status = req->status;
    CHECK(catalog->look.busy);
    catalog->look.busy = false;
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
    answer(&catalog->look.asked, status, status != 0 ? &req->diag : NULL);
    if (!list_is_empty(&catalog->look.waiting) && !catalog->closing) {
        post_turn(catalog);
    }
    catalog_drop(catalog);
}

/* Starts a listing for the waiting looks, or answers them if no other daemon makes runs. */
static void turn(struct catalog *catalog)
{
    if (catalog->closing || !catalog->swept) {
        return; /* catalog_refresh_close() has answered them; or catalog_refresh_swept() will come
                 */
    }
    struct list *node;
    while (!catalog->look.busy && (node = list_pop(&catalog->look.waiting))) {
        list_add_tail(&catalog->look.asked, node);
    }
    if (catalog->options.poll_ms == 0) {
        answer(&catalog->look.asked, 0, NULL);
    } else if (!catalog->look.busy) {
        catalog->look.busy = true;
        catalog->look.req = (struct store_req){
            .op = STORE_LIST_RUNS, .deadline_ms = RUN_STORE_DEADLINE_MS, .done = on_listed};
        catalog_hold(catalog);
        store_submit(catalog->store, &catalog->look.req);
    }
}

void catalog_refresh_swept(struct catalog *catalog)
{
    if (!list_is_empty(&catalog->look.waiting) && !catalog->closing) {
        post_turn(catalog);
    }
}

void catalog_refresh(struct catalog *catalog, struct catalog_refresh *look)
{
    CHECK(look->done != NULL);
    look->status = 0;
    list_init(&look->link);
    list_add_tail(&catalog->look.waiting, &look->link);
    post_turn(catalog);
}

void catalog_refresh_cancel(struct catalog_refresh *look)
{
    if (look->link.next) {
        list_remove(&look->link);
    }
}

void catalog_refresh_close(struct catalog *catalog)
{
    timer_stop(&catalog->look.timer);
    answer(&catalog->look.waiting, CAIRN_E_SHUTTING_DOWN, NULL);
    answer(&catalog->look.asked, CAIRN_E_SHUTTING_DOWN, NULL);
}
