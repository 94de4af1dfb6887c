/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of a run record are read back, ordered as their numbers, and refused when broken; values
 * keep their fields, their limits, and tell a newer version apart. Method: tables and fixed
 * structs.
 */
#include "base/check.h"
#include "fixtures.h"
#include "support/unit_test.h"

static void assert_parses(const char *key, enum entry_kind kind, struct entry_key *ret)
{
    struct diag diag = DIAG_INIT;
    if (entry_key_parse(key, ret, &diag) != 0 || ret->kind != kind) {
        fail_msg("\"%s\": kind %d (%s)", key, (int)ret->kind, diag.text);
    }
}

TEST(test_keys_are_read_back)
{
    struct token token = fixture_token();
    struct ckpt_id id = {UINT64_C(0x123456789abcdef0), 500};
    struct entry_key key;
    struct key_text text = key_info();
    assert_parses(text.at, ENTRY_INFO, &key);
    text = key_head();
    assert_parses(text.at, ENTRY_HEAD, &key);
    text = key_chain(77);
    assert_string_equal(text.at, "chain/000000000000004d");
    assert_parses(text.at, ENTRY_CHAIN, &key);
    assert_int_equal(key.seq, 77);
    text = key_term(3);
    assert_parses(text.at, ENTRY_TERM, &key);
    assert_int_equal(key.id.term, 3);
    text = key_open(id);
    assert_parses(text.at, ENTRY_OPEN, &key);
    assert_true(ckpt_id_equal(key.id, id));
    text = key_seal(id, 65535);
    assert_string_equal(text.at, "seal/123456789abcdef0/00000000000001f4/0000ffff");
    assert_parses(text.at, ENTRY_SEAL, &key);
    assert_int_equal(key.rank, 65535);
    text = key_dead(id);
    assert_parses(text.at, ENTRY_DEAD, &key);
    text = key_past(id, 77);
    assert_string_equal(text.at, "past/123456789abcdef0/00000000000001f4/000000000000004d");
    assert_parses(text.at, ENTRY_PAST, &key);
    assert_true(ckpt_id_equal(key.id, id) && key.seq == 77);
    text = key_owner(11);
    assert_string_equal(text.at, "owner/000000000000000b");
    assert_parses(text.at, ENTRY_OWNER, &key);
    assert_int_equal(key.id.term, 11);
    text = key_left(12);
    assert_string_equal(text.at, "left/000000000000000c");
    assert_parses(text.at, ENTRY_LEFT, &key);
    assert_int_equal(key.id.term, 12);
    text = key_ended(10);
    assert_string_equal(text.at, "ended/000000000000000a");
    assert_parses(text.at, ENTRY_ENDED, &key);
    assert_int_equal(key.seq, 10);
    text = key_health(9);
    assert_parses(text.at, ENTRY_HEALTH, &key);
    text = key_restore(&token, 4);
    assert_parses(text.at, ENTRY_RESTORE, &key);
    assert_true(token_equal(&key.token, &token));
    assert_int_equal(key.ordinal, 4);
    text = key_report(&token, 4, 5);
    assert_string_equal(text.at, "restore/a0a1a2a3a4a5a6a7a8a9aaabacadaeaf/00000004/00000005");
    assert_parses(text.at, ENTRY_REPORT, &key);
    assert_true(token_equal(&key.token, &token) && key.ordinal == 4 && key.rank == 5);
}

