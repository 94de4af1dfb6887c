/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks the descriptors of all processes in /proc and compares what their links point to; holder.h
 * has the rest. Any thread.
 */
#include "holder.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns whether the process has the file open, by device and inode. */
static bool has_open(const char *pid, const struct stat *wanted)
{
    char folder[300], path[600];
    snprintf(folder, sizeof(folder), "/proc/%s/fd", pid);
    DIR *dir = opendir(folder);
    bool found = false;
    if (dir == NULL) {
        return false;
    }
    for (struct dirent *entry; !found && (entry = readdir(dir)) != NULL;) {
        struct stat stat_of;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        found = stat(path, &stat_of) == 0 && stat_of.st_dev == wanted->st_dev &&
                stat_of.st_ino == wanted->st_ino;
    }
    closedir(dir);
    return found;
}

/* Writes the name and the number of the process. The name is "a process" if it has ended. */
static void name_of(const char *pid, size_t size, char *ret)
{
    char path[300], name[64] = "a process";
    snprintf(path, sizeof(path), "/proc/%s/comm", pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fgets(name, sizeof(name), file) != NULL) {
            name[strcspn(name, "\n")] = '\0';
        }
        fclose(file);
    }
    snprintf(ret, size, "%s (pid %.10s)", name, pid);
}

void holder_of(const char *path, size_t size, char *ret)
{
    struct stat wanted;
    char own[24];
    DIR *proc = stat(path, &wanted) == 0 ? opendir("/proc") : NULL;
    ret[0] = '\0';
    if (proc == NULL) {
        return;
    }
    snprintf(own, sizeof(own), "%ld", (long)getpid());
    for (struct dirent *entry; ret[0] == '\0' && (entry = readdir(proc)) != NULL;) {
        bool is_process = entry->d_name[strspn(entry->d_name, "0123456789")] == '\0';
        if (is_process && strcmp(entry->d_name, own) != 0 && has_open(entry->d_name, &wanted)) {
            name_of(entry->d_name, size, ret);
        }
    }
    closedir(proc);
}
