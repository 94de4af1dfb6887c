/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks beside the world's one: code that waits in the middle of a call (a store's thread for its
 * cluster) leaves the stack as it is and lets the world go on. One real thread; at any moment one
 * stack runs. The address sanitizer is told of each change.
 */
#include "sim_private.h"

#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { STACK_BYTES = 512 << 10 };

struct sim_fiber {
    ucontext_t here, caller;
    void *stack;
    void (*run)(void *user);
    void *user;
    bool is_done;
    /* the sanitizer's: stacks of locals that outlive a return, and where the caller's stack is */
    void *fake, *caller_fake;
    const void *caller_stack;
    size_t caller_bytes;
};

static struct sim_fiber
    *running; /* NULL while the world runs on its own stack; one world runs at a time */

static void enter_fiber(struct sim_fiber *fiber)
{
#if SANITIZED
    __sanitizer_finish_switch_fiber(fiber->fake, &fiber->caller_stack, &fiber->caller_bytes);
#else
    (void)fiber;
#endif
}

void sim_fiber_leave(void)
{
    struct sim_fiber *fiber = running;
    CHECK(fiber);
#if SANITIZED
    __sanitizer_start_switch_fiber(&fiber->fake, fiber->caller_stack, fiber->caller_bytes);
#endif
    CHECK(swapcontext(&fiber->here, &fiber->caller) == 0);
    enter_fiber(fiber);
}

static void fiber_main(void)
{
    enter_fiber(running);
    for (;;) {
        running->run(running->user);
        running->is_done = true;
        sim_fiber_leave();
    }
}

struct sim_fiber *sim_fiber_new(void)
{
    struct sim_fiber *fiber = sim_alloc(sizeof *fiber);
    fiber->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    CHECK(fiber->stack != MAP_FAILED);
    CHECK(mprotect(fiber->stack, 4096, PROT_NONE) == 0); /* beyond its end nothing is quiet */
    CHECK(getcontext(&fiber->here) == 0);
    fiber->here.uc_stack.ss_sp = fiber->stack;
    fiber->here.uc_stack.ss_size = STACK_BYTES;
    fiber->here.uc_link = NULL; /* it never returns */
    makecontext(&fiber->here, fiber_main, 0);
    return fiber;
}

void sim_fiber_free(struct sim_fiber *fiber)
{
    if (fiber) {
        CHECK(fiber != running);
        CHECK(munmap(fiber->stack, STACK_BYTES) == 0);
        free(fiber);
    }
}

bool sim_fiber_go(struct sim_fiber *fiber)
{
    CHECK(!running);
    running = fiber;
#if SANITIZED
    __sanitizer_start_switch_fiber(&fiber->caller_fake, fiber->stack, STACK_BYTES);
#endif
    CHECK(swapcontext(&fiber->caller, &fiber->here) == 0);
#if SANITIZED
    __sanitizer_finish_switch_fiber(fiber->caller_fake, NULL, NULL);
#endif
    running = NULL;
    return fiber->is_done;
}

bool sim_fiber_begin(struct sim_fiber *fiber, void (*run)(void *user), void *user)
{
    fiber->run = run;
    fiber->user = user;
    fiber->is_done = false;
    return sim_fiber_go(fiber);
}
