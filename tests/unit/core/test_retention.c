/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy keeps what its rules say, names the rule for each checkpoint, and one that cannot be
 * meant is refused. Method: golden histories; test_retention_random.c compares with a naive model.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/check.h"
#include "core/retention.h"
#include "support/unit_test.h"

enum { ITEMS_MAX = 64 };

struct bed {
    struct scratch scratch;
    size_t count;
    struct retention_item items[ITEMS_MAX];
    struct entry_note notes[ITEMS_MAX];
    struct metric metrics[ITEMS_MAX];
    const char *tags[ITEMS_MAX][2];
    struct retention_policy policy;
    int64_t now_ns, clock_jump_s;
    enum mark_outcome outcomes[ITEMS_MAX];
    uint64_t reasons[ITEMS_MAX];
    struct diag diag;
};

static struct bed bed;

static void setup(void)
{
    memset(&bed, 0, sizeof(bed));
    scratch_init(&bed.scratch, MIB(1));
}

static void teardown(void) { scratch_fini(&bed.scratch); }

static int64_t at(const char *text)
{
    struct tm tm = {0};
    assert_non_null(strptime(text, "%Y-%m-%d %H:%M", &tm));
    return (int64_t)timegm(&tm) * 1000000000;
}

/* The next commit of the lineage. */
static struct retention_item *add(const char *time)
{
    struct retention_item *item = &bed.items[bed.count++];
    *item = (struct retention_item){.id = {1, 10 * bed.count},
                                    .seq = bed.count,
                                    .wall_ns = at(time),
                                    .on_lineage = true,
                                    .set = 1};
    bed.now_ns = item->wall_ns;
    return item;
}

static void note(double value, const char *tag)
{
    size_t i = bed.count - 1;
    bed.metrics[i] = (struct metric){"loss", value};
    bed.tags[i][0] = tag;
    bed.notes[i] = (struct entry_note){.metric_count = value != 0 ? 1 : 0,
                                       .metrics = &bed.metrics[i],
                                       .tag_count = tag != NULL ? 1 : 0,
                                       .tags = bed.tags[i]};
    bed.items[i].note = &bed.notes[i];
}

static int set(const char *name, const char *value)
{
    bed.diag = (struct diag)DIAG_INIT;
    return retention_policy_set(&bed.policy, name, value, &bed.scratch, &bed.diag);
}

static void rule(const char *name, const char *value)
{
    if (set(name, value) != 0) {
        fail_msg("%s", bed.diag.text);
    }
}

/* This rule, and none of those before it. */
static void only(const char *name, const char *value)
{
    bed.policy = (struct retention_policy){0};
    rule(name, value);
}

static int decide(void)
{
    struct retention_job job = {.policy = &bed.policy,
                                .now_ns = bed.now_ns,
                                .clock_jump_s = bed.clock_jump_s,
                                .count = bed.count,
                                .items = bed.items,
                                .outcomes = bed.outcomes,
                                .reasons = bed.reasons};
    bed.diag = (struct diag)DIAG_INIT;
    return retention_decide(&job, &bed.scratch, &bed.diag);
}

/* One word a checkpoint, oldest first: "-" forgotten, else why it stays. */
static void expect(const char *const *texts)
{
    int status = decide();
    if (status != 0) {
        fail_msg("%s", bed.diag.text);
    }
    for (size_t i = 0; i < bed.count; i++) {
        char text[200] = "-";
        if (bed.outcomes[i] != MARK_DONE) {
            retention_reasons_text(bed.outcomes[i], bed.reasons[i], sizeof(text), text);
        }
        if (texts[i] == NULL || strcmp(text, texts[i]) != 0) {
            fail_msg("checkpoint %zu: \"%s\", expected \"%s\"", i, text,
                     texts[i] != NULL ? texts[i] : "nothing more");
        }
    }
}

#define EXPECT(...) expect((const char *const[]){__VA_ARGS__, NULL})

