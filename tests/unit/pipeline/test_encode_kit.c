/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: side buffers and encoders are of a bounded number and are given out again; what was learnt
 * of tensors comes back for the same list of tensors only.
 */
#include "pipeline/encode_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void memory_is_bounded(void **state)
{
    struct encode_kit kit;
    struct side *sides[KIT_SIDES];
    struct kit_encoder *encoders[KIT_ENCODERS];
    (void)state;
    encode_kit_init(&kit, ENCODE_DENSEST);
    for (unsigned i = 0; i < KIT_SIDES; i++) {
        sides[i] = encode_kit_take_side(&kit);
        assert_non_null(sides[i]);
        sides[i]->memory[LIMIT_CHUNK_BYTES - 1] = 1;
    }
    assert_null(encode_kit_take_side(&kit));
    encode_kit_give_side(NULL);
    encode_kit_give_side(sides[3]);
    assert_ptr_equal(encode_kit_take_side(&kit), sides[3]);
    for (unsigned i = 0; i < KIT_ENCODERS; i++) {
        encoders[i] = encode_kit_take_encoder(&kit);
        assert_non_null(encoders[i]);
    }
    assert_null(encode_kit_take_encoder(&kit));
    assert_non_null(kit_encoder_get(encoders[0], 4096));
    struct encoder *large = kit_encoder_get(encoders[0], 65536);
    assert_non_null(large);
    assert_ptr_equal(kit_encoder_get(encoders[0], 4096), large); /* it does */
    for (unsigned i = 0; i < KIT_ENCODERS; i++) {
        encode_kit_give_encoder(encoders[i]);
    }
    for (unsigned i = 0; i < KIT_SIDES; i++) {
        encode_kit_give_side(sides[i]);
    }
    encode_kit_fini(&kit);
}

static void what_was_learnt_comes_back(void **state)
{
    struct encode_kit kit;
    struct encode_state states[3], again[3];
    const struct xxh128 one = {{1}}, other = {{2}};
    const struct encode_cost cost = {4096, 2048, 1000};
    (void)state;
    encode_kit_init(&kit, ENCODE_DENSEST);
    encode_kit_load(&kit, &one, 3, states);
    const struct encode_sink sink = {0, 1};
    assert_int_equal(encode_state_choose(&states[1], &sink), ENCODING_RAW);
    encode_state_sample(&states[1], ENCODING_ZSTD, &cost);
    encode_kit_keep(&kit, &one, 3, states);
    encode_kit_load(&kit, &one, 3, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_ZSTD);
    encode_kit_load(&kit, &other, 3, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_RAW);
    encode_kit_load(&kit, &one, 2, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_RAW);
    encode_kit_keep(&kit, &other, 2, again);
    encode_kit_load(&kit, &one, 3, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_RAW);
    encode_kit_fini(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(what_was_learnt_comes_back),
    };
    return cmocka_run_group_tests_name("encode_kit", tests, NULL, NULL);
}
