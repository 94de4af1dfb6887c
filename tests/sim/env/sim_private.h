/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the simulator share: the world, hosts, and the hooks by which a death reaches
 * the network and the disk. One thread.
 */
#ifndef CAIRN_SIM_PRIVATE_H
#define CAIRN_SIM_PRIVATE_H

#include "base/list.h"
#include "env/timer.h"
#include "sim.h"

#include <stdlib.h>

enum { SIM_NAME_BYTES = 32, SIM_THREADS = 2, SIM_WAITERS = 6, SIM_PARTITIONS_MAX = 128 };

struct sim_partition {
    char from[SIM_NAME_BYTES], to[SIM_NAME_BYTES]; /* an empty name stands for every host */
};

struct sim {
    uint64_t now_ns, steps, trace;
    uint64_t rng[4];
    struct timer_heap events; /* everything that will happen, of all hosts */
    struct loop loop;         /* of events that belong to no host */
    struct list hosts, disks, conns, ats;
    struct list graveyard; /* connections that are freed between two events */
    struct sim_net_options net;
    struct sim_partition partitions[SIM_PARTITIONS_MAX];
    size_t partition_count;
    uint16_t next_port;
};

struct sim_fiber; /* a stack of its own: sim_fiber.c */

struct sim_work_queue {
    struct work_pool base;
    struct sim_host *host;
    struct work *first, *last;
    struct sim_running {
        struct timer timer;
        struct work *work; /* NULL while this simulated thread is idle */
        bool has_run;
        struct sim_fiber *fiber; /* of a pool whose works may wait; made with the first one */
        struct sim_work_queue *queue;
    } thread[SIM_WAITERS];
    size_t thread_count;
    bool may_wait;
    size_t open;
};

struct sim_fd;

struct sim_vfs {
    struct vfs base;
    struct sim_fd *fds; /* index = vfs_fd */
    size_t fd_cap, open;
    uint64_t kill_in; /* calls until the process dies; 0 while it is to live */
};

struct sim_host {
    struct sim *sim;
    struct list link;
    char name[SIM_NAME_BYTES];
    bool is_dead, is_silent;  /* is_silent: died without a word */
    uint64_t paused_until_ns; /* nothing of it runs before */
    struct loop loop;
    uint64_t offset_ns; /* of the host's monotonic clock */
    int64_t wall_offset_ns;
    struct post *first, *last;
    struct timer pump; /* delivers posts */
    struct net net;
    struct list listeners;
    size_t open_socks;
    uint64_t file_bytes; /* sent from files */
    struct sim_work_queue work, waiting;
    struct sim_vfs vfs;
    struct sim_disk *disk;
};

void *sim_alloc(size_t bytes); /* zeroed; ends the test when there is none */
/* An event of the world: timer->cb in delay_ns. Restarts it when active. */
void sim_schedule(struct sim *sim, struct timer *timer, uint64_t delay_ns);
void sim_unschedule(struct sim *sim, struct timer *timer);          /* no effect when inactive */
uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high); /* both inclusive */
void sim_note(struct sim *sim, uint64_t what);                      /* into the trace hash */

void sim_net_init(struct sim_host *host);
void sim_net_kill(struct sim_host *host, enum sim_death death);
void sim_net_free_all(struct sim *sim);
void sim_net_bury(struct sim *sim); /* frees the graveyard */

void sim_work_init(struct sim_host *host);
void sim_work_fini(struct sim_host *host);

/* Calls run(user) on the fiber until it returns or waits; sim_fiber_go goes on with one that waits.
 * True: run has returned. */
struct sim_fiber *sim_fiber_new(void);
void sim_fiber_free(struct sim_fiber *fiber); /* NULL is fine */
bool sim_fiber_begin(struct sim_fiber *fiber, void (*run)(void *user), void *user);
bool sim_fiber_go(struct sim_fiber *fiber);
void sim_fiber_leave(void); /* inside one: back to whoever began it or let it go on */

void sim_vfs_init(struct sim_host *host);
void sim_vfs_kill(struct sim_host *host);
void sim_vfs_fini(struct sim_host *host);
void sim_disks_free_all(struct sim *sim);

#endif
