/* SPDX-License-Identifier: Apache-2.0
 *
 * See golden_file.h. A file that exists is left alone, whatever is in it.
 */
#include "support/golden_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"

static FILE *open_file(const char *folder, const char *name, const char *mode)
{
    char path[4096];
    int bytes = snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(bytes > 0 && (size_t)bytes < sizeof path);
    return fopen(path, mode);
}

struct buf golden_read(const char *folder, const char *name)
{
    struct buf buf;
    uint8_t block[4096];
    size_t bytes = 0;
    FILE *file = open_file(folder, name, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s/%s: %s; make_golden* write missing ones\n", folder, name,
                strerror(errno));
        abort();
    }
    buf_init(&buf, MIB(8));
    while ((bytes = fread(block, 1, sizeof block, file)) > 0) {
        buf_put(&buf, bytes, block);
    }
    CHECK(ferror(file) == 0);
    CHECK(fclose(file) == 0);
    CHECK(buf_status(&buf) == 0);
    return buf;
}

int golden_write(const char *folder, const char *name, const struct buf *bytes)
{
    FILE *file = open_file(folder, name, "wbx");
    if (file == NULL && errno == EEXIST) {
        printf("%s/%s exists and stays\n", folder, name);
        return 0;
    }
    if (file == NULL) {
        fprintf(stderr, "%s/%s: %s\n", folder, name, strerror(errno));
        return 1;
    }
    size_t written = fwrite(bytes->data, 1, bytes->bytes, file);
    if (fclose(file) != 0 || written != bytes->bytes) {
        fprintf(stderr, "%s/%s: writing failed; remove the file and try again\n", folder, name);
        return 1;
    }
    printf("%s/%s: %zu bytes\n", folder, name, bytes->bytes);
    return 0;
}
