/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells the caller of a save: released, staged, handed over, done, in this order and each at most
 * once. All come from one post, so that none runs inside a call, and what a callback does finds the
 * save at rest. Loop's thread.
 */
#include "save/save_tell_private.h"

#include "base/check.h"

/* Runs the callbacks that are due. A save that was waiting for its caller to go on begins after
 * that: layout and copy come behind the caller's return, not before it. */
static void on_deliver(struct post *post)
{
    struct save_tell *tell = container_of(post, struct save_tell, post);
    struct save_common *common = tell->common;
    struct engine *engine = common->engine;
    struct engine_save *user = common->user;
    bool released = tell->released == NEWS_DUE, staged = tell->staged == NEWS_DUE;
    bool handed = tell->handed == NEWS_DUE && tell->staged != NEWS_NONE;
    bool done = tell->done == NEWS_DUE;
    int status = common->status, staged_status = tell->staged_status;
    CHECK(!done || tell->staged != NEWS_NONE);
    tell->released = released ? NEWS_TOLD : tell->released;
    tell->staged = staged ? NEWS_TOLD : tell->staged;
    tell->handed = handed ? NEWS_TOLD : tell->handed;
    if (status != 0 && !tell->named) {
        tell->named = true;
        engine_name_failure(engine, user->step, &user->diag);
    }
    if (done) {
        common->events->free(common);
        user->impl = NULL;
    }
    if (released && user->on_released) {
        user->on_released(user);
    }
    if (staged) {
        user->on_staged(user, staged_status);
    }
    if (handed && user->on_handed) {
        user->on_handed(user);
    }
    if (done) {
        user->on_done(user, status);
        engine_op_gone(engine);
    } else if (released) {
        save_wake(common);
    }
}

void save_tell_init(struct save_tell *tell, struct save_common *common)
{
    tell->common = common;
    tell->post.cb = on_deliver;
}

/* Notes when the caller could go on. */
static void note_free(struct save_tell *tell)
{
    if (tell->free_ms == 0) {
        tell->free_ms = loop_now_ms(tell->common->engine->options.loop);
    }
}

void save_tell_released(struct save_tell *tell)
{
    if (tell->released == NEWS_NONE) {
        tell->released = NEWS_DUE;
        note_free(tell);
        loop_post(tell->common->engine->options.loop, &tell->post);
    }
}

void save_tell_staged(struct save_tell *tell, int status)
{
    if (tell->staged == NEWS_NONE) {
        tell->staged = NEWS_DUE;
        tell->staged_status = status;
        tell->copied_ms = loop_now_ms(tell->common->engine->options.loop);
        note_free(tell);
        loop_post(tell->common->engine->options.loop, &tell->post);
    }
}

void save_tell_handed(struct save_tell *tell)
{
    if (tell->handed == NEWS_NONE && tell->common->status == 0) {
        tell->handed = NEWS_DUE;
        loop_post(tell->common->engine->options.loop, &tell->post);
    }
}

void save_tell_done(struct save_tell *tell)
{
    CHECK(tell->done == NEWS_NONE);
    save_tell_staged(tell, tell->common->status);
    save_tell_handed(tell);
    tell->done = NEWS_DUE;
    loop_post(tell->common->engine->options.loop, &tell->post);
}

void save_tell_keep_times(const struct save_tell *tell)
{
    const struct save_common *common = tell->common;
    uint64_t now_ms = loop_now_ms(common->engine->options.loop);
    if (tell->free_ms != 0) { /* 0 means that it was committed before it was copied */
        common->engine->told.blocked_ms = tell->free_ms - common->begun_ms;
        common->engine->told.staged_ms =
            tell->copied_ms != 0 ? max_u64(1, tell->copied_ms - common->begun_ms) : 0;
        common->engine->told.persist_ms = max_u64(1, now_ms - common->begun_ms);
    }
}

void save_tell_times(struct save_tell *tell, struct msg_open *io)
{
    struct engine *engine = tell->common->engine;
    if (engine->told.persist_ms != 0) { /* kept here for a second try of this OPEN */
        tell->blocked_ms = engine->told.blocked_ms;
        tell->staged_ms = engine->told.staged_ms;
        tell->persist_ms = engine->told.persist_ms;
        engine->told.persist_ms = 0;
    }
    io->blocked_ms = tell->blocked_ms;
    io->staged_ms = tell->staged_ms;
    io->persist_ms = tell->persist_ms;
}
