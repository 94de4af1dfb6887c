/* SPDX-License-Identifier: Apache-2.0
 *
 * One request and its reply, asked again on every new connection until the deadline. Replies in
 * several frames (BYTES, PLAN_REPLY) are put together. The struct of the reply is copied by
 * encoding and decoding it, which needs no knowledge of the message. Loop's thread.
 *
 *   WAIT_LINK --> ASKED --> DONE
 *   ASKED --> WAIT_LINK   a lost connection, or a refusal for the moment
 */
#include "engine/operations.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { CALL_WAIT_LINK, CALL_ASKED, CALL_DONE };
enum { CALL_SCRATCH_MAX = 64 << 20, CALL_RETRY_MS = 200, CALL_PLAN_BYTES_MAX = 1 << 30 };

static enum sm_result on_wait_link(struct sm *sm);

static const struct sm_state call_table[] = {
    [CALL_WAIT_LINK] = {"wait_link", on_wait_link, SM_TO(CALL_ASKED) | SM_TO(CALL_DONE), 0},
    [CALL_ASKED] = {"asked", NULL, SM_TO(CALL_WAIT_LINK) | SM_TO(CALL_DONE), 0},
    [CALL_DONE] = {"done", NULL, 0, SM_FINAL},
};

struct call {
    struct engine_op op; /* in engine->calls */
    struct sm sm;
    struct engine *engine;
    struct engine_call *user;
    struct request request;
    struct timer deadline, retry;
    struct post post;
    uint8_t *data; /* a payload that grows; the caller gets it at the end */
    uint64_t at, total;
    int status;
    struct diag why; /* the last refusal for the moment, for the text of a time-out */
};

/* Nothing of an earlier reply is left when the call asks, or waits to ask again. */
static void check_call(const struct sm *sm)
{
    const struct call *call = container_of(sm, const struct call, sm);
    CHECK(call->at <= call->total);
    CHECK(sm_is(sm, CALL_DONE) || call->total == 0);
    CHECK(sm_is(sm, CALL_DONE) || !call->data);
}

static void on_up(struct engine_op *op);
static void fail(struct engine_op *op, int status, const struct diag *diag);
static const struct engine_op_ops call_op_ops = {.on_up = on_up, .fail = fail};

/* Frees the call and tells the user. It runs as a post, so that the user may start the next call in
 * the callback. */
static void on_delivered(struct post *post)
{
    struct call *call = container_of(post, struct call, post);
    struct engine *engine = call->engine;
    struct engine_call *user = call->user;
    int status = call->status;
    CHECK(sm_is(&call->sm, CALL_DONE));
    CHECK(call->request.stream == 0);
    list_remove(&call->op.link);
    free(call->data);
    free(call);
    user->impl = NULL;
    user->done(user, status);
    engine_op_gone(engine);
}

/* Ends the call once. Its callback comes from a post. */
static void finish(struct call *call, int status, const struct diag *diag)
{
    if (sm_is(&call->sm, CALL_DONE)) {
        return;
    }
    sm_move(&call->sm, CALL_DONE);
    timer_stop(&call->deadline);
    timer_stop(&call->retry);
    call->status = status;
    if (status == 0) {
        diag_clear(&call->user->diag);
        if (call->data) {
            call->user->payload = call->data;
            call->data = NULL;
        }
        call->user->payload_bytes = (size_t)call->at;
    } else {
        diag_set(&call->user->diag, status, "%s", diag_text(diag, status));
    }
    loop_post(call->engine->options.loop, &call->post);
    link_forget(&call->engine->link, &call->request);
}

static void fail(struct engine_op *op, int status, const struct diag *diag)
{
    finish(container_of(op, struct call, op), status, diag);
}

/* Drops what has come of the reply, and asks again after the delay. */
static void ask_later(struct call *call, uint64_t delay_ms)
{
    if (sm_is(&call->sm, CALL_DONE)) {
        return;
    }
    free(call->data);
    call->data = NULL;
    call->at = call->total = 0;
    sm_move(&call->sm, CALL_WAIT_LINK);
    timer_start(&call->retry, delay_ms);
}

/* The state WAIT_LINK: sends the request when the connection is up and no pause is running. */
static enum sm_result on_wait_link(struct sm *sm)
{
    struct call *call = container_of(sm, struct call, sm);
    if (!link_is_up(&call->engine->link) || timer_is_active(&call->retry)) {
        return SM_WAIT;
    }
    if ((call->user->features & ~call->engine->link.welcome.features) != 0) {
        struct diag diag = DIAG_INIT;
        finish(call,
               diag_set(&diag, CAIRN_E_UNSUPPORTED,
                        "the server is too old for the request %s; upgrade the server",
                        msg_name(call->user->request.type)),
               &diag);
        return SM_WAIT;
    }
    sm_move(&call->sm, CALL_ASKED);
    link_ask(&call->engine->link, &call->request, &call->user->request);
    return SM_WAIT;
}

