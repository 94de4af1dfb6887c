/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes from a hostile or a newer peer end in a named error or in a valid message, within the
 * memory budget. Method: fields broken one by one, truncations, random mutations, hand-made
 * protobuf bombs.
 */
#include <stdio.h>
#include <time.h>

#include "base/check.h"
#include "sample.h"
#include "support/unit_test.h"

struct fixture {
    struct scratch scratch, decoded;
    struct sample sample;
    struct buf buf;
    struct diag diag;
    struct msg msg, ret;
};

static void setup(struct fixture *f)
{
    scratch_init(&f->scratch, MIB(8));
    scratch_init(&f->decoded, MIB(64));
    buf_init(&f->buf, MIB(8));
    f->sample = (struct sample){.state = 42, .scratch = &f->scratch};
}

static void teardown(struct fixture *f)
{
    scratch_fini(&f->scratch);
    scratch_fini(&f->decoded);
    buf_fini(&f->buf);
}

static int decode(struct fixture *f, uint32_t type)
{
    diag_clear(&f->diag);
    scratch_fini(&f->decoded);
    return msg_decode(type, f->buf.bytes, f->buf.data, &f->decoded, &f->ret, &f->diag);
}

static void encode(struct fixture *f)
{
    buf_reset(&f->buf);
    msg_encode(&f->msg, &f->buf);
    assert_int_equal(buf_status(&f->buf), 0);
}

static void make(struct fixture *f, uint32_t type)
{
    uint32_t payload;
    scratch_fini(&f->scratch);
    sample_make(&f->sample, type, &f->msg, &payload);
}

/* f->msg, broken by the caller, is refused with this code, and the text names the field. */
static void refused(struct fixture *f, int code, const char *field)
{
    encode(f);
    int status = decode(f, (uint32_t)f->msg.type);
    if (status != code || strstr(f->diag.text, field) == NULL) {
        fail_msg("%s with a bad %s: %s (%s)", msg_name((uint32_t)f->msg.type), field,
                 err_name(status), f->diag.text);
    }
}

static void make_join(struct fixture *f)
{
    do {
        make(f, MSG_JOIN);
    } while (f->msg.u.join.viewer);
}

#define FIXED_TEST(name) FIXTURE_TEST(name, setup, teardown, struct fixture, f)

FIXED_TEST(test_session_fields_are_checked)
{
    make(f, MSG_HELLO);
    f->msg.u.hello.version_max = f->msg.u.hello.version_min - 1;
    refused(f, CAIRN_E_PROTOCOL, "HELLO.version_m");
    make(f, MSG_WELCOME);
    f->msg.u.welcome.message_max = 0;
    refused(f, CAIRN_E_PROTOCOL, "WELCOME.message_max");
    make(f, MSG_ERROR);
    f->msg.u.error.code = 3;
    refused(f, CAIRN_E_PROTOCOL, "ERROR.code");
    f->msg.u.error.code = 0;
    refused(f, CAIRN_E_PROTOCOL, "ERROR.code");
    make_join(f);
    f->msg.u.join.rank = f->msg.u.join.world_size;
    refused(f, CAIRN_E_PROTOCOL, "JOIN.rank");
    make_join(f);
    f->msg.u.join.world_size = LIMIT_WORLD_SIZE + 1;
    refused(f, CAIRN_E_PROTOCOL, "JOIN.world_size");
    make_join(f);
    memcpy(f->msg.u.join.run.project, "../etc", sizeof("../etc"));
    refused(f, CAIRN_E_INVALID, "JOIN.run");
    make_join(f);
    f->msg.u.join.run.run[0] = '\0';
    refused(f, CAIRN_E_PROTOCOL, "JOIN.run");
}

