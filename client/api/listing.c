/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_list, cairn_status, cairn_annotate, cairn_forget: one small request, posted to the handle's
 * thread and waited for. The request lies on the caller's stack, which is safe because the caller
 * waits until it is answered or the handle's thread is gone for good. The caller's thread, except
 * start and on_done.
 */
#include "api_private.h"

#include "base/array.h"

#include <math.h>
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

/* Called on the loop's thread when the answer is there. Wakes the thread that asked. */
static void on_done(struct engine_call *call, int status)
{
    struct request *request = container_of(call, struct request, call);
    struct cairn *cairn =
        request->cairn; /* the waiter has the request again once the lock is free */
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

/* Asks, and waits for the reply. If the result is 0, the reply is in request->call, and the caller
 * must call engine_call_fini. */
static int ask(struct request *request, struct diag *diag)
{
    struct cairn *cairn = request->cairn;
    pthread_mutex_lock(&cairn->lock);
    bool refused = cairn->is_closing || cairn->is_buried;
    pthread_mutex_unlock(&cairn->lock);
    if (refused) {
        return diag_set(diag, CAIRN_E_CLOSED, "the handle is being closed; open another one");
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
        return guard_dead(cairn, diag);
    }
    if (request->status != 0) {
        request->call.diag.code = request->status;
        diag_copy(diag, &request->call.diag);
        engine_call_fini(&request->call);
    }
    return request->status;
}

/* --- what came back ----------------------------------------------------------------------- */

/* Converts the server's information into cairn.h's struct. */
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
    to.planned = info->planned;
    return to;
}

struct list_item {
    struct cairn_checkpoint checkpoint;
    uint32_t tag_count, metric_count;
    const char **tags;
    struct metric *metrics;
};

struct cairn_list {
    size_t count, room;
    struct list_item *items;
    struct scratch scratch; /* tags and metrics */
};

enum { LIST_SCRATCH_MAX = 1 << 30 };

/* Copies tags and metrics of a checkpoint into the list's scratch. */
static int list_copy_note(struct cairn_list *list, const struct ckpt_info *info,
                          struct list_item *ret, struct diag *diag)
{
    struct scratch *scratch = &list->scratch;
    bool fits = true;
    ret->tag_count = info->tag_count;
    ret->metric_count = info->metric_count;
    ret->tags = scratch_array(scratch, info->tag_count + 1u, sizeof *ret->tags);
    ret->metrics = scratch_array(scratch, info->metric_count + 1u, sizeof *ret->metrics);
    fits = ret->tags != NULL && ret->metrics != NULL;
    for (uint32_t i = 0; fits && i < info->tag_count; i++) {
        ret->tags[i] = scratch_string(scratch, strlen(info->tags[i]), info->tags[i]);
        fits = ret->tags[i] != NULL;
    }
    for (uint32_t i = 0; fits && i < info->metric_count; i++) {
        const char *name = info->metrics[i].name;
        ret->metrics[i].name = scratch_string(scratch, strlen(name), name);
        ret->metrics[i].value = info->metrics[i].value;
        fits = ret->metrics[i].name != NULL;
    }
    return fits ? 0 : diag_no_memory(diag, "a list of %zu checkpoints", list->count);
}

/* Adds a checkpoint to the list, if it is committed. */
static int list_append(struct cairn_list *list, const struct ckpt_info *info, struct diag *diag)
{
    if (info->state != CKPT_COMMITTED) {
        return 0;
    }
    struct list_item *items = array_room(list->items, list->count, &list->room, sizeof *items);
    if (items == NULL) {
        return diag_no_memory(diag, "a list of %zu checkpoints", list->count);
    }
    list->items = items;
    struct list_item *item = &list->items[list->count];
    item->checkpoint = convert(info);
    int rc = list_copy_note(list, info, item, diag);
    list->count += rc == 0 ? 1 : 0;
    return rc;
}

/* Asks for one page and adds it to the list. *io_before is then the place of the next page, or
 * 0. */
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
    for (uint32_t i = 0; i < reply->count && rc == 0; i++) {
        rc = list_append(list, &reply->entries[i], diag);
    }
    rc = rc != 0 ? rc : msg_list_next(reply, io_before, diag);
    engine_call_fini(&request.call);
    return rc;
}

/* --- the calls ---------------------------------------------------------------------------- */

struct list_call {
    struct cairn *cairn;
    int64_t deadline_ms;
    struct cairn_list **ret;
};

/* Asks for all pages of the list. */
static int run_list(void *arg, struct diag *diag)
{
    const struct list_call *call = arg;
    int rc = guard_check_may_block(call->cairn, diag);
    if (rc != 0) {
        return rc;
    }
    if (call->ret == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "the argument ret is NULL");
    }
    struct cairn_list *list = calloc(1, sizeof *list);
    if (list == NULL) {
        return diag_no_memory(diag, "a list");
    }
    scratch_init(&list->scratch, LIST_SCRATCH_MAX);
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
        args_give(sizeof list->items[idx].checkpoint, &list->items[idx].checkpoint, io);
    }
}

