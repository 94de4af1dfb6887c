/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults by rule, for tests: the k-th operation of a kind fails, is delayed, held, answered with an
 * unknown outcome after it was done, or answered with an unknown outcome and done later. A late one
 * is copied whole, because its caller's memory is gone by then.
 */
#include "store_fault.h"

#include "base/check.h"
#include "base/list.h"
#include "store/wrap/wrap_frame.h"

#include <stdlib.h>
#include <string.h>

enum { FAULT_RULES_MAX = 16 };

struct fault_store {
    struct wrap_store wrap;
    struct store_fault_rule rules[FAULT_RULES_MAX];
    size_t rule_count;
    uint64_t seen;
    struct list held; /* of fault_frame.link */
    struct list late; /* of late_op.link */
};

struct fault_frame {
    struct wrap_frame frame;
    struct list link;
    struct timer timer;
    struct post post; /* for an answer that must not come inside submit */
    enum store_fault_kind kind;
    bool has_fault;
    uint64_t delay_ms;
};

/* A copy of a request whose caller has its answer already. */
struct late_op {
    struct list link;
    struct fault_store *store;
    struct store_req req;
    struct record_update update;
    void *data;
};

static struct fault_store *fault_of(const struct store *base)
{
    return container_of(base, struct fault_store, wrap.base);
}

/* --- late operations -------------------------------------------------------------------------- */

static void late_free(struct late_op *late)
{
    for (size_t i = 0; late->update.guards != NULL && i < late->update.guard_count; i++) {
        free((void *)(uintptr_t)late->update.guards[i].key);
        free((void *)(uintptr_t)late->update.guards[i].value.data);
    }
    for (size_t i = 0; late->update.changes != NULL && i < late->update.change_count; i++) {
        free((void *)(uintptr_t)late->update.changes[i].key);
        free((void *)(uintptr_t)late->update.changes[i].value.data);
    }
    free(late->update.guards);
    free(late->update.changes);
    free(late->data);
    free(late);
}

static struct record_value copy_value(struct record_value value)
{
    uint8_t *data = malloc(value.bytes + 1);
    CHECK(data != NULL); /* a decorator for tests: no memory ends the test */
    if (value.bytes > 0) {
        memcpy(data, value.data, value.bytes);
    }
    return (struct record_value){.bytes = value.bytes, .data = data};
}

static const char *copy_key(const char *key)
{
    char *copy = strdup(key);
    CHECK(copy != NULL);
    return copy;
}

static void copy_update(const struct record_update *from, struct record_update *to)
{
    to->guards = calloc(from->guard_count + 1, sizeof(*to->guards));
    to->changes = calloc(from->change_count + 1, sizeof(*to->changes));
    CHECK(to->guards != NULL && to->changes != NULL);
    to->guard_count = from->guard_count;
    to->change_count = from->change_count;
    for (size_t i = 0; i < from->guard_count; i++) {
        to->guards[i] = (struct record_guard){.key = copy_key(from->guards[i].key),
                                              .absent = from->guards[i].absent,
                                              .value = copy_value(from->guards[i].value)};
    }
    for (size_t i = 0; i < from->change_count; i++) {
        to->changes[i] = (struct record_change){.key = copy_key(from->changes[i].key),
                                                .remove = from->changes[i].remove,
                                                .value = copy_value(from->changes[i].value)};
    }
}

static void late_done(struct store_req *req)
{
    struct late_op *late = container_of(req, struct late_op, req);
    late->store->wrap.pending--;
    free(req->ret_data);
    free(req->ret_runs);
    free(req->ret_objects);
    record_free(req->ret_record);
    late_free(late);
}

static void keep_for_later(struct fault_store *store, const struct store_req *req)
{
    struct late_op *late = calloc(1, sizeof(*late));
    CHECK(late != NULL);
    late->store = store;
    late->req = (struct store_req){.op = req->op,
                                   .done = late_done,
                                   .run = req->run,
                                   .object = req->object,
                                   .id = req->id,
                                   .name = req->name,
                                   .offset = req->offset,
                                   .bytes = req->bytes};
    if (req->data != NULL && req->bytes > 0) {
        late->data = aligned_alloc(LIMIT_ALIGN_BYTES, round_up_u64(req->bytes, LIMIT_ALIGN_BYTES));
        CHECK(late->data != NULL);
        if (req->op == STORE_WRITE || req->op == STORE_PUBLISH) {
            memcpy(late->data, req->data, req->bytes);
        }
        late->req.data = late->data;
    }
    if (req->update != NULL) {
        copy_update(req->update, &late->update);
        late->req.update = &late->update;
    }
    list_add_tail(&store->late, &late->link);
}

