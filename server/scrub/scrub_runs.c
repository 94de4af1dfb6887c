/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass, from run to run and from checkpoint to checkpoint. The entry holds what a pass has to
 * remember; everything else is looked up again at each step, so that runs and checkpoints may come
 * and go meanwhile. On the pass's thread; what is called on the loop is named on_.
 */
#include "scrub_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

/* --- from run to run -------------------------------------------------------------------------- */

/* The run at or behind the position. */
struct step {
    struct scrub *scrub;
    bool behind; /* not the one at it */
    int status;  /* ENDED: there is none */
};

/* Sets entry.run to the run that the pass is at, if that still exists, and otherwise to the next
 * one by name. */
static void on_next_run(void *user)
{
    struct step *step = user;
    struct scrub *scrub = step->scrub;
    struct entry_scrub *entry = &scrub->now.entry;
    struct run_name *names = NULL;
    size_t count = 0;
    CHECK(!scrub->run);
    if (catalog_names(scrub->options.catalog, &names, &count) != 0) {
        scrub->now.counters.errors_total++;
    }
    step->status = CAIRN_E_ENDED;
    for (size_t i = 0; i < count && !scrub->run; i++) {
        int order = run_name_compare(&names[i], &entry->run);
        if (order < 0 || (order == 0 && step->behind)) {
            continue;
        }
        if (order > 0) {
            entry->run = names[i];
            entry->seq = 0;
            entry->rank = entry->objects = entry->found = 0;
        }
        scrub->run = catalog_run(scrub->options.catalog, &entry->run);
        step->status = scrub->run ? 0 : CAIRN_E_NO_MEMORY;
        break;
    }
    free(names);
}

static void on_release(void *user)
{
    struct scrub *scrub = user;
    struct run *run = scrub->run;
    scrub->run = NULL;
    catalog_release(run);
}

/* --- the record of a run ---------------------------------------------------------------------- */

static void found_record(struct scrub *scrub, const char *text)
{
    scrub->now.entry.findings++;
    scrub_tell(scrub,
               &(struct scrub_news){.kind = SCRUB_FOUND, .health = HEALTH_DAMAGED, .text = text});
}

/* Reads the record as the medium holds it: the copy in memory may be the last good one. Returns
 * true if it is damaged. */
static bool check_record(struct scrub *scrub)
{
    struct store_req req = {
        .op = STORE_RECORD_GET, .run = scrub->now.entry.run, .from_medium = true};
    int status = ask_store(&scrub->ask, catalog_store(scrub->options.catalog), &req, NULL);
    bool damaged = store_record_is_damaged(&req);
    record_free(req.ret_record);
    if (status == 0 || damaged) {
        scrub_tell(scrub, &(struct scrub_news){.kind = SCRUB_LOOKED_AT_RECORD});
    }
    if (damaged) {
        char text[SCRUB_TEXT_MAX];
        snprintf(text, sizeof(text), "the run's record: %.490s", req.diag.text);
        found_record(scrub, text);
        scrub_tell(scrub, &(struct scrub_news){.kind = SCRUB_IS_DAMAGED});
    }
    scrub->now.counters.errors_total += status != 0 && !damaged;
    return damaged;
}

static void take_mark(void *user, const struct run_state *state)
{
    char *text = user;
    text[0] = '\0';
    if (state_is_marked(state)) {
        state_mark_text(state, SCRUB_TEXT_MAX, text);
    }
}

/* Reports it if more is stored than the record knows. */
static void check_beside(struct scrub *scrub)
{
    char text[SCRUB_TEXT_MAX];
    if (ask_state(&scrub->ask, scrub->run, take_mark, text, NULL) == 0 && text[0] != '\0') {
        found_record(scrub, text);
    }
}

/* --- from checkpoint to checkpoint ------------------------------------------------------------ */

/* Returns true if the base need not be read again: it was examined in this pass and is good.
 * Whatever a checkpoint refers to, its base refers to or holds, word for word. The base has the
 * smaller sequence, so it was examined first. */
static bool is_base_good(const struct run_state *state, const struct state_commit *commit)
{
    const struct state_commit *base =
        commit->entry.base.term == 0 ? NULL : state_commit_find(state, commit->entry.base);
    return base && base->health == HEALTH_VERIFIED && base->entry.seq < commit->entry.seq;
}

struct next_ckpt {
    struct entry_scrub *entry;
    bool is_there;
    struct scrub_ckpt ckpt;
};

