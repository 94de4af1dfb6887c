/* SPDX-License-Identifier: Apache-2.0
 *
 * A restore, from the question which checkpoint to take, to the verdict of all ranks. The server
 * gives all ranks the same (term, step). Each rank verifies what it needs and reports; the restore
 * succeeds only if all verified the same checkpoint. A damaged one moves all ranks to an older one,
 * or fails all. Loop's thread.
 *
 *   RESOLVE -> MANIFEST -> PAGES -> PLAN -> READ -> REPORT -> DRAIN -> END
 *                ^                                    |  a verdict for another checkpoint
 *                +------------------------------------+
 *   MANIFEST .. READ --this rank cannot--> SETTLE -> REPORT
 *    any --deadline, abort, final refusal--> DRAIN
 *
 * Each state waits for its call (call.c handles reconnects and the deadline), READ for its slots,
 * SETTLE and DRAIN until no worker touches memory.
 */
#include "engine/restore_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RS_RESOLVE,
    RS_MANIFEST,
    RS_PAGES,
    RS_PLAN,
    RS_READ,
    RS_SETTLE,
    RS_REPORT,
    RS_DRAIN,
    RS_END
};
#define RESTORE_SCRATCH_MAX ((size_t)8 << 30)
enum { RESTORE_SLACK_MS_MAX = 500 };

static struct restore *restore_of_sm(struct sm *sm) { return container_of(sm, struct restore, sm); }

bool restore_is_reading(const struct restore *restore)
{
    return sm_is(&restore->sm, RS_READ) && restore->report_code == 0;
}

void restore_wake(struct restore *restore) { sm_run(&restore->sm); }

static void on_up(struct engine_op *op)
{
    struct restore *restore = container_of(op, struct restore, op);
    if (restore->landing.state == LANDING_HELD) {
        restore_land_stop(restore); /* the memory was handed over on another connection */
    }
    if (restore_is_reading(restore)) {
        restore_read_pump(restore);
    }
}

/* --- calls ----------------------------------------------------------------------- */

/* Frees the answer to the last request. The next state may ask then. */
static void end_call(struct restore *restore)
{
    if (restore->asked) {
        CHECK(restore->come);
        free(restore->call.payload);
        engine_call_fini(&restore->call);
    }
    memset(&restore->call, 0, sizeof restore->call);
    restore->asked = restore->come = false;
}

static void move(struct restore *restore, unsigned state)
{
    if (!restore->asked || restore->come) {
        end_call(restore);
    }
    sm_move(&restore->sm, state);
}

static void on_call_done(struct engine_call *call, int status)
{
    struct restore *restore = container_of(call, struct restore, call);
    restore->come = true;
    restore->call_status = status;
    restore_wake(restore);
}

/* Sends the request; the answer comes to on_call_done. */
static enum sm_result ask(struct restore *restore, const struct msg *msg)
{
    restore->asked = true;
    restore->call = (struct engine_call){
        .request = *msg,
        .done = on_call_done,
        .deadline_ms = max_u64(1, engine_ms_left(restore->engine, restore->end_ms))};
    engine_call_start(restore->engine, &restore->call);
    return SM_WAIT;
}

/* --- ends ------------------------------------------------------------------------ */

/* Ends the whole restore with this failure; it then waits for workers only. */
static void restore_fail(struct restore *restore, int status, const struct diag *diag)
{
    if (restore->status != 0 || sm_is(&restore->sm, RS_DRAIN) || sm_is(&restore->sm, RS_END)) {
        return;
    }
    restore->status = status;
    diag_clear(&restore->user->diag);
    diag_set(&restore->user->diag, status, "%s", diag_text(diag, status));
    if (restore->asked && !restore->come) {
        engine_call_cancel(&restore->call);
    }
    restore_wake(restore);
}

void restore_cannot(struct restore *restore, int code, const struct diag *diag)
{
    if (restore->report_code != 0 || restore->status != 0) {
        return;
    }
    restore->report_code = code;
    diag_clear(&restore->report_diag);
    diag_set(&restore->report_diag, code, "%s", diag_text(diag, code));
    restore_wake(restore);
}

/* Called first in all states between RESOLVE and REPORT. Returns true if it has moved the
 * machine. */
