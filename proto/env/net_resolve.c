/* SPDX-License-Identifier: Apache-2.0
 *
 * Names to addresses. getaddrinfo blocks for as long as a broken name server likes, so each look-up
 * has a thread of its own, which is never waited for. Invariant: the loop's thread owns a look-up
 * until it is orphaned (cancelled, or its net is gone); from then on its own thread owns it.
 */
#include "net_uv_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

struct resolve {
    struct net_addr addr;
    struct targets targets;
    int code;
    struct diag diag;
    void (*cb)(void *user, int code, const struct targets *targets, const struct diag *diag);
    void *user;
    struct list link;          /* in waiting, then in finished */
    pthread_mutex_t lock;      /* guards resolver and is_finished */
    struct resolver *resolver; /* NULL once orphaned */
    bool is_finished;
};

static void *resolve_main(void *arg);
static void on_wake(uv_async_t *handle);
static void free_resolve(struct resolve *resolve);

static void on_async_closed(uv_handle_t *handle) { free(handle); }

int resolver_init(struct resolver *resolver, struct loop *loop, struct diag *diag)
{
    uv_async_t *wake = malloc(sizeof *wake);
    int status;

    if (!wake) {
        return diag_no_memory(diag, "the resolver of host names");
    }
    status = uv_async_init(loop_uv_handle(loop), wake, on_wake);
    if (status) {
        free(wake);
        return diag_errno(diag, uv_to_errno(status), "resolver");
    }
    wake->data = resolver;
    resolver->wake = wake;
    CHECK(pthread_mutex_init(&resolver->lock, NULL) == 0);
    list_init(&resolver->waiting);
    list_init(&resolver->finished);
    return 0;
}

void resolver_fini(struct resolver *resolver)
{
    /* The sockets are closed, so every lookup was cancelled or called back. */
    CHECK(list_is_empty(&resolver->waiting));
    CHECK(list_is_empty(&resolver->finished));
    uv_close((uv_handle_t *)resolver->wake, on_async_closed);
    pthread_mutex_destroy(&resolver->lock);
}

int resolve_start(struct resolver *resolver, const struct net_addr *addr,
                  void (*cb)(void *user, int code, const struct targets *targets,
                             const struct diag *diag),
                  void *user, struct resolve **ret)
{
    struct resolve *resolve = calloc(1, sizeof *resolve);
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    int err;

    if (!resolve) {
        return CAIRN_E_NO_MEMORY;
    }
    resolve->addr = *addr;
    resolve->cb = cb;
    resolve->user = user;
    resolve->resolver = resolver;
    CHECK(pthread_mutex_init(&resolve->lock, NULL) == 0);
    CHECK(pthread_attr_init(&attr) == 0);
    CHECK(pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0);
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &old) == 0);
    pthread_mutex_lock(&resolver->lock);
    list_add_tail(&resolver->waiting, &resolve->link);
    pthread_mutex_unlock(&resolver->lock);
    err = pthread_create(&thread, &attr, resolve_main, resolve);
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    pthread_attr_destroy(&attr);
    if (err) {
        pthread_mutex_lock(&resolver->lock);
        list_remove(&resolve->link);
        pthread_mutex_unlock(&resolver->lock);
        free_resolve(resolve);
        return err_from_errno(err);
    }
    *ret = resolve;
    return 0;
}

void resolve_cancel(struct resolve *resolve)
{
    struct resolver *resolver;
    bool is_finished;

    if (!resolve) {
        return;
    }
    pthread_mutex_lock(&resolve->lock);
    resolver = resolve->resolver;
    is_finished = resolve->is_finished;
    /* If it is finished, its thread is done with it, and it waits in the list that the lock
     * guards. */
    pthread_mutex_lock(&resolver->lock);
    list_remove(&resolve->link);
    pthread_mutex_unlock(&resolver->lock);
    resolve->resolver = NULL;
    pthread_mutex_unlock(&resolve->lock);
    if (is_finished) {
        free_resolve(resolve);
    }
}

