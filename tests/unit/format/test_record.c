/* SPDX-License-Identifier: Apache-2.0
 *
 * A record is a map with all-or-nothing guarded updates. Method: random updates against a naive
 * model; guards, limits and failed allocations by hand.
 */
#include <stdio.h>

#include "base/check.h"
#include "fixtures.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

enum { KEYS = 24, VALUE = 6 };

struct model {
    bool has[KEYS];
    uint8_t value[KEYS][VALUE];
    size_t bytes[KEYS];
};

static const char *key_of(size_t k)
{
    static char keys[KEYS][8];
    snprintf(keys[k], sizeof keys[k], "k/%02zu", k);
    return keys[k];
}

static void assert_same(const struct record *record, const struct model *model)
{
    size_t count = 0;
    for (size_t k = 0; k < KEYS; k++) {
        struct record_value value;
        assert_int_equal(record_get(record, key_of(k), &value), model->has[k]);
        if (model->has[k]) {
            assert_int_equal(value.bytes, model->bytes[k]);
            assert_true(value.bytes == 0 || memcmp(value.data, model->value[k], value.bytes) == 0);
            assert_string_equal(record_at(record, count, NULL), key_of(k));
            assert_int_equal(record_lower_bound(record, key_of(k)), count);
            count++;
        }
    }
    assert_int_equal(record_count(record), count);
    assert_null(record_at(record, count, NULL));
}

/* Random changes of different keys, into both update and model. */
static size_t random_changes(struct prng *prng, struct record_change *changes, struct model *model)
{
    size_t count = 0;
    for (size_t k = 0; k < KEYS; k++) {
        size_t at = (k * 7 + 3) % KEYS; /* not in key order */
        if (prng_below(prng, 4) != 0) {
            continue;
        }
        model->has[at] = prng_below(prng, 3) != 0;
        model->bytes[at] = prng_below(prng, VALUE + 1);
        for (size_t i = 0; i < VALUE; i++) {
            model->value[at][i] = (uint8_t)prng_next(prng);
        }
        changes[count++] = (struct record_change){
            key_of(at), !model->has[at], {model->bytes[at], model->value[at]}};
    }
    return count;
}

TEST(test_updates_agree_with_a_model)
{
    struct prng prng = prng_init("record", 5);
    struct record *record = NULL, *clone = NULL;
    struct model model, before;
    struct record_change changes[KEYS];
    memset(&model, 0, sizeof model);
    assert_int_equal(record_new(&record), 0);
    for (uint64_t round = 1; round <= 2000; round++) {
        before = model;
        struct record_guard guard = {key_of(round % KEYS),
                                     !before.has[round % KEYS],
                                     {before.bytes[round % KEYS], before.value[round % KEYS]}};
        struct record_guard broken = guard;
        struct record_update update = {.guard_count = 1, .guards = &broken, .changes = changes};
        struct diag diag = DIAG_INIT;
        update.change_count = random_changes(&prng, changes, &model);
        broken.absent = !guard.absent;
        broken.value = (struct record_value){3, (const uint8_t *)"no!"};
        assert_int_equal(record_apply(record, &update, &diag), CAIRN_E_CONFLICT);
        assert_non_null(strstr(diag.text, guard.key));
        assert_same(record, &before);
        update.guards = &guard;
        assert_int_equal(record_apply(record, &update, NULL), 0);
        assert_int_equal(record_version(record), round);
        assert_same(record, &model);
    }
    assert_int_equal(record_clone(record, &clone), 0);
    assert_same(clone, &model);
    assert_int_equal(record_version(clone), 2000);
    assert_int_equal(record_bytes(clone), record_bytes(record));
    record_free(clone);
    record_free(record);
    record_free(NULL);
}

