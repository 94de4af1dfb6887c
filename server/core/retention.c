/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy engine: which checkpoints a policy keeps, rule by rule, and why. The semantics are
 * those that users of restic know: rules are OR-ed, and each counts for itself; a counting rule
 * keeps the oldest checkpoint of all while it has counts left; "within" looks back from the newest
 * one whose time is not in the future. Only good checkpoints of the lineage count, in the order of
 * their commits: wall time decides which hour or day a checkpoint belongs to, never which one is
 * newer. Calendar units are UTC, or those of the policy's time zone. Pure.
 */
#include "core/retention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "core_private.h"

enum { DAY_SECONDS = 86400, CLOCK_SLACK_SECONDS = 600, TIP_DAYS = 7 };
#define SECOND_NS INT64_C(1000000000)

static const int64_t never_kept = INT64_MIN;

struct engine {
    const struct retention_policy *policy;
    const struct retention_item *items;
    size_t count;
    int64_t now_ns, clock_jump_s;
    struct scratch *scratch;
    size_t good_count;
    size_t *good; /* indices of the good items, newest first */
    uint64_t *reasons;
};

/* ---- time ---- */

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

/* Returns the number of days from 1970-01-01 to the first of a month. Months count from 0, and may
 * exceed a year. */
static int64_t days_of_month(int64_t year, int64_t month)
{
    year += floor_div(month, 12);
    month -= floor_div(month, 12) * 12;
    int64_t shifted_year = month < 2 ? year - 1 : year; /* of a year that begins with March */
    int64_t era = floor_div(shifted_year, 400);
    int64_t year_of_era = shifted_year - era * 400;
    int64_t day_of_year = (153 * (month < 2 ? month + 10 : month - 2) + 2) / 5;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year -
           719468;
}

struct date {
    int64_t year, month, day; /* month and day count from 0 */
};

/* Returns the date of a day, which is counted from 1970-01-01. The calculation begins each year in
 * March, so that the leap day is the year's last day. */
static struct date date_of(int64_t days)
{
    int64_t shifted = days + 719468;
    int64_t era = floor_div(shifted, 146097);
    int64_t of_era = shifted - era * 146097;
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * of_year + 2) / 153; /* counts from March */
    struct date date = {.year = year + era * 400 + (month >= 10 ? 1 : 0),
                        .month = month < 10 ? month + 2 : month - 10,
                        .day = of_year - (153 * month + 2) / 5};
    CHECK(date.month >= 0);
    CHECK(date.month < 12);
    CHECK(date.day >= 0);
    CHECK(date.day < 31);
    return date;
}

/* Returns how far local time is ahead at a wall time, in seconds. Without a zone it is UTC. */
static int64_t ahead(const struct zone *zone, int64_t wall_ns)
{
    return zone != NULL ? zone_offset(zone, floor_div(wall_ns, SECOND_NS)) : 0;
}

/* Returns a number that is equal for two times of the same local hour, day, week (from Monday on),
 * month or year. The hour that comes twice when summer time ends is two hours. */
static int64_t bucket(const struct zone *zone, enum retention_unit unit, int64_t wall_ns)
{
    CHECK(unit < UNIT_COUNT);
    int64_t offset = ahead(zone, wall_ns);
    int64_t seconds = floor_div(wall_ns, SECOND_NS) + offset;
    int64_t days = floor_div(seconds, DAY_SECONDS);
    switch (unit) {
    case UNIT_HOUR:
        return floor_div(seconds, 3600) * 3600 - offset;
    case UNIT_DAY:
        return days;
    case UNIT_WEEK:
        return floor_div(days + 3, 7); /* 1970-01-01 was a Thursday */
    case UNIT_MONTH:
        return date_of(days).year * 12 + date_of(days).month;
    case UNIT_YEAR:
    case UNIT_COUNT:
        break;
    }
    return date_of(days).year;
}

static bool span_is_set(const struct retention_span *span)
{
    return span->years > 0 || span->months > 0 || span->days > 0 || span->seconds > 0;
}

/* Returns wall_ns minus the span, in local time. A day that the month does not have runs over into
 * the next month. */
