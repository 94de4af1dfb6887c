/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest is SHA-256 as FIPS 180-4 has it. Method: the standard's vectors.
 */
#include "hash/hash.h"

#include "support/unit_test.h"

static void expect_hex(struct sha256 digest, const char *expected)
{
    char hex[65];
    hex_encode(sizeof(digest.bytes), digest.bytes, hex);
    assert_string_equal(hex, expected);
}

TEST(test_known_vectors)
{
    expect_hex(sha256(0, NULL), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_hex(sha256(3, "abc"),
               "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    expect_hex(sha256(strlen(text), text),
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* A million times "a". */
TEST(test_long_text)
{
    static char text[1000000];
    memset(text, 'a', sizeof(text));
    expect_hex(sha256(sizeof(text), text),
               "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
