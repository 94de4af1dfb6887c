/* SPDX-License-Identifier: Apache-2.0
 *
 * See offline_store.h. The parts are freed in the reverse order of their making.
 */
#include "offline_store.h"

void offline_store_wake(void *user)
{
    struct offline_store *store = user;
    store->done = true;
    loop_uv_stop(store->loop);
}

void offline_store_wait(struct offline_store *store)
{
    while (!store->done) {
        loop_uv_run(store->loop);
    }
    store->done = false;
}

static void on_ready(void *user, int status, const struct diag *diag)
{
    struct offline_store *store = user;
    store->status = status;
    if (status != 0) {
        err_ignore(diag_copy(&store->diag, diag)); /* returned by open_catalog */
    }
    offline_store_wake(store);
}

int offline_store_begin(struct offline_store *store, const char *url, struct diag *diag)
{
    int status = store_url_check(url, diag);
    if (status == 0 && store->loop == NULL) {
        status = loop_uv_new(&store->loop, diag);
        store->owns_loop = status == 0;
    }
    return status != 0 ? status
                       : work_threads_new(store->loop, store_url_threads_min(url) + 2,
                                          "cairn-store", &store->store_pool, diag);
}

static int open_catalog(struct offline_store *store, struct diag *diag)
{
    int status = 0;
    if (store->pool == NULL) {
        status = work_threads_new(store->loop, 1, "cairn-work", &store->pool, diag);
        store->owns_pool = status == 0;
    }
    struct catalog_options options = {.pool = store->pool, .ready = on_ready, .user = store};
    status =
        status != 0 ? status : catalog_new(store->loop, store->store, &options, &store->catalog);
    if (status != 0) {
        return status;
    }
    offline_store_wait(store);
    return store->status != 0
               ? diag_set(diag, store->status, "%s", diag_text(&store->diag, store->status))
               : 0;
}

int offline_store_open(struct offline_store *store, struct store_open_options *options,
                       struct diag *diag)
{
    int status = offline_store_begin(store, options->url, diag);
    options->loop = store->loop;
    options->pool = store->store_pool;
    status = status != 0 ? status : store_open(options, &store->store, diag);
    return status != 0 ? status : open_catalog(store, diag);
}

void offline_store_leave(struct offline_store *store)
{
    if (store->catalog) {
        catalog_close(store->catalog, offline_store_wake, store);
        offline_store_wait(store);
    }
    if (store->store) {
        store_close(store->store, offline_store_wake, store);
        offline_store_wait(store);
    }
    store->catalog = NULL;
    store->store = NULL;
}

void offline_store_close(struct offline_store *store)
{
    offline_store_leave(store);
    work_threads_free(store->owns_pool ? store->pool : NULL);
    work_threads_free(store->store_pool);
    if (store->owns_loop) {
        loop_uv_free(store->loop);
    }
}
