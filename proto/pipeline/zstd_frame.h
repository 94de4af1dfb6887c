/* SPDX-License-Identifier: Apache-2.0
 *
 * zstd_frame: one chunk as one zstd frame (zstd.c). Sizes are never taken from the frame on trust:
 * the caller says how many plain bytes there must be, and the frame has to agree before anything is
 * decoded. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_ZSTD_FRAME_H
#define CAIRN_PIPELINE_ZSTD_FRAME_H

#include "base/diag.h"

#include <stddef.h>

enum {
    ZSTD_RATIO_MAX = 1000,    /* plain bytes per stored byte; more is refused as a bomb */
    ZSTD_WINDOW_LOG_MAX = 23, /* 8 MiB */
};

/* Where an encoder writes, and how many bytes it wrote. */
struct zstd_room {
    size_t cap;
    void *data;
    size_t bytes; /* result */
};
/* TOO_LARGE: it does not fit, or would break ZSTD_RATIO_MAX (store it raw). NO_MEMORY. */
int MUST_USE zstd_encode(int level, size_t bytes, const void *plain, struct zstd_room *io);
/* Exactly one frame of exactly plain_bytes, without dictionary. FORMAT says what is wrong. */
int MUST_USE zstd_decode(size_t bytes, const void *stored, size_t plain_bytes, void *ret_plain,
                         struct diag *diag);

#endif