static int64_t before(const struct zone *zone, int64_t now_ns, const struct retention_span *span)
{
    int64_t wall_ns = now_ns + ahead(zone, now_ns) * SECOND_NS;
    int64_t days = floor_div(wall_ns, SECOND_NS * DAY_SECONDS);
    int64_t rest_ns = wall_ns - days * SECOND_NS * DAY_SECONDS;
    struct date date = date_of(days);
    int64_t earlier =
        days_of_month(date.year - (int64_t)span->years, date.month - (int64_t)span->months) +
        date.day - (int64_t)span->days;
    int64_t seconds = earlier * DAY_SECONDS - (int64_t)span->seconds;
    if (seconds < INT64_MIN / SECOND_NS + INT64_C(2) * DAY_SECONDS) {
        return INT64_MIN; /* earlier than any wall time */
    }
    int64_t then_ns = (seconds - ahead(zone, now_ns)) * SECOND_NS; /* nearly, to know its offset */
    return (seconds - ahead(zone, then_ns)) * SECOND_NS + rest_ns;
}

/* ---- the rules, each over the good ones of the lineage, newest first ---- */

static void keep(struct engine *engine, size_t item, unsigned reason)
{
    CHECK(reason < REASON_COUNT);
    CHECK(item < engine->count);
    engine->reasons[item] |= UINT64_C(1) << reason;
}

static void keep_last(struct engine *engine)
{
    int64_t last = engine->policy->last;
    for (size_t i = 0; i < engine->good_count && (last < 0 || i < (uint64_t)last); i++) {
        keep(engine, engine->good[i], REASON_LAST);
    }
}

/* Keeps the newest checkpoint of each hour, day and so on until `count` are kept. Keeps the oldest
 * of all too if there are counts left. */
static void keep_per(struct engine *engine, enum retention_unit unit, int64_t count)
{
    int64_t kept = never_kept;
    for (size_t i = 0; i < engine->good_count && count != 0; i++) {
        size_t item = engine->good[i];
        int64_t now = bucket(engine->policy->zone, unit, engine->items[item].wall_ns);
        if (now != kept) {
            keep(engine, item, REASON_PER + (unsigned)unit);
        } else if (i + 1 == engine->good_count) {
            keep(engine, item, REASON_OLDEST + (unsigned)unit);
        } else {
            continue;
        }
        kept = now;
        count -= count > 0;
    }
}

/* Gives the newest time that is not in the future. Returns false if all times are. */
static bool newest_time(const struct engine *engine, int64_t *ret)
{
    bool found = false;
    for (size_t i = 0; i < engine->good_count; i++) {
        int64_t wall_ns = engine->items[engine->good[i]].wall_ns;
        if (wall_ns <= engine->now_ns && (!found || wall_ns > *ret)) {
            *ret = wall_ns;
            found = true;
        }
    }
    return found;
}

/* Keeps the good checkpoints that are younger than the span, counted back from the newest one. With
 * `per` it keeps one for each unit of time. */
static void keep_within(struct engine *engine, const struct retention_span *span, bool per,
                        enum retention_unit unit)
{
    int64_t newest = 0, kept = never_kept;
    bool found = newest_time(engine, &newest);
    int64_t from = found ? before(engine->policy->zone, newest, span) : INT64_MIN;
    for (size_t i = 0; i < engine->good_count && span_is_set(span); i++) {
        size_t item = engine->good[i];
        int64_t wall_ns = engine->items[item].wall_ns;
        if (wall_ns <= from) {
            continue;
        }
        int64_t now = bucket(engine->policy->zone, unit, wall_ns);
        if (!per) {
            keep(engine, item, REASON_WITHIN);
        } else if (now != kept) {
            keep(engine, item, REASON_WITHIN_PER + (unsigned)unit);
            kept = now;
        } else if (i + 1 == engine->good_count) {
            keep(engine, item, REASON_WITHIN_OLDEST + (unsigned)unit);
        }
    }
}

/* Keeps, from the oldest on, each checkpoint that came the wanted time after the one kept before,
 * so that a kept checkpoint stays kept. After the clock was set back it begins anew. */
static void keep_every(struct engine *engine)
{
    uint64_t every = engine->policy->every_seconds;
    int64_t kept = never_kept;
    for (size_t i = engine->good_count; i-- > 0 && every > 0;) {
        int64_t wall_ns = engine->items[engine->good[i]].wall_ns;
        if (kept == never_kept || wall_ns < kept ||
            (uint64_t)(wall_ns - kept) / (uint64_t)SECOND_NS >= every) {
            keep(engine, engine->good[i], REASON_EVERY);
            kept = wall_ns;
        }
    }
}

static void keep_steps(struct engine *engine)
{
    uint64_t every = engine->policy->every_steps;
    for (size_t i = 0; i < engine->good_count && every > 0; i++) {
        if (engine->items[engine->good[i]].id.step % every == 0) {
            keep(engine, engine->good[i], REASON_STEPS);
        }
    }
}

struct score {
    double value; /* the smaller one is better */
    uint64_t seq;
    size_t item;
};

