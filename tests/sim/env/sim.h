/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated twin of env: many hosts (processes) with their own loop, net, work pool and vfs, in
 * one thread, on one virtual clock, from one seed. The same seed and the same calls give the same
 * run, byte for byte. Code under test sees only env/loop.h, net.h, work.h and vfs.h.
 *
 * Times are virtual. Nothing here fails: running out of memory ends the test.
 */
#ifndef CAIRN_SIM_H
#define CAIRN_SIM_H

#include "env/loop.h"
#include "env/net.h"
#include "env/vfs.h"
#include "env/work.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim;
struct sim_host;
struct sim_disk;

/* --- the world -------------------------------------------------------------------------------- */

struct sim *sim_new(uint64_t seed);
/* Frees the world with all hosts, disks and connections; what was queued is dropped without a call.
 */
void sim_free(struct sim *sim);
uint64_t sim_now_ns(const struct sim *sim); /* since the world began; hosts see it with an offset */
uint64_t sim_random(struct sim *sim);
uint64_t sim_below(struct sim *sim, uint64_t n);   /* uniform in [0, n); n > 0 */
bool sim_chance(struct sim *sim, unsigned one_in); /* true once in one_in calls */
uint64_t sim_steps(const struct sim *sim);         /* events so far: equal in a replay */
/* A hash of every event's time and kind so far: the quickest check that a run was replayed. */
uint64_t sim_trace_hash(const struct sim *sim);

/* Runs the next event; false when there is none. */
bool sim_step(struct sim *sim);
/* Runs until done(user) holds (checked after each event) or within_ms have passed; returns
 * done(user). */
bool sim_run_until(struct sim *sim, bool (*done)(void *user), void *user, uint64_t within_ms);
/* The same for a flag; and the callback that raises one. */
bool sim_await(struct sim *sim, const bool *flag, uint64_t within_ms);
void sim_raise(void *flag);
void sim_run_for(struct sim *sim, uint64_t ms);
/* Calls cb(user) from the world, on no host, once in delay_ms: for faults at a moment. Freed by
 * itself. */
void sim_at(struct sim *sim, uint64_t delay_ms, void (*cb)(void *user), void *user);
void sim_at_us(struct sim *sim, uint64_t delay_us, void (*cb)(void *user), void *user);

/* --- hosts ------------------------------------------------------------------------------------ */

/* A process. name: what peers connect to as "tcp:<name>:<port>", borrowed no longer than the call.
 * disk: NULL gives it an empty one of its own. */
struct sim_host *sim_host_new(struct sim *sim, const char *name, struct sim_disk *disk);
struct loop *sim_loop(struct sim_host *host);
/* Somebody sets its wall clock: from now on so far beside the world's. */
void sim_host_set_wall(struct sim_host *host, int64_t offset_ns);
struct net *sim_net(struct sim_host *host);
struct work_pool *sim_pool(struct sim_host *host); /* two simulated threads */
/* Six simulated threads whose works may wait in the middle: each runs on a stack of its own. What
 * is not done when the world ends is dropped where it stands. */
struct work_pool *sim_waiting_pool(struct sim_host *host);
/* Inside such a work: the thread that it runs on; NULL elsewhere. sim_wait lets the world go on,
 * and returns after sim_wake(thread) was called, a little later; a wake that came before counts. */
struct sim_running;
struct sim_running *sim_this_thread(void);
void sim_wait(struct sim_running *thread);
void sim_wake(struct sim_running *thread);
void sim_sleep_us(uint64_t us);
struct vfs *sim_vfs(struct sim_host *host);
struct sim_disk *sim_host_disk(struct sim_host *host);
const char *sim_host_name(const struct sim_host *host);
bool sim_is_dead(const struct sim_host *host);

enum sim_death {
    SIM_RESET,  /* peers learn of it after a random delay, as when a process dies */
    SIM_SILENT, /* peers hear nothing more, as when a machine or a cable dies */
};

