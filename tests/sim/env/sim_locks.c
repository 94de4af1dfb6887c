/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks of code that waits while it holds them, as the rados store does: a simulated thread that
 * finds one taken, or waits for a change, must let the world go on. The linker puts these before
 * the real ones (--wrap=pthread_mutex_lock, --wrap=pthread_cond_wait in CMakeLists.txt).
 */
#include "sim.h"

#include "base/check.h"

#include <pthread.h>

enum { LOOK_AGAIN_US = 200 };

__typeof__(pthread_mutex_lock) __wrap_pthread_mutex_lock;
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        CHECK(sim_this_thread()); /* the loop's thread never waits for a lock */
        sim_sleep_us(LOOK_AGAIN_US);
    }
    return 0;
}

/* POSIX allows it to return at any time; whoever waits looks whether it is what it waits for. */
__typeof__(pthread_cond_wait) __real_pthread_cond_wait, __wrap_pthread_cond_wait;
int __wrap_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *mutex)
{
    if (!sim_this_thread()) {
        return __real_pthread_cond_wait(changed, mutex);
    }
    CHECK(pthread_mutex_unlock(mutex) == 0);
    sim_sleep_us(LOOK_AGAIN_US);
    return __wrap_pthread_mutex_lock(mutex);
}