static bool is_interrupted(struct restore *restore)
{
    if (restore->status != 0) {
        move(restore, RS_DRAIN);
        return true;
    }
    if (restore->report_code != 0) {
        move(restore, RS_SETTLE);
        return true;
    }
    return false;
}

int restore_damage_code(int status)
{
    switch (status) {
    case CAIRN_E_NOT_FOUND:
    case CAIRN_E_FORMAT:
    case CAIRN_E_DIGEST_MISMATCH:
        return CAIRN_E_DAMAGED;
    case CAIRN_E_IO:
        return CAIRN_E_DIGEST_MISMATCH;
    default:
        return status;
    }
}

/* A FETCH or PLAN failed: reports damage, or ends the restore if the reason is another one. */
static enum sm_result call_failed(struct restore *restore, const char *what)
{
    int status = restore->call_status;
    struct diag diag = restore->call.diag;
    diag_add(&diag, "%s of step %s", what, ckpt_id_text(restore->user->id).at);
    if (status == CAIRN_E_CONNECTION_LOST || status == CAIRN_E_UNREACHABLE ||
        status == CAIRN_E_TIMED_OUT || status == CAIRN_E_CLOSED || status == CAIRN_E_CANCELLED ||
        restore->engine->link.status != 0) {
        restore_fail(restore, status, &diag);
    } else {
        restore_cannot(restore, restore_damage_code(status), &diag);
    }
    return SM_AGAIN; /* is_interrupted moves the machine */
}

/* --- which one ------------------------------------------------------------------- */

static uint64_t server_wait_ms(const struct restore *restore)
{
    uint64_t left_ms = engine_ms_left(restore->engine, restore->end_ms);
    return left_ms - min_u64(left_ms / 10, RESTORE_SLACK_MS_MAX);
}

/* Sets the checkpoint that is tried now, and forgets the report of the try before. */
static void begin_try(struct restore *restore, struct ckpt_id id, uint32_t try_count,
                      const struct ckpt_info *info)
{
    restore->user->id = id;
    restore->try_count = try_count;
    restore->user->info = *info;
    restore->user->info.text = NULL; /* borrowed, as the note is, from a reply that is freed */
    restore->user->info.tags = NULL;
    restore->user->info.metrics = NULL;
    restore->user->info.tag_count = restore->user->info.metric_count = 0;
    restore->report_code = 0;
    diag_clear(&restore->report_diag);
}

/* Takes the answer to RESTORE: the run is empty, or the first try begins. */
static void resolved(struct restore *restore)
{
    const struct msg_resolved reply = restore->call.reply.u.resolved;
    struct engine *engine = restore->engine;
    struct diag diag = DIAG_INIT;
    if (!engine->options.viewer) {
        engine->restores_begun = restore->ordinal;
        engine->newest_seen = reply.newest_term;
    }
    if (reply.empty) {
        restore->user->empty = true;
        engine->restores_done = restore->ordinal;
        engine->parent = (struct ckpt_id){0};
        diag_set(&diag, CAIRN_E_NOT_FOUND, "the run has no checkpoint yet");
        restore_fail(restore, CAIRN_E_NOT_FOUND, &diag);
        move(restore, RS_DRAIN);
        return;
    }
    restore->user->fell_back = reply.fell_back;
    begin_try(restore, reply.id, reply.try_count, &reply.info);
    restore_land_begin(restore); /* goes on beside all requests until the first READ */
    move(restore, RS_MANIFEST);
}

static enum sm_result on_resolve(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    if (restore->status != 0) {
        move(restore, RS_DRAIN);
        return SM_AGAIN;
    }
    if (!restore->asked) {
        struct msg msg = {.type = MSG_RESTORE,
                          .u.restore = {.ordinal = restore->ordinal,
                                        .selector = restore->user->selector,
                                        .allow_older = restore->user->allow_older,
                                        .wait_ms = server_wait_ms(restore)}};
        return ask(restore, &msg);
    }
    if (!restore->come) {
        return SM_WAIT;
    }
    if (restore->call_status != 0) {
        struct diag diag = restore->call.diag;
        restore_fail(restore, restore->call_status, &diag);
        return SM_AGAIN;
    }
    resolved(restore);
    return SM_AGAIN;
}

