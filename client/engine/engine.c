/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine owns the link and the lists of operations. It tells the operations when the connection
 * comes and goes, divides credit among saves, and ends everything on close. It decides nothing
 * about a save or a restore itself. Loop's thread.
 */
#include "engine/engine_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static void on_ready_post(struct post *post)
{
    struct engine *engine = container_of(post, struct engine, ready_post);
    CHECK(engine->magic == ENGINE_MAGIC);
    if (!engine->closing) {
        engine->ready(engine->ready_user, engine->ready_diag.code, &engine->ready_diag);
    }
}

static void tell_ready(struct engine *engine)
{
    CHECK(engine->magic == ENGINE_MAGIC);
    if (!engine->ready_told) {
        engine->ready_told = true;
        loop_post(engine->options.loop, &engine->ready_post);
    }
}

int engine_new(const struct engine_options *options,
               void (*ready)(void *user, int status, const struct diag *diag), void *user,
               struct engine **ret, struct diag *diag)
{
    struct engine *engine = calloc(1, sizeof *engine);
    char *label = engine ? strdup(options->label ? options->label : "") : NULL;
    if (!label) {
        free(engine);
        return diag_no_memory(diag, "a client");
    }
    CHECK(options->loop != NULL);
    CHECK(options->pool != NULL);
    CHECK(ready != NULL);
    engine->magic = ENGINE_MAGIC;
    engine->options = *options;
    engine->options.label = label;
    if (engine->options.io_deadline_ms == 0) {
        engine->options.io_deadline_ms = 30000;
    }
    if (engine->options.reconnect_ms_min == 0) {
        engine->options.reconnect_ms_min = 50;
    }
    if (engine->options.reconnect_ms_max == 0) {
        engine->options.reconnect_ms_max = 5000;
    }
    engine->ready = ready;
    engine->ready_user = user;
    engine->ready_post.cb = on_ready_post;
    engine_prepare_init(engine);
    list_init(&engine->saves);
    list_init(&engine->restores);
    list_init(&engine->calls);
    list_init(&engine->untold);
    agreement_init(&engine->agreement);
    link_init(&engine->link, engine);
    encode_pool_init(&engine->encode_pool, options->encoding);
    link_start(&engine->link);
    *ret = engine;
    return 0;
}

uint64_t engine_cut_deadline(uint64_t deadline_ms)
{
    return min_u64(deadline_ms, UINT64_C(365) * 24 * 3600 * 1000);
}

uint64_t engine_ms_left(const struct engine *engine, uint64_t end_ms)
{
    uint64_t now_ms = loop_now_ms(engine->options.loop);
    return end_ms > now_ms ? end_ms - now_ms : 0;
}

int engine_refuses(const struct engine *engine, struct diag *diag)
{
    if (engine->closing) {
        return diag_set(diag, CAIRN_E_CLOSED, "the handle is being closed; open another one");
    }
    return engine->link.status != 0 ? diag_copy(diag, &engine->link.diag) : 0;
}

/* --- what the link tells --------------------------------------------------------- */

static struct engine_op *op_of(struct list *node)
{
    return list_item(node, struct engine_op, link);
}

static void tell_up(struct list *ops)
{
    list_each (node, ops) {
        op_of(node)->ops->on_up(op_of(node));
    }
}

void engine_on_unmet(struct engine *engine) { tell_ready(engine); }

void engine_on_up(struct engine *engine, bool is_new)
{
    CHECK(link_is_up(&engine->link));
    hand_reset(engine);
    if (is_new) {
        engine->newest_seen = engine->link.joined.newest_term;
    }
    tell_ready(engine);
    tell_up(&engine->calls);
    tell_up(&engine->restores);
    tell_up(&engine->saves);
    engine_wake_stagers(engine);
    engine_prepare_wake(engine);
}

void engine_on_down(struct engine *engine)
{
    CHECK(!link_is_up(&engine->link));
    hand_reset(engine);
    list_each (node, &engine->saves) {
        op_of(node)->ops->on_down(op_of(node));
    }
}

static void fail_list(struct list *ops, int status, const struct diag *diag)
{
    list_each (node, ops) {
        op_of(node)->ops->fail(op_of(node), status, diag);
    }
}

/* Fails every operation. None leaves its list in here; that happens when its callbacks are
 * delivered. */
static void fail_all(struct engine *engine, int status, const struct diag *diag)
{
    fail_list(&engine->restores, status, diag);
    fail_list(&engine->saves, status, diag);
    fail_list(&engine->calls, status, diag);
}

void engine_on_final(struct engine *engine, int status, const struct diag *diag)
{
    CHECK(status != 0);
    engine->ready_diag = *diag;
    engine->ready_diag.code = status;
    tell_ready(engine);
    fail_all(engine, status, diag);
}

void engine_on_granted(struct engine *engine) { engine_pump(engine); }

/* --- credit ---------------------------------------------------------------------- */

