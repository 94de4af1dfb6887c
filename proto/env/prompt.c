/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets a slice of its own for the calling thread by sched_setattr, which Linux accepts from
 * ordinary threads since 6.12 (older ones ignore it). Policy and niceness stay as they are. Any
 * thread, for itself.
 */
#include "prompt.h"

#include <assert.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"

enum { SLICE_NS = 200000, RESET_ON_FORK = 1 };

/* The kernel's struct sched_attr in its first version; the C library has it only since lately. */
struct thread_attr {
    uint32_t bytes, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
};
static_assert(sizeof(struct thread_attr) == 48, "SCHED_ATTR_SIZE_VER0");

void thread_be_prompt(void)
{
    struct thread_attr attr = {0};

    if (syscall(SYS_sched_getattr, 0, &attr, (unsigned)sizeof attr, 0U) != 0 ||
        attr.policy != SCHED_OTHER) {
        return;
    }
    attr.bytes = sizeof attr;
    attr.flags |= RESET_ON_FORK;
    attr.slice_ns = SLICE_NS;
    /* This is only a wish: everything works without it, only later. */
    err_ignore((int)syscall(SYS_sched_setattr, 0, &attr, 0U));
}
