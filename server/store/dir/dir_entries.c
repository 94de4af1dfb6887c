/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries of a directory as an array, sorted by name, so that they are handled in the same
 * order everywhere.
 */
#include "dir_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Called for each entry of the directory: copies it into the list. */
static int on_entry(void *user, const char *name, enum vfs_kind kind)
{
    struct dir_entries *entries = user;
    if (entries->count == entries->cap) {
        size_t cap = entries->cap == 0 ? 32 : entries->cap * 2;
        struct dir_entry *grown = realloc(entries->entries, cap * sizeof(*grown));
        if (grown == NULL) {
            return CAIRN_E_NO_MEMORY;
        }
        entries->entries = grown;
        entries->cap = cap;
    }
    struct dir_entry *entry = &entries->entries[entries->count++];
    entry->kind = kind;
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    return 0;
}

static int compare_entries(const void *left, const void *right)
{
    const struct dir_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

int dir_entries_list(struct dir_store *store, const struct dir_at *at, struct dir_entries *ret,
                     struct diag *diag)
{
    struct dir_entries entries = {0};
    int rc = store->vfs->ops->list(store->vfs, at->fd, on_entry, &entries, diag);
    if (rc != 0) {
        dir_entries_fini(&entries);
        return diag_set(diag, rc, "list %s/%s", store->path, at->path);
    }
    if (entries.count > 0) {
        qsort(entries.entries, entries.count, sizeof(*entries.entries), compare_entries);
    }
    *ret = entries;
    return 0;
}

void dir_entries_fini(struct dir_entries *entries)
{
    free(entries->entries);
    *entries = (struct dir_entries){0};
}