/* --- metadata -------------------------------------------------------------------- */

static enum sm_result ask_fetch(struct restore *restore, uint32_t kind, uint32_t number)
{
    struct msg msg = {.type = MSG_FETCH,
                      .u.fetch = {.id = restore->user->id, .kind = kind, .number = number}};
    return ask(restore, &msg);
}

enum { FETCH_MANIFEST = 1, FETCH_PAGE = 3 };

/* Goes on to a state; if rc is not 0, what came is not good, and the checkpoint cannot be read. */
static enum sm_result go_on(struct restore *restore, unsigned state, int rc,
                            const struct diag *diag)
{
    if (rc != 0) {
        restore_cannot(restore, rc, diag);
    } else {
        move(restore, state);
    }
    return SM_AGAIN;
}

static enum sm_result on_manifest(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    struct diag diag = DIAG_INIT;
    if (is_interrupted(restore)) {
        return SM_AGAIN;
    }
    if (!restore->asked) {
        return ask_fetch(restore, FETCH_MANIFEST, 0);
    }
    if (!restore->come) {
        return SM_WAIT;
    }
    if (restore->call_status != 0) {
        return call_failed(restore, "manifest");
    }
    int rc = restore_take_manifest(restore, &diag);
    return go_on(restore, RS_PAGES, rc, &diag);
}

static bool skip_to_index_page(struct restore *restore)
{
    const struct manifest *manifest = &restore->user->manifest;
    while (restore->page_at < manifest->page_count &&
           manifest->pages[restore->page_at].kind != PAGE_INDEX) {
        restore->page_at++;
    }
    return restore->page_at < manifest->page_count;
}

/* All pages have been read: checks that the index is complete, and makes the list of the boxes that
 * are wanted. */
static enum sm_result pages_end(struct restore *restore)
{
    struct diag diag = DIAG_INIT;
    int rc = restore->index.count == restore->index.cap
                 ? restore_check(restore, &diag)
                 : diag_set(&diag, CAIRN_E_DAMAGED,
                            "the checkpoint's index has %zu names, but its manifest says %zu; "
                            "restore an older checkpoint, and run `cairn verify` on this one",
                            restore->index.count, restore->index.cap);
    if (rc == 0) {
        rc = restore_make_wants(restore, &diag);
    }
    return go_on(restore, RS_PLAN, rc, &diag);
}

static enum sm_result on_pages(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    struct diag diag = DIAG_INIT;
    if (is_interrupted(restore)) {
        return SM_AGAIN;
    }
    if (!restore->asked) {
        return skip_to_index_page(restore) ? ask_fetch(restore, FETCH_PAGE, restore->page_at)
                                           : pages_end(restore);
    }
    if (!restore->come) {
        return SM_WAIT;
    }
    if (restore->call_status != 0) {
        return call_failed(restore, "index page");
    }
    int rc = restore_take_page(restore, &diag);
    if (rc != 0) {
        restore_cannot(restore, rc, &diag);
        return SM_AGAIN;
    }
    restore->page_at++;
    move(restore, RS_PAGES);
    return SM_AGAIN;
}

/* --- data ------------------------------------------------------------------------ */

/* Called when the whole plan has arrived. Begins to read. */
static enum sm_result plan_end(struct restore *restore)
{
    struct diag diag = DIAG_INIT;
    int rc = restore_end_plan(restore, &diag);
    if (rc != 0) {
        restore_cannot(restore, rc, &diag);
        return SM_AGAIN;
    }
    move(restore, RS_READ);
    restore->has_moved = true;
    restore_read_start(restore);
    return SM_AGAIN;
}

static enum sm_result on_plan(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    struct diag diag = DIAG_INIT;
    if (is_interrupted(restore)) {
        return SM_AGAIN;
    }
    if (!restore->asked) {
        struct msg msg = {.type = MSG_PLAN};
        return restore_next_plan(restore, &msg.u.plan) ? ask(restore, &msg) : plan_end(restore);
    }
    if (!restore->come) {
        return SM_WAIT;
    }
    if (restore->call_status != 0) {
        return call_failed(restore, "plan");
    }
    int rc = restore_take_plan(restore, restore->call.payload_bytes, restore->call.payload, &diag);
    return go_on(restore, RS_PLAN, rc, &diag);
}