TEST(test_unknown_families_are_kept_and_broken_keys_refused)
{
    static const char *const unknown[] = {"pin/1", "annotation/000", "informal",
                                          "zzz",   "Info",           "terms/0000000000000001"};
    static const char *const broken[] = {"info/x",
                                         "head/",
                                         "chain",
                                         "chain/",
                                         "chain/1",
                                         "chain/000000000000000G",
                                         "chain/000000000000000A",
                                         "chain/0000000000000000",
                                         "term/0000000000000000",
                                         "term/00000000000000011",
                                         "open/0000000000000001",
                                         "open/0000000000000001/",
                                         "open/0000000000000001/0000000000000002/",
                                         "seal/0000000000000001/0000000000000002",
                                         "seal/0000000000000001/0000000000000002/0000000",
                                         "health/x",
                                         "restore/a0",
                                         "restore/a0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
                                         "restore/a0a1a2a3a4a5a6a7a8a9aaabacadaeaf/00000004/",
                                         "restore/A0a1a2a3a4a5a6a7a8a9aaabacadaeaf/00000004"};
    struct entry_key key;
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
        assert_parses(unknown[i], ENTRY_UNKNOWN, &key);
    }
    for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
        struct diag diag = DIAG_INIT;
        if (entry_key_parse(broken[i], &key, &diag) != CAIRN_E_FORMAT) {
            fail_msg("\"%s\" was taken", broken[i]);
        }
        assert_non_null(strstr(diag.text, broken[i]));
    }
}

TEST(test_key_order_is_number_order)
{
    struct prng prng = prng_init("keys", 8);
    for (unsigned i = 0; i < 2000; i++) {
        struct ckpt_id a = {1 + prng_next(&prng) % 1000, prng_next(&prng)},
                       b = {1 + prng_next(&prng) % 1000, prng_next(&prng)};
        assert_true((strcmp(key_open(a).at, key_open(b).at) < 0) == (ckpt_id_compare(a, b) < 0));
    }
}

CODEC_TEST(test_an_open_entry_is_read_back)
{
    const char *tags[] = {"x"}, *names[] = {"loss", "acc"};
    double values[] = {1.5, -0.0};
    struct entry_open entry = {1, 2, {3, 4}, 3, 1, 2, (const uint8_t *)"a\0b", tags, names, values},
                      again;
    entry_open_encode(&entry, buf);
    assert_int_equal(buf_status(buf), 0);
    struct record_value value = {buf->bytes, buf->data};
    assert_int_equal(entry_open_decode(value, scratch, &again, NULL), 0);
    buf_reset(buf); /* decoded pointers are the scratch's, not the input's */
    buf_put_zero(buf, 40);
    assert_true(again.open_id == 1 && again.deadline_ms == 2 && again.base.term == 3 &&
                again.base.step == 4);
    assert_memory_equal(again.metadata, "a\0b", 3);
    assert_string_equal(again.tags[0], "x");
    assert_string_equal(again.metric_names[1], "acc");
    assert_memory_equal(again.metric_values, values, sizeof values);
    entry.tag_count = LIMIT_TAGS + 1;
    buf_reset(buf);
    entry_open_encode(&entry, buf);
    assert_int_equal(buf_status(buf), CAIRN_E_TOO_LARGE);
}

CODEC_TEST(test_reasons_are_cut_at_a_whole_character)
{
    struct entry_dead entry = {.open_id = 1, .code = CAIRN_E_ABORTED}, again;
    memset(entry.reason, 'a', sizeof entry.reason);
    memcpy(entry.reason + ENTRY_REASON_BYTES - 3, "\xe2\x82\xac",
           3); /* its third byte is beyond the end */
    entry_dead_encode(&entry, buf);
    struct record_value value = {buf->bytes, buf->data};
    assert_int_equal(entry_dead_decode(value, scratch, &again, NULL), 0);
    assert_int_equal(strlen(again.reason), ENTRY_REASON_BYTES - 3);
    assert_int_equal(again.code, CAIRN_E_ABORTED);
}

CODEC_TEST(test_newer_versions_and_kinds_are_unsupported)
{
    struct entry_chain entry = {.kind = CHAIN_FORGET, .seq = 1, .id = {1, 1}}, again;
    struct diag diag = DIAG_INIT;
    entry_chain_encode(&entry, buf);
    struct record_value value = {buf->bytes, buf->data};
    assert_int_equal(entry_chain_decode(value, scratch, &again, NULL), 0);
    buf->data[1] = 9;
    assert_int_equal(entry_chain_decode(value, scratch, &again, NULL), CAIRN_E_UNSUPPORTED);
    buf->data[0] = 4;
    assert_int_equal(entry_chain_decode(value, scratch, &again, &diag), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(diag.text, "version 4"));
    value.bytes = 0;
    assert_int_equal(entry_chain_decode(value, scratch, &again, NULL), CAIRN_E_FORMAT);
}

