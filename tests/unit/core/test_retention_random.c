/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy engine keeps what a naive model keeps, over 100,000 random histories and policies.
 * Method: the rules said a second time, as simply as possible, with the C library's calendar and
 * arrays searched from end to end. Histories have damage, branches, pins, uses, clocks that jump
 * and metrics that are NaN. The seed of a failure is printed; CAIRN_SEED=n runs that one.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "core/retention.h"
#include "support/unit_test.h"

enum { HISTORIES = 100000, ITEMS_MAX = 24 };

#define SECOND INT64_C(1000000000)

struct world {
    uint64_t seed, random;
    size_t count;
    struct retention_item items[ITEMS_MAX];
    struct entry_note notes[ITEMS_MAX];
    struct metric metrics[ITEMS_MAX];
    struct retention_policy policy;
    int64_t now_ns;
    bool apart;
};

static struct world world;

static uint64_t draw(uint64_t below)
{
    world.random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t z = world.random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static bool chance(unsigned percent) { return draw(100) < percent; }

/* ---- histories ---- */

static const char *const tag_a[] = {"a"}, *const tag_b[] = {"b"}, *const tag_ab[] = {"a", "b"};

static void draw_note(size_t i)
{
    struct entry_note *note = &world.notes[i];
    uint64_t which = draw(4);
    memset(note, 0, sizeof(*note));
    note->tags = (const char **)(which == 1 ? tag_a : which == 2 ? tag_b : tag_ab);
    note->tag_count = which == 0 ? 0 : which == 3 ? 2 : 1;
    world.metrics[i] = (struct metric){"m", chance(20) ? (double)NAN : (double)draw(5)};
    note->metric_count = (uint32_t)draw(2);
    note->metrics = &world.metrics[i];
    world.items[i].note = chance(70) ? note : NULL;
}

static void draw_history(void)
{
    static const int64_t scales[] = {60, 3600, 20000, 86400, 604800, 3000000, 40000000};
    int64_t time = INT64_C(1700000000) + (int64_t)draw(100000000);
    int64_t scale = scales[draw(7)];
    world.count = draw(ITEMS_MAX + 1);
    for (size_t i = 0; i < world.count; i++) {
        time += (int64_t)draw((uint64_t)scale);
        int64_t jump = chance(4) ? (int64_t)draw(100000000) - 50000000 : 0;
        world.items[i] = (struct retention_item){.id = {1, i + 1},
                                                 .seq = i + 1,
                                                 .wall_ns = (time + jump) * SECOND + 7,
                                                 .gone = chance(15),
                                                 .on_lineage = chance(85),
                                                 .pinned = chance(4),
                                                 .set = 1 + draw(3)};
        struct retention_item *item = &world.items[i];
        item->health = chance(85) ? HEALTH_VERIFIED : chance(50) ? HEALTH_SUSPECT : HEALTH_DAMAGED;
        item->use = (struct state_use){chance(3), chance(3), chance(2)};
        item->tip = !item->on_lineage && chance(50);
        item->superseded_ns = item->wall_ns + (int64_t)draw(1000000) * SECOND;
        draw_note(i);
    }
    world.now_ns = (time + (int64_t)draw(200000) - (chance(5) ? 100000 : 0)) * SECOND;
    world.apart = chance(50);
}

static void draw_span(struct retention_span *span)
{
    if (chance(12)) {
        *span = (struct retention_span){(uint32_t)draw(2), (uint32_t)draw(14), (uint32_t)draw(40),
                                        draw(100000)};
    }
}

static void draw_policy(void)
{
    struct retention_policy *policy = &world.policy;
    *policy = (struct retention_policy){0};
    policy->last = chance(40) ? (int64_t)draw(6) - 1 : 0;
    draw_span(&policy->within);
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        policy->per[unit] = chance(15) ? (int64_t)draw(5) - 1 : 0;
        draw_span(&policy->within_per[unit]);
    }
    policy->every_steps = chance(15) ? 1 + draw(5) : 0;
    policy->every_seconds = chance(15) ? 1 + draw(200000) : 0;
    if (chance(20)) {
        policy->best = (int64_t)draw(4) - 1;
        policy->metric = policy->best != 0 ? "m" : NULL;
        policy->mode = policy->best == 0 ? MODE_UNSET : chance(50) ? MODE_MIN : MODE_MAX;
    }
    if (chance(20)) {
        policy->tag_list_count = 1;
        policy->tag_lists[0] = (struct retention_tags){(uint32_t)draw(3), (const char **)tag_ab};
    }
    policy->has_superseded = chance(30);
    policy->superseded_seconds = draw(1000000);
    policy->least = (uint32_t)draw(4);
}