/* The records are read. Goes on to the report when no group is left. */
static enum sm_result on_read(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    if (is_interrupted(restore)) {
        return SM_AGAIN;
    }
    if (!restore_read_is_done(restore)) {
        return SM_WAIT;
    }
    move(restore, RS_REPORT);
    return SM_AGAIN;
}

/* --- together -------------------------------------------------------------------- */

static enum sm_result on_settle(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    restore_read_stop(restore);
    if (restore->slots_busy > 0 || (restore->asked && !restore->come)) {
        return SM_WAIT;
    }
    move(restore, restore->status != 0 ? RS_DRAIN : RS_REPORT);
    return SM_AGAIN;
}

static void succeed(struct restore *restore)
{
    struct engine *engine = restore->engine;
    if (!engine->options.viewer) {
        engine->restores_done = restore->ordinal;
        engine->parent = restore->user->id;
    }
    move(restore, RS_DRAIN);
}

/* Ends the restore with the failure that this rank has found, or else with call_status and the
 * text. */
static enum sm_result fail_by_report(struct restore *restore, const char *said)
{
    struct diag diag = DIAG_INIT;
    if (restore->report_code != 0) {
        restore_fail(restore, restore->report_code, &restore->report_diag);
    } else {
        diag_set(&diag, restore->call_status, "%s", said);
        restore_fail(restore, restore->call_status, &diag);
    }
    diag_add(&restore->user->diag, "do not use the restored state");
    move(restore, RS_DRAIN);
    return SM_AGAIN;
}

/* Takes the answer to REPORT, which is the same for all ranks: the restore has succeeded, has
 * failed, or tries an older checkpoint. */
static enum sm_result verdict(struct restore *restore)
{
    const struct msg_verdict reply = restore->call.reply.u.verdict;
    restore->engine->newest_seen = reply.newest_term;
    if (reply.code != 0) {
        char text[DIAG_TEXT_MAX];
        snprintf(text, sizeof text, "%.400s",
                 reply.text && reply.text[0] ? reply.text : err_text(reply.code));
        restore->call_status = reply.code < 0 ? reply.code : CAIRN_E_PROTOCOL;
        if (restore->report_code != 0 && restore->report_code != CAIRN_E_DAMAGED) {
            return fail_by_report(restore, text);
        }
        /* The server's text about damage names everything that was tried. */
        restore->report_code = 0;
        return fail_by_report(restore, text);
    }
    /* RESOLVED may know another reason, because the verdict is about the tries of this session
     * alone. */
    restore->user->fell_back = restore->user->fell_back || reply.fell_back;
    if (reply.done && restore->report_code == 0 && ckpt_id_equal(reply.id, restore->user->id)) {
        succeed(restore);
        return SM_AGAIN;
    }
    if (reply.done ||
        (ckpt_id_equal(reply.id, restore->user->id) && reply.try_count == restore->try_count)) {
        restore->call_status = CAIRN_E_PROTOCOL;
        return fail_by_report(restore, "the server's answer contradicts this rank's report");
    }
    LOG(LOG_WARN, "restore", "the checkpoint is damaged; the restore falls back to an older one",
        lu("step", restore->user->id.step), lu("term", restore->user->id.term),
        lu("older_step", reply.id.step), lu("rank", restore->engine->options.rank),
        ls("err", restore->report_code != 0 ? restore->report_diag.text : "another rank found it"));
    begin_try(restore, reply.id, reply.try_count, &reply.info);
    move(restore, RS_MANIFEST);
    return SM_AGAIN;
}

/* Tells the server how the try went and waits until all ranks have said it. A viewer is alone, and
 * decides by itself. */
