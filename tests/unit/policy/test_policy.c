/* SPDX-License-Identifier: Apache-2.0
 *
 * Which policy holds for a run is the same for everybody, a stored policy that cannot be read, or
 * that may be lost, forgets nothing, and what is dropped of old changes never brings a removed
 * policy back. Method: the golden file both ways, each of its bytes changed, and changes applied to
 * a record.
 */
#include "policy/policy.h"

#include "base/check.h"
#include "store/store_record.h"
#include "support/golden_file.h"
#include "support/unit_test.h"

#include <stdio.h>

static struct policy_entry sample(void)
{
    return (struct policy_entry){
        .number = 5,
        .change = POLICY_SET,
        .wall_ns = 80,
        .actor = "ada@login1",
        .row = {.pattern = "lab/gpt-*",
                .option_count = 2,
                .options = {{"keep-last", "3"}, {"time-zone", "Europe/Berlin"}}}};
}

TEST(test_golden)
{
    struct buf golden = golden_read(CAIRN_GOLDEN, "entry_policy_keyed.bin"), buf;
    struct policy_entry entry = sample(), read;
    char key[ENTRY_KEY_MAX];
    buf_init(&buf, 4096);
    policy_entry_encode(&entry, &buf);
    assert_int_equal(buf_status(&buf), 0);
    assert_int_equal(buf.bytes, golden.bytes);
    assert_memory_equal(buf.data, golden.data, golden.bytes);
    policy_entry_key(&entry, key);
    assert_string_equal(key, "policy/0000000000000005/lab/gpt-*");
    struct record_value value = {golden.bytes, golden.data};
    assert_int_equal(policy_entry_decode(key, value, &read, NULL), 0);
    assert_memory_equal(&read, &entry, sizeof(entry));
    buf_fini(&golden);
    buf_fini(&buf);
    golden = golden_read(CAIRN_GOLDEN, "entry_policy.bin"); /* version 1 is still read */
    value = (struct record_value){golden.bytes, golden.data};
    assert_int_equal(policy_entry_decode(key, value, &read, NULL), 0);
    assert_memory_equal(&read, &entry, sizeof(entry));
    buf_fini(&golden);
}

TEST(test_every_changed_byte_is_refused)
{
    static const char key[] = "policy/0000000000000005/lab/gpt-*";
    struct policy_entry entry = sample(), read;
    struct buf buf;
    buf_init(&buf, 4096);
    policy_entry_encode(&entry, &buf);
    for (size_t bytes = 0; bytes < buf.bytes; bytes++) {
        struct record_value value = {bytes, buf.data};
        assert_int_not_equal(policy_entry_decode(key, value, &read, NULL), 0);
        assert_string_equal(read.row.pattern, "lab/gpt-*"); /* so it can be set again */
    }
    for (size_t i = 0; i < buf.bytes; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            buf.data[i] ^= (uint8_t)(1u << bit);
            struct record_value value = {buf.bytes, buf.data};
            assert_int_equal(policy_entry_decode(key, value, &read, NULL), CAIRN_E_DAMAGED);
            buf.data[i] ^= (uint8_t)(1u << bit);
        }
    }
    static const char *const others[] = {"policy/0000000000000005/lab/*",
                                         "policy/0000000000000005/lab/gpt-**",
                                         "policy/0000000000000004/lab/gpt-*"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) { /* it was moved */
        struct record_value value = {buf.bytes, buf.data};
        assert_int_equal(policy_entry_decode(others[i], value, &read, NULL), CAIRN_E_DAMAGED);
    }
    static const char *const keys[] = {"policy/5/a/b", "policy/0000000000000000/a/b",
                                       "policy/0000000000000005/", "policy/0000000000000005/ab"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct record_value value = {buf.bytes, buf.data};
        assert_int_equal(policy_entry_decode(keys[i], value, &read, NULL), CAIRN_E_FORMAT);
        assert_string_equal(read.row.pattern, "");
    }
    buf_fini(&buf);
}

TEST(test_bad_rows_are_refused_by_name)
{
    static const struct {
        const char *name, *value, *says;
    } options[] = {{"keep-lots", "3", "keep-lots"},
                   {"keep-last", "x", "keep-last"},
                   {"time-zone", "Mars/Olympus", "Mars/Olympus"},
                   {"keep-last", "3", NULL},
                   {"keep-last", "4", "twice"},
                   {"keep-tag", "a", NULL},
                   {"keep-tag", "b", NULL}};
    static const char *const patterns[] = {"", "lab", "a b/c", "l\xc3\xa4/b"};
    struct policy_row row = {.pattern = ""};
    struct diag diag = DIAG_INIT;
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        unsigned before = row.option_count;
        diag_clear(&diag);
        int status = policy_row_add(&row, options[i].name, options[i].value, &diag);
        assert_int_equal(status, options[i].says ? CAIRN_E_INVALID : 0);
        assert_true(!options[i].says || strstr(diag.text, options[i].says));
        assert_int_equal(row.option_count, before + !options[i].says);
    }
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        assert_int_equal(policy_row_name(&row, patterns[i], NULL), CAIRN_E_INVALID);
    }
    assert_int_equal(policy_row_name(&row, "*", NULL), 0);
    char value[POLICY_VALUE_BYTES + 1];
    memset(value, 'a', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    assert_int_equal(policy_row_add(&row, "keep-tag", value, NULL), CAIRN_E_INVALID);
    while (row.option_count < POLICY_OPTIONS_MAX) {
        assert_int_equal(policy_row_add(&row, "keep-tag", "c", NULL), 0);
    }
    assert_int_equal(policy_row_add(&row, "keep-tag", "c", NULL), CAIRN_E_TOO_LARGE);
}

