/* SPDX-License-Identifier: Apache-2.0
 *
 * One descriptor watched by uv_poll. It is a struct of its own, because a handle of libuv lives
 * until its close callback, while our sockets are gone, or try the next address, at once.
 * Invariant: after poller_close() the owner is never called again. The loop's thread.
 */
#include "net_uv_private.h"

#include <unistd.h>

static void on_poll(uv_poll_t *handle, int status, int events);

static void on_closed(uv_handle_t *handle) { free(handle->data); }

int poller_new(struct loop *loop, int fd, struct poller_owner on, struct poller **ret,
               struct diag *diag)
{
    struct poller *poller = calloc(1, sizeof *poller);
    int status;

    CHECK(fd >= 0);
    if (!poller) {
        close(fd);
        return diag_no_memory(diag, "a socket");
    }
    status = uv_poll_init(loop_uv_handle(loop), &poller->poll, fd);
    if (status) {
        close(fd);
        free(poller);
        return diag_errno(diag, uv_to_errno(status), "cannot watch a socket");
    }
    poller->poll.data = poller;
    poller->fd = fd;
    poller->on = on;
    *ret = poller;
    return 0;
}

void poller_set(struct poller *poller, unsigned events)
{
    int wanted = (events & SOCK_READ ? UV_READABLE : 0) | (events & SOCK_WRITE ? UV_WRITABLE : 0);

    if (events == poller->events) {
        return;
    }
    poller->events = events;
    CHECK((wanted ? uv_poll_start(&poller->poll, wanted, on_poll) : uv_poll_stop(&poller->poll)) ==
          0);
}

void poller_close(struct poller *poller)
{
    if (!poller) {
        return;
    }
    poller->on.owner = NULL;
    uv_close((uv_handle_t *)&poller->poll, on_closed); /* takes fd out of the epoll set at once */
    close(poller->fd);
    poller->fd = -1;
}

/* Called by libuv. After a failure all events count as ready, so that the owner tries and meets the
 * error itself. */
static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct poller *poller = handle->data;
    unsigned ready =
        (events & UV_READABLE ? SOCK_READ : 0) | (events & UV_WRITABLE ? SOCK_WRITE : 0);

    if (status) {
        ready = poller->events; /* libuv stopped watching; the next try tells what is wrong */
        poller->events = 0;
    }
    poller->on.cb(poller->on.owner, ready, status != 0);
}
