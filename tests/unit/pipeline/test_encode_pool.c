/* SPDX-License-Identifier: Apache-2.0
 *
 * Encode buffers and encoders are of a bounded number and are given out again; what was learnt of
 * tensors comes back for the same list of tensors only.
 */
#include "pipeline/encode_pool.h"

#include "support/unit_test.h"

TEST(memory_is_bounded)
{
    struct encode_pool pool;
    struct encode_buffer *buffers[ENCODE_POOL_BUFFERS];
    struct pool_encoder *encoders[ENCODE_POOL_ENCODERS];
    encode_pool_init(&pool, ENCODE_DENSEST);
    for (unsigned i = 0; i < ENCODE_POOL_BUFFERS; i++) {
        buffers[i] = encode_pool_take_buffer(&pool);
        assert_non_null(buffers[i]);
        buffers[i]->memory[LIMIT_CHUNK_BYTES - 1] = 1;
    }
    assert_null(encode_pool_take_buffer(&pool));
    encode_pool_give_buffer(NULL);
    encode_pool_give_buffer(buffers[3]);
    assert_ptr_equal(encode_pool_take_buffer(&pool), buffers[3]);
    for (unsigned i = 0; i < ENCODE_POOL_ENCODERS; i++) {
        encoders[i] = encode_pool_take_encoder(&pool);
        assert_non_null(encoders[i]);
    }
    assert_null(encode_pool_take_encoder(&pool));
    assert_non_null(pool_encoder_get(encoders[0], 4096));
    struct encoder *large = pool_encoder_get(encoders[0], 65536);
    assert_non_null(large);
    assert_ptr_equal(pool_encoder_get(encoders[0], 4096), large); /* it does */
    for (unsigned i = 0; i < ENCODE_POOL_ENCODERS; i++) {
        encode_pool_give_encoder(encoders[i]);
    }
    for (unsigned i = 0; i < ENCODE_POOL_BUFFERS; i++) {
        encode_pool_give_buffer(buffers[i]);
    }
    encode_pool_fini(&pool);
}

TEST(what_was_learnt_comes_back)
{
    struct encode_pool pool;
    struct encode_state states[3], again[3];
    const struct xxh128 one = {{1}}, other = {{2}};
    const struct encode_cost cost = {4096, 2048, 1000};
    encode_pool_init(&pool, ENCODE_DENSEST);
    encode_pool_load(&pool, &one, 3, states);
    const struct encode_sink sink = {0, 1};
    assert_int_equal(encode_state_choose(&states[1], &sink), ENCODING_RAW);
    encode_state_sample(&states[1], ENCODING_ZSTD, &cost);
    encode_pool_keep(&pool, &one, 3, states);
    encode_pool_load(&pool, &one, 3, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_ZSTD);
    encode_pool_load(&pool, &other, 3, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_RAW);
    encode_pool_load(&pool, &one, 2, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_RAW);
    encode_pool_keep(&pool, &other, 2, again);
    encode_pool_load(&pool, &one, 3, again);
    assert_int_equal(encode_state_choose(&again[1], &sink), ENCODING_RAW);
    encode_pool_fini(&pool);
}
