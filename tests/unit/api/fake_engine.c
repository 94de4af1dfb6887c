/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's interface, played from a script. One engine at a time waits for fake_release();
 * everything else is per engine. Loop's thread, but for fake_release.
 */
#include "fake_engine.h"

#include "base/check.h"
#include "base/list.h"
#include "save/save.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct fake_script fake_script;
struct fake_seen fake_seen;

struct engine {
    struct engine_options options;
    void (*ready)(void *user, int status, const struct diag *diag);
    void *user;
    struct post ready_post, release, closed;
    struct list saves, restores; /* not done */
    void (*closed_cb)(void *user);
    void *closed_user;
};

struct save {
    struct list link;
    struct engine_save *user;
    struct engine *engine;
    struct post released, staged, done;
    struct work copy;
    int status;
    bool is_done;
};

struct restore {
    struct list link;
    struct engine_restore *user;
    struct post done;
    int status;
    bool is_done;
};

/* Guards the pointer only: it is the engine whose operations wait. */
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine *waiting_engine;

void fake_reset(void) { fake_script = (struct fake_script){0}; }

static void set_waiting(struct engine *engine)
{
    pthread_mutex_lock(&waiting_lock);
    waiting_engine = engine;
    pthread_mutex_unlock(&waiting_lock);
}

void fake_release(void)
{
    pthread_mutex_lock(&waiting_lock);
    if (waiting_engine != NULL) {
        loop_post(waiting_engine->options.loop, &waiting_engine->release);
    }
    pthread_mutex_unlock(&waiting_lock);
}

/* --- the end of operations
 * ------------------------------------------------------------------------ */

static void on_save_done(struct post *post)
{
    struct save *save = container_of(post, struct save, done);
    struct engine_save *user = save->user;
    int status = save->status;
    list_remove(&save->link);
    free(save);
    if (status != 0) {
        diag_set(&user->diag, status, "the fake engine was told so");
    }
    user->on_done(user, status);
}

static void save_end(struct save *save, int status)
{
    if (!save->is_done) {
        save->is_done = true;
        save->status = status;
        loop_post(save->engine->options.loop, &save->done);
    }
}

static void on_restore_done(struct post *post)
{
    struct restore *restore = container_of(post, struct restore, done);
    struct engine_restore *user = restore->user;
    int status = restore->status;
    list_remove(&restore->link);
    free(restore);
    if (status != 0) {
        diag_set(&user->diag, status, "the fake engine was told so");
    }
    user->empty = status != 0 && fake_script.empty;
    user->on_done(user, status);
}

static void restore_end(struct engine *engine, struct restore *restore, int status)
{
    if (!restore->is_done) {
        restore->is_done = true;
        restore->status = status;
        loop_post(engine->options.loop, &restore->done);
    }
}

static void end_all(struct engine *engine, int status)
{
    list_each (node, &engine->saves) {
        save_end(list_item(node, struct save, link), status);
    }
    list_each (node, &engine->restores) {
        restore_end(engine, list_item(node, struct restore, link), status);
    }
}

static void on_release(struct post *post)
{
    end_all(container_of(post, struct engine, release), fake_script.done_status);
}

/* --- the engine
 * ----------------------------------------------------------------------------------- */

static void on_ready(struct post *post)
{
    struct engine *engine = container_of(post, struct engine, ready_post);
    struct diag diag = DIAG_INIT;
    if (fake_script.ready != 0) {
        diag_set(&diag, fake_script.ready, "no answer from %s", engine->options.url.servers[0]);
    }
    engine->ready(engine->user, fake_script.ready, &diag);
}

int engine_new(const struct engine_options *options,
               void (*ready)(void *user, int status, const struct diag *diag), void *user,
               struct engine **ret, struct diag *diag)
{
    struct engine *engine = calloc(1, sizeof *engine);
    CHECK(engine != NULL);
    engine->options = *options;
    fake_seen.encoding = (int)options->encoding;
    engine->ready = ready;
    engine->user = user;
    engine->ready_post.cb = on_ready;
    engine->release.cb = on_release;
    list_init(&engine->saves);
    list_init(&engine->restores);
    loop_post(options->loop, &engine->ready_post);
    set_waiting(engine);
    *ret = engine;
    return 0;
}

