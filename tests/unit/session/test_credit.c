/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers go round fairly, reads before grants, nobody above his share while others wait, and every
 * buffer comes back once. Method: credit alone, with users that only count.
 */
#include "ingest/credit.h"

#include "base/limits.h"
#include "support/unit_test.h"

enum { BUFFERS = 8, USERS = 4 };

struct user {
    struct credit_user credit;
    uint32_t granted, got;
    struct user *use_again; /* asks again from inside its grant */
};

struct read {
    struct credit_read credit;
    struct user *user;
    void *buffer;
};

static void on_grant(struct credit_user *credit, uint32_t buffers)
{
    struct user *user = container_of(credit, struct user, credit);
    user->granted += buffers;
    if (user->use_again) {
        user->use_again = NULL;
        credit_want(&user->credit, 1);
    }
}

static void on_buffer(struct credit_read *credit, void *buffer)
{
    struct read *read = container_of(credit, struct read, credit);
    assert_null(read->buffer);
    read->buffer = buffer;
    read->user->got++;
}

static struct credit credit;
static struct user users[USERS];

static void setup(void)
{
    assert_int_equal(
        credit_init(&credit, BUFFERS * (uint64_t)LIMIT_CHUNK_BYTES, LIMIT_CHUNK_BYTES, NULL), 0);
    for (unsigned i = 0; i < USERS; i++) {
        users[i] = (struct user){0};
        credit_user_init(&users[i].credit, &credit, on_grant);
    }
}

static void teardown(void)
{
    for (unsigned i = 0; i < USERS; i++) {
        credit_user_fini(&users[i].credit);
        credit_user_fini(&users[i].credit); /* harmless twice */
    }
    assert_int_equal(pool_free_count(credit.pool), BUFFERS);
    credit_fini(&credit);
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

TEST(test_too_small_a_budget_is_refused)
{
    struct credit small;
    struct diag diag = DIAG_INIT;
    assert_int_equal(credit_init(&small, 3 * (uint64_t)LIMIT_CHUNK_BYTES, LIMIT_CHUNK_BYTES, &diag),
                     CAIRN_E_CONFIG);
}

FIXED_TEST(test_everybody_gets_the_same)
{
    for (unsigned i = 0; i < USERS; i++) {
        credit_want(&users[i].credit, 1000);
    }
    for (unsigned i = 0; i < USERS; i++) {
        assert_int_equal(users[i].granted, BUFFERS / USERS);
    }
    /* Thousand rounds: who uses his buffer gets the next in turn. */
    for (unsigned n = 0; n < 1000; n++) {
        struct user *user = &users[n % USERS];
        void *buffer = credit_use(&user->credit);
        assert_non_null(buffer);
        credit_want(&user->credit, 1);
        credit_put(&credit, buffer);
    }
    for (unsigned i = 0; i < USERS; i++) {
        assert_in_range(users[i].granted, 250 + BUFFERS / USERS - 1, 250 + BUFFERS / USERS + 1);
    }
}

FIXED_TEST(test_alone_one_gets_no_more_than_its_share)
{
    credit_want(&users[0].credit, 1000);
    assert_int_equal(users[0].granted, BUFFERS / USERS);
    assert_int_equal(pool_free_count(credit.pool), BUFFERS - BUFFERS / USERS);
    for (unsigned i = 1; i < USERS; i++) {
        credit_user_fini(&users[i].credit); /* the others go: the share grows with the next turn */
    }
    assert_non_null(users[0].credit.credit);
    void *buffer = credit_use(&users[0].credit);
    credit_put(&credit, buffer);
    assert_true(users[0].granted > BUFFERS / USERS);
}

FIXED_TEST(test_want_inside_a_grant)
{
    users[0].use_again = &users[0];
    credit_want(&users[0].credit, 1);
    assert_int_equal(users[0].granted, 2);
}

FIXED_TEST(test_nothing_granted_nothing_to_use) { assert_null(credit_use(&users[0].credit)); }

FIXED_TEST(test_a_leaving_user_gives_back)
{
    for (unsigned i = 0; i < USERS; i++) {
        credit_want(&users[i].credit, 2);
    }
    assert_int_equal(pool_free_count(credit.pool), 0);
    struct read read = {.user = &users[0]};
    credit_read(&users[0].credit, &read.credit, on_buffer);
    assert_null(read.buffer);
    credit_user_fini(&users[3].credit);
    assert_non_null(read.buffer);
    credit_read_put(&credit, &users[0].credit, read.buffer);
}

FIXED_TEST(test_reads_keep_to_the_share)
{
    struct read reads[16];
    for (unsigned i = 0; i < 16; i++) {
        reads[i] = (struct read){.user = &users[0]};
        credit_read(&users[0].credit, &reads[i].credit, on_buffer);
    }
    assert_int_equal(users[0].got, BUFFERS / USERS);
    for (unsigned i = 0; i < 16; i++) {
        assert_non_null(reads[i].buffer); /* each that comes back makes room for the next */
        credit_read_put(&credit, &users[0].credit, reads[i].buffer);
    }
    assert_int_equal(users[0].got, 16);
    assert_int_equal(users[0].credit.reading, 0);
}

FIXED_TEST(test_queued_reads_go_with_their_user)
{
    struct read reads[4];
    for (unsigned i = 0; i < 4; i++) {
        reads[i] = (struct read){.user = &users[0]};
        credit_read(&users[0].credit, &reads[i].credit, on_buffer);
    }
    credit_user_fini(&users[0].credit);
    for (unsigned i = 0; i < 4; i++) {
        assert_true((reads[i].buffer != NULL) == (i < 2));
        if (reads[i].buffer) {
            credit_read_put(&credit, NULL, reads[i].buffer);
        }
    }
    assert_int_equal(users[0].got, 2);
}
