/* SPDX-License-Identifier: Apache-2.0
 *
 * Each neighbour is a thread with a loop of its own. The linker passes libcairn's calls of munmap
 * through here (--wrap), where a delay waits for the neighbours instead of a clock: it ends when
 * each of them has gone round twice more. Neighbours call the real functions, and never wait for
 * libcairn, so that the delay always ends.
 */
#include "neighbours.h"

#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

__typeof__(munmap) __real_munmap, __wrap_munmap;

enum {
    MAPPERS = 2,
    ALLOCATOR = MAPPERS,
    STARTER,
    COUNTED, /* neighbours that a delay waits for */
    FORKER = COUNTED,
    NEIGHBOURS,
    MAPPINGS = 12,
    ALLOCATIONS = 64,
    STACK_WORDS = 4096,
    THREADS_AT_ONCE = 3,
    PAGE_BYTES = 4096,
    DELAY_ROUNDS = 2,
    EXIT_CHANGED = 3,
};

struct neighbour {
    pthread_t thread;
    uint64_t random;
    atomic_ullong rounds;
};

struct held {
    void *data;
    size_t bytes;
    uint64_t key;
};

static struct neighbour neighbours[NEIGHBOURS];
static atomic_bool is_stopping, is_delaying;
static atomic_ullong unmap_count;

/* --- patterns -------------------------------------------------------------------------------- */

uint64_t random_next(uint64_t *io_state)
{
    uint64_t z = *io_state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static uint64_t word_of(uint64_t key, size_t idx) { return (key + idx) * 0x9e3779b97f4a7c15; }

void pattern_fill(uint64_t key, void *data, size_t bytes)
{
    uint64_t *words = data;
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        words[i] = word_of(key, i);
    }
}

static _Noreturn void fail(const char *what, const void *at)
{
    fprintf(stderr, "changed: %s at %p\n", what, at);
    _exit(EXIT_CHANGED);
}

void pattern_check(const char *what, uint64_t key, const void *data, size_t bytes)
{
    const uint64_t *words = data;
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        if (words[i] != word_of(key, i)) {
            fail(what, words + i);
        }
    }
}

/* The first 64 bytes of each page: enough to see a page that was lost, and quick. */
static void touch_fill(const struct held *held)
{
    for (size_t at = 0; at < held->bytes; at += PAGE_BYTES) {
        size_t bytes = held->bytes - at < 64 ? held->bytes - at : 64;
        pattern_fill(held->key + at, (uint8_t *)held->data + at, bytes);
    }
}

static void touch_check(const char *what, const struct held *held)
{
    for (size_t at = 0; at < held->bytes; at += PAGE_BYTES) {
        size_t bytes = held->bytes - at < 64 ? held->bytes - at : 64;
        pattern_check(what, held->key + at, (const uint8_t *)held->data + at, bytes);
    }
}

/* --- neighbours ------------------------------------------------------------------------------ */

/* Sizes as arenas and their slack have them, and those of ordinary buffers. */
static size_t mapping_bytes(uint64_t *random)
{
    static const size_t sizes[] = {PAGE_BYTES, 64 << 10, 256 << 10, 1 << 20, 2 << 20,
                                   4 << 20,    6 << 20,  8 << 20,   10 << 20};
    return sizes[random_next(random) % (sizeof sizes / sizeof sizes[0])] +
           random_next(random) % 4 * PAGE_BYTES;
}

static void unmap(struct held *held)
{
    if (held->data) {
        touch_check("a mapping of another thread", held);
        if (__real_munmap(held->data, held->bytes) != 0) {
            fail("munmap of a mapping of another thread", held->data);
        }
        held->data = NULL;
    }
}

