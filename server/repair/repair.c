/* SPDX-License-Identifier: Apache-2.0
 *
 * The beginning and the end of a repair, on the loop's thread. The work is a function that runs on
 * the repair's thread; a salvage gives another one. Invariant: one work runs at a time.
 */
#include "repair_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

/* A repair that is to end waits for no pace: little is left for it to ask. */
static uint64_t wait_ms(void *user)
{
    const struct repair *repair = user;
    const struct repair_options *options = &repair->options;
    bool waits = options->wait_ms && !atomic_load(&repair->closing);
    return waits ? options->wait_ms(options->user) : 0;
}

static void on_moved(void *user, uint64_t bytes)
{
    const struct repair *repair = user;
    repair->options.moved(repair->options.user, bytes);
}

static void end(struct repair *repair)
{
    work_threads_free(repair->thread);
    work_threads_free(repair->mirror_pool);
    ask_fini(&repair->ask);
    pthread_mutex_destroy(&repair->lock);
    free(repair->items);
    free(repair);
}

static void on_post(struct post *post)
{
    struct repair *repair = container_of(post, struct repair, post);
    void (*closed)(void *user) = repair->closed;
    void *user = repair->closed_user;
    CHECK(!repair->run);
    end(repair);
    closed(user);
}

int repair_new(const struct repair_options *options, struct repair **ret, struct diag *diag)
{
    struct repair *repair = calloc(1, sizeof(*repair));
    if (!repair) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for repairs");
    }
    repair->options = *options;
    repair->post.cb = on_post;
    CHECK(pthread_mutex_init(&repair->lock, NULL) == 0); /* needs no resource but memory on Linux */
    struct ask_options ask = {.loop = options->loop,
                              .wait_ms = wait_ms,
                              .moved = options->moved ? on_moved : NULL,
                              .user = repair};
    ask_init(&repair->ask, &ask);
    int status = work_threads_new(options->loop, 1, "cairn-repair", &repair->thread, diag);
    if (status != 0) {
        end(repair);
        return status;
    }
    *ret = repair;
    return 0;
}

bool repair_is_running(struct repair *repair)
{
    pthread_mutex_lock(&repair->lock);
    bool running = repair->status.running;
    pthread_mutex_unlock(&repair->lock);
    return running;
}

void repair_status(struct repair *repair, struct repair_status *ret)
{
    pthread_mutex_lock(&repair->lock);
    *ret = repair->status;
    pthread_mutex_unlock(&repair->lock);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Called when the mirror is closed, which is the end of a repair: tells its result, or ends the
 * closing. */
static void on_mirror_closed(void *user)
{
    struct repair *repair = user;
    struct repair_status status;
    catalog_release(repair->run);
    repair->run = NULL;
    pthread_mutex_lock(&repair->lock);
    repair->status.running = false;
    status = repair->status;
    pthread_mutex_unlock(&repair->lock);
    if (repair->closed) {
        loop_post(repair->options.loop, &repair->post);
    } else if (repair->options.ended) {
        repair->options.ended(repair->options.user, &status);
    }
}

/* Called on the loop's thread when the repair has ended. The mirror is closed before the end is
 * told. */
static void work_done(struct work *work)
{
    struct repair *repair = container_of(work, struct repair, work);
    CHECK(!repair->remade);
    free(repair->facts);
    repair->facts = NULL;
    reading_end(repair);
    if (repair->mirror) {
        store_close(repair->mirror, on_mirror_closed, repair);
    } else {
        on_mirror_closed(repair);
    }
}

void repair_close(struct repair *repair, void (*done)(void *user), void *user)
{
    CHECK(!repair->closed);
    CHECK(done);
    repair->closed = done;
    repair->closed_user = user;
    atomic_store(&repair->closing, true);
    if (!repair_is_running(repair)) {
        loop_post(repair->options.loop, &repair->post);
    }
}

/* --- the beginning ---------------------------------------------------------------------------- */

/* Runs on the repair's thread. */
static void work_run(struct work *work)
{
    struct repair *repair = container_of(work, struct repair, work);
    struct diag diag = DIAG_INIT;
    int status = repair->task(repair, &diag);
    pthread_mutex_lock(&repair->lock);
    repair->status.code = status;
    if (status != 0) {
        snprintf(repair->status.text, sizeof(repair->status.text), "%.630s",
                 diag_text(&diag, status));
    }
    pthread_mutex_unlock(&repair->lock);
}

static int refuse_second(const struct repair *repair, struct diag *diag)
{
    char what[64] = "the record";
    if (repair->id.term != 0) {
        snprintf(what, sizeof(what), "checkpoint %s", ckpt_id_text(repair->id).at);
    }
    return diag_set(diag, CAIRN_E_BUSY,
                    "a repair is at work on %s of %s/%s; ask again when it has ended", what,
                    repair->name.project, repair->name.run);
}

int repair_start(struct repair *repair, const struct repair_task *task, struct diag *diag)
{
    CHECK(!repair->closed);
    CHECK(task->work);
    if (repair_is_running(repair)) {
        return refuse_second(repair, diag);
    }
    CHECK(!repair->run);
    repair->store = catalog_store(repair->options.catalog);
    if (repair->store->caps.read_only && !task->only_reads) {
        return diag_set(diag, CAIRN_E_READ_ONLY, "the store is read-only: nothing can be repaired");
    }
    struct run *run = catalog_run(repair->options.catalog, &task->run);
    if (!run) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the run to repair; try again");
    }
    int status = mirror_begin(repair, diag);
    if (status != 0) {
        catalog_release(run);
        return status;
    }
    repair->task = task->work;
    repair->name = task->run;
    repair->id = task->id;
    snprintf(repair->actor, sizeof(repair->actor), "%s", task->actor ? task->actor : "");
    repair->run = run;
    reading_begin(repair);
    pthread_mutex_lock(&repair->lock);
    repair->status = (struct repair_status){.running = true, .run = task->run, .id = task->id};
    pthread_mutex_unlock(&repair->lock);
    repair->work = (struct work){.run = work_run, .done = work_done};
    work_submit(repair->thread, &repair->work);
    return 0;
}

int repair_begin(struct repair *repair, const struct run_name *run, struct ckpt_id id,
                 const char *actor, struct diag *diag)
{
    struct repair_task task = {
        .run = *run, .id = id, .actor = actor, .work = id.term == 0 ? repair_record : repair_ckpt};
    return repair_start(repair, &task, diag);
}