FIXED_TEST(test_save_fields_are_checked)
{
    make(f, MSG_OPENED);
    f->msg.u.opened.state = 99;
    refused(f, CAIRN_E_PROTOCOL, "OPENED.state");
    make(f, MSG_SEAL);
    f->msg.u.seal.id.term = 0;
    refused(f, CAIRN_E_PROTOCOL, "SEAL.id");
    f->msg.u.seal.id = (struct ckpt_id){0, 0};
    refused(f, CAIRN_E_PROTOCOL, "SEAL.id");
    make(f, MSG_DATA);
    f->msg.u.data.offset += 1;
    refused(f, CAIRN_E_PROTOCOL, "DATA.offset");
    make(f, MSG_DATA);
    f->msg.u.data.object_bytes = (uint64_t)LIMIT_OBJECT_BYTES + 1;
    refused(f, CAIRN_E_PROTOCOL, "DATA.object_bytes");
    make(f, MSG_DATA);
    f->msg.u.data.object.rank = LIMIT_WORLD_SIZE;
    refused(f, CAIRN_E_PROTOCOL, "DATA.object.rank");
    make(f, MSG_DATA);
    f->msg.u.data.envelope_count = 0;
    refused(f, CAIRN_E_PROTOCOL, "DATA.envelopes");
    make(f, MSG_DATA);
    f->msg.u.data.envelopes[0].encoding = 77;
    refused(f, CAIRN_E_UNSUPPORTED, "DATA.envelopes[0]");
    make(f, MSG_PART);
    f->msg.u.part.offset = f->msg.u.part.total_bytes + 1;
    refused(f, CAIRN_E_PROTOCOL, "PART.offset");
    make(f, MSG_OPEN);
    const char *tags[LIMIT_TAGS + 1];
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        tags[i] = "t";
    }
    f->msg.u.open.tags = tags;
    f->msg.u.open.tag_count = LIMIT_TAGS + 1;
    refused(f, CAIRN_E_TOO_LARGE, "OPEN.tags");
    tags[0] = "";
    f->msg.u.open.tag_count = 1;
    refused(f, CAIRN_E_PROTOCOL, "OPEN.tags");
    tags[0] = "\xff\xfe";
    refused(f, CAIRN_E_PROTOCOL, "OPEN.tags");
    make(f, MSG_OPEN);
    static const uint8_t metadata[LIMIT_METADATA_BYTES + 1];
    f->msg.u.open.metadata = metadata;
    f->msg.u.open.metadata_bytes = sizeof(metadata);
    refused(f, CAIRN_E_TOO_LARGE, "OPEN.metadata");
}

FIXED_TEST(test_restore_fields_are_checked)
{
    make(f, MSG_STATUS_REPLY);
    f->msg.u.status_reply.info.health = 3;
    refused(f, CAIRN_E_PROTOCOL, "STATUS_REPLY.info.health");
    make(f, MSG_RUNS);
    f->msg.u.runs.project = "two words";
    refused(f, CAIRN_E_INVALID, "RUNS.project");
    make(f, MSG_RESTORE);
    f->msg.u.restore.selector.kind = (enum select_kind)3;
    refused(f, CAIRN_E_PROTOCOL, "RESTORE.selector.kind");
    f->msg.u.restore.selector = (struct selector){.kind = SELECT_EXACT};
    refused(f, CAIRN_E_PROTOCOL, "RESTORE.selector.id");
    make(f, MSG_FETCH);
    f->msg.u.fetch.kind = 4;
    refused(f, CAIRN_E_PROTOCOL, "FETCH.kind");
    make(f, MSG_READ);
    f->msg.u.read.offset = LIMIT_OBJECT_BYTES;
    refused(f, CAIRN_E_PROTOCOL, "READ.offset");
    struct plan_want want = {.name = "w", .coordinate = "", .dtype = 9999};
    f->msg =
        (struct msg){.type = MSG_PLAN, .u.plan = {.id = {1, 1}, .want_count = 1, .wants = &want}};
    refused(f, CAIRN_E_UNSUPPORTED, "PLAN.wants.dtype");
    want.dtype = CAIRN_F32;
    want.shape.ndim = want.box.ndim = 1;
    want.shape.length[0] = 10;
    want.box.offset[0] = 5;
    want.box.length[0] = 6;
    refused(f, CAIRN_E_INVALID, "PLAN.wants, w");
    want.box.length[0] = -1;
    refused(f, CAIRN_E_PROTOCOL, "PLAN.wants.box_length");
    want.box.length[0] = 5;
    want.name = "";
    refused(f, CAIRN_E_PROTOCOL, "PLAN.wants.name");
}

