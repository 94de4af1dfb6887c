/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalogue: all runs of a store, found at start by STORE_LIST_RUNS, or named later by sessions
 * that join. Invariant: runs[] is sorted by name, and a run that the store holds stays in it.
 * Nothing is freed before `pending` is zero. Loop's thread.
 */
#include "run_private.h"

#include "base/array.h"
#include "base/check.h"
#include "build.h"

#include <stdlib.h>
#include <string.h>

static void on_listed(struct store_req *req);
static void on_post(struct post *post);
static void sweep(struct catalog *catalog);

int catalog_new(struct loop *loop, struct store *store, const struct catalog_options *options,
                struct catalog **ret)
{
    struct catalog *catalog;

    CHECK(options->pool);
    CHECK(options->ready);
    CHECK(loop != NULL);
    CHECK(store != NULL);
    catalog = calloc(1, sizeof *catalog);
    if (!catalog) {
        return CAIRN_E_NO_MEMORY;
    }
    catalog->loop = loop;
    catalog->store = store;
    catalog->options = *options;
    catalog->clock.seen_at_ms = loop_now_ms(loop);
    catalog->clock.seen_ms = loop_wall_ns(loop) / 1000000 - (int64_t)catalog->clock.seen_at_ms;
    catalog->clock.believed_ms = catalog->clock.seen_ms;
    if (catalog->options.chunk_bytes == 0) {
        catalog->options.chunk_bytes = LIMIT_CHUNK_BYTES;
    }
    if (catalog->options.page_bytes == 0) {
        catalog->options.page_bytes = BUILD_PAGE_BYTES;
    }
    counts_init(&catalog->counts);
    docs_init(&catalog->docs, options->cache_bytes ? options->cache_bytes : MIB(64),
              options->upload_bytes ? options->upload_bytes : MIB(64));
    catalog->post.cb = on_post;
    catalog_refresh_init(catalog);
    catalog->req = (struct store_req){
        .op = STORE_LIST_RUNS, .deadline_ms = RUN_STORE_DEADLINE_MS, .done = on_listed};
    *ret = catalog;
    catalog_hold(catalog);
    store_submit(store, &catalog->req);
    return 0;
}

struct store *catalog_store(struct catalog *catalog) { return catalog->store; }

const struct catalog_options *catalog_options_of(const struct catalog *catalog)
{
    return &catalog->options;
}

