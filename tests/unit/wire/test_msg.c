/* SPDX-License-Identifier: Apache-2.0
 *
 * Every message comes back field by field, and texts for people never break a message. Method:
 * random messages of every type from a printed seed, compared as text made from the structs alone.
 */
#include <stdio.h>
#include <time.h>

#include "sample.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

static void round_trip(uint32_t type, uint64_t seed)
{
    struct scratch scratch, decoded_scratch;
    scratch_init(&scratch, MIB(4));
    scratch_init(&decoded_scratch, MIB(4));
    struct sample sample = {.state = seed, .scratch = &scratch};
    struct msg msg, decoded;
    uint32_t payload_bytes;
    sample_make(&sample, type, &msg, &payload_bytes);
    struct buf bytes, text, decoded_text;
    buf_init(&bytes, MIB(4));
    buf_init(&text, MIB(4));
    buf_init(&decoded_text, MIB(4));
    msg_encode(&msg, &bytes);
    assert_int_equal(buf_status(&bytes), 0);
    struct diag diag = DIAG_INIT;
    int status = msg_decode(type, bytes.bytes, bytes.data, &decoded_scratch, &decoded, &diag);
    if (status != 0) {
        fail_msg("seed %llu, %s: %s", (unsigned long long)seed, msg_name(type), diag.text);
    }
    assert_int_equal(decoded.type, type);
    assert_int_equal(msg_check_payload(&decoded, payload_bytes, &diag), 0);
    sample_dump(&msg, &text);
    sample_dump(&decoded, &decoded_text);
    buf_put_u8(&text, 0);
    buf_put_u8(&decoded_text, 0);
    assert_int_equal(buf_status(&text), 0);
    assert_int_equal(buf_status(&decoded_text), 0);
    if (strcmp((char *)text.data, (char *)decoded_text.data) != 0) {
        fail_msg("seed %llu: sent\n%s\ncame\n%s", (unsigned long long)seed, (char *)text.data,
                 (char *)decoded_text.data);
    }
    buf_fini(&bytes);
    buf_fini(&text);
    buf_fini(&decoded_text);
    scratch_fini(&scratch);
    scratch_fini(&decoded_scratch);
}

TEST(test_random_messages_come_back)
{
    const char *given = getenv("CAIRN_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("CAIRN_SEED=%llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < 200; i++) {
        for (size_t k = 0; k < SAMPLE_TYPE_COUNT; k++) {
            round_trip(SAMPLE_TYPES[k], seed + i);
        }
    }
}

/* The samples cover every type that the codecs know. */
TEST(test_every_known_type_has_a_sample)
{
    size_t known = 0;
    for (uint32_t type = 0; type < 70000; type++) {
        known += msg_name(type) != NULL;
    }
    assert_int_equal(known, SAMPLE_TYPE_COUNT);
    assert_true(msg_has_payload(MSG_DATA));
    assert_false(msg_has_payload(MSG_SEAL));
    assert_false(msg_has_payload(12345));
}

TEST(test_error_text_survives_odd_bytes_and_length)
{
    char text[3000];
    memset(text, 'x', sizeof(text));
    memcpy(text, "open /tmp/\xff\xfe\xc3 \xe9\x87\x8d", 17);
    text[sizeof(text) - 1] = '\0';
    struct msg msg = {.type = MSG_ERROR, .u.error = {.code = CAIRN_E_IO, .text = text}}, ret;
    struct buf buf;
    struct scratch scratch;
    scratch_init(&scratch, 10000);
    buf_init(&buf, 10000);
    msg_encode(&msg, &buf);
    assert_int_equal(buf_status(&buf), 0);
    assert_int_equal(msg_decode(MSG_ERROR, buf.bytes, buf.data, &scratch, &ret, NULL), 0);
    assert_int_equal(strlen(ret.u.error.text), 1024);
    assert_int_equal(memcmp(ret.u.error.text, "open /tmp/??? \xe9\x87\x8dxx", 19), 0);
    scratch_fini(&scratch);
    buf_fini(&buf);
}

TEST(test_encoding_reports_a_full_buffer)
{
    struct msg msg = {.type = MSG_ERROR, .u.error = {.code = CAIRN_E_IO, .text = "twelve bytes"}};
    struct buf buf;
    buf_init(&buf, 10);
    msg_encode(&msg, &buf);
    assert_int_equal(buf_status(&buf), CAIRN_E_TOO_LARGE);
    buf_fini(&buf);
}

/* Fault loop: each allocation of encode and decode fails once; nothing leaks, nothing half-made
 * comes out. */
TEST(test_lack_of_memory_is_an_error)
{
    for (size_t k = 0; k < SAMPLE_TYPE_COUNT; k++) {
        bool clean = false;
        for (unsigned at = 1; !clean; at++) {
            struct scratch scratch, sample_scratch;
            scratch_init(&sample_scratch, MIB(1));
            scratch_init(&scratch, MIB(1));
            struct sample sample = {.state = 5, .scratch = &sample_scratch};
            struct msg msg, ret = {.type = MSG_PING};
            uint32_t payload;
            struct buf buf;
            buf_init(&buf, MIB(1));
            sample_make(&sample, SAMPLE_TYPES[k], &msg, &payload);
            alloc_fault_at(at);
            msg_encode(&msg, &buf);
            int status = buf_status(&buf);
            if (status == 0) {
                status = msg_decode(SAMPLE_TYPES[k], buf.bytes, buf.data, &scratch, &ret, NULL);
            }
            clean = !alloc_fault_hit();
            if (clean) {
                assert_int_equal(status, 0);
            } else {
                assert_true(status == CAIRN_E_NO_MEMORY || status == CAIRN_E_TOO_LARGE);
                assert_int_equal(ret.type, MSG_PING);
            }
            buf_fini(&buf);
            scratch_fini(&scratch);
            scratch_fini(&sample_scratch);
        }
    }
}

/* A page as a server has it: open checkpoints, which have no place in the order, and others. */
TEST(test_a_repeated_page_of_a_list_is_refused)
{
    struct ckpt_info entries[] = {{.state = CKPT_OPEN, .seq = 9},
                                  {.state = CKPT_COMMITTED, .seq = 5},
                                  {.state = CKPT_FORGOTTEN, .seq = 4}};
    struct msg_list_reply page = {.entries = entries, .count = 3, .more = true};
    uint64_t before = 0;
    assert_int_equal(msg_list_next(&page, &before, NULL), 0);
    assert_int_equal(before, 4);
    assert_int_equal(msg_list_next(&page, &before, NULL), CAIRN_E_PROTOCOL);
    before = 5;
    assert_int_equal(msg_list_next(&page, &before, NULL), 0);
    page.more = false;
    assert_int_equal(msg_list_next(&page, &before, NULL), 0);
    assert_int_equal(before, 0);
    page = (struct msg_list_reply){.entries = entries, .count = 1, .more = true};
    assert_int_equal(msg_list_next(&page, &before, NULL), CAIRN_E_PROTOCOL);
    page.count = 0;
    before = 7;
    assert_int_equal(msg_list_next(&page, &before, NULL), CAIRN_E_PROTOCOL);
}
