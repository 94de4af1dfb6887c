/* SPDX-License-Identifier: Apache-2.0
 *
 * retain: see run_retain.h. It handles one run at a time, each in a turn of its own, so that
 * sessions go on between them.
 */
#include "run/run_retain.h"

#include "run_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_MS = 60000, POLICY_SCRATCH_BYTES = 64 << 10 };

struct retain {
    struct retain_options options;
    struct timer timer; /* for the next round, or the next run of this one */
    struct run_name *names;
    size_t name_count, at;
    struct run *run; /* of the request; NULL if none is under way */
    struct run_req req;
    struct policies_req policies;
    struct scratch scratch; /* memory of the policy */
    bool round_failed;
    struct retain_status status;
};

int retain_event(const struct policy_choice *choice, struct scratch *scratch,
                 struct event_mark *ret, struct diag *diag)
{
    struct retention_policy *policy = scratch_array(scratch, 1, sizeof(*policy));
    char text[ENTRY_REASON_BYTES], reason[ENTRY_REASON_BYTES];
    CHECK(choice->source != POLICY_NONE);
    if (policy == NULL) {
        return diag_no_memory(diag, "a policy");
    }
    int status = policy_make(&choice->entry.row, scratch, policy, diag);
    if (choice->source == POLICY_STORED) {
        diag_add(diag, "the stored policy '%s'", choice->entry.row.pattern);
    }
    if (status == 0 && choice->source == POLICY_STORED) {
        retention_policy_text(policy, sizeof(text), text);
        snprintf(reason, sizeof(reason), "stored policy %s: %.*s", choice->entry.row.pattern,
                 (int)(sizeof(reason) - POLICY_PATTERN_MAX - 20), text);
        ret->reason = scratch_string(scratch, strlen(reason), reason);
        status = ret->reason != NULL ? 0 : diag_no_memory(diag, "a policy");
    }
    ret->forget.policy = policy;
    return status;
}

static void drop_catalog(void *catalog) { catalog_drop(catalog); }

int retain_ask(struct catalog *catalog, struct policies_req *req, struct diag *diag)
{
    req->store = catalog_store(catalog);
    req->drop = drop_catalog;
    req->holder = catalog;
    int status = policies_submit(req, diag);
    if (status == 0) {
        catalog_hold(catalog);
    }
    return status;
}

static void report(struct retain *retain, const struct run_name *run, int status,
                   const struct diag *diag, const struct verdict_marks *marks)
{
    retain->status.errors += status != 0;
    retain->round_failed = retain->round_failed || status != 0;
    retain->options.report(retain->options.user, run, status, diag, marks);
}

static void next_run(struct retain *retain)
{
    retain->at++;
    timer_start(&retain->timer, 0);
}

static void end_run(struct retain *retain)
{
    struct run *run = retain->run;
    retain->run = NULL;
    if (run != NULL) {
        catalog_release(run);
    }
    scratch_fini(&retain->scratch);
    next_run(retain);
}

static void on_decided(struct run_req *req)
{
    struct retain *retain = container_of(req, struct retain, req);
    CHECK(retain->run != NULL);
    report(retain, &retain->names[retain->at], req->status, &req->diag,
           req->status == 0 ? verdict_marks(&req->verdict) : NULL);
    end_run(retain);
}

/* Asks the run to forget what its policy does not keep. */
static void apply(struct retain *retain, const struct policy_choice *choice)
{
    const struct run_name *name = &retain->names[retain->at];
    struct event_mark mark = {.actor = "cairnd"};
    struct diag diag = DIAG_INIT;
    CHECK(retain->run == NULL);
    scratch_init(&retain->scratch, POLICY_SCRATCH_BYTES);
    int status = retain_event(choice, &retain->scratch, &mark, &diag);
    retain->run = status == 0 ? catalog_run(retain->options.catalog, name) : NULL;
    if (retain->run == NULL) {
        status = status != 0 ? status : diag_no_memory(&diag, "a run");
        report(retain, name, status, &diag, NULL);
        end_run(retain);
        return;
    }
    retain->options.tell_use(retain->options.server, name, &mark.forget);
    retain->req = (struct run_req){.done = on_decided, .event.kind = EVENT_FORGET};
    retain->req.event.u.mark = mark;
    run_submit(retain->run, &retain->req);
}

