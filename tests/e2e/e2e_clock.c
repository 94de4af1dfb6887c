/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_clock: preloaded, a program whose wall clock is ahead by CAIRN_TEST_AHEAD_S seconds.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    long status = syscall(SYS_clock_gettime, clock, ret);
    const char *ahead = getenv("CAIRN_TEST_AHEAD_S");
    if (status == 0 && clock == CLOCK_REALTIME && ahead) {
        ret->tv_sec += strtol(ahead, NULL, 10);
    }
    return status == 0 ? 0 : -1;
}
