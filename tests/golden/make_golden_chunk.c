/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the golden files of chunk fixtures that have none yet: make_golden_chunk DIRECTORY. A file
 * that exists is left alone, never overwritten. Not run by any test.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unit/pipeline/chunk_fixtures.h"

/* 0 written or there already, 1 otherwise, with a line that says so. */
static int write_new(const char *path, const struct buf *bytes)
{
    FILE *file = fopen(path, "wbx");
    if (!file && errno == EEXIST) {
        printf("%s exists and stays\n", path);
        return 0;
    }
    if (!file) {
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
        fprintf(stderr, "usage: make_golden_chunk DIRECTORY\n");
        return 2;
    }
    for (size_t i = 0; i < chunk_fixture_count; i++) {
        char path[4096];
        struct buf bytes = chunk_fixture_bytes(&chunk_fixtures[i]);
        int n = snprintf(path, sizeof path, "%s/%s.bin", argv[1], chunk_fixtures[i].name);
        failed |= n < 0 || (size_t)n >= sizeof path ? 1 : write_new(path, &bytes);
        buf_fini(&bytes);
    }
    return failed;
}