size_t catalog_lower_bound(const struct catalog *catalog, const struct run_name *name)
{
    size_t low = 0, high = catalog->run_count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (run_name_compare(&catalog->runs[mid]->name, name) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

struct run *catalog_find(const struct catalog *catalog, const struct run_name *name)
{
    size_t at = catalog_lower_bound(catalog, name);
    bool is_there = at < catalog->run_count && run_name_equal(&catalog->runs[at]->name, name);

    return is_there ? catalog->runs[at] : NULL;
}

/* Returns the run of that name and adds it if it is new. Returns NULL if there is no memory. */
static struct run *run_find_or_add(struct catalog *catalog, const struct run_name *name)
{
    size_t at = catalog_lower_bound(catalog, name);
    struct run *run = NULL;

    if (at < catalog->run_count && run_name_compare(&catalog->runs[at]->name, name) == 0) {
        return catalog->runs[at];
    }
    struct run **runs =
        array_room(catalog->runs, catalog->run_count, &catalog->run_cap, sizeof(struct run *));
    if (!runs) {
        return NULL;
    }
    catalog->runs = runs;
    if (run_new(catalog, name, &run) != 0) {
        return NULL;
    }
    memmove(&catalog->runs[at + 1], &catalog->runs[at],
            (catalog->run_count - at) * sizeof(struct run *));
    catalog->runs[at] = run;
    CHECK(at == 0 || run_name_compare(&catalog->runs[at - 1]->name, name) < 0);
    CHECK(at == catalog->run_count || run_name_compare(name, &catalog->runs[at + 1]->name) < 0);
    catalog->run_count++;
    return run;
}

struct run *catalog_run(struct catalog *catalog, const struct run_name *name)
{
    struct run *run = run_find_or_add(catalog, name);

    if (run) {
        run->users++;
    }
    return run;
}

const struct run_name *catalog_collision(const struct catalog *catalog, const struct run_name *name)
{
    for (size_t i = 0; i < catalog->run_count; i++) {
        const struct run *run = catalog->runs[i];
        if (run->held && run_name_collides(&run->name, name)) {
            return &run->name;
        }
    }
    return NULL;
}

bool catalog_has(const struct catalog *catalog, const struct run_name *name)
{
    const struct run *run = catalog_find(catalog, name);

    return run && run->held;
}

void catalog_release(struct run *run)
{
    CHECK(run->users > 0);
    run->users--;
    run_kick(run);
}

void catalog_forget(struct run *run)
{
    struct catalog *catalog = run->catalog;
    size_t at = catalog_lower_bound(catalog, &run->name);

    CHECK(at < catalog->run_count);
    CHECK(catalog->runs[at] == run);
    CHECK(run_is_unused(run));
    catalog->run_count--;
    memmove(&catalog->runs[at], &catalog->runs[at + 1],
            (catalog->run_count - at) * sizeof(struct run *));
    run_free(run);
}

int catalog_names(struct catalog *catalog, struct run_name **ret, size_t *ret_count)
{
    struct run_name *names = calloc(catalog->run_count ? catalog->run_count : 1, sizeof *names);
    size_t count = 0;

    if (!names) {
        return CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; i < catalog->run_count; i++) {
        if (catalog->runs[i]->held) {
            names[count++] = catalog->runs[i]->name;
        }
    }
    *ret = names;
    *ret_count = count;
    return 0;
}

bool catalog_run_is_removed(struct catalog *catalog, const struct run_name *name)
{
    const struct run *run = catalog_find(catalog, name);
    return run && run->copy != COPY_NONE && run->state.removed;
}

bool catalog_hold_run(struct catalog *catalog, const struct run_name *name, bool load)
{
    struct run *run = run_find_or_add(catalog, name);

    if (!run) {
        return false;
    }
    if (load && !run->held) {
        run->want_load = true;
        run_kick(run);
    }
    if (!run->held) {
        run_changed(run);
    }
    run->held = true;
    return true;
}

/* Called when the store has listed the runs. The start fails if there is no memory for one of them.
 */
static void on_listed(struct store_req *req)
{
    struct catalog *catalog = container_of(req, struct catalog, req);
    int status = req->status;

    CHECK(catalog->sweep_names == NULL);
    for (size_t i = 0; status == 0 && i < req->ret_count; i++) {
        if (!catalog_hold_run(catalog, &req->ret_runs[i], false)) {
            status = diag_no_memory(&req->diag, "a list of more than %zu runs", i);
        }
    }
    if (status == 0) {
        catalog->sweep_names = req->ret_runs;
        catalog->sweep_count = req->ret_count;
    } else {
        free(req->ret_runs);
        diag_add(&req->diag, "cannot list the runs of the store");
    }
    req->ret_runs = NULL;
    catalog->options.ready(catalog->options.user, status, status ? &req->diag : NULL);
    if (status == 0) {
        catalog_refresh_start(catalog);
        sweep(catalog);
    }
    catalog_drop(catalog);
}

/* Reads the record of the next run of the start-up list. Start-up reads the records one after
 * another, so that saves that a crash left sealed are finished, and deadlines run, although nobody
 * asks for the run. */
static void sweep(struct catalog *catalog)
{
    struct run *run;

    if (catalog->closing || catalog->sweep_next == catalog->sweep_count) {
        catalog->swept = true;
        catalog_refresh_swept(catalog);
        return;
    }
    CHECK(catalog->sweep_next < catalog->sweep_count);
    run = run_find_or_add(catalog, &catalog->sweep_names[catalog->sweep_next++]);
    CHECK(run); /* on_listed() has added it */
    CHECK(!run->sweeping);
    run->sweeping = true;
    run_kick(run);
}

void catalog_swept(struct catalog *catalog)
{
    CHECK(!catalog->swept);
    sweep(catalog);
}

void catalog_close(struct catalog *catalog, void (*done)(void *user), void *user)
{
    CHECK(!catalog->closing);
    CHECK(done != NULL);
    catalog->closing = true;
    catalog->closed = done;
    catalog->closed_user = user;
    catalog_hold(catalog);
    catalog_refresh_close(catalog);
    for (size_t i = 0; i < catalog->run_count; i++) {
        run_kick(catalog->runs[i]); /* the driver sees `closing` and answers the waiting requests */
    }
    catalog_drop(catalog);
}

/* Called by the loop when nothing is under way any more: frees the catalogue and tells the caller.
 */
static void on_post(struct post *post)
{
    struct catalog *catalog = container_of(post, struct catalog, post);
    void (*closed)(void *user) = catalog->closed;
    void *user = catalog->closed_user;

    CHECK(catalog->closing);
    CHECK(catalog->pending == 0);
    CHECK(!catalog->refresh.busy);
    for (size_t i = 0; i < catalog->run_count; i++) {
        run_free(catalog->runs[i]);
    }
    docs_fini(&catalog->docs);
    free(catalog->runs);
    free(catalog->sweep_names);
    free(catalog);
    closed(user);
}
