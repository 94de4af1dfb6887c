/* SPDX-License-Identifier: Apache-2.0
 *
 * Hex round-trips, and only the one spelling is accepted. Method: all byte values; each position
 * spoilt; texts too short and too long.
 */
#include "hash/hash.h"

#include "support/unit_test.h"

TEST(test_round_trip)
{
    uint8_t data[256], back[256];
    char hex[513];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)i;
    }
    hex_encode(sizeof(data), data, hex);
    assert_int_equal(strlen(hex), 512);
    assert_memory_equal(hex, "000102", 6);
    assert_string_equal(hex + 508, "feff");
    assert_true(hex_decode(sizeof(back), hex, back));
    assert_memory_equal(data, back, sizeof(data));
}

TEST(test_other_texts_are_refused)
{
    static const char *const texts[] = {"",
                                        "0",
                                        "012",
                                        "01234",
                                        "0g12",
                                        "AB01",
                                        "01 2",
                                        "01\xff"
                                        "2",
                                        "-101"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint8_t ret[2] = {7, 7};
        assert_false(hex_decode(2, texts[i], ret));
        assert_int_equal(ret[0], 7);
        assert_int_equal(ret[1], 7);
    }
    uint8_t ret[2];
    assert_true(hex_decode(2, "0fa9", ret));
    assert_int_equal(ret[1], 0xa9);
    assert_true(hex_decode(0, "", ret));
}