FIXED_TEST(test_payloads_must_fit_their_message)
{
    struct envelope e[2] = {{.offset = 0, .stored_bytes = 100},
                            {.offset = 100, .stored_bytes = 50}};
    f->msg = (struct msg){.type = MSG_DATA, .u.data = {.envelope_count = 2, .envelopes = e}};
    assert_int_equal(msg_check_payload(&f->msg, 150, NULL), 0);
    assert_int_equal(msg_check_payload(&f->msg, 149, NULL), CAIRN_E_PROTOCOL);
    assert_int_equal(msg_check_payload(&f->msg, 0, NULL), CAIRN_E_PROTOCOL);
    e[1].offset = 99;
    assert_int_equal(msg_check_payload(&f->msg, 150, NULL), CAIRN_E_PROTOCOL);
    e[1].offset = UINT64_MAX - 10;
    assert_int_equal(msg_check_payload(&f->msg, 150, NULL), CAIRN_E_PROTOCOL);
    f->msg = (struct msg){.type = MSG_SEALED};
    assert_int_equal(msg_check_payload(&f->msg, 0, NULL), 0);
    assert_int_equal(msg_check_payload(&f->msg, 1, NULL), CAIRN_E_PROTOCOL);
    f->msg = (struct msg){.type = MSG_READ_REPLY, .u.read_reply = {.bytes = 10}};
    assert_int_equal(msg_check_payload(&f->msg, 10, NULL), 0);
    assert_int_equal(msg_check_payload(&f->msg, 9, NULL), CAIRN_E_PROTOCOL);
    f->msg = (struct msg){.type = MSG_PLAN_REPLY, .u.plan_reply = {.record_count = 2}};
    assert_int_equal(msg_check_payload(&f->msg, 2 * PLAN_READ_BYTES, NULL), 0);
    assert_int_equal(msg_check_payload(&f->msg, 1, NULL), CAIRN_E_PROTOCOL);
    f->msg = (struct msg){.type = MSG_PART, .u.part = {.offset = 5, .total_bytes = 10}};
    assert_int_equal(msg_check_payload(&f->msg, 5, NULL), 0);
    assert_int_equal(msg_check_payload(&f->msg, 6, NULL), CAIRN_E_PROTOCOL);
}

/* A token of 15 bytes, a text with a NUL: what our own encoder cannot say. */
FIXED_TEST(test_hand_made_fields_are_checked)
{
    static const uint8_t short_token[] = {10, 6, 10, 1, 'p', 18, 1, 'r', 26, 2, 1, 2, 40, 1};
    buf_reset(&f->buf);
    buf_put(&f->buf, sizeof(short_token), short_token);
    assert_int_equal(decode(f, MSG_JOIN), CAIRN_E_PROTOCOL);
    assert_non_null(strstr(f->diag.text, "JOIN.token"));
    static const uint8_t nul[] = {8, 1, 18, 3, 'a', 0, 'b'};
    buf_reset(&f->buf);
    buf_put(&f->buf, sizeof(nul), nul);
    assert_int_equal(decode(f, MSG_ERROR), CAIRN_E_PROTOCOL);
    assert_non_null(strstr(f->diag.text, "ERROR.text"));
    buf_reset(&f->buf);
    assert_int_equal(decode(f, MSG_JOIN), CAIRN_E_PROTOCOL); /* no run */
    assert_int_equal(decode(f, 7), CAIRN_E_UNSUPPORTED);
    assert_int_equal(decode(f, 65535), CAIRN_E_UNSUPPORTED);
    assert_int_equal(decode(f, 0), CAIRN_E_UNSUPPORTED);
}

/* What a newer peer adds is passed over. */
FIXED_TEST(test_unknown_fields_are_ignored)
{
    static const uint8_t extra[] = {0xc0, 0x3e, 5,   0xca, 0x3e,
                                    3,    'n',  'e', 'w'}; /* 1000: varint, 1001: bytes */
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        make(f, SAMPLE_TYPES[i]);
        encode(f);
        buf_put(&f->buf, sizeof(extra), extra);
        assert_int_equal(decode(f, SAMPLE_TYPES[i]), 0);
    }
}

static void repeat(struct fixture *f, size_t times, size_t bytes, const uint8_t *data)
{
    buf_reset(&f->buf);
    for (size_t i = 0; i < times; i++) {
        buf_put(&f->buf, bytes, data);
    }
}

FIXED_TEST(test_bombs_are_refused_by_the_budget)
{
    static const uint8_t unknown[] = {0x78, 0}, empty_want[] = {18, 0}, sequence[] = {8, 1},
                         entry[] = {10, 0};
    repeat(f, 500000, sizeof(unknown), unknown);
    assert_int_equal(decode(f, MSG_BYE), CAIRN_E_TOO_LARGE);
    repeat(f, 500000, sizeof(empty_want), empty_want);
    assert_int_equal(decode(f, MSG_PLAN), CAIRN_E_TOO_LARGE);
    repeat(f, 500000, sizeof(entry), entry);
    assert_int_equal(decode(f, MSG_LIST_REPLY), CAIRN_E_TOO_LARGE);
    repeat(f, 65537, sizeof(sequence), sequence);
    assert_int_equal(decode(f, MSG_HELD), CAIRN_E_TOO_LARGE);
    static uint32_t sequences[65537];
    f->msg = (struct msg){.type = MSG_HELD, .u.held = {.count = 65536, .sequences = sequences}};
    encode(f);
    assert_int_equal(decode(f, MSG_HELD), 0);
    f->msg.u.held.count++;
    encode(f);
    assert_int_equal(decode(f, MSG_HELD), CAIRN_E_TOO_LARGE);
    repeat(f, LIMIT_MESSAGE_BYTES + 1, 1, unknown);
    assert_int_equal(decode(f, MSG_HELD), CAIRN_E_TOO_LARGE);
    /* Deep nesting: no schema of ours recurses, so it is only bytes. */
    static const uint8_t deep[] = {0x0b}; /* group start of field 1 */
    repeat(f, 30000, sizeof(deep), deep);
    assert_int_equal(decode(f, MSG_PLAN), CAIRN_E_PROTOCOL);
    static const uint8_t same_id[] = {10, 4, 8, 1,
                                      16, 1}; /* a single field said again and again is merged */
    repeat(f, 20000, sizeof(same_id), same_id);
    int status = decode(f, MSG_STATUS);
    assert_true(status == 0 || status == CAIRN_E_TOO_LARGE);
}

