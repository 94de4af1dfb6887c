/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedule of scrub: when a pass is due, and its way from run to run and from checkpoint to
 * checkpoint. The entry holds what a pass has to remember; everything else is looked up again at
 * each step, so that runs and checkpoints may come and go meanwhile.
 */
#include "scrub_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void look(struct scrub *scrub);
static void on_place(struct scrub *scrub);
static void next_run(struct scrub *scrub);
static void check_record(struct scrub *scrub);
static void on_record(struct store_req *req);
static void on_beside(struct run_snapshot_req *req);
static void on_state(struct run_snapshot_req *req);
static void end_pass(struct scrub *scrub);
static void sleep_until_due(struct scrub *scrub);

static void on_timer(struct timer *timer)
{
    struct scrub *scrub = container_of(timer, struct scrub, timer);
    scrub->step(scrub);
}

static void on_post(struct post *post)
{
    struct scrub *scrub = container_of(post, struct scrub, post);
    void (*closed)(void *user) = scrub->closed;
    void *user = scrub->closed_user;
    CHECK(!scrub->busy);
    free(scrub);
    closed(user);
}

int scrub_new(const struct scrub_options *options, struct scrub **ret)
{
    struct scrub *scrub = calloc(1, sizeof(*scrub));
    if (!scrub) {
        return CAIRN_E_NO_MEMORY;
    }
    scrub->options = *options;
    scrub->post.cb = on_post;
    timer_init(&scrub->timer, options->loop, on_timer);
    pace_init(&scrub->pace, options->rate);
    *ret = scrub;
    scrub_later(scrub, 0, look);
    return 0;
}

uint64_t scrub_now_ns(struct scrub *scrub) { return loop_now_ns(scrub->options.loop); }

uint64_t scrub_load(struct scrub *scrub)
{
    return scrub->options.load ? scrub->options.load(scrub->options.user) : 0;
}

void scrub_later(struct scrub *scrub, uint64_t ms, void (*step)(struct scrub *scrub))
{
    scrub->step = step;
    timer_start(&scrub->timer, ms);
}

/* --- stopping --------------------------------------------------------------------------------- */

/* Frees what the pass has of the present run, and releases the run. */
static void let_go(struct scrub *scrub)
{
    walk_end(scrub);
    run_snapshot_cancel(&scrub->snapshot);
    run_cancel(&scrub->event);
    if (scrub->run) {
        struct run *run = scrub->run;
        scrub->run = NULL;
        catalog_release(run);
    }
}

static void turned(struct scrub *scrub, bool running)
{
    if (scrub->running != running) {
        scrub->running = running;
        if (scrub->options.turned) {
            scrub->options.turned(scrub->options.user, running);
        }
    }
}

void scrub_leave(struct scrub *scrub)
{
    CHECK(!scrub->busy);
    let_go(scrub);
    if (scrub->running && scrub->moved) {
        timer_stop(&scrub->timer);
        place_save(scrub, scrub_leave); /* so that nothing is read twice */
        return;
    }
    if (scrub->closing) {
        timer_stop(&scrub->timer);
        loop_post(scrub->options.loop, &scrub->post);
        return;
    }
    turned(scrub, false);
    scrub_later(scrub, SCRUB_LOOK_MS, look);
}

static bool may_run(const struct scrub *scrub)
{
    return !scrub->options.may_run || scrub->options.may_run(scrub->options.user);
}

bool scrub_is_ours(const struct scrub *scrub, const char **ret_holder)
{
    *ret_holder = scrub->options.holder ? scrub->options.holder(scrub->options.user) : "";
    return may_run(scrub);
}

bool scrub_must_stop(struct scrub *scrub)
{
    if (!scrub->closing && may_run(scrub)) {
        return false;
    }
    scrub_leave(scrub);
    return true;
}

void scrub_close(struct scrub *scrub, void (*done)(void *user), void *user)
{
    CHECK(!scrub->closing);
    scrub->closing = true;
    scrub->closed = done;
    scrub->closed_user = user;
    if (!scrub->busy) {
        scrub_leave(scrub);
    }
}

/* --- a pass ----------------------------------------------------------------------------------- */

static void look(struct scrub *scrub)
{
    scrub->counters.waiting = !may_run(scrub);
    if (!scrub->closing && !scrub->counters.waiting) {
        place_load(scrub, on_place);
    } else {
        scrub_leave(scrub);
    }
}

