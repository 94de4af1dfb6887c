/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that knows libzstd. Decoding is one-pass into memory of exactly the right size, so a
 * frame can neither make us allocate nor write beyond; header, window, ratio and dictionary are
 * checked first. Pure; any thread.
 */
#include "zstd_frame.h"

#include <stdint.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/check.h"

int zstd_encode(int level, size_t bytes, const void *plain, struct zstd_room *io)
{
    CHECK(bytes > 0);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    if (!context) {
        return CAIRN_E_NO_MEMORY;
    }
    size_t failed = ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    CHECK(!ZSTD_isError(failed));
    failed = ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    CHECK(!ZSTD_isError(failed));
    size_t got = ZSTD_compress2(context, io->data, io->cap, plain, bytes);
    ZSTD_freeCCtx(context);
    if (ZSTD_isError(got) || bytes / ZSTD_RATIO_MAX >= got) {
        return CAIRN_E_TOO_LARGE;
    }
    io->bytes = got;
    return 0;
}

/* The window that a frame asks for: its descriptor byte, or its content size when it is one
 * segment. */
static int check_window(size_t bytes, const uint8_t *frame, struct diag *diag)
{
    enum { SINGLE_SEGMENT = 1 << 5, DESCRIPTOR_AT = 5 };
    if (bytes <= DESCRIPTOR_AT) {
        return diag_set(diag, CAIRN_E_FORMAT, "a zstd frame of %zu bytes is cut off", bytes);
    }
    unsigned log = frame[4] & SINGLE_SEGMENT ? 0 : 10 + (frame[DESCRIPTOR_AT] >> 3);
    if (log > ZSTD_WINDOW_LOG_MAX) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the zstd frame asks for a window of 2^%u bytes, at most 2^%d", log,
                        ZSTD_WINDOW_LOG_MAX);
    }
    return 0;
}

static int check_frame(size_t bytes, const void *stored, size_t plain_bytes, struct diag *diag)
{
    if (bytes < 5 || load_u32(stored) != ZSTD_MAGICNUMBER) {
        return diag_set(diag, CAIRN_E_FORMAT, "%zu stored bytes do not begin with a zstd frame",
                        bytes);
    }
    unsigned long long said = ZSTD_getFrameContentSize(stored, bytes);
    if (said != plain_bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "the zstd frame says %llu plain bytes, expected %zu",
                        said, plain_bytes);
    }
    if (plain_bytes / ZSTD_RATIO_MAX >= bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "%zu stored bytes for %zu plain ones: above %d:1",
                        bytes, plain_bytes, ZSTD_RATIO_MAX);
    }
    if (ZSTD_getDictID_fromFrame(stored, bytes) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the zstd frame needs a dictionary");
    }
    size_t frame_bytes = ZSTD_findFrameCompressedSize(stored, bytes);
    if (ZSTD_isError(frame_bytes) || frame_bytes != bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "%zu stored bytes are not exactly one zstd frame",
                        bytes);
    }
    return check_window(bytes, stored, diag);
}

int zstd_decode(size_t bytes, const void *stored, size_t plain_bytes, void *ret_plain,
                struct diag *diag)
{
    int rc = check_frame(bytes, stored, plain_bytes, diag);
    if (rc != 0) {
        return rc;
    }
    size_t got = ZSTD_decompress(ret_plain, plain_bytes, stored, bytes);
    if (ZSTD_isError(got)) {
        return diag_set(diag, CAIRN_E_FORMAT, "zstd: %s", ZSTD_getErrorName(got));
    }
    CHECK(got == plain_bytes);
    return 0;
}
