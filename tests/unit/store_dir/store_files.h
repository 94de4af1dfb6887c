/* SPDX-License-Identifier: Apache-2.0
 *
 * store_files: the files of a directory store on a real disk, as somebody sees and changes them who
 * knows nothing of the store; and a store whose record has files of each kind.
 */
#ifndef CAIRN_TEST_STORE_FILES_H
#define CAIRN_TEST_STORE_FILES_H

#include "store/store_bed.h"

enum { FILES_PATH_BYTES = 768, FILES_BYTES_MAX = 8192 };

struct store_file {
    char path[FILES_PATH_BYTES];
    size_t bytes;
    uint8_t data[FILES_BYTES_MAX];
};

/* The path of a name in the store's folder. */
void files_path(const struct bed *bed, const char *name, char ret[FILES_PATH_BYTES]);
/* Whether there is something of that name; a link is not followed. */
bool files_has(const struct bed *bed, const char *name);
/* Reads a file, which must be there and not be empty. */
void files_read(const struct bed *bed, const char *name, struct store_file *ret);
void files_read_path(const char *path, struct store_file *ret);
/* Puts a new file in the place of what has that path. */
void files_write(const char *path, size_t bytes, const void *data);
void files_put(const struct bed *bed, const char *name, size_t bytes, const void *data);
/* A store with so many updates of p/r, which set "key" to 1, 2, ..., and a snapshot after every 4;
 * closed. */
void files_fill(struct bed *bed, unsigned updates);

#endif