/* Returns the milliseconds until the next pass. Wall time only chooses the moment: a clock that
 * jumps makes a pass early or late, and has no other effect. */
static uint64_t due_in_ms(const struct scrub *scrub)
{
    int64_t ended = scrub->entry.ended_wall_ns, now = loop_wall_ns(scrub->options.loop);
    if (scrub->asked || (scrub->options.every_ms > 0 && (ended == 0 || ended > now))) {
        return 0;
    }
    if (scrub->options.every_ms == 0) {
        return UINT64_MAX;
    }
    uint64_t passed_ms = (uint64_t)(now - ended) / 1000000;
    return passed_ms >= scrub->options.every_ms ? 0 : scrub->options.every_ms - passed_ms;
}

/* Called when the place is known. Goes on with a pass that a restart has interrupted, begins a new
 * one, or sleeps until one is due. */
static void on_place(struct scrub *scrub)
{
    if (scrub_must_stop(scrub)) {
        return;
    }
    if (scrub->entry.state == SCRUB_RUNNING) {
        scrub->asked = false; /* the running pass answers the request */
        scrub->saved_ms = loop_now_ms(scrub->options.loop);
        turned(scrub, true);
        scrub_later(scrub, 0, next_run);
        return;
    }
    if (due_in_ms(scrub) > 0) {
        sleep_until_due(scrub);
        return;
    }
    int64_t ended = scrub->entry.ended_wall_ns;
    scrub->asked = false;
    scrub->entry = (struct entry_scrub){.pass = scrub->entry.pass + 1,
                                        .state = SCRUB_RUNNING,
                                        .begun_wall_ns = loop_wall_ns(scrub->options.loop),
                                        .ended_wall_ns = ended};
    turned(scrub, true);
    place_save(scrub, next_run);
}

static void sleep_until_due(struct scrub *scrub)
{
    if (scrub_must_stop(scrub)) {
        return;
    }
    turned(scrub, false);
    /* Looks at the entry from time to time: another daemon may have made a pass, or the clock may
     * have been set. */
    scrub_later(scrub, min_u64(due_in_ms(scrub), UINT64_C(60) * SCRUB_LOOK_MS), look);
}

void scrub_set_rate(struct scrub *scrub, uint64_t rate)
{
    pace_set_rate(&scrub->pace, rate);
    if (scrub->running && timer_is_active(&scrub->timer)) {
        timer_start(&scrub->timer, 0); /* it may be waiting by the old rate */
    }
}

void scrub_set_every(struct scrub *scrub, uint64_t every_ms)
{
    scrub->options.every_ms = every_ms;
    if (!scrub->running && !scrub->busy && !scrub->closing) {
        scrub_later(scrub, 0, look); /* it may be waiting by the old interval */
    }
}

void scrub_now(struct scrub *scrub)
{
    if (!scrub->running && !scrub->asked) {
        scrub->asked = true;
        if (!scrub->busy && !scrub->closing) {
            scrub_later(scrub, 0, look);
        }
    }
}

uint64_t scrub_wait_ms(struct scrub *scrub)
{
    return pace_wait_ms(&scrub->pace, scrub_now_ns(scrub), scrub_load(scrub));
}

void scrub_moved(struct scrub *scrub, uint64_t bytes)
{
    pace_charge(&scrub->pace, scrub_now_ns(scrub), bytes);
}

static int run_order(const struct run_name *a, const struct run_name *b)
{
    int order = strcmp(a->project, b->project);
    return order != 0 ? order : strcmp(a->run, b->run);
}

/* Sets entry.run to the run that the pass is at, if that still exists, and otherwise to the next
 * one by name. `behind` asks for the next one in any case. Returns false if there is none. */
static bool find_run(struct scrub *scrub, bool behind)
{
    struct run_name *names = NULL;
    size_t count = 0;
    bool found = false;
    if (catalog_names(scrub->options.catalog, &names, &count) != 0) {
        scrub->counters.errors_total++;
        return false;
    }
    for (size_t i = 0; i < count && !found; i++) {
        int order = run_order(&names[i], &scrub->entry.run);
        if (order < 0 || (order == 0 && behind)) {
            continue;
        }
        if (order > 0) {
            scrub->entry.run = names[i];
            scrub->entry.seq = 0;
            scrub->entry.rank = scrub->entry.objects = scrub->entry.found = 0;
        }
        found = true;
    }
    free(names);
    return found;
}

