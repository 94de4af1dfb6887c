/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_list and cairn_status: one small request at a time, posted to the handle's thread and
 * waited for. The request lies on the caller's stack: it is answered, or the handle's thread is
 * gone for good. The caller's thread, but for start and on_done.
 */
#include "api_private.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_PAGE = 1000 };

struct request {
    struct cairn *cairn;
    struct post start;
    struct engine_call call;
    bool done; /* handle's lock */
    int status;
};

static void on_done(struct engine_call *call, int status)
{
    struct request *request = container_of(call, struct request, call);
    struct cairn *cairn =
        request->cairn; /* the request is the waiter's again once the lock is free */
    pthread_mutex_lock(&cairn->lock);
    request->status = status;
    request->done = true;
    pthread_cond_broadcast(&cairn->cond);
    pthread_mutex_unlock(&cairn->lock);
}

static void start(struct post *post)
{
    struct request *request = container_of(post, struct request, start);
    engine_call_start(request->cairn->engine, &request->call);
}

/* The reply is in request->call until engine_call_fini, which the caller owes when the result is 0.
 */
static int ask(struct request *request, struct diag *diag)
{
    struct cairn *cairn = request->cairn;
    pthread_mutex_lock(&cairn->lock);
    bool refused = cairn->is_closing || cairn->is_buried;
    pthread_mutex_unlock(&cairn->lock);
    if (refused) {
        return diag_set(diag, CAIRN_E_CLOSED, "the handle is being closed");
    }
    request->start.cb = start;
    request->call.done = on_done;
    loop_post(cairn->loop, &request->start);
    pthread_mutex_lock(&cairn->lock);
    while (!request->done && !cairn->is_buried) {
        pthread_cond_wait(&cairn->cond, &cairn->lock); /* the engine keeps the deadline */
    }
    bool done = request->done;
    pthread_mutex_unlock(&cairn->lock);
    if (!done) {
        return handle_dead_diag(cairn, diag);
    }
    if (request->status != 0) {
        request->call.diag.code = request->status;
        diag_copy(diag, &request->call.diag);
        engine_call_fini(&request->call);
    }
    return request->status;
}

/* --- what came back
 * ------------------------------------------------------------------------------- */

static struct cairn_checkpoint convert(const struct ckpt_info *info)
{
    struct cairn_checkpoint to = CAIRN_CHECKPOINT_INIT;
    to.term = info->id.term;
    to.step = info->id.step;
    to.sequence = info->seq;
    to.plain_bytes = info->plain_bytes;
    to.stored_bytes = info->stored_bytes;
    to.parent_term = info->parent.term;
    to.parent_step = info->parent.step;
    to.commit_time_ns = info->wall_ns;
    to.world_size = (int32_t)info->world_size;
    to.state = (int)info->state;
    to.health = (int)info->health;
    to.superseded = info->state == CKPT_COMMITTED && !info->on_lineage;
    to.latest = info->is_latest;
    return to;
}

struct cairn_list {
    size_t count, room;
    struct cairn_checkpoint *items;
};

static int list_append(struct cairn_list *list, const struct ckpt_info *info, struct diag *diag)
{
    if (info->state != CKPT_COMMITTED) {
        return 0;
    }
    if (list->count == list->room) {
        size_t room = list->room > 0 ? list->room * 2 : 64;
        struct cairn_checkpoint *items = realloc(list->items, room * sizeof *items);
        if (items == NULL) {
            return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a list of %zu checkpoints",
                            list->count);
        }
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = convert(info);
    return 0;
}

