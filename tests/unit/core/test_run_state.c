/* SPDX-License-Identifier: Apache-2.0
 *
 * A record that is not as it was written never loads as a silently different list. Method: every
 * byte of every value flipped, every value cut, every permanent entry removed, chain entries of
 * other kinds in and out of order.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

/* Two terms, a rewind, health, an open save with seals, an abort, two restores. */
static void setup(struct core_fixture *f)
{
    core_fixture_init(f);
    const char *tag = "nightly", *metric = "loss";
    double value = 0.5;
    struct actor one = {.token = 1, .world_size = 1};
    struct actor two = {.token = 2, .world_size = 2, .newest_seen = 1, .parent = {1, 10}};
    core_save(f, &one, 10);
    core_save(f, &one, 20);
    core_save(f, &two, 20);
    assert_int_equal(core_health(f, ID(1, 20), HEALTH_DAMAGED), 0);
    assert_int_equal(core_open(f, &two, 40, 8), 0);
    assert_int_equal(core_abort(f, ID(2, 40), 8), 0);
    struct event open = open_event(&two, 30, 9);
    open.u.open.entry.tag_count = open.u.open.entry.metric_count = 1;
    open.u.open.entry.tags = &tag;
    open.u.open.entry.metric_names = &metric;
    open.u.open.entry.metric_values = &value;
    open.u.open.entry.metadata_bytes = 3;
    open.u.open.entry.metadata = (const uint8_t *)"abc";
    assert_int_equal(core_run(f, &open), 0);
    assert_int_equal(core_seal(f, ID(2, 30), 9, 1), 0);
    struct actor reader = {.token = 3, .world_size = 2};
    assert_int_equal(core_begin(f, &reader, LATEST, true), 0);
    assert_int_equal(core_report(f, &reader, ID(2, 20), 0), 0);
}

/* What is listed and restored: identity, content, order; not health, which the record's own
 * checksums guard. */
static void put_list(const struct run_state *state, struct buf *buf)
{
    buf_put_u64(buf, state->newest_term);
    for (size_t i = 0; i < state->commit_count; i++) {
        entry_chain_encode(&state->commits[i].entry, buf);
        buf_put_u8(buf, state->commits[i].forgotten);
    }
}

static bool same_list(const struct run_state *a, const struct run_state *b)
{
    struct buf buf;
    buf_init(&buf, MIB(1));
    put_list(a, &buf);
    size_t bytes = buf.bytes;
    put_list(b, &buf);
    bool same = buf.bytes == 2 * bytes && memcmp(buf.data, buf.data + bytes, bytes) == 0;
    buf_fini(&buf);
    return same;
}

/* Loads a copy of the record with one entry set (or removed). True when it is refused or the list
 * is the same. */
static bool refused_or_same(const struct core_fixture *f, const char *key,
                            const struct record_value *value, int *ret_status)
{
    struct record *copy = NULL;
    struct scratch scratch;
    struct run_state state;
    struct record_change change = {.key = key, .remove = value == NULL};
    struct record_update update = {.change_count = 1, .changes = &change};
    if (value != NULL) {
        change.value = *value;
    }
    scratch_init(&scratch, MIB(1));
    assert_int_equal(record_clone(f->record, &copy), 0);
    assert_int_equal(record_apply(copy, &update, NULL), 0);
    *ret_status = run_state_load(copy, &scratch, &state, NULL);
    bool good = *ret_status != 0 || same_list(&f->state, &state);
    scratch_fini(&scratch);
    record_free(copy);
    return good;
}

static bool is_chain_or_head(const char *key)
{
    return strncmp(key, "chain/", 6) == 0 || strcmp(key, "head") == 0;
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup, core_fixture_fini, struct core_fixture, f)

CORE_TEST(every_byte_flipped)
{
    size_t flip_count = 0, refused_count = 0;
    for (size_t i = 0; i < record_count(f->record); i++) {
        struct record_value value;
        const char *key = record_at(f->record, i, &value);
        for (size_t at = 0; at < value.bytes * 8; at++) {
            uint8_t *flipped = malloc(value.bytes);
            assert_non_null(flipped);
            memcpy(flipped, value.data, value.bytes);
            flipped[at / 8] ^= (uint8_t)(1u << at % 8);
            int status;
            struct record_value changed = {value.bytes, flipped};
            if (!refused_or_same(f, key, &changed, &status) ||
                (is_chain_or_head(key) && status == 0)) {
                fail_msg("a flip of bit %zu of entry %s was not noticed", at, key);
            }
            flip_count++;
            refused_count += status != 0;
            free(flipped);
        }
    }
    assert_true(flip_count > 5000 && refused_count > 2000);
}

