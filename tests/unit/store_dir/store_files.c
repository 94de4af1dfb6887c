/* SPDX-License-Identifier: Apache-2.0
 *
 * See store_files.h. A file is never changed in place: what has another name for it keeps its
 * bytes.
 */
#include "store_files.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

void files_path(const struct bed *bed, const char *name, char ret[FILES_PATH_BYTES])
{
    snprintf(ret, FILES_PATH_BYTES, "%s/%s", bed->path, name);
}

bool files_has(const struct bed *bed, const char *name)
{
    char path[FILES_PATH_BYTES];
    struct stat st;
    files_path(bed, name, path);
    return lstat(path, &st) == 0;
}

void files_read_path(const char *path, struct store_file *ret)
{
    snprintf(ret->path, sizeof(ret->path), "%s", path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    ret->bytes = fread(ret->data, 1, sizeof(ret->data), file);
    assert_true(ret->bytes > 0 && ret->bytes < sizeof(ret->data));
    fclose(file);
}

void files_read(const struct bed *bed, const char *name, struct store_file *ret)
{
    char path[FILES_PATH_BYTES];
    files_path(bed, name, path);
    files_read_path(path, ret);
}

void files_write(const char *path, size_t bytes, const void *data)
{
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

void files_put(const struct bed *bed, const char *name, size_t bytes, const void *data)
{
    char path[FILES_PATH_BYTES];
    files_path(bed, name, path);
    files_write(path, bytes, data);
}

void files_fill(struct bed *bed, unsigned updates)
{
    bed_init(bed, BED_DIR, unit_test_argument(1), 1);
    bed->snapshot_every = 4;
    bed_open_ok(bed);
    for (unsigned i = 1; i <= updates; i++) {
        bed_number(bed, "key", i);
    }
    bed_close(bed);
}
