/* SPDX-License-Identifier: Apache-2.0
 *
 * The virtual clock, the generator, the queue of events and the hosts. Invariant: every event is a
 * timer in one heap, ordered by (time, order of its start), and every choice comes from one
 * generator; nothing depends on addresses, threads or the real clock. So a seed replays exactly.
 */
#include "sim_private.h"

#include <string.h>

enum { POST_DELAY_MAX_NS = 30000 };
static const int64_t wall_start_ns = INT64_C(1700000000) * 1000000000;

struct at {
    struct timer timer;
    struct list link;
    void (*cb)(void *user);
    void *user;
};

/* --- randomness ------------------------------------------------------------------------------- */

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

/* xoshiro256**: fast, and its whole state follows from the seed. */
uint64_t sim_random(struct sim *sim)
{
    uint64_t *s = sim->rng, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t sim_below(struct sim *sim, uint64_t n)
{
    CHECK(n > 0);
    return sim_random(sim) % n; /* the bias does not matter for choosing faults */
}

bool sim_chance(struct sim *sim, unsigned one_in) { return sim_below(sim, one_in) == 0; }

uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high)
{
    CHECK(low <= high);
    return low + sim_below(sim, high - low + 1);
}

static void random_fill(struct sim *sim, size_t bytes, void *ret)
{
    uint8_t *at = ret;

    for (size_t i = 0; i < bytes; i++) {
        at[i] = (uint8_t)(sim_random(sim) >> 32);
    }
}

/* --- the world -------------------------------------------------------------------------------- */

static uint64_t world_now_ns(struct loop *loop)
{
    return container_of(loop, struct sim, loop)->now_ns;
}

static const struct loop_ops world_ops = {.now_ns = world_now_ns};

void *sim_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);

    CHECK(memory);
    return memory;
}

struct sim *sim_new(uint64_t seed)
{
    struct sim *sim = sim_alloc(sizeof *sim);

    for (size_t i = 0; i < ARRAY_LEN(sim->rng); i++) {
        sim->rng[i] = splitmix(&seed);
    }
    sim->loop.ops = &world_ops;
    list_init(&sim->hosts);
    list_init(&sim->disks);
    list_init(&sim->conns);
    list_init(&sim->ats);
    list_init(&sim->graveyard);
    sim->next_port = 20000;
    sim_net_set(sim, &(struct sim_net_options){0});
    return sim;
}

void sim_free(struct sim *sim)
{
    struct list *node;

    if (!sim) {
        return;
    }
    sim_net_free_all(sim);
    while ((node = list_pop(&sim->hosts))) {
        struct sim_host *host = list_item(node, struct sim_host, link);
        sim_vfs_fini(host);
        sim_work_fini(host);
        free(host);
    }
    sim_disks_free_all(sim);
    while ((node = list_pop(&sim->ats))) {
        free(list_item(node, struct at, link));
    }
    free(sim);
}

uint64_t sim_now_ns(const struct sim *sim) { return sim->now_ns; }
uint64_t sim_steps(const struct sim *sim) { return sim->steps; }
uint64_t sim_trace_hash(const struct sim *sim) { return sim->trace; }

void sim_note(struct sim *sim, uint64_t what)
{
    sim->trace = rotl(sim->trace ^ what, 23) * UINT64_C(0x9e3779b97f4a7c15);
}

void sim_unschedule(struct sim *sim, struct timer *timer)
{
    if (timer->active) {
        timer_heap_remove(&sim->events, timer);
    }
}

void sim_schedule(struct sim *sim, struct timer *timer, uint64_t delay_ns)
{
    sim_unschedule(sim, timer);
    timer->due_ns = sim->now_ns + delay_ns;
    timer_heap_add(&sim->events, timer);
}

bool sim_step(struct sim *sim)
{
    struct timer *timer = timer_heap_first(&sim->events);

    if (!timer) {
        return false;
    }
    CHECK(timer->due_ns >= sim->now_ns);
    sim->now_ns = timer->due_ns;
    if (timer->loop != &sim->loop) { /* a host's own */
        const struct sim_host *host = container_of(timer->loop, struct sim_host, loop);
        if (host->paused_until_ns > sim->now_ns) {
            sim_schedule(sim, timer, host->paused_until_ns - sim->now_ns);
            return true;
        }
    }
    sim->steps++;
    sim_note(sim, sim->now_ns ^ (timer->order << 32));
    timer_heap_remove(&sim->events, timer);
    timer->cb(timer);
    sim_net_bury(sim);
    return true;
}

bool sim_run_until(struct sim *sim, bool (*done)(void *user), void *user, uint64_t within_ms)
{
    uint64_t end_ns = sim->now_ns + within_ms * 1000000;

    while (!done || !done(user)) {
        struct timer *next = timer_heap_first(&sim->events);

        if (!next || next->due_ns > end_ns) {
            sim->now_ns = end_ns;
            return done && done(user);
        }
        sim_step(sim);
    }
    return true;
}

static bool is_raised(void *flag) { return *(const bool *)flag; }
void sim_raise(void *flag) { *(bool *)flag = true; }

bool sim_await(struct sim *sim, const bool *flag, uint64_t within_ms)
{
    return sim_run_until(sim, is_raised, (void *)(uintptr_t)flag, within_ms);
}

void sim_run_for(struct sim *sim, uint64_t ms) { err_ignore(sim_run_until(sim, NULL, NULL, ms)); }

static void on_at(struct timer *timer)
{
    struct at *at = container_of(timer, struct at, timer);
    struct at copy = *at;

    list_remove(&at->link);
    free(at);
    copy.cb(copy.user);
}