static void two_years(void)
{
    add("2024-12-30 10:00"); /* a Monday: week 1 of 2025 */
    add("2025-01-05 10:00"); /* the Sunday of it */
    add("2025-01-06 10:00");
    add("2025-12-31 23:10");
    add("2025-12-31 23:50");
    add("2026-01-01 00:10");
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

/* Goal: each counting rule for itself, with the oldest rule where counts are left. */
FIXED_TEST(counting_rules)
{
    two_years();
    rule("keep-last", "2");
    EXPECT("-", "-", "-", "-", "last", "last");
    only("keep-hourly", "2");
    EXPECT("-", "-", "-", "-", "hourly", "hourly");
    only("keep-daily", "unlimited");
    EXPECT("daily", "daily", "daily", "-", "daily", "daily");
    only("keep-weekly", "4"); /* the two of the year's end are in one week */
    EXPECT("oldest weekly", "weekly", "weekly", "-", "-", "weekly");
    only("keep-weekly", "3");
    EXPECT("-", "weekly", "weekly", "-", "-", "weekly");
    only("keep-monthly", "10");
    EXPECT("monthly", "-", "monthly", "-", "monthly", "monthly");
    only("keep-yearly", "3");
    EXPECT("yearly", "-", "-", "-", "yearly", "yearly");
    rule("keep-last", "1");
    EXPECT("yearly", "-", "-", "-", "yearly", "last, yearly");
}

/* Goal: spans look back from the newest one that is not in the future; a day that a month has not
 * runs over; what is in the future is kept. */
FIXED_TEST(within_rules)
{
    add("2026-03-02 12:00");
    add("2026-03-03 12:00");
    add("2026-03-31 11:00");
    add("2026-03-31 12:00");
    rule("keep-within", "1m"); /* 31 February is 3 March; what is of that moment is not within */
    EXPECT("-", "-", "within", "within");
    only("keep-within", "1m1h");
    EXPECT("-", "within", "within", "within");
    only("keep-within-daily", "2y");
    EXPECT("daily within", "daily within", "-", "daily within");
    only("keep-within-yearly", "1y");
    rule("keep-last", "1");
    EXPECT("oldest yearly within", "-", "-", "last, yearly within");
}

/* Goal: future ones never go by a within rule, and do not move where it begins. */
FIXED_TEST(future_ones)
{
    add("2026-01-01 12:00");
    add("2026-01-09 12:00");
    add("2026-07-01 12:00"); /* a clock was wrong for a while */
    add("2026-01-10 12:00");
    rule("keep-within", "2d");
    EXPECT("-", "within", "within", "within");
    bed.now_ns = at("2026-01-10 11:55"); /* a little ahead is nothing */
    EXPECT("-", "within", "within", "within");
    bed.now_ns = at("2026-01-10 11:00");
    assert_int_equal(decide(), CAIRN_E_CONFLICT);
    assert_non_null(strstr(bed.diag.text, "40@1 was committed 3600 s in the future"));
    assert_non_null(strstr(bed.diag.text, "Set the clock right"));
    assert_non_null(strstr(bed.diag.text, "keep-last, keep-every-steps, keep-best, keep-tag"));
    only("keep-last", "2"); /* asks for no time: order is by sequence */
    EXPECT("-", "-", "last", "last");
}

/* Goal: one that was committed while a clock was ahead stops no rule once the newest is right
 * again, takes no place that a right one would have had in time, and goes like any other. */
FIXED_TEST(future_ones_in_the_middle)
{
    add("2026-01-08 12:00");
    add("2026-01-09 12:00");
    add("2031-07-01 12:00");
    add("2026-01-10 12:00");
    add("2026-01-10 13:00");
    rule("keep-last", "2");
    EXPECT("-", "-", "-", "last", "last");
    only("keep-daily", "3"); /* a day of its own: it counts, and is gone when three are newer */
    EXPECT("-", "daily", "daily", "-", "daily");
    add("2026-01-11 12:00");
    add("2026-01-12 12:00");
    EXPECT("-", "-", "-", "-", "daily", "daily", "daily");
    only("keep-every", "12h"); /* from the one ahead on it begins anew */
    EXPECT("every so often", "every so often", "every so often", "every so often", "-",
           "every so often", "every so often");
    only("keep-within", "2d");
    EXPECT("-", "-", "within", "-", "within", "within", "within");
    only("keep-within-daily", "3d");
    EXPECT("-", "-", "daily within", "-", "daily within", "daily within", "daily within");
}

/* Goal: a clock that jumps moves nothing in the order. */
FIXED_TEST(clock_jumps)
{
    add("2026-01-05 12:00");
    add("1970-01-01 00:00");
    add("2026-01-04 12:00");
    add("2026-01-05 13:00");
    rule("keep-last", "1");
    EXPECT("-", "-", "stays, because too few good checkpoints would be left", "last");
    only("keep-daily", "5");
    EXPECT("daily", "daily", "daily", "daily");
}

/* Goal: what was kept once by "every" stays kept, whatever went in between. */
FIXED_TEST(every_rules)
{
    add("2026-01-05 00:00");
    add("2026-01-05 05:00");
    add("2026-01-05 06:30");
    add("2026-01-05 12:00");
    add("2026-01-05 12:20");
    rule("keep-every", "6h");
    EXPECT("every so often", "-", "every so often", "-", "is the newest good checkpoint");
    only("keep-every-steps", "20");
    EXPECT("-", "every so many steps", "-", "every so many steps", "is the newest good checkpoint");
    only("keep-every", "20000w"); /* more nanoseconds than 64 bits hold */
    EXPECT("every so often", "-", "-", "-", "is the newest good checkpoint");
}

/* Goal: NaN never wins, what has no metric is not judged, of equal ones the newer one stays. */
FIXED_TEST(best_rules)
{
    add("2026-01-01 00:00"), note(0.5, NULL);
    add("2026-01-01 01:00"), note(NAN, NULL);
    add("2026-01-01 02:00"), note(0.25, NULL);
    add("2026-01-01 03:00"), note(0.25, NULL);
    add("2026-01-01 04:00"), note(0.75, NULL);
    add("2026-01-01 05:00");
    rule("keep-best", "2");
    rule("metric", "loss");
    assert_int_equal(decide(), CAIRN_E_INVALID); /* no mode */
    rule("mode", "min");
    EXPECT("-", "-", "best", "best", "-", "is the newest good checkpoint");
    rule("mode", "max");
    EXPECT("best", "-", "-", "-", "best", "is the newest good checkpoint");
    rule("keep-best", "1");
    rule("mode", "min");
    EXPECT("-", "-", "-", "best", "-", "is the newest good checkpoint");
    rule("metric", "accuracy");
    assert_int_equal(decide(), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(bed.diag.text, "\"accuracy\""));
}

/* Goal: lists are OR-ed, tags in a list AND-ed; the empty list means those without a tag; a policy
 * that keeps nothing is refused. */
FIXED_TEST(tag_rules)
{
    add("2026-01-01 00:00"), note(0, "best");
    add("2026-01-01 01:00"), note(0, "keep");
    bed.tags[1][1] = "best";
    bed.notes[1].tag_count = 2;
    add("2026-01-01 02:00"), note(0, "other");
    add("2026-01-01 03:00"), note(0, "other");
    add("2026-01-01 04:00"), note(0, "other");
    rule("keep-tag", "best,keep");
    EXPECT("-", "tag", "-", "-", "is the newest good checkpoint");
    rule("keep-tag", "best");
    EXPECT("tag", "tag", "-", "-", "is the newest good checkpoint");
    only("keep-tag", "bset");
    assert_int_equal(decide(), CAIRN_E_INVALID);
    assert_non_null(strstr(bed.diag.text, "its rules keep none of the"));
    bed.policy = (struct retention_policy){0};
    add("2026-01-01 05:00");
    rule("keep-tag", "");
    EXPECT("-", "-", "-", "-", "stays, because too few good checkpoints would be left", "tag");
}

/* Goal: a comma and a backslash may be part of a tag, and the policy's text is read back as it is.
 */
FIXED_TEST(tags_with_commas)
{
    char text[256];
    add("2026-01-01 00:00"), note(0, "lr=0,1");
    add("2026-01-01 01:00"), note(0, "lr=0");
    add("2026-01-01 02:00"), note(0, "a\\,b");
    add("2026-01-01 03:00"), note(0, "c\\d");
    add("2026-01-01 04:00");
    rule("keep-tag", "lr=0\\,1");
    rule("keep-tag", "a\\\\\\,b");
    rule("keep-tag", "c\\d");
    EXPECT("tag", "-", "tag", "tag", "is the newest good checkpoint");
    retention_policy_text(&bed.policy, sizeof(text), text);
    assert_string_equal(text, "keep-tag lr=0\\,1, keep-tag a\\\\\\,b, keep-tag c\\d");
    assert_int_equal(set("keep-tag", "a,\\"), 0); /* a backslash alone is one */
}

/* Goal: days, weeks and hours are those of the zone, also where summer time ends: that day has 25
 * hours, and the hour from 2 to 3 comes twice. */
FIXED_TEST(days_of_a_zone)
{
    add("2025-10-25 22:30"); /* Sunday the 26th, 0:30 in Berlin */
    add("2025-10-26 00:30"); /* 2:30, summer time */
    add("2025-10-26 01:30"); /* 2:30 again */
    add("2025-10-26 22:30"); /* 23:30 of the same day */
    add("2025-10-26 23:30"); /* Monday the 27th */
    rule("keep-daily", "unlimited");
    EXPECT("daily", "-", "-", "-", "daily");
    rule("time-zone", "Europe/Berlin");
    EXPECT("oldest daily", "-", "-", "daily", "daily");
    bed.policy.per[UNIT_DAY] = 0;
    rule("keep-weekly", "unlimited");
    EXPECT("oldest weekly", "-", "-", "weekly", "weekly");
    bed.policy.per[UNIT_WEEK] = 0;
    rule("keep-hourly", "unlimited");
    EXPECT("hourly", "hourly", "hourly", "hourly", "hourly");
    bed.policy.per[UNIT_HOUR] = 0;
    rule("keep-within", "1d"); /* from 0:30 on the 26th, local time, which is 25 hours */
    EXPECT("-", "within", "within", "within", "within");
    char text[256];
    retention_policy_text(&bed.policy, sizeof(text), text);
    assert_string_equal(text, "keep-within 1d, time-zone Europe/Berlin");
    assert_int_equal(set("time-zone", "Europe/Nowhere"), CAIRN_E_INVALID);
    assert_non_null(strstr(bed.diag.text, "Europe/Nowhere"));
}

/* Goal: the day on which summer time begins has 23 hours. */
FIXED_TEST(a_short_day)
{
    add("2025-03-29 22:30"); /* the 29th, 23:30 in Berlin */
    add("2025-03-29 23:30"); /* Sunday the 30th, 0:30 */
    add("2025-03-30 21:30"); /* 23:30 */
    add("2025-03-30 22:30"); /* the 31st */
    rule("keep-daily", "unlimited");
    rule("time-zone", "Europe/Berlin");
    EXPECT("daily", "-", "daily", "daily");
    bed.policy.per[UNIT_DAY] = 0;
    rule("keep-monthly", "unlimited");
    bed.items[3].wall_ns = at("2025-03-31 22:30"); /* April in Berlin */
    bed.now_ns = bed.items[3].wall_ns;
    EXPECT("oldest monthly", "-", "monthly", "monthly");
}

/* Goal: branches do not count; their ends stay for a time from when they were left behind. */
FIXED_TEST(branches)
{
    add("2026-01-01 00:00");
    struct retention_item *middle = add("2026-01-01 01:00"), *tip = add("2026-01-01 02:00");
    middle->on_lineage = tip->on_lineage = false;
    tip->tip = true;
    add("2026-02-01 00:00");
    tip->superseded_ns = bed.now_ns;
    add("2026-02-07 23:00");
    rule("keep-last", "3");
    EXPECT("last", "-", "end of a branch that was superseded recently", "last", "last");
    bed.now_ns = at("2026-02-08 00:00");
    EXPECT("last", "-", "-", "last", "last");
    bed.clock_jump_s = -3600; /* by a clock that nobody believes no branch is old */
    EXPECT("last", "-", "end of a branch that was superseded recently", "last", "last");
    rule("keep-within", "1d");
    assert_int_equal(decide(), CAIRN_E_CONFLICT);
    assert_non_null(strstr(bed.diag.text, "jumped by -3600 s"));
    only("keep-last", "3");
    bed.clock_jump_s = 0;
    rule("keep-superseded", "30d");
    EXPECT("last", "-", "end of a branch that was superseded recently", "last", "last");
    rule("keep-superseded", "0s");
    EXPECT("last", "-", "-", "last", "last");
}

/* Goal: a lineage that has just begun keeps the newest of the branch that it left, so that there
 * are two, and not all of it; what is suspect does not count. */
FIXED_TEST(a_young_lineage)
{
    for (unsigned i = 0; i < 5; i++) {
        add("2026-01-01 00:00")->on_lineage = false;
    }
    bed.items[4].health = HEALTH_SUSPECT;
    bed.items[4].tip = true;
    bed.items[4].superseded_ns = at("2026-01-01 00:00");
    add("2026-02-01 00:00");
    rule("keep-last", "3");
    EXPECT("-", "-", "-", "stays, because too few good checkpoints would be left", "-", "last");
    bed.items[4].health = HEALTH_VERIFIED;
    bed.items[4].superseded_ns = bed.now_ns;
    EXPECT("-", "-", "-", "-", "end of a branch that was superseded recently", "last");
    rule("keep-least", "4");
    EXPECT("-", "-", "stays, because too few good checkpoints would be left",
           "stays, because too few good checkpoints would be left",
           "end of a branch that was superseded recently", "last");
    bed.items[0].health = bed.items[1].health = bed.items[2].health = HEALTH_SUSPECT;
    EXPECT("stays, because too few good checkpoints would be left",
           "stays, because too few good checkpoints would be left",
           "stays, because too few good checkpoints would be left",
           "stays, because too few good checkpoints would be left",
           "end of a branch that was superseded recently", "last");
    add("2026-02-02 00:00");
    add("2026-02-03 00:00");
    bed.policy.least = 0;
    bed.items[4].superseded_ns = at("2026-01-01 00:00");
    EXPECT("-", "-", "-", "-", "-", "last", "last", "last");
}

/* Goal: damaged ones take no place of a good one, go when good ones came after them, and a run that
 * has nothing good loses nothing. */
FIXED_TEST(damage)
{
    add("2026-01-01 00:00")->health = HEALTH_DAMAGED;
    add("2026-01-01 01:00");
    add("2026-01-01 02:00")->health = HEALTH_SUSPECT;
    add("2026-01-01 03:00");
    add("2026-01-01 04:00")->health = HEALTH_DAMAGED;
    rule("keep-last", "2");
    EXPECT("-", "last", "not good, but too few older ones are good", "last",
           "not good, but too few older ones are good");
    bed.items[1].health = bed.items[3].health = HEALTH_DAMAGED;
    assert_int_equal(decide(), CAIRN_E_DAMAGED);
    assert_non_null(strstr(bed.diag.text, "none of the run's 5 checkpoints is both good"));
    bed.count = 0;
    assert_int_equal(decide(), 0); /* an empty run is no error */
}

/* Goal: what is no policy, or could be meant in two ways, is refused by name. */
FIXED_TEST(bad_policies)
{
    static const char *const bad[][2] = {{"keep-last", "-2"},
                                         {"keep-last", "3x"},
                                         {"keep-last", ""},
                                         {"keep-within", "3"},
                                         {"keep-within", "d"},
                                         {"keep-within", "3d 4h"},
                                         {"keep-every", "1m"},
                                         {"keep-every", "0h"},
                                         {"keep-every-steps", "0"},
                                         {"mode", "least"},
                                         {"keep-tag", "a,,b"},
                                         {"keep-tag", "a,"},
                                         {"metric", ""},
                                         {"keep-minutely", "3"},
                                         {"keep-within-", "3d"},
                                         {"keep-least", "0"},
                                         {"keep-superseded", "1y"},
                                         {"keep-within", "99999999999d"},
                                         {"keep-last", "99999999999"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (set(bad[i][0], bad[i][1]) != CAIRN_E_INVALID) {
            fail_msg("%s %s is taken", bad[i][0], bad[i][1]);
        }
        assert_non_null(strstr(bed.diag.text, bad[i][0]));
    }
    bed.policy = (struct retention_policy){0};
    add("2026-01-01 00:00");
    assert_int_equal(decide(), CAIRN_E_INVALID);
    assert_non_null(strstr(bed.diag.text, "no policy is given"));
    rule("keep-last", "0");
    rule("keep-least", "1");
    assert_int_equal(decide(), CAIRN_E_INVALID);
    rule("keep-last", "1");
    rule("metric", "loss");
    assert_int_equal(decide(), CAIRN_E_INVALID);
    assert_non_null(strstr(bed.diag.text, "without keep-best"));
}

/* Goal: the text of a policy names its rules, and is cut at a whole one. */
FIXED_TEST(policies_as_text)
{
    char text[256];
    rule("keep-last", "3");
    rule("keep-daily", "-1");
    rule("keep-within-weekly", "2y5m7d3h");
    rule("keep-every", "90min");
    rule("keep-best", "2");
    rule("metric", "val/loss");
    rule("mode", "min");
    rule("keep-tag", "a,b");
    rule("keep-tag", "");
    retention_policy_text(&bed.policy, sizeof(text), text);
    assert_string_equal(text, "keep-last 3, keep-daily unlimited, keep-within-weekly 2y5m7d3h, "
                              "keep-every 5400s, keep-best 2 by val/loss min, keep-tag a,b, "
                              "keep-tag ''");
    retention_policy_text(&bed.policy, 30, text);
    assert_string_equal(text, "keep-last 3 ...");
}