/* The process dies now. From here on its vfs fails with IO and has no effect, its locks are free,
 * its connections are cut and its listeners gone. Its timers, posts and work are still delivered,
 * so that the code on it can be torn down in the usual way, with everything failing. */
void sim_kill(struct sim_host *host, enum sim_death death);
/* sim_kill just before the call'th vfs call from now on (1: the next). 0 takes it back. */
void sim_kill_at_vfs_call(struct sim_host *host, uint64_t call);
/* The process stands still: nothing of it runs for so long, and then all of what it missed, in its
 * order. Its clock goes on, what it has sent arrives, and peers can send until buffers are full. */
void sim_pause(struct sim_host *host, uint64_t ms);
/* A new process of the same name on the disk of a dead one. */
struct sim_host *sim_restart(struct sim_host *dead);
/* Sockets and listeners that the code on the host has not closed: 0 after a clean end (I8). */
size_t sim_open_socks(const struct sim_host *host);
/* Bytes that its sockets took from files (sock_try_send_file). */
uint64_t sim_file_bytes(const struct sim_host *host);
/* The same for descriptors of the vfs. */
size_t sim_open_files(const struct sim_host *host);
/* Works that were submitted and not done. */
size_t sim_open_works(const struct sim_host *host);

/* --- the network ------------------------------------------------------------------------------ */

struct sim_net_options {
    uint64_t latency_min_us, latency_max_us; /* each way; default 20 .. 2000 */
    size_t buffer_bytes; /* most bytes of a direction in flight or unread; default by seed 2 .. 64
                            KiB */
    bool no_fds;         /* none pass on Unix sockets connected from now on */
};

void sim_net_set(struct sim *sim, const struct sim_net_options *options);
/* While `on`, nothing that host `from` sends arrives at host `to`: bytes, ends and resets wait.
 * NULL stands for every host. To part two hosts both ways, call it twice. */
void sim_partition(struct sim *sim, const char *from, const char *to, bool on);
/* Resets the connections between two hosts, and bytes in flight are lost. NULL stands for every
 * host. Returns how many connections were reset. */
size_t sim_cut(struct sim *sim, const char *a, const char *b);

/* --- disks ------------------------------------------------------------------------------------ */

/* Has a root directory "/" and an empty directory "/store", both durable. Belongs to the world. */
struct sim_disk *sim_disk_new(struct sim *sim);
/* Power loss: all that was not synced is kept, lost or torn by the seed. No live host may use it.
 */
void sim_disk_crash(struct sim_disk *disk);
/* The worst legal loss instead of a random one: everything unsynced is gone. */
void sim_disk_crash_lose_all(struct sim_disk *disk);
/* Sets the file system's size; writes beyond it fail with NO_SPACE, in part. UINT64_MAX, the
 * default, stands for no limit. */
void sim_disk_set_capacity(struct sim_disk *disk, uint64_t bytes);
uint64_t sim_disk_used(const struct sim_disk *disk);
/* Calls of all hosts on this disk so far, and: the call'th from now (1: the next) fails with code
 * and without effect. 0 takes it back. */
uint64_t sim_disk_calls(const struct sim_disk *disk);
void sim_disk_fail_call(struct sim_disk *disk, uint64_t call, int code);
/* The next fsync of a file fails with IO, and what it should have made durable never will be,
 * though it may still be read back from the cache. */
void sim_disk_fail_next_fsync(struct sim_disk *disk);
/* Flips one bit of a file, in cache and on the medium. False when there is no such byte. */
bool sim_disk_flip(struct sim_disk *disk, const char *path, uint64_t byte, unsigned bit);
/* Size of the file at path ("/store/…"); false when there is none. */
bool sim_disk_file_bytes(struct sim_disk *disk, const char *path, uint64_t *ret);
/* Calls each(user, path, bytes) for every file, sorted by path. */
void sim_disk_each_file(struct sim_disk *disk,
                        void (*each)(void *user, const char *path, uint64_t bytes), void *user);

#endif