static enum sm_result on_report(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    if (restore->status != 0) {
        move(restore, RS_DRAIN);
        return SM_AGAIN;
    }
    if (restore->engine->options.viewer) {
        if (restore->report_code != 0) {
            return fail_by_report(restore, "");
        }
        succeed(restore);
        return SM_AGAIN;
    }
    if (!restore->asked) {
        struct msg msg = {
            .type = MSG_REPORT,
            .u.report = {.ordinal = restore->ordinal,
                         .try_count = restore->try_count,
                         .code = restore->report_code,
                         .reason = restore->report_code != 0 ? restore->report_diag.text : "",
                         .wait_ms = server_wait_ms(restore)}};
        return ask(restore, &msg);
    }
    if (!restore->come) {
        return SM_WAIT;
    }
    if (restore->call_status != 0) {
        return fail_by_report(restore, restore->call.diag.text);
    }
    return verdict(restore);
}

/* --- the end --------------------------------------------------------------------- */

static bool is_drained(const struct restore *restore)
{
    return restore->slots_busy == 0 && (!restore->asked || restore->come) &&
           !restore_land_is_busy(restore);
}

static void enter_drain(struct sm *sm) { timer_stop(&restore_of_sm(sm)->timer); }

static enum sm_result on_drain(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    restore_read_stop(restore); /* at each wake, because a worker may have come back with a slot */
    if (is_drained(restore)) {
        move(restore, RS_END);
    }
    return SM_WAIT;
}

static void enter_end(struct sm *sm)
{
    struct restore *restore = restore_of_sm(sm);
    loop_post(restore->engine->options.loop, &restore->post);
}

/* CHECKs the invariant of a restore that has just moved to another state. */
static void check_restore(const struct sm *sm)
{
    const struct restore *restore = container_of(sm, struct restore, sm);
    unsigned state = sm->state;
    CHECK(state == RS_DRAIN || !restore->asked); /* one request in each state */
    CHECK(state < RS_MANIFEST || state > RS_REPORT || restore->user->id.term != 0);
    CHECK(state == RS_SETTLE || state >= RS_DRAIN || restore->slots_busy == 0);
    CHECK(state != RS_END || is_drained(restore));
}

/* Frees the restore and calls the user's on_done. It runs as a post, so that no function of the
 * restore is on the stack. */
static void on_deliver(struct post *post)
{
    struct restore *restore = container_of(post, struct restore, post);
    struct engine *engine = restore->engine;
    struct engine_restore *user = restore->user;
    int status = restore->status;
    list_remove(&restore->op.link);
    restore_read_fini(restore);
    restore_land_fini(restore);
    registered_unref(restore->set);
    free(restore);
    user->impl = NULL;
    if (status != 0 && user->id.term != 0) {
        engine_name_failure(engine, user->id.step, &user->diag);
    }
    user->on_done(user, status);
    engine_op_gone(engine);
}

/* The other ranks wait for this rank's report. Tells them, if the connection is up, that it will
 * not come. */
static void tell_others(struct restore *restore, int code, const char *why)
{
    struct link *link = &restore->engine->link;
    bool joined = restore->engine->restores_begun == restore->ordinal && restore->try_count != 0;
    if (joined && link_is_up(link) && !restore->engine->options.viewer) {
        struct request nobody = {.ops = NULL};
        struct msg msg = {.type = MSG_REPORT,
                          .u.report = {.ordinal = restore->ordinal,
                                       .try_count = restore->try_count,
                                       .code = code,
                                       .reason = why}};
        nobody.stream = link->next_stream++; /* its reply is dropped */
        link_send(link, &nobody, &msg);
    }
}

static const char *state_after(const struct restore *restore)
{
    return restore->has_moved ? "do not use the state in memory"
                              : "the state in memory is as it was";
}

/* The deadline of the restore has passed. The other ranks are told, because none of them can use
 * what it has restored. */
static void on_timer(struct timer *timer)
{
    struct restore *restore = container_of(timer, struct restore, timer);
    const struct link *link = &restore->engine->link;
    struct diag diag = DIAG_INIT;
    bool is_up = link_is_up(link);
    int code = is_up || restore->has_moved ? CAIRN_E_TIMED_OUT : CAIRN_E_UNREACHABLE;
    diag_set(&diag, code, "the restore took over %llu ms (in state %s)%s%s; %s",
             (unsigned long long)restore->user->deadline_ms, sm_state_name(&restore->sm),
             is_up ? "" : "; there was no connection: ",
             is_up ? "" : diag_text(&link->diag, link->diag.code), state_after(restore));
    tell_others(restore, code, diag.text);
    restore_fail(restore, code, &diag);
}

