/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the golden files of fixtures that have none yet: make_golden DIRECTORY. A file that exists
 * is left alone, never overwritten: golden files are only ever added. Not run by any test.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unit/format/fixtures.h"

/* 0 written or the same, 1 otherwise, with a line that says so. */
static int write_new(const char *path, const struct buf *bytes)
{
    FILE *file = fopen(path, "wbx");
    if (file == NULL && errno == EEXIST) {
        printf("%s exists and stays\n", path);
        return 0;
    }
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    size_t written = fwrite(bytes->data, 1, bytes->bytes, file);
    if (fclose(file) != 0 || written != bytes->bytes) {
        fprintf(stderr, "%s: writing failed; remove the file and try again\n", path);
        return 1;
    }
    printf("%s: %zu bytes\n", path, bytes->bytes);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: make_golden DIRECTORY\n");
        return 2;
    }
    for (size_t i = 0; i < fixture_count; i++) {
        char path[4096];
        struct buf bytes = fixture_bytes(&fixtures[i]);
        int n = snprintf(path, sizeof path, "%s/%s.bin", argv[1], fixtures[i].name);
        failed |= n < 0 || (size_t)n >= sizeof path ? 1 : write_new(path, &bytes);
        buf_fini(&bytes);
    }
    return failed;
}