static int compare_scores(const void *a, const void *b)
{
    const struct score *left = a, *right = b;
    if (left->value != right->value) {
        return left->value < right->value ? -1 : 1;
    }
    /* The newer one wins if values are equal. */
    return left->seq > right->seq ? -1 : left->seq < right->seq;
}

/* Keeps the best checkpoints by the metric. NaN never wins, and a checkpoint without the metric is
 * not judged. Returns NOT_FOUND if no checkpoint has the metric. */
static int keep_best(struct engine *engine, struct diag *diag)
{
    const struct retention_policy *policy = engine->policy;
    struct score *scores = scratch_array(engine->scratch, engine->good_count + 1, sizeof(*scores));
    size_t count = 0;
    if (scores == NULL) {
        return diag_no_memory(diag, "%zu metrics", engine->good_count);
    }
    for (size_t i = 0; i < engine->good_count; i++) {
        const struct retention_item *item = &engine->items[engine->good[i]];
        for (uint32_t m = 0; item->note != NULL && m < item->note->metric_count; m++) {
            const struct metric *metric = &item->note->metrics[m];
            if (strcmp(metric->name, policy->metric) == 0 && !isnan(metric->value)) {
                double value = policy->mode == MODE_MAX ? -metric->value : metric->value;
                scores[count++] = (struct score){value, item->seq, engine->good[i]};
            }
        }
    }
    if (count == 0) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "no good checkpoint of the lineage has a value of the metric \"%s\", so "
                        "nothing is forgotten; add one with `cairn annotate`, or use another rule",
                        policy->metric);
    }
    CHECK(policy->mode != MODE_UNSET);
    qsort(scores, count, sizeof(*scores), compare_scores);
    for (size_t i = 0; i < count && (policy->best < 0 || i < (uint64_t)policy->best); i++) {
        keep(engine, scores[i].item, REASON_BEST);
    }
    return 0;
}

/* ---- rules for checkpoints on the lineage or not ---- */

static bool has_tag(const struct entry_note *note, const char *tag)
{
    for (uint32_t i = 0; note != NULL && i < note->tag_count; i++) {
        if (strcmp(note->tags[i], tag) == 0) {
            return true;
        }
    }
    return false;
}

/* Keeps the checkpoints that have all tags of one of the policy's lists. An empty list means those
 * without tags. */
static void keep_tags(struct engine *engine)
{
    for (size_t i = 0; i < engine->count; i++) {
        const struct entry_note *note = engine->items[i].note;
        for (uint32_t l = 0; l < engine->policy->tag_list_count; l++) {
            const struct retention_tags *list = &engine->policy->tag_lists[l];
            bool all = list->count > 0 || note == NULL || note->tag_count == 0;
            for (uint32_t t = 0; t < list->count; t++) {
                all = all && has_tag(note, list->tags[t]);
            }
            if (all && !engine->items[i].gone) {
                keep(engine, i, REASON_TAG);
            }
        }
    }
}

/* Keeps young tips of branches, and checkpoints that are not good while fewer than two good ones
 * that came after them are kept. */
static void keep_others(struct engine *engine)
{
    const struct retention_policy *policy = engine->policy;
    uint64_t stay =
        policy->has_superseded ? policy->superseded_seconds : (uint64_t)TIP_DAYS * DAY_SECONDS;
    unsigned newer = 0;
    for (size_t i = engine->count; i-- > 0;) {
        const struct retention_item *item = &engine->items[i];
        if (retention_is_good(item)) {
            newer += engine->reasons[i] != 0;
        } else if (item->on_lineage && !item->gone && newer < RETENTION_LEAST) {
            keep(engine, i, REASON_UNREPLACED);
        }
        bool young = engine->clock_jump_s != 0 || item->superseded_ns > engine->now_ns ||
                     (uint64_t)(engine->now_ns - item->superseded_ns) / (uint64_t)SECOND_NS < stay;
        if (item->tip && !item->gone && item->health != HEALTH_DAMAGED && stay > 0 && young) {
            keep(engine, i, REASON_TIP);
        }
    }
}

/* ---- all rules together ---- */

static bool asks_for_time(const struct retention_policy *policy)
{
    bool asks = span_is_set(&policy->within) || policy->every_seconds > 0;
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        asks = asks || policy->per[unit] != 0 || span_is_set(&policy->within_per[unit]);
    }
    return asks;
}

/* Makes the list of good checkpoints, the newest first. Returns an error, with which nothing is
 * forgotten, if there is none, or if the policy asks for time and the clock is in doubt. */