/* ---- changes of a record ---- */

static int change(struct record *record, enum policy_change what, const char *pattern,
                  const char *last)
{
    struct policy_update *update = calloc(1, sizeof(*update));
    struct policy_entry entry = {.change = what, .wall_ns = 1};
    assert_non_null(update);
    assert_int_equal(policy_row_name(&entry.row, pattern, NULL), 0);
    if (what == POLICY_SET) {
        assert_int_equal(policy_row_add(&entry.row, "keep-last", last, NULL), 0);
    }
    int status = policy_update_make(record, &entry, update, NULL);
    status = status != 0 ? status : record_apply(record, &update->update, NULL);
    buf_fini(&update->buf);
    free(update);
    return status;
}

/* Asserts what holds for the run: "pattern last", "configured" or "none". */
static void assert_holds(const struct record *record, const struct policy_table *table,
                         const char *run, const char *expected)
{
    char text[POLICY_PATTERN_MAX + POLICY_VALUE_BYTES + 2];
    struct policy_choice choice;
    struct run_name name;
    assert_int_equal(run_name_parse(run, &name, NULL), 0);
    assert_int_equal(policy_choose(record, table, &name, &choice, NULL), 0);
    snprintf(text, sizeof(text), "%s", policy_source_name(choice.source));
    if (choice.source == POLICY_STORED) {
        snprintf(text, sizeof(text), "%s %s", choice.entry.row.pattern,
                 choice.entry.row.options[0].value);
    }
    assert_string_equal(text, expected);
}

TEST(test_one_policy_holds)
{
    static const struct policy_table table = {
        .count = 1,
        .rows = {{.pattern = "lab/*", .option_count = 1, .options = {{"keep-last", "9"}}}}};
    struct record *record = NULL;
    assert_int_equal(record_new(&record), 0);
    assert_holds(record, NULL, "lab/gpt", "none");
    assert_holds(record, &table, "lab/gpt", "configured");
    assert_int_equal(change(record, POLICY_SET, "*", "1"), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/g*", "2"), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/*t", "3"), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/[a-z]*", "4"), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/gpt", "5"), 0);
    assert_holds(record, &table, "vis/a", "* 1");            /* before the configuration */
    assert_holds(record, &table, "lab/gpt", "lab/gpt 5");    /* the name itself */
    assert_holds(record, &table, "lab/gxt", "lab/g* 2");     /* the most plain characters */
    assert_holds(record, &table, "lab/xxt", "lab/[a-z]* 4"); /* then the longest */
    assert_int_equal(change(record, POLICY_SET, "*/gxt-with-a-long-name", "6"), 0);
    assert_holds(record, &table, "lab/gxt-with-a-long-name", "lab/g* 2");
    assert_holds(record, &table, "vis/gxt-with-a-long-name", "*/gxt-with-a-long-name 6");
    assert_int_equal(change(record, POLICY_REMOVE, "lab/[a-z]*", ""), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/*x", "7"), 0);
    assert_holds(record, &table, "lab/xxt", "lab/*t 3");
    assert_int_equal(change(record, POLICY_SET, "lab/?*", "8"), 0);
    assert_holds(record, &table, "lab/xxt", "lab/*t 3"); /* '*' is before '?' */
    assert_int_equal(change(record, POLICY_SET, "lab/*t", "30"), 0);
    assert_holds(record, &table, "lab/xxt", "lab/*t 30");
    assert_int_equal(change(record, POLICY_REMOVE, "lab/[a-z]*", ""), CAIRN_E_NOT_FOUND);
    record_free(record);
}

/* Puts a value under a key, past all checks. */
static void plant(struct record *record, const char *key, size_t bytes, const void *data)
{
    struct record_change put = {.key = key, .value = {bytes, data}};
    struct record_update update = {.change_count = 1, .changes = &put};
    assert_int_equal(record_apply(record, &update, NULL), 0);
}

static int choose(const struct record *record, const char *run, struct diag *diag)
{
    struct policy_choice choice;
    struct run_name name;
    assert_int_equal(run_name_parse(run, &name, NULL), 0);
    return policy_choose(record, NULL, &name, &choice, diag);
}