static void *map_main(void *arg)
{
    struct neighbour *self = arg;
    struct held held[MAPPINGS] = {{.data = NULL}};
    while (!atomic_load(&is_stopping)) {
        struct held *one = &held[random_next(&self->random) % MAPPINGS];
        unmap(one);
        one->bytes = mapping_bytes(&self->random);
        one->key = random_next(&self->random);
        one->data =
            mmap(NULL, one->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (one->data == MAP_FAILED) {
            fail("mmap in another thread", NULL);
        }
        touch_fill(one);
        atomic_fetch_add(&self->rounds, 1);
    }
    for (size_t i = 0; i < MAPPINGS; i++) {
        unmap(&held[i]);
    }
    return NULL;
}

static void *allocate_main(void *arg)
{
    struct neighbour *self = arg;
    struct held held[ALLOCATIONS] = {{.data = NULL}};
    while (!atomic_load(&is_stopping)) {
        struct held *one = &held[random_next(&self->random) % ALLOCATIONS];
        if (one->data) {
            touch_check("an allocation of another thread", one);
        }
        one->bytes = (size_t)16 << random_next(&self->random) % 18; /* up to 2 MiB */
        one->key = random_next(&self->random);
        free(one->data);
        one->data = malloc(one->bytes);
        if (!one->data) {
            fail("malloc in another thread", NULL);
        }
        touch_fill(one);
        atomic_fetch_add(&self->rounds, 1);
    }
    for (size_t i = 0; i < ALLOCATIONS; i++) {
        free(held[i].data);
    }
    return NULL;
}

static void *stack_main(void *arg)
{
    uint64_t words[STACK_WORDS], key = (uintptr_t)arg;
    pattern_fill(key, words, sizeof words);
    sched_yield();
    pattern_check("a thread's stack", key, words, sizeof words);
    return NULL;
}

static void *start_main(void *arg)
{
    struct neighbour *self = arg;
    while (!atomic_load(&is_stopping)) {
        pthread_t threads[THREADS_AT_ONCE];
        for (size_t i = 0; i < THREADS_AT_ONCE; i++) {
            pthread_attr_t attr;
            size_t bytes = (size_t)(256 << 10) << random_next(&self->random) % 6; /* up to 8 MiB */
            if (pthread_attr_init(&attr) != 0 || pthread_attr_setstacksize(&attr, bytes) != 0 ||
                pthread_create(&threads[i], &attr, stack_main,
                               (void *)(uintptr_t)random_next(&self->random)) != 0) {
                fail("pthread_create in another thread", NULL);
            }
            pthread_attr_destroy(&attr);
        }
        for (size_t i = 0; i < THREADS_AT_ONCE; i++) {
            pthread_join(threads[i], NULL);
        }
        atomic_fetch_add(&self->rounds, 1);
    }
    return NULL;
}

/* What a child finds: its memory, its own file under the number that was open at the fork, and room
 * for more, also where the parent's arena is not. */
static _Noreturn void live_as_child(const struct held *held, int fd, ino_t inode)
{
    struct stat st;
    touch_check("memory of a forked child", held);
    if (fstat(fd, &st) != 0 || st.st_ino != inode) {
        fail("a descriptor of a forked child", NULL);
    }
    struct held own = {.bytes = 4 << 20, .key = held->key + 1};
    own.data = mmap(NULL, own.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own.data == MAP_FAILED) {
        fail("mmap in a forked child", NULL);
    }
    touch_fill(&own);
    touch_check("a mapping of a forked child", &own);
    _exit(0);
}

static void *fork_main(void *arg)
{
    struct neighbour *self = arg;
    while (!atomic_load(&is_stopping)) {
        struct held held = {.bytes = 64 << 10, .key = random_next(&self->random)};
        struct stat st = {.st_ino = 0};
        int status = 0, fd = memfd_create("neighbour", MFD_CLOEXEC); /* the lowest free number */
        held.data = malloc(held.bytes);
        if (fd < 0 || fstat(fd, &st) != 0 || !held.data) {
            fail("a file or memory of another thread", NULL);
        }
        touch_fill(&held);
        pid_t child = fork();
        if (child == 0) {
            live_as_child(&held, fd, st.st_ino);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
            WEXITSTATUS(status) != 0) {
            fail("a forked child did not end well", NULL);
        }
        close(fd);
        free(held.data);
        atomic_fetch_add(&self->rounds, 1);
    }
    return NULL;
}

void neighbours_start(uint64_t seed, bool delay)
{
    static void *(*const mains[NEIGHBOURS])(void *) = {
        [0] = map_main,         [1] = map_main,       [ALLOCATOR] = allocate_main,
        [STARTER] = start_main, [FORKER] = fork_main,
    };
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* fixed: glibc would raise it, and map no more */
    for (size_t i = 0; i < NEIGHBOURS; i++) {
        neighbours[i].random = seed + i;
        if (pthread_create(&neighbours[i].thread, NULL, mains[i], &neighbours[i]) != 0) {
            fail("pthread_create", NULL);
        }
    }
    atomic_store(&is_delaying, delay);
}

uint64_t neighbours_stop(void)
{
    uint64_t rounds = 0;
    atomic_store(&is_delaying, false);
    atomic_store(&is_stopping, true);
    for (size_t i = 0; i < NEIGHBOURS; i++) {
        pthread_join(neighbours[i].thread, NULL);
        rounds += atomic_load(&neighbours[i].rounds);
    }
    return rounds;
}

/* --- libcairn's munmap ----------------------------------------------------------------------- */

uint64_t neighbours_unmaps(void) { return atomic_load(&unmap_count); }

static void wait_for_neighbours(void)
{
    unsigned long long from[COUNTED];
    for (size_t i = 0; i < COUNTED; i++) {
        from[i] = atomic_load(&neighbours[i].rounds);
    }
    for (size_t i = 0; i < COUNTED; i++) {
        while (atomic_load(&is_delaying) &&
               atomic_load(&neighbours[i].rounds) < from[i] + DELAY_ROUNDS) {
            sched_yield();
        }
    }
}

int __wrap_munmap(void *address, size_t bytes)
{
    atomic_fetch_add(&unmap_count, 1);
    wait_for_neighbours();
    int status = __real_munmap(address, bytes);
    wait_for_neighbours();
    return status;
}
