/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_flip STORE SHARE SHARES: damages the files of a directory store, one place at a time, asks
 * `cairn verify --store` (in this process) each time: every flipped byte of every file, and every
 * shorter length of manifests and record updates, must give exit status 6 or 10 and words that say
 * what is damaged. This process takes each SHARES-th place.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int cairn_main(int argc, char **argv); /* tools/cairn/main.c */

enum { FILES_MAX = 256, FILE_MAX = 1 << 20, SAID_MAX = 8192, DAMAGE = 6, NO_STORE = 10 };

static struct {
    char url[4096];
    char *paths[FILES_MAX];
    size_t count;
    uint64_t share, shares, place;
    unsigned long checked, missed;
    int said, console; /* where the command's words go; the real stderr */
} flip;

static int collect(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)ftw;
    if (type == FTW_F && stat->st_size > 0) {
        if (flip.count == FILES_MAX || stat->st_size > FILE_MAX || chmod(path, 0600) != 0) {
            return -1;
        }
        flip.paths[flip.count++] = strdup(path);
    }
    return 0;
}

/* Runs `cairn verify` and returns its exit status. `ret` gets what it wrote to both streams. */
static int verify(char ret[SAID_MAX])
{
    char words[][16] = {"cairn", "verify", "--quiet", "--store"};
    char *argv[] = {words[0], words[1], words[2], words[3], flip.url, NULL};
    if (ftruncate(flip.said, 0) != 0 || lseek(flip.said, 0, SEEK_SET) != 0) {
        return -1;
    }
    int status = cairn_main(5, argv);
    fflush(stdout);
    fflush(stderr);
    ssize_t bytes = pread(flip.said, ret, SAID_MAX - 1, 0);
    ret[bytes > 0 ? bytes : 0] = '\0';
    return status;
}

static bool is_mine(void) { return flip.place++ % flip.shares == flip.share; }

static void judge(const char *path, const char *what, long at)
{
    char said[SAID_MAX];
    int status = verify(said);
    bool named = strstr(said, "damage") || strstr(said, "DAMAGED") || strstr(said, "FORMAT") ||
                 strstr(said, "STORE_FEATURES") || strstr(said, "NO_STORE");
    flip.checked++;
    if ((status != DAMAGE && status != NO_STORE) || !named) {
        flip.missed++;
        dprintf(flip.console, "%s: %s %ld: exit %d: %s\n", path, what, at, status, said);
    }
}

static bool write_all(const char *path, size_t bytes, const uint8_t *data)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes;
    return fd >= 0 && close(fd) == 0 && good;
}

static bool damage(const char *path)
{
    static uint8_t data[FILE_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, data, sizeof(data)) : -1;
    if (bytes <= 0 || close(fd) != 0) {
        return false;
    }
    bool good = true;
    for (ssize_t at = 0; good && at < bytes; at++) {
        uint8_t mask = (uint8_t)(1u << (at % 8));
        if (is_mine()) {
            data[at] ^= mask;
            good = write_all(path, (size_t)bytes, data);
            judge(path, "byte", at);
            data[at] ^= mask;
        }
    }
    bool cut = strstr(path, "/manifest-") || strstr(path, ".update");
    for (ssize_t at = 0; good && cut && at < bytes; at++) {
        if (is_mine()) {
            good = write_all(path, (size_t)at, data);
            judge(path, "cut to", at);
        }
    }
    return write_all(path, (size_t)bytes, data) && good;
}

int main(int argc, char **argv)
{
    char said[SAID_MAX];
    if (argc != 4) {
        fprintf(stderr, "usage: e2e_flip STORE SHARE SHARES\n");
        return 2;
    }
    snprintf(flip.url, sizeof(flip.url), "dir:%s", argv[1]);
    flip.share = strtoull(argv[2], NULL, 10);
    flip.shares = strtoull(argv[3], NULL, 10);
    flip.console = dup(STDERR_FILENO);
    flip.said = memfd_create("said", MFD_CLOEXEC);
    if (nftw(argv[1], collect, 16, FTW_PHYS) != 0 || flip.count == 0 || flip.shares == 0 ||
        dup2(flip.said, STDOUT_FILENO) < 0 || dup2(flip.said, STDERR_FILENO) < 0) {
        dprintf(flip.console, "e2e_flip: cannot look at %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    if (verify(said) != 0) {
        dprintf(flip.console, "e2e_flip: the store is not whole to begin with: %s\n", said);
        return 1;
    }
    bool good = true;
    for (size_t i = 0; good && i < flip.count; i++) {
        good = damage(flip.paths[i]);
    }
    if (!good || verify(said) != 0) {
        dprintf(flip.console, "e2e_flip: the store did not become whole again: %s\n", said);
        return 1;
    }
    for (size_t i = 0; i < flip.count; i++) {
        free(flip.paths[i]);
    }
    dprintf(flip.console, "%lu places in %zu files, %lu missed\n", flip.checked, flip.count,
            flip.missed);
    return flip.missed == 0 ? 0 : 1;
}
