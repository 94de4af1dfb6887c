/* SPDX-License-Identifier: Apache-2.0
 *
 * One request is under way at a time. An answer that never comes, or is an error, leaves those it
 * was about unsure for good: on a cluster a change may land seconds after its daemon has died. One
 * thread.
 */
#include "sim_operator.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "core/retention.h"
#include "sim_daemon.h"
#include "sim_job.h"

#define NAME "an operator"

struct fate { /* of a checkpoint that was asked about */
    struct ckpt_id id;
    bool gone, unsure, pinned;
    uint64_t back_ms; /* when it was brought back last; 0 if it never was */
};

struct sim_operator {
    struct scene *scene;
    struct sim_upkeep *upkeep; /* at whose daemon the request is; NULL if none is under way */
    struct run_req req;
    struct run *run;
    struct ckpt_id ids[2];
    struct retention_policy policy;
    struct fate *fates;
    size_t fate_count, fate_cap;
    bool all_unsure; /* a policy's outcome is not known */
};

static struct fate *fate_find(const struct sim_operator *op, struct ckpt_id id)
{
    for (size_t i = 0; i < op->fate_count; i++) {
        if (ckpt_id_equal(op->fates[i].id, id)) {
            return &op->fates[i];
        }
    }
    return NULL;
}

static struct fate *fate_of(struct sim_operator *op, struct ckpt_id id)
{
    struct fate *fate = fate_find(op, id);
    if (fate) {
        return fate;
    }
    if (op->fate_count == op->fate_cap) {
        op->fate_cap = op->fate_cap ? op->fate_cap * 2 : 32;
        op->fates = realloc(op->fates, op->fate_cap * sizeof *op->fates);
        CHECK(op->fates);
    }
    fate = &op->fates[op->fate_count++];
    *fate = (struct fate){.id = id};
    return fate;
}

bool operator_may_miss(const struct sim_operator *op, struct ckpt_id id)
{
    const struct fate *fate = op ? fate_find(op, id) : NULL;
    bool asked = op && op->upkeep && op->req.event.kind == EVENT_FORGET;
    bool by_policy = asked && op->req.event.u.mark.forget.policy;
    for (size_t i = 0; asked && i < op->req.event.u.mark.id_count; i++) {
        by_policy = by_policy || ckpt_id_equal(op->ids[i], id);
    }
    return op && (op->all_unsure || by_policy || (fate && (fate->gone || fate->unsure)));
}

bool operator_missed(const struct sim_operator *op, struct ckpt_id id, uint64_t since_ms)
{
    const struct fate *fate = op ? fate_find(op, id) : NULL;
    return operator_may_miss(op, id) || (fate && fate->back_ms > 0 && fate->back_ms >= since_ms);
}

bool operator_knows_gone(const struct sim_operator *op, struct ckpt_id id)
{
    const struct fate *fate = op ? fate_find(op, id) : NULL;
    return fate && fate->gone && !fate->unsure && !op->all_unsure;
}

/* --- answers ---------------------------------------------------------------------- */

static void release(struct sim_operator *op)
{
    op->upkeep = NULL;
    catalog_release(op->run);
    op->run = NULL;
}

static void not_known(struct sim_operator *op)
{
    const struct event *event = &op->req.event;
    const size_t id_count = event->u.mark.id_count;
    if (event->kind == EVENT_FORGET && event->u.mark.forget.policy) {
        op->all_unsure = true;
    }
    for (size_t i = 0; i < op->fate_count && id_count == 0; i++) {
        op->fates[i].unsure = true; /* undelete: of all */
    }
    for (size_t i = 0; i < id_count; i++) {
        struct fate *fate = fate_of(op, op->ids[i]);
        bool marks = event->kind == EVENT_FORGET || event->kind == EVENT_UNDELETE;
        fate->unsure = fate->unsure || marks;
        fate->pinned = fate->pinned && marks;
    }
}

static void take_mark(struct sim_operator *op, const struct mark *mark)
{
    struct fate *fate = fate_of(op, mark->id);
    bool is_so = mark->outcome == MARK_DONE || mark->outcome == MARK_ALREADY;
    switch (op->req.event.kind) {
    case EVENT_FORGET:
        if (mark->outcome == MARK_DONE && fate->pinned) {
            scene_fail(op->scene, "I9: %" PRIu64 "@%" PRIu64 " is pinned, and was forgotten",
                       mark->id.step, mark->id.term);
        }
        fate->gone = fate->gone || is_so;
        break;
    case EVENT_UNDELETE:
        fate->back_ms = fate->gone && is_so ? scene_now_ms(op->scene) : fate->back_ms;
        fate->gone = fate->gone && !is_so;
        break;
    case EVENT_PIN:
        fate->pinned = is_so;
        break;
    default:
        break;
    }
}