/* The budget leaves room for the largest messages that are meant. */
FIXED_TEST(test_large_honest_messages_pass)
{
    static struct plan_want wants[8000];
    for (size_t i = 0; i < ARRAY_LEN(wants); i++) {
        wants[i] = (struct plan_want){.name = "transformer.h.10.attn.c_attn.weight",
                                      .coordinate = "",
                                      .dtype = CAIRN_BF16,
                                      .shape = {2, {1024, 4096}},
                                      .box = {2, {512, 0}, {512, 4096}}};
    }
    f->msg = (struct msg){.type = MSG_PLAN,
                          .u.plan = {.id = {1, 1}, .want_count = ARRAY_LEN(wants), .wants = wants}};
    encode(f);
    assert_int_equal(decode(f, MSG_PLAN), 0);
    assert_int_equal(f->ret.u.plan.want_count, ARRAY_LEN(wants));
    static struct ckpt_info infos[5000];
    for (size_t i = 0; i < ARRAY_LEN(infos); i++) {
        infos[i] = (struct ckpt_info){.id = {1, i + 1}, .seq = i, .text = ""};
    }
    f->msg = (struct msg){.type = MSG_LIST_REPLY,
                          .u.list_reply = {.count = ARRAY_LEN(infos), .entries = infos}};
    encode(f);
    assert_int_equal(decode(f, MSG_LIST_REPLY), 0);
    static struct run_name names[10000];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        names[i] = (struct run_name){"p", "r"};
    }
    f->msg = (struct msg){.type = MSG_RUNS_REPLY,
                          .u.runs_reply = {.count = ARRAY_LEN(names), .names = names}};
    encode(f);
    assert_int_equal(decode(f, MSG_RUNS_REPLY), 0);
}

FIXED_TEST(test_truncated_messages_never_crash)
{
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        make(f, SAMPLE_TYPES[i]);
        encode(f);
        size_t whole = f->buf.bytes;
        for (size_t bytes = 0; bytes < whole; bytes++) {
            uint8_t *copy = malloc(bytes + 1); /* so that ASan sees a read behind the end */
            memcpy(copy, f->buf.data, bytes);
            copy = realloc(copy, bytes > 0 ? bytes : 1);
            scratch_fini(&f->decoded);
            err_ignore(msg_decode(SAMPLE_TYPES[i], bytes, copy, &f->decoded, &f->ret, NULL));
            free(copy);
        }
    }
}

/* Whatever still decodes can be encoded and decoded again. */
FIXED_TEST(test_mutated_messages_end_in_an_error_or_a_valid_message)
{
    const char *given = getenv("CAIRN_SEED");
    f->sample.state = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("CAIRN_SEED=%llu\n", (unsigned long long)f->sample.state);
    size_t accepted = 0, refused_count = 0;
    for (unsigned round = 0; round < 20000; round++) {
        uint32_t type = SAMPLE_TYPES[sample_below(&f->sample, SAMPLE_TYPE_COUNT)];
        make(f, type);
        encode(f);
        uint64_t changes = 1 + sample_below(&f->sample, 4);
        for (uint64_t i = 0; i < changes && f->buf.bytes > 0; i++) {
            f->buf.data[sample_below(&f->sample, f->buf.bytes)] ^=
                (uint8_t)(1 + sample_below(&f->sample, 255));
        }
        if (decode(f, type) != 0) {
            refused_count++;
            continue;
        }
        accepted++;
        f->msg = f->ret;
        encode(f);
        struct scratch second;
        scratch_init(&second, MIB(64));
        assert_int_equal(msg_decode(type, f->buf.bytes, f->buf.data, &second, &f->ret, NULL), 0);
        scratch_fini(&second);
    }
    assert_true(accepted > 100);
    assert_true(refused_count > 100);
}