/* --- the states -------------------------------------------------------------------- */

#define RS_STOP (SM_TO(RS_SETTLE) | SM_TO(RS_DRAIN))
static const struct sm_state restore_table[] = {
    [RS_RESOLVE] = {"resolve", on_resolve, SM_TO(RS_MANIFEST) | SM_TO(RS_DRAIN), 0},
    [RS_MANIFEST] = {"manifest", on_manifest, SM_TO(RS_PAGES) | RS_STOP, 0},
    [RS_PAGES] = {"pages", on_pages, SM_TO(RS_PAGES) | SM_TO(RS_PLAN) | RS_STOP, 0},
    [RS_PLAN] = {"plan", on_plan, SM_TO(RS_PLAN) | SM_TO(RS_READ) | RS_STOP, 0},
    [RS_READ] = {"read", on_read, SM_TO(RS_REPORT) | RS_STOP, 0},
    [RS_SETTLE] = {"settle", on_settle, SM_TO(RS_REPORT) | SM_TO(RS_DRAIN), 0},
    [RS_REPORT] = {"report", on_report, SM_TO(RS_MANIFEST) | SM_TO(RS_DRAIN), 0},
    [RS_DRAIN] = {"drain", on_drain, SM_TO(RS_END), 0, enter_drain},
    [RS_END] = {"end", NULL, 0, SM_FINAL, enter_end},
};

/* --- the user's side ------------------------------------------------------------- */

static void fail(struct engine_op *op, int status, const struct diag *diag)
{
    restore_fail(container_of(op, struct restore, op), status, diag);
}

static const struct engine_op_ops restore_op_ops = {.on_up = on_up, .fail = fail};

static void on_no_memory(struct post *post)
{
    struct engine_restore *user = container_of(post, struct engine_restore, no_memory);
    user->on_done(user, CAIRN_E_NO_MEMORY);
}

void engine_restore_start(struct engine *engine, struct engine_restore *user)
{
    struct diag diag = DIAG_INIT;
    CHECK(engine->magic == ENGINE_MAGIC);
    user->empty = user->fell_back = false;
    diag_clear(&user->diag);
    scratch_init(&user->scratch, RESTORE_SCRATCH_MAX);
    struct restore *restore = calloc(1, sizeof *restore);
    if (!restore) {
        diag_no_memory(&user->diag, "a restore");
        user->no_memory.cb = on_no_memory;
        loop_post(engine->options.loop, &user->no_memory);
        return;
    }
    restore->engine = engine;
    restore->user = user;
    restore->set = registered_ref(user->set);
    restore->op.ops = &restore_op_ops;
    restore->post.cb = on_deliver;
    restore->end_ms = loop_now_ms(engine->options.loop) + engine_cut_deadline(user->deadline_ms);
    restore->ordinal = engine->restores_begun + 1;
    timer_init(&restore->timer, engine->options.loop, on_timer);
    sm_init(&restore->sm, restore_table, RS_RESOLVE, "restore", ++engine->op_count);
    restore->sm.invariant = check_restore;
    engine->agreement.restored = engine->op_count;
    user->impl = restore;
    list_add_tail(&engine->restores, &restore->op.link);
    int refused = engine_refuses(engine, &diag);
    if (refused != 0) {
        restore_fail(restore, refused, &diag);
        return;
    }
    link_hurry(&engine->link);
    timer_start(&restore->timer, engine_cut_deadline(user->deadline_ms));
    restore_wake(restore);
}

void engine_restore_abort(struct engine_restore *user)
{
    struct diag diag = DIAG_INIT;
    if (user->impl) {
        diag_set(&diag, CAIRN_E_CANCELLED, "the caller aborted the restore; %s",
                 state_after(user->impl));
        tell_others(user->impl, CAIRN_E_CANCELLED, diag.text);
        restore_fail(user->impl, CAIRN_E_CANCELLED, &diag);
    }
}

void engine_restore_fini(struct engine_restore *user)
{
    CHECK(!user->impl);
    scratch_fini(&user->scratch);
}
