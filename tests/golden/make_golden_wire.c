/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes tests/golden/wire-v1/<MESSAGE>.bin for messages that have none yet: make_golden_wire DIR.
 * Existing files are never touched: they are what an old peer sends.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "unit/wire/sample.h"

static int write_file(const char *path, const struct buf *buf)
{
    FILE *file = fopen(path, "wbx");
    if (file == NULL || fwrite(buf->data, 1, buf->bytes, file) != buf->bytes || fclose(file) != 0) {
        fprintf(stderr, "make_golden_wire: cannot write %s\n", path);
        return 1;
    }
    printf("%s: %zu bytes\n", path, buf->bytes);
    return 0;
}

static int make(const char *folder, uint32_t type, unsigned grown)
{
    char path[512], name[64];
    struct scratch scratch;
    struct buf buf;
    struct msg msg;
    uint32_t payload_bytes;
    sample_golden_name(type, grown, sizeof(name), name);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (access(path, F_OK) == 0) {
        return 0;
    }
    scratch_init(&scratch, MIB(1));
    struct sample sample = {.state = type, .scratch = &scratch, .grown = grown};
    sample_make(&sample, type, &msg, &payload_bytes);
    buf_init(&buf, MIB(1));
    sample_frame(&msg, 7, type, payload_bytes, &buf);
    int status = write_file(path, &buf);
    buf_fini(&buf);
    scratch_fini(&scratch);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_golden_wire DIR\n");
        return 2;
    }
    int status = 0;
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        for (unsigned grown = 0; grown <= sample_growths(SAMPLE_TYPES[i]); grown++) {
            status |= make(argv[1], SAMPLE_TYPES[i], grown);
        }
    }
    return status;
}