/* Begins with a run: with `behind` the one behind the place, otherwise the one at it. The pass ends
 * if there is none. */
static void enter_run(struct scrub *scrub, bool behind)
{
    if (scrub_must_stop(scrub)) {
        return;
    }
    if (!find_run(scrub, behind)) {
        end_pass(scrub);
        return;
    }
    scrub->run = catalog_run(scrub->options.catalog, &scrub->entry.run);
    check_record(scrub);
}

static void next_run(struct scrub *scrub) { enter_run(scrub, false); }

static void leave_run(struct scrub *scrub)
{
    let_go(scrub);
    enter_run(scrub, true);
}

static void end_pass(struct scrub *scrub)
{
    struct entry_scrub *entry = &scrub->entry;
    entry->state = SCRUB_ENDED;
    entry->ended_wall_ns = loop_wall_ns(scrub->options.loop);
    entry->run = (struct run_name){{0}, {0}};
    entry->seq = 0;
    entry->rank = entry->objects = entry->found = 0;
    place_save(scrub, sleep_until_due);
}

/* --- a run ------------------------------------------------------------------------------------ */

/* Reads the record as the medium holds it: the copy in memory may be the last good one. */
static void check_record(struct scrub *scrub)
{
    scrub->busy = true;
    scrub->req = (struct store_req){.op = STORE_RECORD_GET,
                                    .run = scrub->entry.run,
                                    .from_medium = true,
                                    .deadline_ms = SCRUB_STORE_DEADLINE_MS,
                                    .done = on_record};
    store_submit(catalog_store(scrub->options.catalog), &scrub->req);
}

/* Drops the earlier findings about the run's record, because this look replaces them. */
static void drop_record_findings(struct scrub *scrub)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < scrub->recent_count; i++) {
        const struct scrub_finding *finding = &scrub->recent[i];
        if (finding->id.term != 0 || !run_name_equal(&finding->run, &scrub->entry.run)) {
            scrub->recent[kept++] = *finding;
        }
    }
    scrub->recent_count = kept;
}

static void found_record(struct scrub *scrub, const char *text)
{
    struct found found = {.health = HEALTH_DAMAGED};
    snprintf(found.text, sizeof(found.text), "%s", text);
    scrub->entry.findings++;
    scrub_tell(scrub, (struct ckpt_id){0, 0}, &found);
}

/* Called when the record of a run was read from the medium and checked. */
static void on_record(struct store_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, req);
    scrub->busy = false;
    record_free(req->ret_record);
    req->ret_record = NULL;
    bool damaged = store_record_is_damaged(req);
    if (req->status == 0 || damaged) {
        drop_record_findings(scrub);
    }
    if (damaged) {
        char text[SCRUB_TEXT_MAX];
        snprintf(text, sizeof(text), "the run's record: %.490s", req->diag.text);
        found_record(scrub, text);
        if (scrub->options.damaged) {
            scrub->options.damaged(scrub->options.user, &scrub->entry.run, (struct ckpt_id){0, 0});
        }
    } else if (req->status != 0) {
        scrub->counters.errors_total++;
    }
    scrub->record_told = damaged;
    if (scrub_must_stop(scrub)) {
        return;
    }
    scrub->snapshot = (struct run_snapshot_req){.done = on_beside};
    run_snapshot(scrub->run, &scrub->snapshot);
}

/* Called when the record can be read: reports it if more is stored than it knows. */
static void on_beside(struct run_snapshot_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, snapshot);
    char text[SCRUB_TEXT_MAX];
    scrub->snapshot.run = NULL; /* it was answered */
    if (req->status == 0 && !scrub->record_told && state_is_marked(req->state)) {
        state_mark_text(req->state, sizeof(text), text);
        found_record(scrub, text);
    }
    scrub_next_ckpt(scrub);
}

void scrub_next_ckpt(struct scrub *scrub)
{
    if (scrub_must_stop(scrub)) {
        return;
    }
    scrub->snapshot = (struct run_snapshot_req){.done = on_state};
    run_snapshot(scrub->run, &scrub->snapshot);
}

/* Returns true if the base need not be read again: it was examined in this pass and is good.
 * Whatever a checkpoint refers to, its base refers to or holds, word for word. The base has the
 * smaller sequence, so it was examined first. */