TEST(test_what_cannot_be_read_forgets_nothing)
{
    struct record *record = NULL;
    struct diag diag = DIAG_INIT;
    assert_int_equal(record_new(&record), 0);
    assert_int_equal(change(record, POLICY_SET, "*", "1"), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/*", "3"), 0);
    plant(record, "policy/0000000000000002/lab/*", 3, "abc");
    assert_int_equal(choose(record, "lab/gpt", &diag), CAIRN_E_DAMAGED);
    assert_non_null(strstr(diag.text, "the stored policy 'lab/*' cannot be read"));
    assert_holds(record, NULL, "vis/gpt", "* 1"); /* the others are not stopped */
    assert_int_equal(change(record, POLICY_SET, "lab/*", "4"), 0);
    assert_holds(record, NULL, "lab/gpt", "lab/* 4"); /* set again */
    plant(record, "policy/zz", 3, "abc");             /* of nobody knows which runs */
    diag_clear(&diag);
    assert_int_equal(choose(record, "vis/gpt", &diag), CAIRN_E_FORMAT);
    assert_non_null(strstr(diag.text, "nothing is forgotten in vis/gpt"));
    assert_int_equal(change(record, POLICY_REMOVE, "lab/*", ""), 0);
    assert_holds(record, NULL, "lab/gpt", "* 1");
    record_free(record);
}

TEST(test_a_policy_that_may_be_lost_forgets_nothing)
{
    static const char *const keys[] = {STORE_RECORD_LOST, "policies", "policies",
                                       "policy/0000000000000003/lab/g*"};
    static const struct policy_table table = {
        .count = 1, .rows = {{.option_count = 1, .options = {{"keep-last", "1"}}}}};
    for (size_t i = 0; i < 2 * ARRAY_LEN(keys); i++) {
        const char *key = keys[i / 2];
        struct record *record = NULL;
        struct diag diag = DIAG_INIT;
        uint8_t bytes[8] = {3};
        assert_int_equal(record_new(&record), 0);
        assert_int_equal(change(record, POLICY_SET, "*", "1"), 0);
        assert_int_equal(change(record, POLICY_SET, "lab/*", "3"), 0);
        assert_int_equal(change(record, POLICY_SET, "lab/g*", "9"), 0);
        assert_holds(record, &table, "lab/gpt", "lab/g* 9");
        struct record_change hit = {
            .key = key, .remove = i >= 4, .value = {i / 2 == 1 ? 7 : 8, bytes}};
        struct record_update update = {.change_count = 1, .changes = &hit};
        assert_int_equal(record_apply(record, &update, NULL), 0);
        assert_int_equal(choose(record, "lab/gpt", &diag), CAIRN_E_DAMAGED);
        assert_non_null(strstr(diag.text, "nothing is forgotten in lab/gpt"));
        assert_non_null(strstr(diag.text, "`cairn policy set`"));
        assert_int_equal(choose(record, "vis/gpt", NULL), CAIRN_E_DAMAGED);
        if (i % 2 == 0) {
            assert_int_equal(change(record, POLICY_SET, "lab/g*", "7"), 0);
            assert_holds(record, &table, "lab/gpt", "lab/g* 7");
        } else { /* what may be lost can be removed, too */
            assert_int_equal(change(record, POLICY_REMOVE, "not/here", ""), 0);
            assert_holds(record, &table, "vis/gpt", "* 1");
        }
        assert_int_equal(change(record, POLICY_REMOVE, "not/there", ""), CAIRN_E_NOT_FOUND);
        record_free(record);
    }
    struct record *empty = NULL; /* made again: the configuration does not hold either */
    assert_int_equal(record_new(&empty), 0);
    assert_holds(empty, &table, "lab/gpt", "configured");
    plant(empty, STORE_RECORD_LOST, 8, "12345678");
    assert_int_equal(choose(empty, "lab/gpt", NULL), CAIRN_E_DAMAGED);
    assert_int_equal(change(empty, POLICY_REMOVE, "*", ""), 0);
    assert_holds(empty, &table, "lab/gpt", "configured");
    record_free(empty);
}

TEST(test_old_changes_are_dropped_in_their_order)
{
    struct record *record = NULL;
    struct record_value value;
    char pattern[32];
    size_t at = 0, count = 0;
    assert_int_equal(record_new(&record), 0);
    assert_int_equal(change(record, POLICY_SET, "lab/gone", "1"), 0);
    assert_int_equal(change(record, POLICY_REMOVE, "lab/gone", ""), 0);
    for (unsigned i = 0; i < POLICY_STORED_MAX; i++) {
        snprintf(pattern, sizeof(pattern), "lab/%u", i);
        assert_int_equal(change(record, POLICY_SET, pattern, "1"), 0);
    }
    assert_int_equal(change(record, POLICY_SET, "lab/more", "1"), CAIRN_E_TOO_LARGE);
    for (unsigned i = 0; i < 2 * POLICY_PAST_MAX; i++) {
        assert_int_equal(change(record, POLICY_SET, "lab/7", "2"), 0);
        assert_holds(record, NULL, "lab/gone", "none");
    }
    while (policy_next(record, &at, &value) != NULL) {
        count++;
    }
    assert_in_range(count, POLICY_STORED_MAX + POLICY_PAST_MAX,
                    POLICY_STORED_MAX + POLICY_PAST_MAX + 1);
    assert_holds(record, NULL, "lab/7", "lab/7 2");
    assert_holds(record, NULL, "lab/0", "lab/0 1");
    record_free(record);
}
