/* SPDX-License-Identifier: Apache-2.0
 *
 * See offline_salvage.h: the server's store, catalogue and repair, from bottom to top, for one run
 * after the other. On the loop's thread.
 */
#include "offline_salvage.h"

#include "offline_store.h"

#include <stdio.h>
#include <stdlib.h>

enum { TICK_MS = 200 };

struct salvager {
    const struct offline_salvage_options *options;
    struct offline_store at;
    struct repair *repair;
    struct repair_status ended;
    struct timer tick;
    struct salvaged_run *runs;
    size_t count;
};

static void on_ended(void *user, const struct repair_status *status)
{
    struct salvager *s = user;
    s->ended = *status;
    offline_store_wake(&s->at);
}

static int open_from(void *user, struct loop *loop, struct work_pool *pool, struct store **ret,
                     struct diag *diag)
{
    const struct salvager *s = user;
    struct store_open_options options = {
        .loop = loop, .pool = pool, .url = s->options->from, .read_only = true};
    int status = store_open(&options, ret, diag);
    if (status != 0) {
        diag_add(diag, "--from %s", options.url);
    }
    return status;
}

static void on_tick(struct timer *timer)
{
    struct salvager *s = container_of(timer, struct salvager, tick);
    struct repair_status status;
    repair_status(s->repair, &status);
    s->options->tick(s->options->user, &status);
    timer_start(timer, TICK_MS);
}

static int start(struct salvager *s, struct diag *diag)
{
    const char *from = s->options->from;
    struct store_open_options open = {.url = s->options->store,
                                      .read_only = !s->options->how.yes && !from,
                                      .remedy = from ? "check the path; a mirror is made once, "
                                                       "with `cairn store create`"
                                                     : NULL,
                                      .expected_uuid = s->options->uuid,
                                      .salvaged = s->options->store_lost};
    int status = offline_store_open(&s->at, &open, diag);
    status = status == 0 && from ? store_url_check(from, diag) : status;
    struct repair_options repair = {.loop = s->at.loop,
                                    .catalog = s->at.catalog,
                                    .open_mirror = from ? open_from : NULL,
                                    .mirror_threads = from ? store_url_threads_min(from) + 1 : 0,
                                    .mirror_first = true,
                                    .mirror = from,
                                    .ended = on_ended,
                                    .user = s};
    return status != 0 ? status : repair_new(&repair, &s->repair, diag);
}

static void stop(struct salvager *s)
{
    if (s->repair) {
        repair_close(s->repair, offline_store_wake, &s->at);
        offline_store_wait(&s->at);
    }
    offline_store_close(&s->at);
}

static int one_run(struct salvager *s, const struct run_name *name, struct diag *diag)
{
    struct salvaged_run *grown = realloc(s->runs, (s->count + 1) * sizeof(*grown));
    if (!grown) {
        return diag_no_memory(diag, "one more run");
    }
    s->runs = grown;
    struct salvaged_run *run = &s->runs[s->count++];
    *run = (struct salvaged_run){.run = *name};
    const struct offline_salvage_options *options = s->options;
    int status = options->from
                     ? copy_begin(s->repair, name, &options->how, options->actor, diag)
                     : salvage_begin(s->repair, name, &options->how, options->actor, diag);
    if (status == 0) {
        timer_init(&s->tick, s->at.loop, on_tick);
        if (options->tick) {
            timer_start(&s->tick, TICK_MS);
        }
        offline_store_wait(&s->at);
        timer_stop(&s->tick);
        salvage_take(s->repair, &run->items, &run->count);
        run->code = s->ended.code;
        run->bytes_read = s->ended.bytes_read;
        snprintf(run->text, sizeof(run->text), "%s", s->ended.text);
    }
    return status;
}

static int copy_runs(struct salvager *s, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < s->options->run_count; i++) {
        status = one_run(s, &s->options->runs[i], diag);
    }
    return status;
}

static int all_runs(struct salvager *s, struct diag *diag)
{
    const struct run_name *wanted = s->options->run;
    struct run_name *names = NULL;
    size_t count = 0;
    bool found = false;
    int status = catalog_names(s->at.catalog, &names, &count);
    if (status != 0) {
        return diag_set(diag, status, "there is not enough memory for the names of all runs");
    }
    for (size_t i = 0; status == 0 && i < count; i++) {
        if (!wanted || run_name_equal(wanted, &names[i])) {
            found = true;
            status = one_run(s, &names[i], diag);
        }
    }
    free(names);
    return status == 0 && wanted && !found
               ? diag_set(diag, CAIRN_E_NOT_FOUND, "the store has nothing of a run %s/%s in %s",
                          wanted->project, wanted->run, s->options->store)
               : status;
}

int offline_salvage(const struct offline_salvage_options *options, struct salvaged_run **ret,
                    size_t *ret_count, struct diag *diag)
{
    struct salvager s = {.options = options};
    int status = start(&s, diag);
    if (status == 0) {
        status = options->from ? copy_runs(&s, diag) : all_runs(&s, diag);
    }
    stop(&s);
    if (status != 0) {
        offline_salvage_free(s.runs, s.count);
        return status;
    }
    *ret = s.runs;
    *ret_count = s.count;
    return 0;
}

void offline_salvage_free(struct salvaged_run *runs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(runs[i].items);
    }
    free(runs);
}
