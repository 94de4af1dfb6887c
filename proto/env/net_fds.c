/* SPDX-License-Identifier: Apache-2.0
 *
 * The short queue of descriptors that a Unix socket has received. Invariant: a received descriptor
 * is either in the queue or closed, and a peer cannot make us hold more than the socket's owner
 * allows. The loop's thread.
 */
#include "net_uv_private.h"

#include <string.h>
#include <unistd.h>

static void came(struct fd_queue *queue, int fd)
{
    if (queue->count < queue->most) {
        queue->fd[queue->count++] = fd;
    } else {
        close(fd);
    }
}

void net_fds_came(struct fd_queue *queue, struct msghdr *msg)
{
    /* The kernel has closed what did not fit into the control buffer or found our table of
     * descriptors full (MSG_CTRUNC). The code that expects a descriptor finds none, and reports
     * that. */
    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
            size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; i++) {
                int fd;
                memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
                came(queue, fd);
            }
        }
    }
}

void net_fds_close(struct fd_queue *queue)
{
    while (queue->count > 0) {
        close(queue->fd[--queue->count]);
    }
}

int net_fds_take(struct fd_queue *queue)
{
    int fd = -1;

    if (queue->count > 0) {
        fd = queue->fd[0];
        memmove(queue->fd, queue->fd + 1, --queue->count * sizeof fd);
    }
    return fd;
}
