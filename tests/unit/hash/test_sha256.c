/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: SHA-256 as in FIPS 180-4. Method: the standard's vectors, one-shot and streamed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hash/hash.h"
#include "support/alloc_fault.h"

static void expect_hex(struct sha256 digest, const char *expected)
{
    char hex[65];
    hex_encode(sizeof(digest.bytes), digest.bytes, hex);
    assert_string_equal(hex, expected);
}

static void test_known_vectors(void **state)
{
    (void)state;
    expect_hex(sha256(0, NULL), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_hex(sha256(3, "abc"),
               "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    expect_hex(sha256(strlen(text), text),
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* A million times "a", in pieces of 1 to 200 bytes. */
static void test_stream(void **state)
{
    (void)state;
    char piece[200];
    memset(piece, 'a', sizeof(piece));
    struct sha256_stream *stream = sha256_stream_new();
    assert_non_null(stream);
    sha256_stream_add(stream, 0, NULL);
    size_t left = 1000000;
    for (size_t bytes = 1; left > 0; bytes = bytes % sizeof(piece) + 1) {
        size_t now = bytes < left ? bytes : left;
        sha256_stream_add(stream, now, piece);
        left -= now;
    }
    expect_hex(sha256_stream_digest(stream),
               "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    sha256_stream_free(stream);
    sha256_stream_free(NULL);
}

static void test_failed_allocation_is_null(void **state)
{
    (void)state;
    alloc_fault_at(1);
    struct sha256_stream *stream = sha256_stream_new();
    assert_true(alloc_fault_hit());
    assert_null(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_vectors),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_failed_allocation_is_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