TEST(test_what_is_no_update)
{
    static uint8_t big[LIMIT_RECORD_VALUE_BYTES + 1];
    char long_key[LIMIT_RECORD_KEY_BYTES + 1];
    struct record *record = NULL;
    struct record_change twice[] = {
        {"a", false, {0, NULL}}, {"b", true, {0, NULL}}, {"a", true, {0, NULL}}};
    struct record_change one = {"a", false, {sizeof big, big}};
    struct record_update update = {.change_count = 3, .changes = twice};
    assert_int_equal(record_new(&record), 0);
    assert_int_equal(record_apply(record, &update, NULL), CAIRN_E_INVALID);
    update = (struct record_update){.change_count = 1, .changes = &one};
    assert_int_equal(record_apply(record, &update, NULL), CAIRN_E_TOO_LARGE);
    memset(long_key, 'x', sizeof long_key);
    long_key[LIMIT_RECORD_KEY_BYTES] = '\0';
    const char *bad[] = {"", "a b", "a\n", "\xc3\xa9", long_key};
    one.value.bytes = 1;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct buf buf;
        buf_init(&buf, MIB(1));
        one.key = bad[i];
        assert_int_equal(record_apply(record, &update, NULL), CAIRN_E_INVALID);
        record_update_encode(&update, 1, big, &buf);
        assert_int_equal(buf_status(&buf), CAIRN_E_INVALID);
        buf_fini(&buf);
    }
    one.key = long_key + 1;
    assert_int_equal(record_apply(record, &update, NULL), 0);
    assert_int_equal(record_count(record), 1);
    record_free(record);
}

TEST(test_a_large_update_is_refused_whole)
{
    enum { N = 70 };
    static uint8_t value[LIMIT_RECORD_VALUE_BYTES];
    static char keys[N][8];
    static struct record_change changes[N];
    struct record *record = NULL;
    struct record_update update = {.change_count = N, .changes = changes};
    for (size_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "%zu", i);
        changes[i] = (struct record_change){keys[i], false, {sizeof value, value}};
    }
    assert_int_equal(record_new(&record), 0);
    assert_int_equal(record_apply(record, &update, NULL), CAIRN_E_TOO_LARGE);
    assert_int_equal(record_version(record), 0);
    assert_int_equal(record_count(record), 0);
    record_free(record);
}

TEST(test_failed_allocations_change_nothing)
{
    struct record_change changes[] = {{"a", false, {1, (const uint8_t *)"1"}},
                                      {"c", false, {1, (const uint8_t *)"3"}}};
    struct record_change more[] = {{"b", false, {1, (const uint8_t *)"2"}}, {"a", true, {0, NULL}}};
    struct record_update update = {.change_count = 2, .changes = changes};
    struct record *record = NULL, *copy = NULL;
    int rc = CAIRN_E_NO_MEMORY;
    assert_int_equal(record_new(&record), 0);
    assert_int_equal(record_apply(record, &update, NULL), 0);
    update.changes = more;
    for (unsigned n = 1; rc != 0; n++) {
        alloc_fault_at(n);
        rc = record_clone(record, &copy);
        assert_int_equal(rc, alloc_fault_hit() ? CAIRN_E_NO_MEMORY : 0);
    }
    rc = CAIRN_E_NO_MEMORY;
    for (unsigned n = 1; rc != 0; n++) {
        assert_int_equal(record_count(record), 2);
        assert_string_equal(record_at(record, 0, NULL), "a");
        alloc_fault_at(n);
        rc = record_apply(record, &update, NULL);
        assert_int_equal(rc, alloc_fault_hit() ? CAIRN_E_NO_MEMORY : 0);
    }
    assert_string_equal(record_at(record, 0, NULL), "b");
    assert_string_equal(record_at(copy, 0, NULL), "a");
    record_free(copy);
    record_free(record);
}

CODEC_TEST(test_an_update_is_read_back_and_applied)
{
    struct record_change changes[] = {{"z", false, {2, (const uint8_t *)"zz"}},
                                      {"m", true, {0, NULL}}};
    struct record_update update = {.change_count = 2, .changes = changes}, again;
    uint8_t previous[32] = {7}, found[32];
    uint64_t version = 0;
    buf_put(buf, 3, "pre"); /* encoders append */
    record_update_encode(&update, 9, previous, buf);
    assert_int_equal(buf_status(buf), 0);
    assert_int_equal(
        record_update_decode(buf->bytes - 3, buf->data + 3, scratch, &again, &version, found, NULL),
        0);
    assert_int_equal(version, 9);
    assert_memory_equal(found, previous, 32);
    assert_int_equal(again.change_count, 2);
    assert_string_equal(again.changes[0].key, "m");
    assert_true(again.changes[0].remove);
    assert_string_equal(again.changes[1].key, "z");
    assert_memory_equal(again.changes[1].value.data, "zz", 2);
}
