/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes tests/golden/wire-v1/<MESSAGE>.bin, and its fields as <MESSAGE>.txt, for messages that
 * have none yet: make_golden_wire DIR. With the name of a message that has grown (make_golden_wire
 * DIR SEAL) it writes one more frame of that. Existing files are never touched: they are what an
 * old peer sends.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/golden_file.h"
#include "unit/wire/sample.h"

static bool exists(const char *folder, const char *stem)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.bin", folder, stem);
    return access(path, F_OK) == 0;
}

static int write_one(const char *folder, const char *stem, const char *ending, struct buf *bytes)
{
    char name[80];
    snprintf(name, sizeof(name), "%s%s", stem, ending);
    int status = golden_write(folder, name, bytes);
    buf_fini(bytes);
    return status;
}

static int make(const char *folder, uint32_t type, unsigned grown, const char *stem)
{
    struct scratch scratch;
    struct buf frame, text;
    struct msg msg;
    uint32_t payload_bytes;
    scratch_init(&scratch, MIB(1));
    buf_init(&frame, MIB(1));
    buf_init(&text, MIB(1));
    struct sample sample = {.state = (uint64_t)grown << 32 | type, .scratch = &scratch};
    sample_make(&sample, type, &msg, &payload_bytes);
    sample_frame(&msg, 7, type, payload_bytes, &frame);
    sample_dump(&msg, &text);
    int status = write_one(folder, stem, ".bin", &frame);
    status |= write_one(folder, stem, ".txt", &text);
    scratch_fini(&scratch);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: make_golden_wire DIR [MESSAGE]\n");
        return 2;
    }
    int status = 0;
    for (size_t i = 0; i < SAMPLE_TYPE_COUNT; i++) {
        char stem[64];
        unsigned grown = 0;
        bool more = argc == 3 && strcmp(argv[2], msg_name(SAMPLE_TYPES[i])) == 0;
        sample_golden_name(SAMPLE_TYPES[i], grown, sizeof(stem), stem);
        while (more && exists(argv[1], stem)) {
            sample_golden_name(SAMPLE_TYPES[i], ++grown, sizeof(stem), stem);
        }
        if (!exists(argv[1], stem)) {
            status |= make(argv[1], SAMPLE_TYPES[i], grown, stem);
        }
    }
    return status;
}