static void on_up(struct engine_op *op)
{
    struct call *call = container_of(op, struct call, op);
    if (sm_is(&call->sm, CALL_WAIT_LINK)) {
        sm_run(&call->sm);
    }
}

static void on_retry(struct timer *timer)
{
    struct call *call = container_of(timer, struct call, retry);
    sm_run(&call->sm);
}

static void on_deadline(struct timer *timer)
{
    struct call *call = container_of(timer, struct call, deadline);
    const struct link *link = &call->engine->link;
    struct diag diag = DIAG_INIT;
    const char *name = msg_name(call->user->request.type);
    if (!link_is_up(link)) {
        char why[DIAG_TEXT_MAX];
        link_say_why(link, sizeof why, why);
        diag_set(&diag, CAIRN_E_UNREACHABLE,
                 "the request %s could not be sent, because there was no connection before the "
                 "deadline; %s",
                 name, why);
        finish(call, CAIRN_E_UNREACHABLE, &diag);
        return;
    }
    diag_set(&diag, CAIRN_E_TIMED_OUT, "the request %s got no answer before the deadline%s%s", name,
             call->why.code != 0 ? "; last: " : "", call->why.text);
    finish(call, CAIRN_E_TIMED_OUT, &diag);
}

/* --- replies --------------------------------------------------------------------- */

static void on_lost(struct request *request)
{
    struct call *call = container_of(request, struct call, request);
    if (request->was_broken) { /* asked again, the server would say the same */
        finish(call, CAIRN_E_PROTOCOL, &call->engine->link.diag);
        return;
    }
    ask_later(call, 0);
}

/* Copies the reply into the caller's scratch, because the message's memory ends with its frame. */
static int copy_reply(struct call *call, const struct msg *msg, struct diag *diag)
{
    struct buf buf;
    buf_init(&buf, LIMIT_MESSAGE_BYTES);
    msg_encode(msg, &buf);
    int rc = buf_status(&buf);
    if (rc == 0) {
        rc = msg_decode(msg->type, buf.bytes, buf.data, &call->user->scratch, &call->user->reply,
                        diag);
    }
    buf_fini(&buf);
    return rc;
}

/* A server that is stopping will not answer better next time, so another one of the URL is asked.
 * Other requests of this connection are repeated there. If a save is under way the connection
 * stays, because the server lets the save end; the save leaves by itself when it is refused
 * (save_ask.c). */
static void leave_stopping(struct engine *engine)
{
    if (engine->options.url.server_count > 1 && list_is_empty(&engine->saves)) {
        link_reset(&engine->link, CAIRN_E_CONNECTION_LOST,
                   "the server is stopping; another server of the URL is tried");
    }
}

/* Takes an ERROR. A refusal for the moment is asked again; any other error ends the call. */
static void on_error(struct call *call, const struct msg_error *error)
{
    struct diag diag = DIAG_INIT;
    int code = engine_read_error(error, &diag);
    bool is_busy = code == CAIRN_E_BUSY && !call->user->busy_ends;
    if (is_busy || code == CAIRN_E_SHUTTING_DOWN || code == CAIRN_E_AGAIN) {
        call->why = diag;
        ask_later(call, CALL_RETRY_MS);
        if (code == CAIRN_E_SHUTTING_DOWN) {
            leave_stopping(call->engine);
        }
        return;
    }
    finish(call, code, &diag);
}

/* Makes room for a payload of `total` bytes, and keeps what is already there. */
static int grow(struct call *call, uint64_t total, struct diag *diag)
{
    struct engine_call *user = call->user;
    if (user->payload && !call->data) {
        return total <= user->payload_max
                   ? 0
                   : diag_set(diag, CAIRN_E_TOO_LARGE,
                              "the server sent a reply of %llu bytes for a buffer of %zu bytes",
                              (unsigned long long)total, user->payload_max);
    }
    uint8_t *data = realloc(call->data, total > 0 ? total : 1);
    if (!data) {
        return diag_no_memory(diag, "a reply of %llu bytes", (unsigned long long)total);
    }
    call->data = data;
    return 0;
}

/* Gives the length of the payload, as far as this frame tells. PROTOCOL if the frame contradicts an
 * earlier one or itself. */
static int total_of(const struct call *call, const struct frame *frame, const struct msg *msg,
                    uint64_t *ret, struct diag *diag)
{
    uint64_t total = call->at + frame->payload_bytes, limit = LIMIT_PART_BYTES;
    bool fits = true;
    if (msg->type == MSG_BYTES) {
        total = msg->u.bytes.total_bytes;
        fits = msg->u.bytes.offset == call->at && call->at + frame->payload_bytes <= total &&
               (call->at == 0 || total == call->total);
    } else if (msg->type == MSG_PLAN_REPLY) {
        limit = CALL_PLAN_BYTES_MAX;
        fits = (uint64_t)msg->u.plan_reply.record_count * PLAN_READ_BYTES == frame->payload_bytes;
    } else if (msg->type == MSG_READ_REPLY) {
        fits = msg->u.read_reply.bytes == frame->payload_bytes;
    } else if (msg->type == MSG_LANDED) {
        fits = false; /* no call offers memory to land in */
    }
    if (!fits || total > limit) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL,
            "the server sent %s at %llu of %llu bytes, which does not continue the reply so far",
            msg_name(msg->type), (unsigned long long)call->at, (unsigned long long)total);
    }
    *ret = total;
    return 0;
}