/* A commit without a base has the bytes that it always had; version 2 is for those with one. */
CODEC_TEST(test_only_commits_with_a_base_have_version_2)
{
    struct entry_chain entry = {.kind = CHAIN_COMMIT,
                                .seq = 2,
                                .id = {3, 40},
                                .manifest_bytes = 500,
                                .world_size = 2,
                                .open_id = 5},
                       again;
    for (unsigned i = 0; i < 2; i++) {
        entry.base = i == 0 ? (struct ckpt_id){0} : (struct ckpt_id){2, 30};
        buf_reset(buf);
        entry_chain_encode(&entry, buf);
        assert_int_equal(buf->data[0], 1 + i);
        struct record_value value = {buf->bytes, buf->data};
        assert_int_equal(entry_chain_decode(value, scratch, &again, NULL), 0);
        assert_true(ckpt_id_equal(again.base, entry.base));
        buf->data[0] = (uint8_t)(2 - i); /* the other version: bytes missing, or too many */
        assert_int_equal(entry_chain_decode(value, scratch, &again, NULL), CAIRN_E_FORMAT);
    }
    entry.kind = CHAIN_FORGET; /* whatever its struct says */
    buf_reset(buf);
    entry_chain_encode(&entry, buf);
    assert_int_equal(buf->data[0], 1);
}

static int marks_code(const struct entry_chain *entry, size_t cut)
{
    struct entry_chain again;
    struct scratch scratch;
    struct buf buf;
    scratch_init(&scratch, MIB(1));
    buf_init(&buf, LIMIT_RECORD_VALUE_BYTES);
    entry_chain_encode(entry, &buf);
    assert_int_equal(buf_status(&buf), 0);
    struct record_value value = {buf.bytes - cut, buf.data};
    int code = entry_chain_decode(value, &scratch, &again, NULL);
    if (code == 0) {
        assert_int_equal(again.id_count, entry->id_count);
        assert_memory_equal(again.ids, entry->ids, entry->id_count * sizeof(*entry->ids));
        assert_string_equal(again.actor, entry->actor);
        assert_string_equal(again.reason, entry->reason);
        assert_true(ckpt_id_equal(again.id, entry->ids[0]));
    }
    buf_fini(&buf);
    scratch_fini(&scratch);
    return code;
}

/* A batch is one entry, as large as a value may be, and its checkpoints are in order. */
CODEC_TEST(test_marks_are_read_back_in_order)
{
    static struct ckpt_id ids[CHAIN_IDS_MAX + 1];
    char actor[ENTRY_ACTOR_BYTES], reason[ENTRY_REASON_BYTES];
    for (uint32_t i = 0; i <= CHAIN_IDS_MAX; i++) {
        ids[i] = (struct ckpt_id){1 + i / 100, i};
    }
    memset(actor, 'a', sizeof actor - 1);
    memset(reason, 'r', sizeof reason - 1);
    actor[sizeof actor - 1] = reason[sizeof reason - 1] = '\0';
    struct entry_chain entry = {.kind = CHAIN_FORGET,
                                .seq = 1,
                                .actor = actor,
                                .reason = reason,
                                .id_count = CHAIN_IDS_MAX,
                                .ids = ids};
    assert_int_equal(marks_code(&entry, 0), 0);
    assert_int_equal(marks_code(&entry, 1), CAIRN_E_FORMAT);
    for (uint32_t kind = CHAIN_FORGET; kind <= CHAIN_REPAIR; kind++) {
        entry.kind = kind;
        entry.id_count = kind;
        assert_int_equal(marks_code(&entry, 0), 0);
    }
    ids[2] = ids[1];
    assert_int_equal(marks_code(&entry, 0), CAIRN_E_FORMAT);
    entry.id_count = CHAIN_IDS_MAX + 1;
    entry_chain_encode(&entry, buf);
    assert_int_equal(buf_status(buf), CAIRN_E_TOO_LARGE);
}
