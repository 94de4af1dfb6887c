/* SPDX-License-Identifier: Apache-2.0
 *
 * Each kind of option takes what it says and refuses the rest by name, from the command line and
 * from its twin in the environment. Method: one table with an option of each kind.
 */
#include "options.h"

#include "base/check.h"
#include "support/unit_test.h"

struct values {
    bool flag;
    const char *text, *choice;
    uint64_t count, size, duration;
    double number;
    struct option_texts texts;
};

static const struct option table[] = {
    {"t-flag", NULL, "a flag", OPTION_AT_FLAG(struct values, flag), .letter = 'f'},
    {"t-text", "TEXT", "a text", OPTION_AT_TEXT(struct values, text), .preset = "preset"},
    {"t-choice", "WORD", "a word", OPTION_AT_TEXT(struct values, choice), .choices = "min max"},
    {"t-count", "N", "a count", OPTION_AT_COUNT(struct values, count), .min = 2, .max = 9},
    {"t-size", "SIZE", "a size", OPTION_AT_SIZE(struct values, size)},
    {"t-duration", "DURATION", "a duration", OPTION_AT_DURATION(struct values, duration)},
    {"t-number", "X", "a number", OPTION_AT_NUMBER(struct values, number)},
    {"t-texts", "TEXT", "texts", OPTION_AT_TEXTS(struct values, texts), .max = 2},
    {0}};

struct bed {
    struct values values;
    struct option_set set;
};

static void begin(struct bed *bed)
{
    *bed = (struct bed){.set = {.table = table, .values = NULL}};
    bed->set.values = &bed->values;
    assert_int_equal(options_init(&bed->set, NULL), 0);
}

static int take(struct bed *bed, const char *name, const char *text, struct diag *diag)
{
    const struct option *option = option_find(table, strlen(name), name);
    assert_non_null(option);
    return options_take(&bed->set, option, text, diag);
}

TEST(test_values)
{
    struct bed bed;
    begin(&bed);
    assert_string_equal(bed.values.text, "preset");
    assert_int_equal(take(&bed, "t-flag", "", NULL), 0);
    assert_int_equal(take(&bed, "t-choice", "max", NULL), 0);
    assert_int_equal(take(&bed, "t-count", "9", NULL), 0);
    assert_int_equal(take(&bed, "t-number", "-1.5e3", NULL), 0);
    assert_true(bed.values.flag && bed.values.count == 9 && bed.values.number == -1500);
    assert_string_equal(bed.values.choice, "max");
    static const struct {
        const char *text;
        uint64_t ms;
    } durations[] = {{"90", 90000},      {"0", 0},          {"250ms", 250},   {"15m", 900000},
                     {"1h30m", 5400000}, {"2d", 172800000}, {"1w", 604800000}};
    for (size_t i = 0; i < ARRAY_LEN(durations); i++) {
        assert_int_equal(take(&bed, "t-duration", durations[i].text, NULL), 0);
        assert_true(bed.values.duration == durations[i].ms);
    }
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"7", 7}, {"64KiB", 65536}, {"2M", 2 << 20}, {"1GiB", 1 << 30}, {"3B", 3}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        assert_int_equal(take(&bed, "t-size", sizes[i].text, NULL), 0);
        assert_true(bed.values.size == sizes[i].bytes);
    }
}

TEST(test_refused)
{
    static const char *const cases[][3] = {
        {"t-choice", "mean", "it must be one of: min max"},
        {"t-choice", "mi", "it must be one of"},
        {"t-choice", "", "it must be one of"},
        {"t-count", "1", "too small"},
        {"t-count", "10", "too large"},
        {"t-count", "2x", "a number"},
        {"t-count", "", "a number"},
        {"t-size", "1.5GiB", "a size"},
        {"t-size", "17179869184TiB", "a size"},
        {"t-size", "MiB", "a size"},
        {"t-duration", "", "a duration"},
        {"t-duration", "5y", "a duration"},
        {"t-duration", "1h30", "a duration"},
        {"t-duration", "5mm", "a duration"},
        {"t-duration", "-5s", "a duration"},
        {"t-duration", "99999999999999999999", "a duration"},
        {"t-number", "nan", "a number"},
        {"t-number", "1,5", "a number"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct bed bed;
        struct diag diag = DIAG_INIT;
        begin(&bed);
        struct values before = bed.values;
        if (take(&bed, cases[i][0], cases[i][1], &diag) != CAIRN_E_INVALID ||
            !strstr(diag.text, cases[i][2]) || strncmp(diag.text, "--t-", 4) != 0) {
            fail_msg("%s '%s': '%s'", cases[i][0], cases[i][1], diag.text);
        }
        assert_memory_equal(&before, &bed.values, sizeof(before));
    }
}

TEST(test_repeated)
{
    struct bed bed;
    begin(&bed);
    assert_int_equal(take(&bed, "t-texts", "a", NULL), 0);
    assert_int_equal(take(&bed, "t-texts", "b", NULL), 0);
    assert_int_equal(take(&bed, "t-texts", "c", NULL), CAIRN_E_TOO_LARGE);
    assert_int_equal(bed.values.texts.count, 2);
    assert_string_equal(bed.values.texts.items[1], "b");
}

TEST(test_twins)
{
    struct bed bed;
    struct diag diag = DIAG_INIT;
    setenv("CAIRN_T_FLAG", "yes", 1);
    setenv("CAIRN_T_COUNT", "3", 1);
    setenv("CAIRN_T_TEXT", "", 1); /* empty: none */
    begin(&bed);
    assert_int_equal(take(&bed, "t-count", "5", NULL), 0);
    assert_int_equal(options_take_twins(&bed.set, &diag), 0);
    assert_true(bed.values.flag && bed.values.count == 5);
    assert_string_equal(bed.values.text, "preset");
    assert_true(options_given(&bed.set, "t-count") && !options_given(&bed.set, "t-flag"));
    begin(&bed);
    assert_int_equal(options_take_twins(&bed.set, &diag), 0);
    assert_int_equal(bed.values.count, 3);
    setenv("CAIRN_T_FLAG", "perhaps", 1);
    begin(&bed);
    assert_int_equal(options_take_twins(&bed.set, &diag), CAIRN_E_INVALID);
    assert_non_null(strstr(diag.text, "CAIRN_T_FLAG 'perhaps': it must be yes or no"));
    unsetenv("CAIRN_T_FLAG");
    unsetenv("CAIRN_T_COUNT");
    unsetenv("CAIRN_T_TEXT");
}