static int list_page(struct cairn *cairn, struct cairn_list *list, uint64_t deadline_ms,
                     uint64_t *io_before, struct diag *diag)
{
    struct request request = {.cairn = cairn, .call = {.deadline_ms = deadline_ms}};
    request.call.request.type = MSG_LIST;
    request.call.request.u.list = (struct msg_list){.before_seq = *io_before, .limit = LIST_PAGE};
    int rc = ask(&request, diag);
    if (rc != 0) {
        return rc;
    }
    const struct msg_list_reply *reply = &request.call.reply.u.list_reply;
    uint64_t least = *io_before;
    for (uint32_t i = 0; i < reply->count && rc == 0; i++) {
        const struct ckpt_info *info = &reply->entries[i];
        rc = list_append(list, info, diag);
        if (info->state == CKPT_COMMITTED) {
            least = info->seq;
        }
    }
    /* 0: that was all. A page that brings nothing new would be asked for again without end. */
    bool goes_on = reply->more && least > 1 && (*io_before == 0 || least < *io_before);
    if (rc == 0 && reply->more && !goes_on) {
        rc = diag_set(diag, CAIRN_E_PROTOCOL,
                      "the server's list of checkpoints does not get on below sequence %llu",
                      (unsigned long long)*io_before);
    }
    *io_before = goes_on ? least : 0;
    engine_call_fini(&request.call);
    return rc;
}

/* --- the calls
 * ------------------------------------------------------------------------------------ */

struct list_call {
    struct cairn *cairn;
    int64_t deadline_ms;
    struct cairn_list **ret;
};

static int run_list(void *arg, struct diag *diag)
{
    const struct list_call *call = arg;
    int rc = handle_check_may_block(call->cairn, diag);
    if (rc != 0) {
        return rc;
    }
    if (call->ret == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "ret is NULL");
    }
    struct cairn_list *list = calloc(1, sizeof *list);
    if (list == NULL) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a list");
    }
    uint64_t end_ms =
        args_now_ns() / 1000000 + args_deadline_ms(call->deadline_ms, call->cairn->io_deadline_ms);
    uint64_t before = 0;
    do {
        uint64_t now_ms = args_now_ns() / 1000000;
        rc = list_page(call->cairn, list, end_ms > now_ms ? end_ms - now_ms : 1, &before, diag);
    } while (rc == 0 && before != 0);
    if (rc != 0) {
        cairn_list_free(list);
        return rc;
    }
    *call->ret = list;
    return 0;
}

int cairn_list(cairn_t *cairn, int64_t deadline_ms, cairn_list_t **ret, struct cairn_error *err)
{
    struct list_call call = {cairn, deadline_ms, ret};
    return guard_call(cairn, run_list, &call, err);
}

size_t cairn_list_count(const cairn_list_t *list) { return list != NULL ? list->count : 0; }

void cairn_list_get(const cairn_list_t *list, size_t idx, struct cairn_checkpoint *io)
{
    if (list != NULL && io != NULL && idx < list->count) {
        args_give(sizeof list->items[idx], &list->items[idx], io);
    }
}

void cairn_list_free(cairn_list_t *list)
{
    if (list != NULL) {
        free(list->items);
        free(list);
    }
}

struct status_call {
    struct cairn *cairn;
    int64_t deadline_ms;
    struct cairn_checkpoint *io;
};

static int run_status(void *arg, struct diag *diag)
{
    const struct status_call *call = arg;
    struct cairn_checkpoint wanted = CAIRN_CHECKPOINT_INIT;
    int rc = handle_check_may_block(call->cairn, diag);
    if (rc == 0 && call->io == NULL) {
        rc = diag_set(diag, CAIRN_E_INVALID, "io is NULL");
    }
    rc = rc != 0 ? rc : args_copy("cairn_checkpoint", sizeof wanted, call->io, &wanted, diag);
    if (rc != 0) {
        return rc;
    }
    struct request request = {.cairn = call->cairn};
    request.call.deadline_ms = args_deadline_ms(call->deadline_ms, call->cairn->io_deadline_ms);
    request.call.request.type = MSG_STATUS;
    request.call.request.u.status.id = (struct ckpt_id){.term = wanted.term, .step = wanted.step};
    rc = ask(&request, diag);
    if (rc == 0) {
        struct cairn_checkpoint found = convert(&request.call.reply.u.status_reply.info);
        args_give(sizeof found, &found, call->io);
        engine_call_fini(&request.call);
    }
    return rc;
}

int cairn_status(cairn_t *cairn, int64_t deadline_ms, struct cairn_checkpoint *io,
                 struct cairn_error *err)
{
    struct status_call call = {cairn, deadline_ms, io};
    return guard_call(cairn, run_status, &call, err);
}
