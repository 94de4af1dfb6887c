/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents of an arena are aligned, do not overlap and come back; an arena that is full gives a
 * named error. Its memfd is sealed, a forked child does not have the memory, and no memory of the
 * program's other threads is ever touched.
 */
#include "arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

__typeof__(close) __real_close, __wrap_close;

static const struct arena *watched; /* NULL means none */
static unsigned closed_count;

/* What a child forked at this moment would find. */
int __wrap_close(int fd)
{
    if (watched) {
        assert_int_not_equal(arena_fd(watched), fd);
        closed_count++;
    }
    return __real_close(fd);
}

static struct arena *make(uint64_t max_bytes, uint64_t reserve)
{
    struct arena *arena;
    assert_int_equal(arena_new(max_bytes, &arena, NULL), 0);
    assert_int_equal(arena_reserve(arena, reserve, NULL), 0);
    return arena;
}

TEST(extents_are_first_fit_and_come_back)
{
    struct arena *arena = make(0, 64 << 10);
    uint64_t all = arena_bytes(arena);
    uint8_t *a = arena_take(arena, 10000), *b = arena_take(arena, 4096), *c = arena_take(arena, 1);
    assert_true(a && b && c);
    assert_int_equal(arena_offset(arena, a), 0);
    assert_int_equal(arena_offset(arena, b), 12288);
    assert_int_equal(arena_offset(arena, c), 16384);
    assert_int_equal(arena_used_bytes(arena), 20480);
    memset(a, 1, 10000);
    memset(b, 2, 4096);
    assert_int_equal(a[9999], 1);
    arena_give(arena, a);
    uint8_t *d = arena_take(arena, 8192), *e = arena_take(arena, 8192);
    assert_ptr_equal(d, a);                          /* the hole is used */
    assert_int_equal(arena_offset(arena, e), 20480); /* what does not fit in goes behind */
    assert_null(arena_take(arena, all));
    arena_give(arena, b);
    arena_give(arena, c);
    arena_give(arena, d);
    arena_give(arena, e);
    assert_int_equal(arena_used_bytes(arena), 0);
    uint8_t *whole = arena_take(arena, all);
    assert_non_null(whole);
    arena_give(arena, whole);
    arena_free(arena);
}

TEST(the_bound_is_an_error_that_names_it)
{
    struct arena *arena;
    struct diag diag = DIAG_INIT;
    assert_int_equal(arena_new(1 << 20, &arena, NULL), 0);
    assert_int_equal(arena_reserve(arena, (1 << 20) + 1, &diag), CAIRN_E_ARENA_TOO_SMALL);
    assert_non_null(strstr(diag.text, "1048576"));
    assert_null(arena_take(arena, 1)); /* nothing is mapped */
    assert_int_equal(arena_reserve(arena, 1 << 20, NULL), 0);
    assert_true(arena_bytes(arena) <= 1 << 20);
    arena_free(arena);
    arena_free(NULL);
}

TEST(it_grows_only_when_nothing_is_out)
{
    struct arena *arena = make(0, 4096);
    uint8_t *extent = arena_take(arena, 4096);
    assert_int_equal(arena_reserve(arena, 1 << 20, NULL), CAIRN_E_BUSY);
    arena_give(arena, extent);
    assert_int_equal(arena_reserve(arena, 1 << 20, NULL), 0);
    assert_true(arena_bytes(arena) >= 1 << 20);
    arena_free(arena);
}

/* Goal: memory that somebody else may still read is not given out again. */
TEST(what_is_retired_is_not_used_again)
{
    struct arena *arena = make(0, 8192);
    uint64_t generation = arena_generation(arena);
    assert_true(generation > 0);
    uint8_t *first = arena_take(arena, 4096), *second = arena_take(arena, 4096);
    arena_retire(arena, first);
    assert_null(arena_take(arena, 4096)); /* though there is room */
    second[0] = 1;                        /* still mapped for whom it was given to */
    arena_give(arena, second);
    assert_int_equal(arena_bytes(arena), 0);
    assert_int_equal(arena_fd(arena), -1);
    assert_null(arena_take(arena, 4096));
    assert_int_equal(arena_reserve(arena, 8192, NULL), 0);
    assert_true(arena_generation(arena) > generation);
    first = arena_take(arena, 4096);
    assert_non_null(first);
    arena_retire(arena, first); /* the last one: gone at once */
    assert_int_equal(arena_bytes(arena), 0);
    arena_free(arena);
}

/* Goal: room for as many saves as were asked for, within the bound; by default for one, or two
 * where a bound allows it. */
TEST(it_has_room_for_so_many_saves)
{
    static const struct {
        uint64_t max_bytes, expected;
        unsigned snapshots;
    } cases[] = {{0, 1, 0}, {0, 3, 3}, {8 << 20, 2, 0}, {8 << 20, 3, 3}, {8 << 20, 8, 20}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena *arena;
        assert_int_equal(arena_new(cases[i].max_bytes, &arena, NULL), 0);
        arena_set_snapshots(arena, cases[i].snapshots);
        assert_int_equal(arena_reserve(arena, 1 << 20, NULL), 0);
        assert_true(arena_bytes(arena) >= cases[i].expected << 20);
        assert_true(arena_bytes(arena) < (cases[i].expected << 20) + (2 << 20));
        assert_int_equal(arena_max_bytes(arena), cases[i].max_bytes);
        arena_free(arena);
    }
}