static int find_good(struct engine *engine, struct diag *diag)
{
    size_t there = 0;
    engine->good = scratch_array(engine->scratch, engine->count + 1, sizeof(*engine->good));
    if (engine->good == NULL) {
        return diag_no_memory(diag, "%zu checkpoints", engine->count);
    }
    for (size_t i = engine->count; i-- > 0;) {
        there += !engine->items[i].gone;
        if (retention_is_good(&engine->items[i])) {
            engine->good[engine->good_count++] = i;
        }
    }
    if (engine->good_count == 0 && there > 0) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "none of the run's %zu checkpoints is both good and on the lineage, so "
                        "nothing is forgotten; look at the run with `cairn ls RUN --all`",
                        there);
    }
    const struct retention_item *newest =
        engine->good_count > 0 ? &engine->items[engine->good[0]] : NULL;
    int64_t latest = engine->now_ns + CLOCK_SLACK_SECONDS * SECOND_NS;
    if (newest != NULL && newest->wall_ns > latest && asks_for_time(engine->policy)) {
        return diag_set(diag, CAIRN_E_CONFLICT,
                        "the newest checkpoint %s was committed %" PRId64
                        " s in the future: a clock is wrong; nothing is forgotten. Set the clock "
                        "right, this server's or that of the one which committed it; until a newer "
                        "checkpoint is committed by a right one, name only rules without time "
                        "(keep-last, keep-every-steps, keep-best, keep-tag)",
                        ckpt_id_text(newest->id).at,
                        (newest->wall_ns - engine->now_ns) / SECOND_NS);
    }
    if (engine->clock_jump_s != 0 && asks_for_time(engine->policy)) {
        return diag_set(diag, CAIRN_E_CONFLICT,
                        "the wall clock jumped by %" PRId64 " s, so no rule of time is decided by "
                        "it; nothing is forgotten. Set the server's clock right; if it is right "
                        "now, restart cairnd, which believes it after 24 h by itself; until then "
                        "name only rules without time (keep-last, keep-every-steps, keep-best, "
                        "keep-tag)",
                        engine->clock_jump_s);
    }
    return 0;
}

/* Applies all rules of the policy. Each rule only adds reasons to keep a checkpoint. Returns an
 * error if no rule keeps any good one. */
static int apply_rules(struct engine *engine, struct diag *diag)
{
    const struct retention_policy *policy = engine->policy;
    keep_last(engine);
    keep_within(engine, &policy->within, false, UNIT_HOUR);
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        keep_per(engine, (enum retention_unit)unit, policy->per[unit]);
        keep_within(engine, &policy->within_per[unit], true, (enum retention_unit)unit);
    }
    keep_steps(engine);
    keep_every(engine);
    keep_tags(engine);
    int status = policy->best != 0 && engine->good_count > 0 ? keep_best(engine, diag) : 0;
    bool any = false;
    for (size_t i = 0; i < engine->good_count; i++) {
        any = any || engine->reasons[engine->good[i]] != 0;
    }
    if (status == 0 && !any && engine->good_count > 0) {
        status = diag_set(
            diag, CAIRN_E_INVALID,
            "the policy is refused, because its rules keep none of the %zu good checkpoints; "
            "nothing is forgotten; give a rule that keeps some, such as keep-last",
            engine->good_count);
    }
    return status;
}

int retention_decide(const struct retention_job *job, struct scratch *scratch, struct diag *diag)
{
    CHECK(job->count == 0 || job->items != NULL);
    struct engine engine = {.policy = job->policy,
                            .items = job->items,
                            .count = job->count,
                            .now_ns = job->now_ns,
                            .clock_jump_s = job->clock_jump_s,
                            .scratch = scratch,
                            .reasons = job->reasons};
    memset(job->reasons, 0, job->count * sizeof(*job->reasons));
    int status = retention_policy_check(job->policy, diag);
    if (status == 0) {
        status = find_good(&engine, diag);
    }
    if (status == 0) {
        status = apply_rules(&engine, diag);
    }
    if (status != 0) {
        return status;
    }
    keep_others(&engine);
    for (size_t i = 0; i < job->count; i++) {
        job->outcomes[i] = job->items[i].gone     ? MARK_ALREADY
                           : job->reasons[i] != 0 ? MARK_KEPT
                                                  : MARK_DONE;
    }
    struct retention_guards guards = {.least = job->policy->least, .apart = job->apart};
    retention_guard(job->items, job->count, &guards, job->outcomes);
    for (size_t i = 0; i < job->count; i++) {
        if (job->outcomes[i] == MARK_DONE) {
            CHECK(job->reasons[i] == 0); /* a rule keeps it */
        }
    }
    return 0;
}