static bool is_base_good(const struct run_state *state, const struct state_commit *commit)
{
    const struct state_commit *base =
        commit->entry.base.term == 0 ? NULL : state_commit_find(state, commit->entry.base);
    return base && base->health == HEALTH_VERIFIED && base->entry.seq < commit->entry.seq;
}

/* Called with the state of the run: the next checkpoint is the first committed one after the place.
 * Forgotten ones are skipped. */
static void on_state(struct run_snapshot_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, snapshot);
    const struct state_commit *commit = NULL;
    scrub->snapshot.run = NULL; /* it was answered */
    if (req->status != 0) {
        scrub->counters.errors_total++;
        scrub_later(scrub, 0, leave_run);
        return;
    }
    struct entry_scrub *entry = &scrub->entry;
    for (size_t i = 0; i < req->state->commit_count && !commit; i++) {
        const struct state_commit *at = &req->state->commits[i];
        bool ahead =
            at->entry.seq > entry->seq || (at->entry.seq == entry->seq && entry->rank != SCRUB_ALL);
        commit = ahead && !at->forgotten ? at : NULL;
    }
    if (!commit) {
        scrub_later(scrub, 0, leave_run);
        return;
    }
    if (commit->entry.seq != entry->seq) {
        entry->seq = commit->entry.seq;
        entry->rank = entry->objects = entry->found = 0;
    }
    struct walk *walk = &scrub->walk;
    walk_end(scrub);
    *walk = (struct walk){.id = commit->entry.id,
                          .seq = commit->entry.seq,
                          .health = commit->health,
                          .with_base = !is_base_good(req->state, commit),
                          .world_size = commit->entry.world_size,
                          .skip_objects = scrub->entry.objects};
    walk_begin(scrub);
}

/* --- reporting ------------------------------------------------------------------------------ */

/* Returns a new entry at the front of the recent findings. If there is no room, the oldest finding
 * about a checkpoint is dropped, because its record has it too; damage of a record is reported
 * nowhere else while the copy in memory is good. */
static struct scrub_finding *add_recent(struct scrub *scrub)
{
    uint32_t last = scrub->recent_count;
    if (last == SCRUB_RECENT) {
        uint32_t of_ckpt = SCRUB_RECENT;
        for (uint32_t i = 0; i < SCRUB_RECENT; i++) {
            of_ckpt = scrub->recent[i].id.term != 0 ? i : of_ckpt;
        }
        last = of_ckpt < SCRUB_RECENT ? of_ckpt : SCRUB_RECENT - 1;
    } else {
        scrub->recent_count++;
    }
    memmove(&scrub->recent[1], &scrub->recent[0], last * sizeof(scrub->recent[0]));
    return &scrub->recent[0];
}

void scrub_tell(struct scrub *scrub, struct ckpt_id id, const struct found *found)
{
    struct scrub_finding *finding = add_recent(scrub);
    *finding = (struct scrub_finding){.run = scrub->entry.run,
                                      .id = id,
                                      .health = found->health,
                                      .wall_ns = loop_wall_ns(scrub->options.loop)};
    snprintf(finding->text, sizeof(finding->text), "%s", found->text);
    scrub->counters.findings_total++;
    if (scrub->options.found) {
        scrub->options.found(scrub->options.user, finding);
    }
}

void scrub_status(const struct scrub *scrub, struct scrub_status *ret)
{
    const struct entry_scrub *entry = &scrub->entry;
    *ret = scrub->counters;
    ret->running = scrub->running;
    ret->yielding =
        scrub->running && pace_is_yielding(&scrub->pace, loop_now_ns(scrub->options.loop));
    ret->rate = scrub->pace.rate;
    ret->every_ms = scrub->options.every_ms;
    ret->pass = entry->pass;
    ret->begun_wall_ns = entry->begun_wall_ns;
    ret->ended_wall_ns = entry->ended_wall_ns;
    ret->run = entry->run;
    ret->id = scrub->running ? scrub->walk.id : (struct ckpt_id){0, 0};
    ret->bytes = entry->bytes;
    ret->ckpts = entry->ckpts;
    ret->findings = entry->findings;
    ret->recent_count = scrub->recent_count;
    ret->damaged_records = 0;
    for (uint32_t i = 0; i < scrub->recent_count; i++) {
        ret->recent[i] = &scrub->recent[i];
        ret->damaged_records += scrub->recent[i].id.term == 0;
    }
}