/* Returns whether this frame completes the reply. */
static bool is_last(const struct call *call, const struct msg *msg)
{
    if (msg->type == MSG_BYTES) {
        return call->at == call->total;
    }
    return msg->type != MSG_PLAN_REPLY || msg->u.plan_reply.last;
}

/* Called when a frame is complete. The last one ends the call. */
static int frame_done(struct call *call, const struct msg *msg, struct diag *diag)
{
    CHECK(call->at <= call->total);
    if (!is_last(call, msg)) {
        return 0;
    }
    int rc = copy_reply(call, msg, diag);
    if (rc == 0) {
        finish(call, 0, NULL);
    } else {
        finish(call, rc, diag);
    }
    return 0;
}

/* Takes a frame of the reply, and names the place for its payload. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct call *call = container_of(request, struct call, request);
    if (msg->type == MSG_ERROR) {
        on_error(call, &msg->u.error);
        return 0;
    }
    uint64_t total = 0;
    int rc = total_of(call, frame, msg, &total, diag);
    if (rc != 0) {
        return rc;
    }
    call->total = total;
    if (frame->payload_bytes == 0) {
        return frame_done(call, msg, diag);
    }
    rc = grow(call, total, diag);
    if (rc == 0) {
        uint8_t *base = call->data ? call->data : call->user->payload;
        CHECK(call->at + frame->payload_bytes <= total);
        *ret_payload = base + call->at;
    }
    return rc;
}

static int on_payload(struct request *request, const struct frame *frame, const struct msg *msg,
                      void *payload, struct diag *diag)
{
    struct call *call = container_of(request, struct call, request);
    (void)payload;
    CHECK(frame->payload_bytes <= call->total - call->at);
    call->at += frame->payload_bytes;
    return frame_done(call, msg, diag);
}

static const struct request_ops call_request_ops = {
    .on_reply = on_reply, .on_payload = on_payload, .on_lost = on_lost};

/* --- the user's side ------------------------------------------------------------- */

static void on_no_memory(struct post *post)
{
    struct engine_call *user = container_of(post, struct engine_call, no_memory);
    user->done(user, CAIRN_E_NO_MEMORY);
}

void engine_call_start(struct engine *engine, struct engine_call *user)
{
    CHECK(engine->magic == ENGINE_MAGIC);
    CHECK(user->done != NULL);
    CHECK(user->payload != NULL || user->payload_max == 0);
    user->payload_bytes = 0;
    diag_clear(&user->diag);
    memset(&user->reply, 0, sizeof user->reply);
    scratch_init(&user->scratch, CALL_SCRATCH_MAX);
    struct call *call = calloc(1, sizeof *call);
    if (!call) {
        diag_no_memory(&user->diag, "%s", msg_name(user->request.type));
        user->no_memory.cb = on_no_memory;
        loop_post(engine->options.loop, &user->no_memory);
        return;
    }
    *call = (struct call){.engine = engine,
                          .user = user,
                          .op = {.ops = &call_op_ops},
                          .request = {.ops = &call_request_ops},
                          .post = {.cb = on_delivered}};
    user->impl = call;
    timer_init(&call->deadline, engine->options.loop, on_deadline);
    timer_init(&call->retry, engine->options.loop, on_retry);
    sm_init(&call->sm, call_table, CALL_WAIT_LINK, "call", ++engine->op_count);
    call->sm.invariant = check_call;
    list_add_tail(&engine->calls, &call->op.link);
    struct diag diag = DIAG_INIT;
    int refused = engine_refuses(engine, &diag);
    if (refused != 0) {
        finish(call, refused, &diag);
        return;
    }
    link_hurry(&engine->link);
    timer_start(&call->deadline,
                engine_cut_deadline(user->deadline_ms != 0 ? user->deadline_ms
                                                           : engine->options.io_deadline_ms));
    sm_run(&call->sm);
}

void engine_call_cancel(struct engine_call *user)
{
    struct diag diag = DIAG_INIT;
    if (user->impl) {
        diag_set(&diag, CAIRN_E_CANCELLED, "the request %s was cancelled",
                 msg_name(user->request.type));
        finish(user->impl, CAIRN_E_CANCELLED, &diag);
    }
}

void engine_call_fini(struct engine_call *user)
{
    CHECK(!user->impl);
    scratch_fini(&user->scratch);
}
