/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests see of, and do to, a simulated disk from outside of any process: sizes, a sorted walk,
 * bit flips.
 */
#include "sim_disk.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 1024 };

bool sim_disk_flip(struct sim_disk *disk, const char *path, uint64_t byte, unsigned bit)
{
    struct inode *file = disk_walk(disk->root, path);

    if (!file || file->kind != VFS_FILE || byte >= file->cur.bytes) {
        return false;
    }
    file->cur.data[byte] ^= (uint8_t)(1u << (bit % 8));
    if (file->has_base && byte < file->base.bytes) {
        file->base.data[byte] ^= (uint8_t)(1u << (bit % 8));
    }
    return true;
}

bool sim_disk_file_bytes(struct sim_disk *disk, const char *path, uint64_t *ret)
{
    const struct inode *file = disk_walk(disk->root, path);

    if (!file || file->kind != VFS_FILE) {
        return false;
    }
    *ret = file->cur.bytes;
    return true;
}

struct found {
    char *path;
    const struct inode *inode;
};

struct walk {
    struct found *item;
    size_t count, cap;
};

static void walk_add(struct walk *walk, const char *dir, const struct entry *entry)
{
    char path[PATH_BYTES];

    if (walk->count == walk->cap) {
        walk->cap = walk->cap ? walk->cap * 2 : 64;
        walk->item = realloc(walk->item, walk->cap * sizeof walk->item[0]);
        CHECK(walk->item);
    }
    CHECK(snprintf(path, sizeof path, "%s/%s", dir, entry->name) < PATH_BYTES);
    walk->item[walk->count] = (struct found){strdup(path), entry->inode};
    CHECK(walk->item[walk->count].path);
    walk->count++;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->path, ((const struct found *)b)->path);
}

void sim_disk_each_file(struct sim_disk *disk,
                        void (*each)(void *user, const char *path, uint64_t bytes), void *user)
{
    struct walk walk = {0};

    for (size_t i = 0; i < disk->root->entries.count; i++) {
        walk_add(&walk, "", &disk->root->entries.item[i]);
    }
    for (size_t at = 0; at < walk.count; at++) { /* grows while it is read */
        const struct inode *inode = walk.item[at].inode;

        for (size_t i = 0; i < inode->entries.count; i++) {
            walk_add(&walk, walk.item[at].path, &inode->entries.item[i]);
        }
    }
    if (walk.count) {
        qsort(walk.item, walk.count, sizeof walk.item[0], by_path);
    }
    for (size_t i = 0; i < walk.count; i++) {
        if (walk.item[i].inode->kind == VFS_FILE) {
            each(user, walk.item[i].path, walk.item[i].inode->cur.bytes);
        }
        free(walk.item[i].path);
    }
    free(walk.item);
}