/* ---- the model ---- */

static bool good(size_t i)
{
    return !world.items[i].gone && world.items[i].on_lineage &&
           world.items[i].health == HEALTH_VERIFIED;
}

static time_t seconds_of(size_t i) { return (time_t)((world.items[i].wall_ns - 7) / SECOND); }

static size_t label(unsigned unit, size_t i, char ret[40])
{
    time_t seconds = seconds_of(i);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    switch (unit) {
    case UNIT_HOUR:
        return strftime(ret, 40, "%Y-%m-%d %H", &tm);
    case UNIT_DAY:
        return strftime(ret, 40, "%Y-%m-%d", &tm);
    case UNIT_WEEK:
        return strftime(ret, 40, "%G week %V", &tm);
    case UNIT_MONTH:
        return strftime(ret, 40, "%Y-%m", &tm);
    default:
        return strftime(ret, 40, "%Y", &tm);
    }
}

static size_t oldest_good(void)
{
    size_t i = 0;
    while (!good(i)) {
        i++;
    }
    return i;
}

static bool model_within(size_t i, const struct retention_span *span)
{
    int64_t newest = INT64_MIN;
    for (size_t j = 0; j < world.count; j++) {
        if (good(j) && world.items[j].wall_ns <= world.now_ns && world.items[j].wall_ns > newest) {
            newest = world.items[j].wall_ns;
        }
    }
    if (newest == INT64_MIN) {
        return true;
    }
    time_t seconds = (time_t)((newest - 7) / SECOND);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    tm.tm_year -= (int)span->years;
    tm.tm_mon -= (int)span->months;
    tm.tm_mday -= (int)span->days;
    return seconds_of(i) > timegm(&tm) - (time_t)span->seconds;
}

static bool span_set(const struct retention_span *span)
{
    return span->years + span->months + span->days + span->seconds > 0;
}

static void model_per(bool *kept, unsigned unit, int64_t count, const struct retention_span *span)
{
    char last[40] = "", now[40];
    for (size_t i = world.count; i-- > 0;) {
        if (!good(i) || count == 0 || (span != NULL && !model_within(i, span))) {
            continue;
        }
        assert_true(label(unit, i, now) > 0);
        if (strcmp(now, last) != 0 || i == oldest_good()) {
            kept[i] = true;
            count--;
            memcpy(last, now, sizeof(last));
        }
    }
}

static void model_every(bool *kept)
{
    int64_t last = -1;
    bool any = false;
    for (size_t i = 0; i < world.count && world.policy.every_seconds > 0; i++) {
        int64_t time = world.items[i].wall_ns;
        if (good(i) &&
            (!any || time < last || time >= last + (int64_t)world.policy.every_seconds * SECOND)) {
            kept[i] = any = true;
            last = time;
        }
    }
}

static bool metric_of(size_t i, double *ret)
{
    const struct entry_note *entry = world.items[i].note;
    if (!good(i) || entry == NULL || entry->metric_count == 0 || isnan(entry->metrics[0].value)) {
        return false;
    }
    *ret = entry->metrics[0].value;
    return true;
}

static int model_best(bool *kept)
{
    int64_t left = world.policy.best;
    bool taken[ITEMS_MAX] = {false};
    for (bool any = false; left != 0; left--, any = true) {
        size_t best = world.count;
        double value = 0, best_value = 0;
        for (size_t i = 0; i < world.count; i++) {
            if (metric_of(i, &value) && !taken[i] &&
                (best == world.count ||
                 (world.policy.mode == MODE_MIN ? value <= best_value : value >= best_value))) {
                best = i;
                best_value = value;
            }
        }
        if (best == world.count) {
            return any ? 0 : CAIRN_E_NOT_FOUND;
        }
        taken[best] = kept[best] = true;
    }
    return 0;
}