/* --- rules ------------------------------------------------------------------------------------ */

static bool find_rule(struct fault_store *store, enum store_op op, struct store_fault_rule *ret)
{
    for (size_t i = 0; i < store->rule_count; i++) {
        struct store_fault_rule *rule = &store->rules[i];
        if (!rule->any_op && rule->op != op) {
            continue;
        }
        if (rule->skip > 0) {
            rule->skip--;
            continue;
        }
        *ret = *rule;
        if (rule->count <= 1) {
            store->rule_count--;
            memmove(rule, rule + 1, (store->rule_count - i) * sizeof(*rule));
        } else {
            rule->count--;
        }
        return true;
    }
    return false;
}

static void delay_over(struct timer *timer)
{
    wrap_answer(&container_of(timer, struct fault_frame, timer)->frame);
}

static void fault_done(struct store_req *req)
{
    struct fault_frame *fault = req->wrap;
    if (fault->has_fault && fault->kind == FAULT_DELAY) {
        timer_start(&fault->timer, fault->delay_ms);
        return;
    }
    if (fault->has_fault && fault->kind == FAULT_LOST && req->status == 0) {
        req->status =
            diag_set(&req->diag, CAIRN_E_OUTCOME_UNKNOWN, "the answer was lost (injected)");
    }
    wrap_answer(&fault->frame);
}

static void answer_posted(struct post *post)
{
    wrap_answer(&container_of(post, struct fault_frame, post)->frame);
}

static void answer_later(struct fault_frame *fault, int status)
{
    fault->frame.req->status = status;
    fault->post.cb = answer_posted;
    loop_post(fault->frame.store->loop, &fault->post);
}

static void fault_submit(struct store *base, struct store_req *req)
{
    struct fault_store *store = fault_of(base);
    struct fault_frame *fault = wrap_push(&store->wrap, req, sizeof(*fault), fault_done);
    if (fault == NULL) {
        return;
    }
    store->seen++;
    struct store_fault_rule rule;
    fault->has_fault = find_rule(store, req->op, &rule);
    if (!fault->has_fault) {
        wrap_forward(&fault->frame);
        return;
    }
    fault->kind = rule.kind;
    fault->delay_ms = rule.delay_ms;
    timer_init(&fault->timer, store->wrap.loop, delay_over);
    switch (rule.kind) {
    case FAULT_FAIL:
        err_ignore(
            diag_set(&req->diag, rule.code, "injected fault")); /* the code is the answer's */
        answer_later(fault, rule.code);
        break;
    case FAULT_HOLD:
        list_add_tail(&store->held, &fault->link);
        break;
    case FAULT_LATE:
        store->wrap.pending++; /* the copy's */
        keep_for_later(store, req);
        err_ignore(diag_set(&req->diag, CAIRN_E_OUTCOME_UNKNOWN, "the answer was lost (injected)"));
        answer_later(fault, CAIRN_E_OUTCOME_UNKNOWN);
        break;
    case FAULT_DELAY:
    case FAULT_LOST:
        wrap_forward(&fault->frame);
        break;
    }
}

/* --- the store -------------------------------------------------------------------------------- */

static const struct store_ops fault_ops = {.submit = fault_submit, .close = wrap_close};

int store_fault_new(struct loop *loop, struct store *inner, struct store **ret)
{
    struct fault_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    wrap_store_init(&store->wrap, loop, inner, &fault_ops);
    list_init(&store->held);
    list_init(&store->late);
    *ret = &store->wrap.base;
    return 0;
}

int store_fault_add(struct store *base, const struct store_fault_rule *rule)
{
    struct fault_store *store = fault_of(base);
    if (store->rule_count == FAULT_RULES_MAX) {
        return CAIRN_E_TOO_LARGE;
    }
    store->rules[store->rule_count++] = *rule;
    return 0;
}

void store_fault_clear(struct store *base) { fault_of(base)->rule_count = 0; }

size_t store_fault_release(struct store *base)
{
    struct fault_store *store = fault_of(base);
    struct list *node;
    size_t count = 0;
    while ((node = list_pop(&store->held)) != NULL) {
        wrap_forward(&list_item(node, struct fault_frame, link)->frame);
        count++;
    }
    while ((node = list_pop(&store->late)) != NULL) {
        store_submit(store->wrap.inner, &list_item(node, struct late_op, link)->req);
        count++;
    }
    return count;
}

uint64_t store_fault_seen(const struct store *base) { return fault_of(base)->seen; }
