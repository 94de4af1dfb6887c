/* SPDX-License-Identifier: Apache-2.0
 *
 * See out.h.
 */
#include "out.h"

#include "base/plain.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *shown(struct shown *room, const char *text)
{
    return plain_copy(text ? text : "", sizeof(room->text), room->text);
}

/* The errno of the failed write may have been overwritten, but a pipe without a reader says so
 * whenever it is asked. */
static bool reader_is_gone(void)
{
    struct pollfd look = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&look, 1, 0) == 1 && (look.revents & POLLERR) != 0;
}

int out_flush(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return 0;
    }
    int error = errno;
    if (error == EPIPE || reader_is_gone()) {
        return 0;
    }
    fprintf(stderr, "cairn: cannot write to standard output: %s\n",
            error != 0 ? strerror(error) : "an earlier write failed");
    return CAIRN_E_IO;
}