static bool model_tagged(size_t i)
{
    const struct entry_note *entry = world.items[i].note;
    bool a = false, b = false;
    for (uint32_t t = 0; entry != NULL && t < entry->tag_count; t++) {
        a = a || strcmp(entry->tags[t], "a") == 0;
        b = b || strcmp(entry->tags[t], "b") == 0;
    }
    uint32_t asked = world.policy.tag_lists[0].count;
    return asked == 0 ? !a && !b : asked == 1 ? a : a && b;
}

static int model_rules(bool *kept)
{
    const struct retention_policy *policy = &world.policy;
    int64_t counted = 0;
    for (size_t i = world.count; i-- > 0;) {
        if (good(i)) {
            kept[i] =
                policy->last < 0 || counted++ < policy->last ||
                (span_set(&policy->within) && model_within(i, &policy->within)) ||
                (policy->every_steps > 0 && world.items[i].id.step % policy->every_steps == 0);
        }
        if (policy->tag_list_count > 0 && !world.items[i].gone) {
            kept[i] = kept[i] || model_tagged(i);
        }
    }
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        if (policy->per[unit] != 0) {
            model_per(kept, unit, policy->per[unit], NULL);
        }
        if (span_set(&policy->within_per[unit])) {
            model_per(kept, unit, -1, &policy->within_per[unit]);
        }
    }
    model_every(kept);
    return policy->best != 0 ? model_best(kept) : 0;
}

static bool model_wants_time(void)
{
    const struct retention_policy *policy = &world.policy;
    bool wants = policy->every_seconds > 0 || span_set(&policy->within);
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        wants = wants || policy->per[unit] != 0 || span_set(&policy->within_per[unit]);
    }
    return wants;
}

static unsigned count_kept(const bool *kept, uint64_t other_than_set)
{
    unsigned count = 0;
    for (size_t i = 0; i < world.count; i++) {
        count += good(i) && kept[i] && world.items[i].set != other_than_set;
    }
    return count;
}

static bool of_branch(size_t i)
{
    const struct retention_item *item = &world.items[i];
    return !item->gone && !item->on_lineage && item->health == HEALTH_VERIFIED;
}

static unsigned count_branches(const bool *kept)
{
    unsigned count = 0;
    for (size_t i = 0; i < world.count; i++) {
        count += kept[i] && of_branch(i);
    }
    return count;
}

/* What is kept whatever the rules say. */
static void model_guards(bool *kept)
{
    unsigned least = world.policy.least > 0 ? world.policy.least : 2;
    size_t newest = 0, goods = 0;
    for (size_t i = 0; i < world.count; i++) {
        const struct retention_item *item = &world.items[i];
        kept[i] =
            kept[i] || item->pinned || item->use.claimed || item->use.leased || item->use.parent;
        if (good(i)) {
            bool greater = goods++ == 0 || ckpt_id_compare(item->id, world.items[newest].id) > 0;
            newest = greater ? i : newest;
        }
    }
    kept[newest] = true;
    for (size_t i = world.count; i-- > 0;) {
        kept[i] = kept[i] || (good(i) && count_kept(kept, 0) < least);
    }
    if (world.apart && least > 1) {
        for (size_t i = world.count; i-- > 0;) {
            uint64_t set = world.items[newest].set;
            kept[i] =
                kept[i] || (good(i) && count_kept(kept, set) == 0 && world.items[i].set != set);
        }
    }
    unsigned of_lineage = count_kept(kept, 0);
    for (size_t i = world.count; i-- > 0 && of_lineage < least;) {
        kept[i] = kept[i] || (of_branch(i) && of_lineage + count_branches(kept) < least);
    }
    bool enough = of_lineage + count_branches(kept) >= least;
    bool shares = world.apart && least > 1 && of_lineage < least;
    for (size_t i = 0; i < world.count && shares; i++) {
        shares =
            !kept[i] || world.items[i].set == world.items[newest].set || !(good(i) || of_branch(i));
    }
    for (size_t i = world.count; i-- > 0 && shares;) {
        if (of_branch(i) && world.items[i].set != world.items[newest].set) {
            kept[i] = true;
            shares = false;
        }
    }
    for (size_t i = 0; i < world.count && of_lineage < least; i++) {
        kept[i] = kept[i] || (world.items[i].health != HEALTH_DAMAGED &&
                              (!enough || world.items[i].on_lineage));
    }
}