/* Posts come in order: those of end_all before this one. */
static void on_closed(struct post *post)
{
    struct engine *engine = container_of(post, struct engine, closed);
    void (*cb)(void *user) = engine->closed_cb;
    void *user = engine->closed_user;
    CHECK(list_is_empty(&engine->saves));
    CHECK(list_is_empty(&engine->restores));
    free(engine);
    cb(user);
}

void engine_cut(struct engine *engine) { (void)engine; }

void engine_close(struct engine *engine, void (*done)(void *user), void *user)
{
    set_waiting(NULL);
    end_all(engine, CAIRN_E_CLOSED);
    engine->closed.cb = on_closed;
    engine->closed_cb = done;
    engine->closed_user = user;
    loop_post(engine->options.loop, &engine->closed);
}

/* --- saves
 * ---------------------------------------------------------------------------------------- */

static void on_save_released(struct post *post)
{
    struct engine_save *user = container_of(post, struct save, released)->user;
    user->on_released(user);
}

static void on_save_staged(struct post *post)
{
    struct save *save = container_of(post, struct save, staged);
    struct engine_save *user = save->user;
    if (fake_script.refuses) {
        user->refused = true;
        diag_set(&user->diag, fake_script.stage_status, "no room, says the fake engine");
    }
    user->id = (struct ckpt_id){.term = 1, .step = user->step};
    atomic_store(&user->total_bytes, 4096);
    atomic_store(&user->staged_bytes, 4096);
    user->on_staged(user, fake_script.stage_status);
    if (fake_script.stage_status != 0 && !fake_script.refuses) {
        save_end(save, fake_script.stage_status);
    } else if (!fake_script.never_ends) {
        atomic_store(&user->durable_bytes, 4096);
        save_end(save, fake_script.done_status);
    }
}

static void copy_run(struct work *work) { CHECK(!fake_script.breaks_worker); }

static void copy_done(struct work *work)
{
    struct save *save = container_of(work, struct save, copy);
    if (!fake_script.never_stages) {
        loop_post(save->engine->options.loop, &save->staged);
    }
}

void engine_save_start(struct engine *engine, struct engine_save *user)
{
    struct save *save = calloc(1, sizeof *save);
    CHECK(save != NULL);
    CHECK(user->set != NULL);
    save->user = user;
    save->engine = engine;
    save->released.cb = on_save_released;
    save->staged.cb = on_save_staged;
    save->done.cb = on_save_done;
    save->copy.run = copy_run;
    save->copy.done = copy_done;
    user->impl = save;
    list_add_tail(&engine->saves, &save->link);
    fake_seen.lazy = user->lazy;
    fake_seen.full = user->full;
    fake_seen.watch = (int)user->watch;
    fake_seen.when_full = (int)user->when_full;
    fake_seen.check_replicas = user->check_replicas;
    fake_seen.after = user->after;
    if (user->lazy) {
        loop_post(engine->options.loop, &save->released);
    }
    if (!user->lazy || !fake_script.copies_when_hurried) {
        work_submit(engine->options.pool, &save->copy);
    }
}

void engine_save_hurry(struct engine_save *user)
{
    if (fake_script.copies_when_hurried) {
        work_submit(user->impl->engine->options.pool, &user->impl->copy);
    }
}

void engine_prepare(struct engine *engine, struct registered *set) { (void)set; /* a hint */ }

void engine_save_abort(struct engine_save *user)
{
    if (!fake_script.ignores_abort) {
        save_end(user->impl, CAIRN_E_ABORTED);
    }
}

/* --- restores
 * ------------------------------------------------------------------------------------- */

static struct engine *restore_engine; /* of the restore that runs: the interface has no way back */