static void on_answer(struct run_req *req)
{
    struct sim_operator *op = container_of(req, struct sim_operator, req);
    struct scene *scene = op->scene;
    struct sim_upkeep *upkeep = op->upkeep;
    release(op);
    if (req->status != 0) {
        scene_tell(scene, "the operator's request: %s: %s", err_name(req->status), req->diag.text);
        if (scene->fault_count == 0 && !scene->over) {
            scene_fail(scene, "I7: nothing was disturbed, but the operator was told %s: %s",
                       err_name(req->status), req->diag.text);
        }
        not_known(op);
        return;
    }
    for (size_t i = 0; i < verdict_marks(&req->verdict)->count; i++) {
        const struct mark *mark = &verdict_marks(&req->verdict)->items[i];
        scene_tell(scene, "the operator: %" PRIu64 "@%" PRIu64 " %s", mark->id.step, mark->id.term,
                   mark_outcome_text(mark->outcome));
        take_mark(op, mark);
    }
    bool forgot = req->event.kind == EVENT_FORGET && verdict_marks(&req->verdict)->done_count > 0;
    if (forgot && !scene->calm && sim_chance(scene->sim, 2)) {
        upkeep_hurry(upkeep);
    }
}

void operator_lose(struct sim_operator *op, const struct sim_upkeep *upkeep)
{
    if (op && op->upkeep == upkeep) {
        run_cancel(&op->req);
        release(op);
        not_known(op);
    }
}

/* --- requests --------------------------------------------------------------------- */

static void ask(struct sim_operator *op, struct sim_upkeep *upkeep, const struct event *event)
{
    static const char *const kinds[] = {[EVENT_FORGET] = "forget",
                                        [EVENT_UNDELETE] = "undelete",
                                        [EVENT_PIN] = "pin",
                                        [EVENT_UNPIN] = "unpin"};
    struct run_name name = {"sim", "run"};
    const size_t id_count = event->u.mark.id_count;
    bool by_policy = event->kind == EVENT_FORGET && event->u.mark.forget.policy;
    CHECK(!op->upkeep);
    op->upkeep = upkeep;
    op->run = catalog_run(upkeep_catalog(upkeep), &name);
    op->req = (struct run_req){.event = *event, .done = on_answer};
    op->req.event.u.mark.actor = NAME;
    op->req.event.u.mark.ids = op->ids;
    for (size_t i = 0; event->kind == EVENT_UNPIN && i < id_count; i++) {
        fate_of(op, op->ids[i])->pinned = false;
    }
    scene_tell(op->scene, "the operator asks: %s %s %" PRIu64 "@%" PRIu64, kinds[event->kind],
               by_policy ? "by policy" : "", id_count ? op->ids[0].step : 0,
               id_count ? op->ids[0].term : 0);
    run_submit(op->run, &op->req);
}

/* Those that somebody needs just now, before others. */
static bool pick(struct sim_operator *op, struct ckpt_id *ret)
{
    const struct scene *scene = op->scene;
    const struct sim_job *job = scene->job;
    const struct oracle *oracle = &scene->oracle;
    bool restores = job && job->state == JOB_RESTORE && job->selector.kind == SELECT_EXACT;
    if (restores && sim_chance(scene->sim, 2)) {
        *ret = job->selector.id;
        return true;
    }
    size_t back = 1 + sim_below(scene->sim, 4); /* of the last ones: bases of open saves */
    if (sim_chance(scene->sim, 2) && oracle->fact_count > back &&
        oracle->facts[oracle->fact_count - 1 - back].acked) {
        *ret = oracle->facts[oracle->fact_count - 1 - back].id;
        return true;
    }
    return oracle_pick(op->scene, ret);
}

