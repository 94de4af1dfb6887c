/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes tests/golden/wire-v1/<MESSAGE>.bin for messages that have none yet: make_golden_wire DIR.
 * Existing files are never touched: they are what an old peer sends.
 */
#include <stdio.h>

#include "support/golden_file.h"
#include "unit/wire/sample.h"

static int make(const char *folder, uint32_t type, unsigned grown)
{
    char name[64];
    struct scratch scratch;
    struct buf buf;
    struct msg msg;
    uint32_t payload_bytes;
    sample_golden_name(type, grown, sizeof(name), name);
    scratch_init(&scratch, MIB(1));
    struct sample sample = {.state = type, .scratch = &scratch, .grown = grown};
    sample_make(&sample, type, &msg, &payload_bytes);
    buf_init(&buf, MIB(1));
    sample_frame(&msg, 7, type, payload_bytes, &buf);
    int status = golden_write(folder, name, &buf);
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