void cairn_list_free(cairn_list_t *list)
{
    if (list != NULL) {
        scratch_fini(&list->scratch);
        free(list->items);
        free(list);
    }
}

const char *cairn_list_tag(const cairn_list_t *list, size_t idx, size_t tag_idx)
{
    bool there = list != NULL && idx < list->count && tag_idx < list->items[idx].tag_count;
    return there ? list->items[idx].tags[tag_idx] : NULL;
}

const char *cairn_list_metric(const cairn_list_t *list, size_t idx, size_t metric_idx,
                              double *ret_value)
{
    if (list == NULL || idx >= list->count || metric_idx >= list->items[idx].metric_count) {
        return NULL;
    }
    const struct metric *metric = &list->items[idx].metrics[metric_idx];
    if (ret_value != NULL) {
        *ret_value = metric->value;
    }
    return metric->name;
}

struct status_call {
    struct cairn *cairn;
    int64_t deadline_ms;
    struct cairn_checkpoint *io;
};

/* Asks for one checkpoint, and writes it to the caller's struct. */
static int run_status(void *arg, struct diag *diag)
{
    const struct status_call *call = arg;
    struct cairn_checkpoint wanted = CAIRN_CHECKPOINT_INIT;
    int rc = guard_check_may_block(call->cairn, diag);
    if (rc == 0 && call->io == NULL) {
        rc = diag_set(diag, CAIRN_E_INVALID, "the argument io is NULL");
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

/* --- annotate ------------------------------------------------------------------------ */

struct annotate_call {
    struct cairn *cairn;
    uint64_t step;
    const struct cairn_annotation *annotation;
};

/* Checks the number and the texts of tags or of names of metrics. */
static int check_labels(const char *what, const char *const *labels, size_t count,
                        struct diag *diag)
{
    if (count > LIMIT_TAGS || (count > 0 && labels == NULL)) {
        return diag_set(diag, count > LIMIT_TAGS ? CAIRN_E_TOO_LARGE : CAIRN_E_INVALID,
                        "%zu %ss are given%s; at most %d are allowed", count, what,
                        labels == NULL ? " at NULL" : "", LIMIT_TAGS);
    }
    for (size_t i = 0; i < count; i++) {
        if (labels[i] == NULL || !text_is_valid(strlen(labels[i]), labels[i], LABEL_BYTES_MAX)) {
            return diag_set(diag, CAIRN_E_INVALID, "%s %zu: 1 to %d bytes of UTF-8 are allowed",
                            what, i, LABEL_BYTES_MAX);
        }
    }
    return 0;
}

/* Makes the message. It borrows the caller's arrays, except the metrics, whose struct differs. */
static int make_annotate(const struct cairn_annotation *from, struct metric *metrics,
                         struct msg_annotate *ret, struct diag *diag)
{
    if (from->metric_count > LIMIT_METRICS || (from->metric_count > 0 && from->metrics == NULL)) {
        return diag_set(diag, from->metrics == NULL ? CAIRN_E_INVALID : CAIRN_E_TOO_LARGE,
                        "%zu metrics are given%s; at most %d are allowed", from->metric_count,
                        from->metrics == NULL ? " at NULL" : "", LIMIT_METRICS);
    }
    for (size_t i = 0; i < from->metric_count; i++) {
        metrics[i] = (struct metric){from->metrics[i].name, from->metrics[i].value};
        int rc = check_labels("name of a metric", &metrics[i].name, 1, diag);
        if (rc == 0 && isnan(metrics[i].value)) {
            rc = diag_set(diag, CAIRN_E_INVALID,
                          "the value of metric \"%s\" is not a number (NaN); leave the metric out",
                          metrics[i].name);
        }
        if (rc != 0) {
            return rc;
        }
    }
    int rc = check_labels("tag", from->tags, from->tag_count, diag);
    if (rc == 0) {
        rc = check_labels("removed tag", from->removed_tags, from->removed_tag_count, diag);
    }
    ret->metrics = metrics;
    ret->metric_count = (uint32_t)from->metric_count;
    ret->tag_count = (uint32_t)from->tag_count;
    ret->removed_count = (uint32_t)from->removed_tag_count;
    /* The message only reads the tags. Its lists are not const, because decoding fills them. */
    memcpy(&ret->tags, &from->tags, sizeof ret->tags);
    memcpy(&ret->removed_tags, &from->removed_tags, sizeof ret->removed_tags);
    return rc;
}

/* Checks the annotation and asks the server to apply it. */
static int run_annotate(void *arg, struct diag *diag)
{
    const struct annotate_call *call = arg;
    struct cairn_annotation annotation = CAIRN_ANNOTATION_INIT;
    struct metric metrics[LIMIT_METRICS];
    int rc = guard_check_may_block(call->cairn, diag);
    if (rc == 0 && call->cairn->viewer) {
        rc = diag_set(diag, CAIRN_E_READ_ONLY,
                      "the handle was opened with read_only, so it cannot annotate; open another "
                      "one without it");
    }
    if (rc == 0) {
        rc = args_copy("cairn_annotation", sizeof annotation, call->annotation, &annotation, diag);
    }
    if (rc == 0 && call->step == CAIRN_LATEST && annotation.term != 0) {
        rc = diag_set(diag, CAIRN_E_INVALID,
                      "annotation.term is %llu, but annotation.step is not set; set both",
                      (unsigned long long)annotation.term);
    }
    struct request request = {.cairn = call->cairn};
    struct msg_annotate *msg = &request.call.request.u.annotate;
    rc = rc != 0 ? rc : make_annotate(&annotation, metrics, msg, diag);
    if (rc != 0) {
        return rc;
    }
    request.call.deadline_ms =
        args_deadline_ms(annotation.deadline_ms, call->cairn->io_deadline_ms);
    request.call.request.type = MSG_ANNOTATE;
    if (call->step != CAIRN_LATEST) {
        msg->selector.kind = annotation.term != 0 ? SELECT_EXACT : SELECT_STEP;
        msg->selector.id = (struct ckpt_id){.term = annotation.term, .step = call->step};
    }
    rc = ask(&request, diag);
    if (rc == 0) {
        engine_call_fini(&request.call);
    } else if (call->step == CAIRN_LATEST) {
        diag_add(diag, "cannot annotate the latest checkpoint");
    } else {
        diag_add(diag, "cannot annotate step %llu", (unsigned long long)call->step);
    }
    return rc;
}

int cairn_annotate(cairn_t *cairn, uint64_t step, const struct cairn_annotation *annotation,
                   struct cairn_error *err)
{
    struct annotate_call call = {cairn, step, annotation};
    return guard_call(cairn, run_annotate, &call, err);
}

/* --- forget -------------------------------------------------------------------------- */

struct forget_call {
    struct cairn *cairn;
    struct selector selector;
    const char *reason;
};

/* Asks the server to forget the checkpoint, or which one it would forget. Then that one is selected
 * exactly. */
static int ask_forget(struct forget_call *call, bool dry_run, struct diag *diag)
{
    struct request request = {.cairn = call->cairn};
    request.call.deadline_ms = call->cairn->io_deadline_ms;
    request.call.request.type = MSG_MARK;
    request.call.request.u.mark =
        (struct msg_mark){.kind = MSG_MARK_FORGET,
                          .dry_run = dry_run,
                          .selectors = &call->selector,
                          .selector_count = 1,
                          .actor = "",
                          .reason = call->reason != NULL ? call->reason : ""};
    int rc = ask(&request, diag);
    unsigned long long step = call->selector.id.step;
    if (rc != 0) {
        diag_add(diag, "cannot forget step %llu", step);
        return rc;
    }
    const struct msg_marked *marked = &request.call.reply.u.marked;
    if (marked->refused_count > 0) {
        rc = diag_set(diag, CAIRN_E_DENIED,
                      "step %llu stays: it is pinned, in use, the newest or one of the last good "
                      "ones, or was never committed; `cairn forget RUN %llu --dry-run` says which",
                      step, step);
    } else if (marked->record_count != 1) {
        rc = diag_set(diag, CAIRN_E_PROTOCOL,
                      "cannot forget step %llu: the server answers with %u checkpoints", step,
                      marked->record_count);
    } else {
        call->selector = (struct selector){SELECT_EXACT, marked->records[0].id};
    }
    engine_call_fini(&request.call);
    return rc;
}

/* Forgets one checkpoint by name. A step is first resolved to its newest version: a request whose
 * answer is lost is sent again, and the step would then mean the version before. */
static int run_forget(void *arg, struct diag *diag)
{
    struct forget_call *call = arg;
    int rc = guard_check_may_block(call->cairn, diag);
    rc = rc != 0 || call->selector.kind == SELECT_EXACT ? rc : ask_forget(call, true, diag);
    return rc != 0 ? rc : ask_forget(call, false, diag);
}

int cairn_forget(cairn_t *cairn, uint64_t step, uint64_t term, const char *reason,
                 struct cairn_error *err)
{
    enum select_kind kind = term != 0 ? SELECT_EXACT : SELECT_STEP;
    struct forget_call call = {cairn, {kind, {.term = term, .step = step}}, reason};
    return guard_call(cairn, run_forget, &call, err);
}