static void act(struct sim_operator *op, struct sim_upkeep *upkeep)
{
    struct scene *scene = op->scene;
    uint64_t draw = sim_below(scene->sim, 100);
    struct event event = {.kind = EVENT_FORGET,
                          .u.mark = {.id_count = 1, .reason = "to save space"}};
    if (draw < 8) {
        upkeep_collect(upkeep);
        return;
    }
    if (draw < 28) {
        op->policy = (struct retention_policy){.last = 1 + (int64_t)sim_below(scene->sim, 3),
                                               .has_superseded = true,
                                               .least = 1 + (uint32_t)sim_below(scene->sim, 2)};
        event.u.mark.id_count = 0;
        event.u.mark.forget.policy = &op->policy;
        ask(op, upkeep, &event);
        return;
    }
    if (!pick(op, &op->ids[0])) {
        return;
    }
    event.u.mark.forget.keep_least = 1 + (uint32_t)sim_below(scene->sim, 2);
    if (draw < 36) {
        event = (struct event){.kind = EVENT_PIN, .u.mark.id_count = 1};
    } else if (draw < 42) {
        event = (struct event){.kind = EVENT_UNPIN, .u.mark.id_count = 1};
    } else if (draw < 56) {
        event = (struct event){.kind = EVENT_UNDELETE, .u.mark.id_count = draw < 44 ? 0 : 1};
    }
    ask(op, upkeep, &event);
}

static void on_time(void *user)
{
    struct sim_operator *op = user;
    struct scene *scene = op->scene;
    struct sim_upkeep *upkeep = daemon_care(scene, sim_below(scene->sim, scene->seat_count));
    if (scene->over || scene->calm) {
        return;
    }
    if (upkeep && !op->upkeep) {
        act(op, upkeep);
    }
    sim_at(scene->sim, 10 + sim_below(scene->sim, 150), on_time, op);
}

static void on_commit(void *user)
{
    struct sim_operator *op = user;
    struct scene *scene = op->scene;
    const struct oracle *oracle = &scene->oracle;
    struct sim_upkeep *upkeep = daemon_care(scene, sim_below(scene->sim, scene->seat_count));
    struct event event = {
        .kind = EVENT_FORGET,
        .u.mark = {.id_count = 1, .reason = "there is a newer one", .forget = {.keep_least = 1}}};
    if (upkeep && !op->upkeep && !scene->over && !scene->calm && oracle->fact_count > 1) {
        op->ids[0] = oracle->facts[oracle->fact_count - 2].id;
        ask(op, upkeep, &event);
    }
}

void operator_on_commit(struct sim_operator *op)
{
    if (op && sim_chance(op->scene->sim, 3)) {
        sim_at(op->scene->sim, sim_below(op->scene->sim, 4), on_commit, op);
    }
}

void operator_start(struct sim_operator *op)
{
    sim_at(op->scene->sim, sim_below(op->scene->sim, 300), on_time, op);
}

static bool is_answered(struct scene *scene) { return scene->op->upkeep == NULL; }

/* Its answer: how many of the request it has done. */
static size_t ask_and_wait(struct scene *scene, const struct event *event)
{
    struct sim_operator *op = scene->op;
    ask(op, daemon_care(scene, 0), event);
    scene_await(scene, is_answered, 10000, "the operator's answer");
    if (op->req.status != 0) {
        scene_fail(scene, "I7: in a world at rest the operator was told %s: %s",
                   err_name(op->req.status), op->req.diag.text);
    }
    return verdict_marks(&op->req.verdict)->done_count;
}

bool operator_try_undelete(struct scene *scene, struct ckpt_id id)
{
    struct event event = {
        .kind = EVENT_FORGET,
        .u.mark = {.id_count = 1, .reason = "to be brought back", .forget = {.keep_least = 1}}};
    scene->op->ids[0] = id;
    if (ask_and_wait(scene, &event) == 0) {
        return false;
    }
    for (unsigned i = 1; i < UPKEEP_KEEP_CYCLES; i++) {
        upkeep_cycle(scene);
    }
    event = (struct event){.kind = EVENT_UNDELETE, .u.mark.id_count = 1};
    if (ask_and_wait(scene, &event) == 0) {
        scene_fail(scene,
                   "I9: %" PRIu64 "@%" PRIu64 " was forgotten %u cycles ago and cannot be brought "
                   "back",
                   id.step, id.term, UPKEEP_KEEP_CYCLES - 1);
    }
    return true;
}

struct sim_operator *operator_new(struct scene *scene)
{
    struct sim_operator *op = calloc(1, sizeof *op);
    CHECK(op);
    op->scene = scene;
    return op;
}

void operator_free(struct sim_operator *op)
{
    if (op) {
        CHECK(!op->upkeep);
        free(op->fates);
        free(op);
    }
}