/* The next checkpoint is the first committed one after the position. Forgotten ones are skipped. */
static void take_next(void *user, const struct run_state *state)
{
    struct next_ckpt *next = user;
    struct entry_scrub *entry = next->entry;
    const struct state_commit *commit = NULL;
    for (size_t i = 0; i < state->commit_count && !commit; i++) {
        const struct state_commit *at = &state->commits[i];
        bool ahead =
            at->entry.seq > entry->seq || (at->entry.seq == entry->seq && entry->rank != SCRUB_ALL);
        commit = ahead && !at->forgotten ? at : NULL;
    }
    next->is_there = commit != NULL;
    if (!commit) {
        return;
    }
    if (commit->entry.seq != entry->seq) {
        entry->seq = commit->entry.seq;
        entry->rank = entry->objects = entry->found = 0;
    }
    next->ckpt = (struct scrub_ckpt){.root = {.run = entry->run,
                                              .id = commit->entry.id,
                                              .open_id = commit->entry.open_id,
                                              .manifest_bytes = commit->entry.manifest_bytes,
                                              .manifest_sha256 = commit->entry.manifest_sha256},
                                     .health = commit->health,
                                     .with_base = !is_base_good(state, commit)};
}

/* Reads the run at hand. A run whose state cannot be had is passed over. */
static int read_run(struct scrub *scrub)
{
    struct scrub_moment moment;
    struct next_ckpt next = {.entry = &scrub->now.entry, .is_there = true};
    int status = 0;
    if (!check_record(scrub)) { /* else the finding names the remedy already */
        check_beside(scrub);
    }
    while (status == 0 && next.is_there) {
        status = scrub_ask(scrub, &moment);
        if (status == 0 && ask_state(&scrub->ask, scrub->run, take_next, &next, NULL) != 0) {
            scrub->now.counters.errors_total++;
            break;
        }
        if (status == 0 && next.is_there) {
            status = scrub_ckpt(scrub, &next.ckpt);
        }
    }
    return status;
}

/* --- a pass ----------------------------------------------------------------------------------- */

static int end_pass(struct scrub *scrub)
{
    struct entry_scrub *entry = &scrub->now.entry;
    struct scrub_moment moment;
    err_ignore(scrub_ask(scrub, &moment)); /* it has ended in any case */
    entry->state = SCRUB_ENDED;
    entry->ended_wall_ns = moment.wall_ns;
    entry->run = (struct run_name){{0}, {0}};
    entry->seq = 0;
    entry->rank = entry->objects = entry->found = 0;
    return position_save(scrub);
}

static int read_runs(struct scrub *scrub)
{
    struct step step = {.scrub = scrub};
    struct scrub_moment moment;
    int status = scrub_ask(scrub, &moment);
    while (status == 0) {
        ask_call(&scrub->ask, on_next_run, &step);
        status = step.status;
        if (status == 0) {
            status = read_run(scrub);
            ask_call(&scrub->ask, on_release, scrub);
        }
        status = status != 0 ? status : scrub_ask(scrub, &moment);
        step.behind = true;
    }
    return status == CAIRN_E_ENDED ? end_pass(scrub) : status;
}

struct decision {
    struct scrub *scrub;
    struct scrub_moment moment;
    bool begins;
};

/* Goes on with a pass that a restart has interrupted, which answers a request, too; begins a new
 * one if it is due. */
static void on_decide(void *user)
{
    struct decision *decision = user;
    struct scrub *scrub = decision->scrub;
    bool has_begun = scrub->now.entry.state == SCRUB_RUNNING;
    decision->begins = has_begun || scrub_due_in_ms(scrub) == 0;
    if (decision->begins) {
        scrub->asked = false;
        scrub_turn(scrub, true);
    }
}

/* Begins a pass, or goes on with one. */
static int run(struct scrub *scrub, const struct scrub_moment *moment)
{
    struct entry_scrub *entry = &scrub->now.entry;
    int status = 0;
    if (entry->state == SCRUB_RUNNING) {
        scrub->saved_ms = moment->now_ms;
    } else {
        *entry = (struct entry_scrub){.pass = entry->pass + 1,
                                      .state = SCRUB_RUNNING,
                                      .begun_wall_ns = moment->wall_ns,
                                      .ended_wall_ns = entry->ended_wall_ns};
        status = position_save(scrub);
    }
    if (status == 0) {
        status = read_runs(scrub);
    }
    if (status != 0 && scrub->moved) {
        err_ignore(position_save(scrub)); /* so that nothing is read twice */
    }
    return status;
}

int pass_run(struct scrub *scrub)
{
    struct decision decision = {.scrub = scrub};
    CHECK(!scrub->run);
    int status = position_load(scrub);
    if (status == 0) {
        status = scrub_ask(scrub, &decision.moment);
    }
    if (status == 0) {
        ask_call(&scrub->ask, on_decide, &decision);
    }
    if (decision.begins) {
        status = run(scrub, &decision.moment);
    }
    CHECK(!scrub->run);
    return status;
}
