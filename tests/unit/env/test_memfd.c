/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is handed over is mapped only when touching it cannot end us, a refusal says what is
 * wrong, and mapping it touches nobody else's memory. Method: memfds with each property missing in
 * turn, things that are no memfds, and strangers in every hole of the address space.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "env/memfd.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

enum { BYTES = 3 * 4096 };

static int make_sized(unsigned flags, int seals, off_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC | flags);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    if (seals != 0) {
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    }
    return fd;
}

static int make(unsigned flags, int seals) { return make_sized(flags, seals, BYTES); }

static void refused(int fd, uint64_t bytes, const char *why)
{
    struct memfd_map map = {.data = NULL};
    struct diag diag = DIAG_INIT;
    assert_int_equal(memfd_map(fd, bytes, MEMFD_READ, &map, &diag), CAIRN_E_INVALID);
    if (!strstr(diag.text, why)) {
        fail_msg("'%s' does not say '%s'", diag.text, why);
    }
    assert_null(map.data);
    close(fd);
}

TEST(test_holes_are_seen)
{
    int fd = make(MFD_ALLOW_SEALING, 0);
    assert_false(memfd_is_filled(fd, 0, 1));
    assert_true(memfd_is_filled(fd, 0, 0));
    assert_int_equal(pwrite(fd, "hello", 5, 5000), 5); /* the second page of three */
    assert_true(memfd_is_filled(fd, 4096, 4096));
    assert_false(memfd_is_filled(fd, 4095, 2));
    assert_false(memfd_is_filled(fd, 4096, 4097));
    assert_int_equal(pwrite(fd, "hello", 5, 0), 5);
    assert_int_equal(pwrite(fd, "hello", 5, BYTES - 5), 5);
    assert_true(memfd_is_filled(fd, 0, BYTES));
    assert_false(memfd_is_filled(fd, 0, BYTES + 1));
    assert_false(memfd_is_filled(fd, BYTES, 1));
    close(fd);
}

TEST(test_a_sealed_one_is_mapped_and_stays)
{
    struct memfd_map map = {.data = NULL};
    int fd = make(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_GROW);
    assert_int_equal(pwrite(fd, "hello", 5, 5000), 5);
    assert_int_equal(memfd_map(fd, BYTES, MEMFD_READ, &map, NULL), 0);
    assert_int_equal(map.bytes, BYTES);
    assert_null(map.room); /* not to be written */
    assert_memory_equal(map.data + 5000, "hello", 5);
    assert_int_equal(pwrite(fd, "later", 5, 5000), 5);
    assert_memory_equal(map.data + 5000, "later", 5); /* shared, not a copy */
    assert_int_not_equal(ftruncate(fd, 0), 0);
    close(fd);
    assert_memory_equal(map.data + 5000, "later", 5);
    memfd_unmap(&map);
    assert_null(map.data);
    memfd_unmap(&map);
}

TEST(test_what_could_shrink_is_refused)
{
    refused(make(0, 0), BYTES, "not sealed");
    refused(make(MFD_ALLOW_SEALING, 0), BYTES, "not sealed");
    refused(make(MFD_ALLOW_SEALING, F_SEAL_SHRINK), BYTES, "not sealed");
    refused(make(MFD_ALLOW_SEALING, F_SEAL_GROW), BYTES, "not sealed");
}

TEST(test_another_length_is_refused)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    refused(make(MFD_ALLOW_SEALING, seals), BYTES + 4096, "were announced");
    refused(make(MFD_ALLOW_SEALING, seals), BYTES - 1, "were announced");
    refused(make(MFD_ALLOW_SEALING, seals), 0, "were announced");
    refused(make(MFD_ALLOW_SEALING, seals), UINT64_MAX, "were announced");
}

TEST(test_what_is_no_memory_is_refused)
{
    int ends[2];
    char path[] = "/tmp/cairn-memfd-XXXXXX";
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    refused(ends[0], BYTES, "memfd");
    refused(ends[1], BYTES, "memfd");
    refused(open("/dev/zero", O_RDONLY | O_CLOEXEC), BYTES, "memfd");
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    struct memfd_map map;
    assert_int_equal(memfd_map(fd, BYTES, MEMFD_READ, &map, NULL),
                     CAIRN_E_INVALID); /* whatever /tmp is */
    close(fd);
}

TEST(test_what_is_written_into_one_is_seen_by_its_owner)
{
    struct memfd_map map = {.data = NULL};
    char got[5] = "";
    int fd = make(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_GROW);
    assert_int_equal(memfd_map(fd, BYTES, MEMFD_WRITE, &map, NULL), 0);
    memcpy(map.room + 5000, "there", 5);
    assert_int_equal(pread(fd, got, 5, 5000), 5);
    assert_memory_equal(got, "there", 5);
    memfd_unmap(&map);
    assert_null(map.room);
    close(fd);
    fd = make(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    assert_int_not_equal(memfd_map(fd, BYTES, MEMFD_WRITE, &map, NULL), 0);
    close(fd);
}

/* Goal: mapping and unmapping takes no memory away from another thread, whatever fails. */
TEST(test_no_mapping_of_another_thread_is_touched)
{
    static const off_t sizes[] = {BYTES, 2 << 20, (5 << 20) + 100};
    for (unsigned i = 0; i < 3; i++) {
        int fd = make_sized(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_GROW, sizes[i]);
        bool more = true;
        for (unsigned n = 1; more; n++) {
            struct memfd_map map = {.data = NULL};
            alloc_fault_fill_holes(100);
            alloc_fault_at(n);
            int rc = memfd_map(fd, (uint64_t)sizes[i], MEMFD_WRITE, &map, NULL);
            more = alloc_fault_hit();
            if (rc == 0) {
                memset(map.room, 1, (size_t)sizes[i]);
            } else {
                assert_int_equal(rc, CAIRN_E_NO_MEMORY);
                assert_null(map.data);
            }
            memfd_unmap(&map);
            assert_int_equal(alloc_fault_trespasses(), 0);
        }
        close(fd);
    }
}

TEST(test_huge_alignment_survives_a_hole_that_is_taken)
{
    struct memfd_map map = {.data = NULL};
    int fd = make_sized(MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_GROW, 4 << 20);
    alloc_fault_fill_holes(2);
    assert_int_equal(memfd_map(fd, 4 << 20, MEMFD_READ, &map, NULL), 0);
    assert_int_equal((uintptr_t)map.data % (2 << 20), 0);
    assert_int_equal(alloc_fault_trespasses(), 0);
    memfd_unmap(&map);
    close(fd);
}