void sim_at(struct sim *sim, uint64_t delay_ms, void (*cb)(void *user), void *user)
{
    sim_at_us(sim, delay_ms * 1000, cb, user);
}

void sim_at_us(struct sim *sim, uint64_t delay_us, void (*cb)(void *user), void *user)
{
    struct at *at = sim_alloc(sizeof *at);

    timer_init(&at->timer, &sim->loop, on_at);
    at->cb = cb;
    at->user = user;
    list_add_tail(&sim->ats, &at->link);
    sim_schedule(sim, &at->timer, delay_us * 1000);
}

/* --- a host's loop ---------------------------------------------------------------------------- */

static struct sim_host *host_of_loop(struct loop *loop)
{
    return container_of(loop, struct sim_host, loop);
}

static uint64_t host_now_ns(struct loop *loop)
{
    struct sim_host *host = host_of_loop(loop);
    return host->sim->now_ns + host->offset_ns;
}

static int64_t host_wall_ns(struct loop *loop)
{
    struct sim_host *host = host_of_loop(loop);
    return wall_start_ns + (int64_t)host->sim->now_ns + host->wall_offset_ns;
}

void sim_host_set_wall(struct sim_host *host, int64_t offset_ns)
{
    host->wall_offset_ns = offset_ns;
}

static void host_random(struct loop *loop, size_t bytes, void *ret)
{
    random_fill(host_of_loop(loop)->sim, bytes, ret);
}

/* In the heap due_ns is the world's time; a time that has passed is now. */
static void host_timer_start(struct loop *loop, struct timer *timer, uint64_t due_ns)
{
    struct sim_host *host = host_of_loop(loop);
    uint64_t now = host->sim->now_ns + host->offset_ns;

    sim_schedule(host->sim, timer, due_ns > now ? due_ns - now : 0);
}

static void host_timer_stop(struct loop *loop, struct timer *timer)
{
    timer_heap_remove(&host_of_loop(loop)->sim->events, timer);
}

static void host_post(struct loop *loop, struct post *post)
{
    struct sim_host *host = host_of_loop(loop);

    if (post->queued) {
        return;
    }
    post->queued = true;
    post->next = NULL;
    if (host->first) {
        host->last->next = post;
    } else {
        host->first = post;
    }
    host->last = post;
    if (!host->pump.active) {
        sim_schedule(host->sim, &host->pump, sim_below(host->sim, POST_DELAY_MAX_NS));
    }
}

/* As the libuv form: what is queued now; later posts wait for the next turn. */
static void on_pump(struct timer *timer)
{
    struct sim_host *host = container_of(timer, struct sim_host, pump);
    struct post *post = host->first;

    host->first = host->last = NULL;
    while (post) {
        struct post *next = post->next;

        post->queued = false;
        post->cb(post);
        post = next;
    }
}

static const struct loop_ops host_ops = {host_now_ns,      host_wall_ns,    host_random,
                                         host_timer_start, host_timer_stop, host_post};

/* --- hosts ------------------------------------------------------------------------------------ */

struct sim_host *sim_host_new(struct sim *sim, const char *name, struct sim_disk *disk)
{
    struct sim_host *host = sim_alloc(sizeof *host);

    CHECK(strlen(name) < sizeof host->name);
    memcpy(host->name, name, strlen(name));
    host->sim = sim;
    host->loop.ops = &host_ops;
    host->offset_ns = sim_below(sim, UINT64_C(1) << 44); /* hosts start hours apart */
    host->disk = disk ? disk : sim_disk_new(sim);
    timer_init(&host->pump, &host->loop, on_pump);
    list_add_tail(&sim->hosts, &host->link);
    sim_net_init(host);
    sim_work_init(host);
    sim_vfs_init(host);
    return host;
}

struct loop *sim_loop(struct sim_host *host) { return &host->loop; }
struct net *sim_net(struct sim_host *host) { return &host->net; }
struct work_pool *sim_pool(struct sim_host *host) { return &host->work.base; }
struct work_pool *sim_waiting_pool(struct sim_host *host) { return &host->waiting.base; }
struct vfs *sim_vfs(struct sim_host *host) { return &host->vfs.base; }
struct sim_disk *sim_host_disk(struct sim_host *host) { return host->disk; }
const char *sim_host_name(const struct sim_host *host) { return host->name; }
bool sim_is_dead(const struct sim_host *host) { return host->is_dead; }
size_t sim_open_socks(const struct sim_host *host) { return host->open_socks; }
uint64_t sim_file_bytes(const struct sim_host *host) { return host->file_bytes; }
size_t sim_open_files(const struct sim_host *host) { return host->vfs.open; }
size_t sim_open_works(const struct sim_host *host) { return host->work.open + host->waiting.open; }

void sim_kill(struct sim_host *host, enum sim_death death)
{
    if (host->is_dead) {
        return;
    }
    host->is_dead = true;
    host->paused_until_ns = 0;
    host->is_silent = death == SIM_SILENT;
    host->vfs.kill_in = 0;
    sim_note(host->sim, 0xdead);
    sim_vfs_kill(host);
    sim_net_kill(host, death);
}

void sim_kill_at_vfs_call(struct sim_host *host, uint64_t call) { host->vfs.kill_in = call; }

void sim_pause(struct sim_host *host, uint64_t ms)
{
    if (!host->is_dead) {
        host->paused_until_ns = host->sim->now_ns + ms * 1000000;
    }
}

struct sim_host *sim_restart(struct sim_host *dead)
{
    CHECK(dead->is_dead);
    return sim_host_new(dead->sim, dead->name, dead->disk);
}
