/* SPDX-License-Identifier: Apache-2.0
 *
 * See offline_gc.h: the server's store, catalogue and gc, from bottom to top, run until they have
 * ended.
 */
#include "offline_gc.h"

#include "offline_store.h"

#include <stdio.h>
#include <stdlib.h>

struct collecting {
    struct offline_store at;
    struct work_pool *thread;
    struct gc *gc;
};

static int start(struct collecting *c, const struct offline_gc_options *options, struct diag *diag)
{
    struct store_open_options open = {.url = options->store, .read_only = options->dry_run};
    int status = offline_store_open(&c->at, &open, diag);
    status = status != 0 ? status : work_threads_new(c->at.loop, 1, "cairn-gc", &c->thread, diag);
    struct gc_options gc = {.loop = c->at.loop,
                            .catalog = c->at.catalog,
                            .thread = c->thread,
                            .keep_cycles = options->keep_cycles,
                            .actor = "cairn gc --store",
                            .dry_twice = true,
                            .ended = offline_store_wake,
                            .user = &c->at};
    return status != 0 ? status : gc_new(&gc, &c->gc);
}

static void stop(struct collecting *c)
{
    if (c->gc) {
        gc_close(c->gc, offline_store_wake, &c->at);
        offline_store_wait(&c->at);
    }
    work_threads_free(c->thread);
    offline_store_close(&c->at);
}

/* Adds a pass to the totals. Keeps the last error, or the first one that reports damage. */
static void add(const struct gc_status *status, struct gc_info *io, char text[GC_TEXT_MAX])
{
    uint64_t reclaimed = io->reclaimed, objects = io->objects, smalls = io->smalls;
    uint64_t bytes = io->bytes, bytes_read = io->bytes_read, errors = io->errors;
#define TAKE(number, kind, type, name) io->name = status->name;
    GC_INFO_FIELDS(TAKE)
    GC_INFO_MORE_FIELDS(TAKE)
#undef TAKE
    io->reclaimed += reclaimed;
    io->objects += objects;
    io->smalls += smalls;
    io->bytes += bytes;
    io->bytes_read += bytes_read;
    io->errors += errors;
    if (status->code != 0 && err_exit_status(io->code) != err_exit_status(CAIRN_E_DAMAGED)) {
        io->code = status->code;
        snprintf(text, GC_TEXT_MAX, "%s", status->text);
    }
}

static int check_runs(struct collecting *c, const struct offline_gc_options *options,
                      struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = catalog_names(c->at.catalog, &names, &count);
    for (size_t i = 0; status == 0 && i < options->run_count; i++) {
        bool found = false;
        for (size_t j = 0; j < count && !found; j++) {
            found = run_name_equal(&options->runs[i], &names[j]);
        }
        if (!found) {
            status = diag_set(diag, CAIRN_E_NOT_FOUND,
                              "there is no run %s/%s in %s; `cairn ls --store` lists the runs",
                              options->runs[i].project, options->runs[i].run, options->store);
        }
    }
    free(names);
    return status;
}

static int begin(struct collecting *c, const struct offline_gc_options *options, unsigned pass)
{
    if (options->now) {
        struct gc_order order = {.dry_run = options->dry_run,
                                 .actor = options->actor,
                                 .runs = options->runs,
                                 .run_count = options->run_count};
        return gc_reclaim_now(c->gc, &order);
    }
    bool begun = options->cycle && pass == 0 ? gc_cycle(c->gc, options->dry_run)
                                             : gc_now(c->gc, options->dry_run);
    return begun ? 0 : CAIRN_E_BUSY;
}

int offline_gc(const struct offline_gc_options *options, struct gc_info *ret,
               char text[GC_TEXT_MAX], struct diag *diag)
{
    struct collecting c = {.gc = NULL};
    struct gc_info info = {.text = text};
    struct gc_status status;
    text[0] = '\0';
    int rc = start(&c, options, diag);
    unsigned passes = options->dry_run || options->now ? 1 : 2;
    rc = rc == 0 && options->now ? check_runs(&c, options, diag) : rc;
    for (unsigned pass = 0; rc == 0 && pass < passes; pass++) {
        rc = begin(&c, options, pass);
        if (rc != 0) {
            rc = diag_set(diag, rc, "garbage collection of %s could not begin", options->store);
            break;
        }
        offline_store_wait(&c.at);
        gc_status(c.gc, &status);
        add(&status, &info, text);
    }
    stop(&c);
    if (rc == 0) {
        *ret = info;
    }
    return rc;
}