/* Asks for as many grants as the saves could use, up to ENGINE_WINDOW. */
static void ask_for_credit(struct engine *engine)
{
    struct link *link = &engine->link;
    uint64_t unsent = 0;
    list_each (node, &engine->saves) {
        unsent += op_of(node)->ops->unsent(op_of(node));
    }
    CHECK(link->credits + link->credits_asked <= ENGINE_WINDOW);
    uint32_t target = (uint32_t)min_u64(unsent, ENGINE_WINDOW);
    uint32_t have = link->credits + link->credits_asked;
    /* Asks for several at once, because a WANT for each payload would double the number of
     * messages. */
    if (have < target && (have <= ENGINE_WINDOW / 2 || target == unsent)) {
        struct msg want = {.type = MSG_WANT, .u.want = {.buffers = target - have}};
        link->credits_asked += target - have;
        link_send(link, NULL, &want);
    }
}

void engine_pump(struct engine *engine)
{
    if (engine->pumping || engine->closing || !link_is_up(&engine->link)) {
        return;
    }
    engine->pumping = true;
    list_each (node, &engine->saves) {
        op_of(node)->ops->pump(op_of(node));
    }
    if (link_is_up(&engine->link)) {
        ask_for_credit(engine);
    }
    engine->pumping = false;
}

/* Wakes the saves in the order of their start, and stops at the first one that still waits, so that
 * small saves do not starve a large one. */
void engine_wake_stagers(struct engine *engine)
{
    list_each (node, &engine->saves) {
        if (op_of(node)->ops->go_on(op_of(node))) {
            return;
        }
    }
}

bool engine_may_move(const struct engine *engine)
{
    list_each (node, &engine->saves) {
        if (!op_of(node)->ops->may_move(op_of(node))) {
            return false;
        }
    }
    return list_is_empty(&engine->restores) && list_is_empty(&engine->calls);
}

bool engine_has_one_op(const struct engine *engine)
{
    return engine->saves.next == engine->saves.prev && list_is_empty(&engine->restores) &&
           list_is_empty(&engine->calls);
}

/* --- close ----------------------------------------------------------------------- */

void engine_drop_bases(struct engine *engine)
{
    for (unsigned i = 0; i < ENGINE_BASES; i++) {
        base_part_unref(engine->bases[i]);
        engine->bases[i] = NULL;
    }
}

/* Frees the engine, after its last operation and its connection are gone, and tells the owner. */
static void on_closed_post(struct post *post)
{
    struct engine *engine = container_of(post, struct engine, closed_post);
    void (*closed)(void *user) = engine->closed;
    void *user = engine->closed_user;
    CHECK(engine->magic == ENGINE_MAGIC);
    CHECK(engine->closing);
    CHECK(!engine->prepare.running);
    CHECK(engine->prepare.set == NULL);
    CHECK(engine->link.conn == NULL);
    CHECK(list_is_empty(&engine->saves));
    CHECK(list_is_empty(&engine->restores));
    CHECK(list_is_empty(&engine->calls));
    CHECK(engine->telling == 0);
    for (struct list *node; (node = list_pop(&engine->untold)) != NULL;) {
        free(list_item(node, struct untold, link));
    }
    engine->magic = 0;
    encode_pool_fini(&engine->encode_pool);
    agreement_fini(&engine->agreement);
    engine_drop_bases(engine);
    free((char *)(uintptr_t)engine->options.label);
    free(engine);
    closed(user);
}

void engine_op_gone(struct engine *engine)
{
    if (engine->closing && list_is_empty(&engine->saves) && list_is_empty(&engine->restores) &&
        list_is_empty(&engine->calls) && !engine->prepare.running) {
        loop_post(engine->options.loop, &engine->closed_post);
    }
    engine_prepare_wake(engine);
}

void engine_cut(struct engine *engine) { engine->link.cut = true; }

void engine_close(struct engine *engine, void (*done)(void *user), void *user)
{
    struct diag diag = DIAG_INIT;
    CHECK(engine->magic == ENGINE_MAGIC);
    CHECK(!engine->closing);
    CHECK(done != NULL);
    engine->closing = true;
    engine->closed = done;
    engine->closed_user = user;
    engine->closed_post.cb = on_closed_post;
    diag_set(&diag, CAIRN_E_CLOSED, "the handle was closed while the operation was running");
    fail_all(engine, CAIRN_E_CLOSED, &diag);
    engine_prepare_drop(engine);
    link_stop(&engine->link);
    engine_op_gone(engine);
}

int engine_read_error(const struct msg_error *error, struct diag *diag)
{
    int code = error->code < 0 ? error->code : CAIRN_E_PROTOCOL;
    return diag_set(diag, code, "%s", error->text && error->text[0] ? error->text : err_text(code));
}

void engine_name_failure(const struct engine *engine, uint64_t step, struct diag *diag)
{
    const struct engine_options *options = &engine->options;
    if (options->viewer) {
        return;
    }
    if (strstr(diag->text, "step ")) {
        diag_add(diag, "rank %u of %u", options->rank, options->world_size);
    } else {
        diag_add(diag, "rank %u of %u, step %llu", options->rank, options->world_size,
                 (unsigned long long)step);
    }
}
