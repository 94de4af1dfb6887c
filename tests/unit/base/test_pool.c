/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers are aligned, disjoint, bounded, reused; a double or foreign put is caught; failed
 * mappings are errors. Method: all buffers taken and filled; a fault loop.
 */
#include "base/pool.h"
#include "support/alloc_fault.h"
#include "support/check_trap.h"
#include "support/unit_test.h"

enum { COUNT = 5, BYTES = 8192 };

TEST(test_buffers_are_aligned_and_apart)
{
    struct pool *pool = NULL;
    uint8_t *buffers[COUNT];
    assert_int_equal(pool_new(COUNT, BYTES, &pool, NULL), 0);
    assert_int_equal(pool_count(pool), COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        buffers[i] = pool_get(pool);
        assert_non_null(buffers[i]);
        assert_int_equal((uintptr_t)buffers[i] % POOL_ALIGN, 0);
        memset(buffers[i], (int)i + 1, BYTES);
    }
    assert_null(pool_get(pool));
    assert_int_equal(pool_free_count(pool), 0);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(buffers[i][0], i + 1);
        assert_int_equal(buffers[i][BYTES - 1], i + 1);
        pool_put(pool, buffers[i]);
    }
    assert_ptr_equal(pool_get(pool), buffers[COUNT - 1]); /* the warmest first */
    pool_put(pool, buffers[COUNT - 1]);
    assert_int_equal(pool_free_count(pool), COUNT);
    pool_free(pool);
    pool_free(NULL);
}

struct misuse {
    struct pool *pool;
    void *buffer;
};

static void put(void *user)
{
    struct misuse *misuse = user;
    pool_put(misuse->pool, misuse->buffer);
}

static void free_pool(void *user) { pool_free(user); }

TEST(test_wrong_puts_are_bugs)
{
    struct pool *pool = NULL;
    uint8_t foreign[16];
    assert_int_equal(pool_new(COUNT, BYTES, &pool, NULL), 0);
    uint8_t *buffer = pool_get(pool);
    assert_true(check_breaks(put, &(struct misuse){pool, buffer + 1}));
    assert_true(check_breaks(put, &(struct misuse){pool, buffer - BYTES * COUNT}));
    assert_true(check_breaks(put, &(struct misuse){pool, foreign}));
    assert_true(check_breaks(free_pool, pool)); /* a buffer is out */
    pool_put(pool, buffer);
    assert_true(check_breaks(put, &(struct misuse){pool, buffer}));
    pool_free(pool);
}

TEST(test_failed_allocations_are_errors)
{
    for (unsigned n = 1;; n++) {
        struct pool *pool = NULL;
        struct diag diag = DIAG_INIT;
        alloc_fault_at(n);
        int rc = pool_new(COUNT, BYTES, &pool, &diag);
        if (!alloc_fault_hit()) {
            assert_int_equal(n, 5);
            assert_int_equal(rc, 0);
            pool_free(pool);
            break;
        }
        assert_int_equal(rc, CAIRN_E_NO_MEMORY);
        assert_int_equal(diag.code, CAIRN_E_NO_MEMORY);
        assert_null(pool);
    }
}

TEST(test_impossible_size_is_an_error)
{
    struct pool *pool = NULL;
    struct diag diag = DIAG_INIT;
    assert_int_equal(pool_new(2, SIZE_MAX / POOL_ALIGN / 2 * POOL_ALIGN + POOL_ALIGN, &pool, &diag),
                     CAIRN_E_INVALID);
    assert_non_null(strstr(diag.text, "too large"));
    assert_null(pool);
}