static void free_resolve(struct resolve *resolve)
{
    pthread_mutex_destroy(&resolve->lock);
    free(resolve);
}

/* The thread of one look-up. It hands the result to the resolver, or frees the look-up if that was
 * orphaned. */
static void *resolve_main(void *arg)
{
    struct resolve *resolve = arg;
    bool is_orphan;

    resolve->code = targets_from_name(&resolve->addr, false, &resolve->targets, &resolve->diag);
    pthread_mutex_lock(&resolve->lock);
    is_orphan = !resolve->resolver;
    if (!is_orphan) {
        struct resolver *resolver = resolve->resolver;
        resolve->is_finished = true;
        pthread_mutex_lock(&resolver->lock);
        list_remove(&resolve->link);
        list_add_tail(&resolver->finished, &resolve->link);
        CHECK(uv_async_send(resolver->wake) == 0);
        pthread_mutex_unlock(&resolver->lock);
    }
    pthread_mutex_unlock(&resolve->lock);
    if (is_orphan) {
        free_resolve(resolve);
    }
    return NULL;
}

/* Delivers the results of finished look-ups on the loop's thread. */
static void on_wake(uv_async_t *handle)
{
    struct resolver *resolver = handle->data;

    for (;;) {
        struct list *node;
        struct resolve *resolve;

        pthread_mutex_lock(&resolver->lock);
        node = list_pop(&resolver->finished);
        pthread_mutex_unlock(&resolver->lock);
        if (!node) {
            return;
        }
        resolve = list_item(node, struct resolve, link);
        pthread_mutex_lock(&resolve->lock); /* its thread may be about to let go */
        pthread_mutex_unlock(&resolve->lock);
        resolve->cb(resolve->user, resolve->code, &resolve->targets, &resolve->diag);
        free_resolve(resolve);
    }
}

/* --- addresses ------------------------------------------------------------------------------- */

int targets_from_literal(const struct net_addr *addr, struct targets *ret)
{
    struct target target = {.bytes = 0};

    if (addr->family == NET_UNIX) {
        struct sockaddr_un *un = (void *)&target.addr;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, addr->host, strnlen(addr->host, sizeof un->sun_path - 1));
        target.bytes = sizeof *un;
    } else {
        struct sockaddr_in *v4 = (void *)&target.addr;
        struct sockaddr_in6 *v6 = (void *)&target.addr;
        if (inet_pton(AF_INET, addr->host, &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(addr->port);
            target.bytes = sizeof *v4;
        } else {
            target = (struct target){.bytes = 0};
            if (inet_pton(AF_INET6, addr->host, &v6->sin6_addr) != 1) {
                return CAIRN_E_NOT_FOUND;
            }
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(addr->port);
            target.bytes = sizeof *v6;
        }
    }
    ret->item[0] = target;
    ret->count = 1;
    return 0;
}

int targets_from_name(const struct net_addr *addr, bool is_passive, struct targets *ret,
                      struct diag *diag)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[8];
    int err;

    hints.ai_flags |= is_passive ? AI_PASSIVE : 0;
    snprintf(port, sizeof port, "%u", addr->port);
    err = getaddrinfo(addr->host, port, &hints, &found);
    if (err) {
        return diag_set(diag, CAIRN_E_UNREACHABLE, "cannot look up the host \"%s\": %s", addr->host,
                        err == EAI_SYSTEM ? strerror(errno) : gai_strerror(err));
    }
    ret->count = 0;
    for (const struct addrinfo *at = found; at && ret->count < TARGETS_MAX; at = at->ai_next) {
        struct target *target = &ret->item[ret->count];
        if (at->ai_addrlen <= sizeof target->addr) {
            memset(target, 0, sizeof *target);
            memcpy(&target->addr, at->ai_addr, at->ai_addrlen);
            target->bytes = at->ai_addrlen;
            ret->count++;
        }
    }
    freeaddrinfo(found);
    return ret->count
               ? 0
               : diag_set(diag, CAIRN_E_UNREACHABLE, "host \"%s\" has no address", addr->host);
}
