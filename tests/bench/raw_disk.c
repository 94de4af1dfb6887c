/* SPDX-License-Identifier: Apache-2.0
 *
 * What the disk can do: a file written, or read, with O_DIRECT from huge-page buffers by a few
 * threads, each taking the next block. A write counts until fsync has returned. One line of JSON.
 * fio's buffers are of small pages, which costs it up to a quarter of the write rate; the faster of
 * the two is what the other figures are compared with.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 16, BLOCK_BYTES = 4 << 20 };

struct disk {
    int fd;
    bool is_write;
    uint64_t bytes;
    atomic_ullong next;
    atomic_int errnum;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *transfer_main(void *arg)
{
    struct disk *disk = arg;
    /* Aligned to a huge page by its size: the mapping is twice as long as what is used. */
    uint8_t *map =
        mmap(NULL, 2 * BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        atomic_store(&disk->errnum, ENOMEM);
        return NULL;
    }
    uint8_t *buffer = map + (BLOCK_BYTES - (uintptr_t)map % BLOCK_BYTES) % BLOCK_BYTES;
    madvise(buffer, BLOCK_BYTES, MADV_HUGEPAGE); /* a wish */
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        buffer[i] = (uint8_t)(i * 2654435761U >> 13);
    }
    for (;;) {
        uint64_t at = atomic_fetch_add(&disk->next, BLOCK_BYTES);
        if (at >= disk->bytes || atomic_load(&disk->errnum) != 0) {
            break;
        }
        ssize_t done = disk->is_write ? pwrite(disk->fd, buffer, BLOCK_BYTES, (off_t)at)
                                      : pread(disk->fd, buffer, BLOCK_BYTES, (off_t)at);
        if (done != BLOCK_BYTES) {
            atomic_store(&disk->errnum, done < 0 ? errno : EIO);
        }
    }
    munmap(map, 2 * BLOCK_BYTES);
    return NULL;
}

static double transfer(struct disk *disk, unsigned threads)
{
    pthread_t thread[THREADS_MAX];
    unsigned started = 0;
    double begin = now_s();
    while (started < threads && pthread_create(&thread[started], NULL, transfer_main, disk) == 0) {
        started++;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(thread[i], NULL);
    }
    if (disk->is_write && fsync(disk->fd) != 0) {
        atomic_store(&disk->errnum, errno);
    }
    return started == threads ? now_s() - begin : -1;
}

int main(int argc, char **argv)
{
    struct disk disk = {.fd = -1};
    unsigned threads = argc == 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
    disk.bytes = argc == 5 ? strtoull(argv[3], NULL, 10) / BLOCK_BYTES * BLOCK_BYTES : 0;
    if (disk.bytes == 0 || threads == 0 || threads > THREADS_MAX ||
        (strcmp(argv[1], "write") != 0 && strcmp(argv[1], "read") != 0)) {
        fprintf(stderr, "usage: raw_disk write|read FILE BYTES THREADS (bytes: from 4 MiB)\n");
        return 2;
    }
    disk.is_write = strcmp(argv[1], "write") == 0;
    disk.fd = open(argv[2],
                   O_CLOEXEC | O_DIRECT | (disk.is_write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY),
                   0600);
    if (disk.fd < 0 || (disk.is_write && posix_fallocate(disk.fd, 0, (off_t)disk.bytes) != 0)) {
        fprintf(stderr, "raw_disk: %s: %s\n", argv[2], strerror(errno));
        return 1;
    }
    double seconds = transfer(&disk, threads);
    close(disk.fd);
    if (seconds < 0 || atomic_load(&disk.errnum) != 0) {
        fprintf(stderr, "raw_disk: %s: %s\n", argv[2], strerror(atomic_load(&disk.errnum)));
        return 1;
    }
    printf("{\"seconds\": %.6f, \"bytes\": %llu}\n", seconds, (unsigned long long)disk.bytes);
    return 0;
}