static int model(bool *kept)
{
    size_t there = 0, goods = 0, newest = 0;
    for (size_t i = 0; i < world.count; i++) {
        there += !world.items[i].gone;
        goods += good(i);
        newest = good(i) ? i : newest;
    }
    if (goods == 0) {
        memset(kept, 1, world.count);
        return there > 0 ? CAIRN_E_DAMAGED : 0;
    }
    if (model_wants_time() && world.items[newest].wall_ns > world.now_ns + 600 * SECOND) {
        return CAIRN_E_CONFLICT;
    }
    int status = model_rules(kept);
    if (status != 0 || count_kept(kept, 0) == 0) {
        return status != 0 ? status : CAIRN_E_INVALID;
    }
    bool by_rule[ITEMS_MAX];
    memcpy(by_rule, kept, sizeof(by_rule));
    for (size_t i = 0; i < world.count; i++) {
        const struct retention_item *item = &world.items[i];
        unsigned newer = 0;
        for (size_t j = i; j < world.count; j++) {
            newer += good(j) && by_rule[j];
        }
        kept[i] = kept[i] || (item->on_lineage && !good(i) && newer < 2);
        int64_t stay =
            world.policy.has_superseded ? (int64_t)world.policy.superseded_seconds : 7 * 86400;
        int64_t age = (world.now_ns - item->superseded_ns) / SECOND;
        kept[i] = kept[i] || (item->tip && stay > 0 && item->health != HEALTH_DAMAGED &&
                              (item->superseded_ns > world.now_ns || age < stay));
    }
    model_guards(kept);
    return 0;
}

/* ---- the comparison ---- */

static unsigned forgotten, errors;

static void compare(void)
{
    enum mark_outcome outcomes[ITEMS_MAX];
    uint64_t reasons[ITEMS_MAX];
    bool kept[ITEMS_MAX] = {false};
    struct scratch scratch;
    struct diag diag = DIAG_INIT;
    struct retention_job job = {.policy = &world.policy,
                                .now_ns = world.now_ns,
                                .apart = world.apart,
                                .count = world.count,
                                .items = world.items,
                                .outcomes = outcomes,
                                .reasons = reasons};
    if (retention_policy_check(&world.policy, NULL) != 0) {
        return;
    }
    scratch_init(&scratch, KIB(64));
    int status = retention_decide(&job, &scratch, &diag);
    int expected = model(kept);
    if (status != expected) {
        fail_msg("the engine says %d (%s), the model %d", status, diag.text, expected);
    }
    errors += status != 0;
    for (size_t i = 0; status == 0 && i < world.count; i++) {
        bool stays = outcomes[i] != MARK_DONE;
        if (!world.items[i].gone && stays != kept[i]) {
            fail_msg("checkpoint %zu of %zu: the engine %s it", i, world.count,
                     stays ? "keeps" : "forgets");
        }
        assert_true(!stays || outcomes[i] != MARK_KEPT || reasons[i] != 0);
        forgotten += !stays;
    }
    scratch_fini(&scratch);
}

static void after(void)
{
    if (world.seed != 0) {
        fprintf(stderr, "random histories: to replay, CAIRN_SEED=%" PRIu64 " and this test\n",
                world.seed);
    }
}

#define FIXED_TEST(name) SETUP_TEST(name, unit_test_nothing, after)

FIXED_TEST(random_histories)
{
    const char *one = getenv("CAIRN_SEED");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL ? 1 : HISTORIES;
    for (uint64_t i = 0; i < count; i++) {
        world.seed = world.random = first + i;
        draw_history();
        draw_policy();
        compare();
    }
    world.seed = 0;
    printf("%" PRIu64 " histories: %u checkpoints forgotten, %u refusals\n", count, forgotten,
           errors);
    assert_true(count == 1 || (forgotten > count && errors > count / 100));
}