CORE_TEST(every_value_cut)
{
    for (size_t i = 0; i < record_count(f->record); i++) {
        struct record_value value;
        const char *key = record_at(f->record, i, &value);
        for (size_t bytes = 0; bytes < value.bytes; bytes++) {
            int status;
            struct record_value cut = {bytes, value.data};
            (void)refused_or_same(f, key, &cut, &status);
            if (status == 0) {
                fail_msg("entry %s cut to %zu bytes was not noticed", key, bytes);
            }
        }
    }
}

/* Goal: an entry that is gone is noticed where it is permanent; where it comes and goes, the list
 * is the same. */
CORE_TEST(every_entry_removed)
{
    for (size_t i = 0; i < record_count(f->record); i++) {
        const char *key = record_at(f->record, i, NULL);
        bool permanent =
            is_chain_or_head(key) || strcmp(key, "info") == 0 || strncmp(key, "term/", 5) == 0;
        int status;
        if (!refused_or_same(f, key, NULL, &status) || (permanent && status == 0)) {
            fail_msg("the loss of entry %s was not noticed", key);
        }
    }
}

/* Goal: a state does not point into the record. */
CORE_TEST(state_outlives_the_record)
{
    struct record *copy = NULL;
    struct scratch scratch;
    struct run_state state;
    scratch_init(&scratch, MIB(1));
    assert_int_equal(record_clone(f->record, &copy), 0);
    assert_int_equal(run_state_load(copy, &scratch, &state, NULL), 0);
    record_free(copy);
    struct verdict verdict;
    struct event abort = abort_event(ID(2, 30), 9);
    commit_step(&state, &abort, &scratch, &verdict);
    assert_int_equal(record_apply(f->record, &verdict.update, NULL), 0);
    assert_string_equal(state.opens[0].entry.tags[0], "nightly");
    scratch_fini(&scratch);
}

/* Goal: a record without memory to decode it is an error at every size of the scratch, never a
 * crash. */
CORE_TEST(no_memory_is_an_error)
{
    size_t ok_count = 0;
    for (size_t max = 0; max < KIB(64); max += 64) {
        struct scratch scratch;
        struct run_state state;
        struct diag diag = DIAG_INIT;
        scratch_init(&scratch, max);
        int status = run_state_load(f->record, &scratch, &state, &diag);
        assert_true(status == 0 || status == CAIRN_E_NO_MEMORY);
        ok_count += status == 0;
        scratch_fini(&scratch);
    }
    assert_true(ok_count > 0);
}

/* Goal: forgotten ones are in the chain, not in the list; their step is not saved again; latest
 * goes on. */
CORE_TEST(forget_and_undelete)
{
    struct run_state state;
    const struct state_commit *found = NULL;
    assert_int_equal(core_append(f, CHAIN_FORGET, ID(2, 20), &state), 0);
    assert_null(state_commit_find(&state, ID(2, 20)));
    assert_int_equal(state_status(&state, ID(2, 20), NULL), SAVE_FORGOTTEN);
    assert_ckpt(state_latest(&state, ID(0, 0))->entry.id, 1, 10);
    assert_int_equal(state_select(&state, &EXACT(2, 20), &found, NULL), CAIRN_E_NOT_FOUND);
    struct actor two = {.token = 2, .world_size = 2};
    assert_int_equal(core_open(f, &two, 20, 123), CAIRN_E_EXISTS);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_FORGOTTEN);
    struct actor child = {.token = 8, .world_size = 1, .newest_seen = 2, .parent = {2, 20}};
    assert_int_equal(core_open(f, &child, 30, 124), 0); /* what it restored is in its memory */
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 10);
    assert_int_equal(core_append(f, CHAIN_UNDELETE, ID(2, 20), &state), 0);
    assert_non_null(state_commit_find(&state, ID(2, 20)));
    assert_int_equal(core_append(f, CHAIN_UNDELETE, ID(2, 20), &state), CAIRN_E_DAMAGED);
}

/* Goal: a tombstone for what was never there is damage. */
CORE_TEST(forgetting_nothing_is_damage)
{
    struct run_state state;
    assert_int_equal(core_append(f, CHAIN_FORGET, ID(2, 21), &state), CAIRN_E_DAMAGED);
}

/* Goal: a newer version's entries are kept and ignored. */
CORE_TEST(unknown_keys_are_ignored)
{
    int status;
    struct record_value value = {3, (const uint8_t *)"xyz"};
    assert_true(refused_or_same(f, "later/0000000000000001", &value, &status));
    assert_int_equal(status, 0);
}
