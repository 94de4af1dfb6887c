/* SPDX-License-Identifier: Apache-2.0
 *
 * fork: a child inherits descriptors, and a child that lives on hides a dead rank from the server.
 * So the child's handler closes the descriptors of the parent's handles and touches nothing else.
 * In the child these handles are dead, because their generation differs. The lock of the list is
 * held across fork, so that the list is whole in the child. Any thread.
 */
#include "api_private.h"

/* These are the only mutable globals of the library. */
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list fork_handles = {&fork_handles, &fork_handles};
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_errnum; /* of pthread_atfork */
static atomic_uint fork_count;

unsigned fork_generation(void) { return atomic_load(&fork_count); }

static void fork_prepare(void) { pthread_mutex_lock(&fork_lock); }

static void fork_in_parent(void) { pthread_mutex_unlock(&fork_lock); }

/* In a child only this thread exists. Locks of handles may be held by threads that do not exist
 * here; they are never taken, because every call looks at the generation first. */
static void fork_in_child(void)
{
    atomic_fetch_add(&fork_count, 1);
    list_each (node, &fork_handles) {
        struct cairn *cairn = list_item(node, struct cairn, fork_link);
        net_uv_abandon(cairn->net);
        loop_uv_abandon(cairn->loop);
        arena_abandon(cairn->arena);
    }
    list_init(&fork_handles);
    pthread_mutex_unlock(&fork_lock);
}

static void fork_register(void)
{
    fork_errnum = pthread_atfork(fork_prepare, fork_in_parent, fork_in_child);
}

int fork_add(struct cairn *cairn, struct diag *diag)
{
    CHECK(pthread_once(&fork_once, fork_register) == 0);
    if (fork_errnum != 0) {
        return diag_errno(diag, fork_errnum, "cannot register the handlers for fork");
    }
    pthread_mutex_lock(&fork_lock);
    list_add_tail(&fork_handles, &cairn->fork_link);
    pthread_mutex_unlock(&fork_lock);
    return 0;
}

void fork_remove(struct cairn *cairn)
{
    pthread_mutex_lock(&fork_lock);
    list_remove(&cairn->fork_link);
    pthread_mutex_unlock(&fork_lock);
}
