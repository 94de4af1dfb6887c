/* SPDX-License-Identifier: Apache-2.0
 *
 * The rotation of buffers. Each turn gives one session one buffer, for a read first (a restore
 * waits for it) and then for a save, and puts the session at the end of the queue. No session holds
 * more than its share while others wait.
 */
#include "ingest/credit.h"

int credit_init(struct credit *credit, uint64_t bytes_total, uint32_t buffer_bytes,
                struct diag *diag)
{
    uint64_t count = bytes_total / buffer_bytes;
    if (count < 4) {
        return diag_set(diag, CAIRN_E_CONFIG,
                        "the budget of %llu bytes for payload buffers ([memory] buffers) is too "
                        "small: it must be at least %u KiB",
                        (unsigned long long)bytes_total, 4 * (buffer_bytes >> 10));
    }
    list_init(&credit->waiting);
    credit->users = 0;
    credit->pumping = false;
    return pool_new((size_t)count, buffer_bytes, &credit->pool, diag);
}

void credit_fini(struct credit *credit)
{
    CHECK(list_is_empty(&credit->waiting));
    pool_free(credit->pool);
    credit->pool = NULL;
}

void credit_user_init(struct credit_user *user, struct credit *credit,
                      void (*on_grant)(struct credit_user *, uint32_t))
{
    *user = (struct credit_user){.credit = credit, .on_grant = on_grant};
    list_init(&user->link);
    list_init(&user->reads);
    credit->users++;
}

static uint32_t share_of(const struct credit *credit)
{
    uint64_t share = pool_count(credit->pool) / (credit->users > 0 ? credit->users : 1);
    return (uint32_t)max_u64(2, min_u64(share, CREDIT_HELD_MAX));
}

static bool wants_buffer(const struct credit_user *user)
{
    uint32_t share = share_of(user->credit);
    return (!list_is_empty(&user->reads) && user->reading < share) ||
           (user->wanted > 0 && user->held_count < share);
}

static void wait_in_turn(struct credit_user *user)
{
    if (list_is_empty(&user->link) && wants_buffer(user)) {
        list_add_tail(&user->credit->waiting, &user->link);
    }
}

/* Gives one buffer to one user. The user may be freed by the callback. */
static void give_one(struct credit_user *user, void *buffer)
{
    struct list *node = user->reading < share_of(user->credit) ? list_pop(&user->reads) : NULL;
    if (node) {
        struct credit_read *read = list_item(node, struct credit_read, link);
        user->reading++;
        wait_in_turn(user);
        read->on_buffer(read, buffer);
        return;
    }
    CHECK(user->wanted > 0);
    CHECK(user->held_count < CREDIT_HELD_MAX);
    user->held[user->held_count++] = buffer;
    user->wanted--;
    wait_in_turn(user);
    user->on_grant(user, 1);
}

/* Gives free buffers to those who wait, in turn. Does nothing if it is called from within itself.
 */
static void pump(struct credit *credit)
{
    if (credit->pumping) {
        return;
    }
    credit->pumping = true;
    while (!list_is_empty(&credit->waiting) && pool_free_count(credit->pool) > 0) {
        struct credit_user *user = list_item(list_pop(&credit->waiting), struct credit_user, link);
        if (wants_buffer(user)) {
            give_one(user, pool_get(credit->pool));
        }
    }
    credit->pumping = false;
}

void credit_user_fini(struct credit_user *user)
{
    struct credit *credit = user->credit;
    if (!credit) {
        return;
    }
    list_remove(&user->link);
    while (user->held_count > 0) {
        pool_put(credit->pool, user->held[--user->held_count]);
    }
    while (list_pop(&user->reads)) {
    }
    CHECK(credit->users > 0);
    CHECK(user->held_count == 0);
    credit->users--;
    user->credit = NULL;
    pump(credit);
}

void credit_want(struct credit_user *user, uint32_t buffers)
{
    uint64_t wanted = (uint64_t)user->wanted + buffers;
    user->wanted = (uint32_t)min_u64(wanted, CREDIT_HELD_MAX);
    wait_in_turn(user);
    pump(user->credit);
}

void *credit_use(struct credit_user *user)
{
    if (user->held_count == 0) {
        return NULL;
    }
    void *buffer = user->held[--user->held_count];
    wait_in_turn(user);
    return buffer;
}

void credit_put(struct credit *credit, void *buffer)
{
    pool_put(credit->pool, buffer);
    pump(credit);
}

void credit_read_put(struct credit *credit, struct credit_user *user, void *buffer)
{
    if (user && user->credit) {
        CHECK(user->reading > 0);
        user->reading--;
        wait_in_turn(user);
    }
    credit_put(credit, buffer);
}

void credit_read(struct credit_user *user, struct credit_read *read,
                 void (*on_buffer)(struct credit_read *, void *))
{
    read->on_buffer = on_buffer;
    list_init(&read->link);
    list_add_tail(&user->reads, &read->link);
    wait_in_turn(user);
    pump(user->credit);
}