/* Goal: what pages it has is known and named, whatever the machine gives; the memory is aligned for
 * huge ones, also behind odd lengths, and all of it is there. */
TEST(its_pages_have_a_name)
{
    for (uint64_t bytes = 2 << 20; bytes <= 9 << 20; bytes += (1 << 20) + 4096) {
        struct arena *arena = make(0, bytes);
        uint8_t *extent = arena_take(arena, bytes);
        assert_non_null(extent);
        assert_int_equal((uintptr_t)extent % (2 << 20), 0);
        assert_true(strlen(arena_pages_name(arena_pages(arena))) > 0);
        unsigned char *resident = calloc(1, arena_bytes(arena) / 4096);
        assert_int_equal(mincore(extent, arena_bytes(arena), resident), 0);
        for (uint64_t i = 0; i < arena_bytes(arena) / 4096; i++) {
            assert_int_equal(resident[i] & 1, 1);
        }
        free(resident);
        memset(extent, 7, bytes);
        arena_give(arena, extent);
        arena_free(arena);
    }
}

TEST(the_memfd_is_sealed)
{
    struct arena *arena = make(0, 8192);
    int seals = fcntl(arena_fd(arena), F_GET_SEALS);
    assert_int_equal(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    assert_int_equal(ftruncate(arena_fd(arena), 0), -1);
    assert_true(fcntl(arena_fd(arena), F_GETFD) & FD_CLOEXEC);
    arena_free(arena);
}

/* Goal: fork costs nothing and shares nothing. Method: the child asks the kernel whether the pages
 * are mapped. */
TEST(a_child_has_no_arena)
{
    struct arena *arena = make(0, 8192);
    uint8_t *extent = arena_take(arena, 8192);
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsigned char resident[2];
        int mapped = mincore(extent, 8192, resident);
        arena_abandon(arena);
        _exit(mapped == -1 && arena_fd(arena) == -1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    arena_give(arena, extent);
    arena_free(arena);
}

/* Goal: a child closes no file of another thread that has got the arena's number. Method: whenever
 * a number is about to be free, the arena does not name it any more. */
TEST(a_number_is_forgotten_before_it_is_free)
{
    struct arena *arena = make(0, 8192);
    watched = arena;
    assert_int_equal(arena_reserve(arena, 16384, NULL), 0);
    arena_close_fd(arena);
    assert_int_equal(arena_reserve(arena, 32768, NULL), 0);
    arena_abandon(arena);
    watched = NULL;
    assert_int_equal(closed_count, 3);
    assert_int_equal(arena_fd(arena), -1);
    free(arena);
}

/* Reserves, grows, retires and reserves again; whatever was refused, what is mapped can be used. */
static void live_a_life(uint64_t bytes)
{
    struct arena *arena = NULL;
    if (arena_new(0, &arena, NULL) != 0) {
        return;
    }
    for (uint64_t i = 1; i <= 3; i++) {
        if (arena_reserve(arena, i * bytes, NULL) != 0) {
            assert_int_equal(arena_bytes(arena), 0);
            assert_int_equal(arena_fd(arena), -1);
            continue;
        }
        uint8_t *extent = arena_take(arena, i * bytes);
        if (extent) {
            memset(extent, (int)i, i * bytes);
            (i == 2 ? arena_retire : arena_give)(arena, extent);
        }
    }
    arena_free(arena);
}

/* Goal: no call takes memory away from another thread of the training process, whatever fails and
 * whatever the other threads map meanwhile. Method: a stranger moves into every hole, and every
 * allocation fails once. With holes that are always taken, huge alignment cannot be had: it is
 * given up, not the memory. */
TEST(no_mapping_of_another_thread_is_touched)
{
    static const uint64_t sizes[] = {64 << 10, (2 << 20) + 4096};
    static const unsigned strangers[] = {1, 100};
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned j = 0; j < 2; j++) {
            bool more = true;
            for (unsigned n = 1; more; n++) {
                alloc_fault_fill_holes(strangers[j]);
                alloc_fault_at(n);
                live_a_life(sizes[i]);
                more = alloc_fault_hit();
                unsigned trespasses = alloc_fault_trespasses();
                if (trespasses > 0) {
                    fail_msg("%llu bytes, %u holes filled, allocation %u fails: %u trespasses",
                             (unsigned long long)sizes[i], strangers[j], n, trespasses);
                }
            }
        }
    }
}

/* Goal: a hole that is taken once costs a second look, not the huge pages. */
TEST(it_is_aligned_though_a_hole_was_taken)
{
    alloc_fault_fill_holes(2);
    struct arena *arena = make(0, 4 << 20);
    uint8_t *extent = arena_take(arena, 4 << 20);
    assert_int_equal((uintptr_t)extent % (2 << 20), 0);
    assert_int_equal(alloc_fault_trespasses(), 0);
    arena_give(arena, extent);
    arena_free(arena);
}