void engine_restore_start(struct engine *engine, struct engine_restore *user)
{
    struct restore *restore = calloc(1, sizeof *restore);
    CHECK(restore != NULL);
    restore->user = user;
    fake_seen.all_local = user->all_local;
    restore->done.cb = on_restore_done;
    user->impl = restore;
    user->id = (struct ckpt_id){.term = 3, .step = 7};
    scratch_init(&user->scratch, MIB(1));
    list_add_tail(&engine->restores, &restore->link);
    restore_engine = engine;
    if (!fake_script.never_ends) {
        restore_end(engine, restore, fake_script.done_status);
    }
}

void engine_restore_abort(struct engine_restore *user)
{
    if (!fake_script.ignores_abort) {
        restore_end(restore_engine, user->impl, CAIRN_E_CANCELLED);
    }
}

void engine_restore_fini(struct engine_restore *restore) { scratch_fini(&restore->scratch); }

/* --- small requests
 * ------------------------------------------------------------------------------- */

struct call {
    struct engine_call *user;
    struct engine *engine;
    struct post done;
};

static struct ckpt_info info_of(uint64_t seq)
{
    return (struct ckpt_info){.id = {.term = 2, .step = seq * 10},
                              .seq = seq,
                              .state = CKPT_COMMITTED,
                              .world_size = 1,
                              .on_lineage = seq != 2,
                              .is_latest = seq == 5};
}

/* Sequences 5 to 1, two a page, with an open one in front of the first. */
static void answer_list(struct engine_call *user)
{
    struct msg_list_reply *reply = &user->reply.u.list_reply;
    uint64_t before = user->request.u.list.before_seq, seq = before != 0 ? before - 1 : 5;
    reply->entries = scratch_array(&user->scratch, 3, sizeof *reply->entries);
    CHECK(reply->entries != NULL);
    if (before == 0) {
        reply->entries[reply->count++] = (struct ckpt_info){.state = CKPT_OPEN, .seq = 9};
    }
    for (unsigned i = 0; i < 2 && seq > 0; i++, seq--) {
        reply->entries[reply->count++] = info_of(seq);
    }
    reply->more = seq > 0;
}

/* A MARK is done, of a step in term 7. */
static void answer_mark(struct engine_call *user)
{
    const struct msg_mark *mark = &user->request.u.mark;
    const struct selector *selector = &mark->selectors[0];
    struct msg_marked *reply = &user->reply.u.marked;
    CHECK(mark->selector_count == 1);
    fake_seen.marks++;
    fake_seen.dry_marks += mark->dry_run;
    fake_seen.mark_term = selector->kind == SELECT_EXACT ? selector->id.term : 0;
    reply->records = scratch_array(&user->scratch, 1, sizeof *reply->records);
    CHECK(reply->records != NULL);
    reply->records[reply->record_count++] =
        (struct msg_mark_record){.id = {.term = 7, .step = selector->id.step}};
}

static void on_call_done(struct post *post)
{
    struct call *call = container_of(post, struct call, done);
    struct engine_call *user = call->user;
    scratch_init(&user->scratch, MIB(1));
    if (user->request.type == MSG_LIST) {
        answer_list(user);
    } else if (user->request.type == MSG_MARK) {
        answer_mark(user);
    } else {
        user->reply.u.status_reply.info = info_of(3);
        user->reply.u.status_reply.info.health = HEALTH_DAMAGED;
    }
    free(call);
    user->impl = NULL;
    if (fake_script.done_status != 0) {
        diag_set(&user->diag, fake_script.done_status, "the fake engine was told so");
    }
    user->done(user, fake_script.done_status);
}

void engine_call_start(struct engine *engine, struct engine_call *user)
{
    struct call *call = calloc(1, sizeof *call);
    CHECK(call != NULL);
    call->user = user;
    call->engine = engine;
    call->done.cb = on_call_done;
    loop_post(engine->options.loop, &call->done);
}

void engine_call_cancel(struct engine_call *user) { (void)user; }

void engine_call_fini(struct engine_call *user) { scratch_fini(&user->scratch); }