/* Called with the stored policies as they are now. A run without a policy is skipped. */
static void on_policies(struct policies_req *req)
{
    struct retain *retain = container_of(req, struct retain, policies);
    const struct run_name *name = &retain->names[retain->at];
    struct policy_choice choice;
    int status = req->status;
    CHECK(retain->at < retain->name_count);
    if (status == 0) {
        status = policy_choose(req->record, retain->options.table, name, &choice, &req->diag);
    } else {
        diag_add(&req->diag, "the stored policies cannot be read, so nothing is forgotten");
    }
    if (status != 0) {
        report(retain, name, status, &req->diag, NULL);
        next_run(retain);
    } else if (choice.source == POLICY_NONE) {
        next_run(retain);
    } else {
        apply(retain, &choice);
    }
}

static void begin_run(struct retain *retain)
{
    struct diag diag = DIAG_INIT;
    CHECK(retain->at < retain->name_count);
    retain->policies = (struct policies_req){.done = on_policies};
    int status = retain_ask(retain->options.catalog, &retain->policies, &diag);
    if (status != 0) {
        report(retain, &retain->names[retain->at], status, &diag, NULL);
        next_run(retain);
    }
}

/* Lists all runs and begins with the first one. Nothing is forgotten while the wall clock is in
 * doubt. */
static void begin_round(struct retain *retain)
{
    struct diag diag = DIAG_INIT;
    int64_t jump_s = catalog_clock_jump_s(retain->options.catalog);
    int status = 0;
    retain->round_failed = false;
    if (jump_s != 0) {
        status = diag_set(&diag, CAIRN_E_CONFLICT,
                          "the wall clock jumped by %" PRId64
                          " s, so nothing is forgotten until the clock is set back, has run on for "
                          "24 h, or cairnd is restarted",
                          jump_s);
    } else {
        status = catalog_names(retain->options.catalog, &retain->names, &retain->name_count);
    }
    if (status != 0) {
        report(retain, NULL, status, &diag, NULL);
        timer_start(&retain->timer, retain->options.interval_ms);
        return;
    }
    retain->at = 0;
    timer_start(&retain->timer, 0);
}

static void end_round(struct retain *retain)
{
    CHECK(retain->at == retain->name_count);
    free(retain->names);
    retain->names = NULL;
    retain->status.rounds++;
    if (!retain->round_failed) {
        retain->status.good_wall_ns = loop_wall_ns(retain->options.loop);
    }
}

void retain_status(const struct retain *retain, struct retain_status *ret)
{
    *ret = retain->status;
}

static void on_timer(struct timer *timer)
{
    struct retain *retain = container_of(timer, struct retain, timer);
    if (retain->names == NULL) {
        begin_round(retain);
    } else if (retain->at < retain->name_count) {
        begin_run(retain);
    } else {
        end_round(retain);
        timer_start(&retain->timer, retain->options.interval_ms);
    }
}

int retain_new(const struct retain_options *options, struct retain **ret)
{
    struct retain *retain = calloc(1, sizeof(*retain));
    CHECK(options->interval_ms > 0);
    CHECK(options->catalog && options->table);
    CHECK(options->report && options->tell_use);
    if (retain == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    retain->options = *options;
    timer_init(&retain->timer, options->loop, on_timer);
    timer_start(&retain->timer, options->interval_ms < FIRST_MS ? options->interval_ms : FIRST_MS);
    *ret = retain;
    return 0;
}

void retain_set_interval(struct retain *retain, uint64_t interval_ms)
{
    CHECK(interval_ms > 0);
    bool shorter = interval_ms < retain->options.interval_ms;
    retain->options.interval_ms = interval_ms;
    if (shorter && retain->names == NULL) {
        timer_start(&retain->timer, interval_ms);
    }
}

void retain_free(struct retain *retain)
{
    if (retain == NULL) {
        return;
    }
    timer_stop(&retain->timer);
    policies_cancel(&retain->policies);
    if (retain->run != NULL) {
        run_cancel(&retain->req);
        catalog_release(retain->run);
        scratch_fini(&retain->scratch);
    }
    free(retain->names);
    free(retain);
}
