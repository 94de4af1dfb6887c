/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that uses libzstd. Decoding makes one pass into memory of exactly the right size, so
 * a frame can make us neither allocate nor write beyond it; header, window, ratio and dictionary
 * are checked first. Pure; any thread.
 */
#include "zstd_frame.h"

#include <stdint.h>
#include <stdlib.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/check.h"

struct zstd_encoder {
    ZSTD_CCtx *context;
};

struct zstd_encoder *zstd_encoder_new(void)
{
    struct zstd_encoder *encoder = malloc(sizeof *encoder);
    if (!encoder) {
        return NULL;
    }
    encoder->context = ZSTD_createCCtx();
    if (!encoder->context) {
        free(encoder);
        return NULL;
    }
    return encoder;
}

void zstd_encoder_free(struct zstd_encoder *encoder)
{
    if (encoder) {
        ZSTD_freeCCtx(encoder->context);
        free(encoder);
    }
}

static void set(ZSTD_CCtx *context, ZSTD_cParameter parameter, int value)
{
    size_t failed = ZSTD_CCtx_setParameter(context, parameter, value);
    CHECK(!ZSTD_isError(failed)); /* the parameters are constants */
}

/* Sets the parameters. At the entropy level, a hash table of 64 entries and matches of at least 7
 * bytes still find runs, and leave the rest to the entropy coder. */
static void apply(ZSTD_CCtx *context, const struct zstd_settings *settings)
{
    enum { FEWEST_HASHES = 6, LONGEST_MATCH_MIN = 7 };
    size_t failed = ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
    CHECK(!ZSTD_isError(failed));
    if (settings->level == ZSTD_LEVEL_ENTROPY) {
        set(context, ZSTD_c_compressionLevel, ZSTD_LEVEL_FASTEST);
        set(context, ZSTD_c_strategy, ZSTD_fast);
        set(context, ZSTD_c_hashLog, FEWEST_HASHES);
        set(context, ZSTD_c_minMatch, LONGEST_MATCH_MIN);
    } else {
        set(context, ZSTD_c_compressionLevel, settings->level);
    }
    set(context, ZSTD_c_checksumFlag, settings->checksum);
}

int zstd_encoder_run(struct zstd_encoder *encoder, const struct zstd_settings *settings,
                     size_t bytes, const void *plain, struct zstd_room *io)
{
    CHECK(bytes > 0);
    CHECK(settings->level >= ZSTD_LEVEL_ENTROPY);
    CHECK(settings->level <= ZSTD_LEVEL_MAX);
    apply(encoder->context, settings);
    size_t got = ZSTD_compress2(encoder->context, io->data, io->cap, plain, bytes);
    if (ZSTD_isError(got)) {
        return CAIRN_E_TOO_LARGE;
    }
    io->bytes = got;
    return 0;
}

/* Checks the window that a frame asks for: its descriptor byte, or its content size if it is one
 * segment. */
static int check_window(size_t bytes, const uint8_t *frame, struct diag *diag)
{
    enum { SINGLE_SEGMENT = 1 << 5, DESCRIPTOR_AT = 5 };
    if (bytes <= DESCRIPTOR_AT) {
        return diag_set(diag, CAIRN_E_FORMAT, "the zstd frame of %zu bytes is cut off", bytes);
    }
    unsigned log = frame[4] & SINGLE_SEGMENT ? 0 : 10 + (frame[DESCRIPTOR_AT] >> 3);
    if (log > ZSTD_WINDOW_LOG_MAX) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the zstd frame asks for a window of 2^%u bytes; at most 2^%d are allowed",
                        log, ZSTD_WINDOW_LOG_MAX);
    }
    return 0;
}

/* Checks what the frame says of itself, before anything is decoded. */
static int check_frame(size_t bytes, const void *stored, size_t plain_bytes, struct diag *diag)
{
    if (bytes < 5 || load_u32(stored) != ZSTD_MAGICNUMBER) {
        return diag_set(diag, CAIRN_E_FORMAT, "%zu stored bytes do not begin with a zstd frame",
                        bytes);
    }
    unsigned long long said = ZSTD_getFrameContentSize(stored, bytes);
    if (said != plain_bytes) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the zstd frame says %llu plain bytes, but %zu were expected", said,
                        plain_bytes);
    }
    if (ZSTD_getDictID_fromFrame(stored, bytes) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the zstd frame needs a dictionary, which Cairn does not use");
    }
    size_t frame_bytes = ZSTD_findFrameCompressedSize(stored, bytes);
    if (ZSTD_isError(frame_bytes) || frame_bytes != bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "%zu stored bytes are not exactly one zstd frame",
                        bytes);
    }
    return check_window(bytes, stored, diag);
}

int zstd_decode_inner(size_t bytes, const void *stored, size_t plain_bytes, void *ret_plain,
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

int zstd_decode(size_t bytes, const void *stored, size_t plain_bytes, void *ret_plain,
                struct diag *diag)
{
    if (bytes < zstd_stored_bytes_min(plain_bytes)) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "%zu stored bytes cannot hold %zu plain ones: the ratio is above %d:1",
                        bytes, plain_bytes, ZSTD_RATIO_MAX);
    }
    return zstd_decode_inner(bytes, stored, plain_bytes, ret_plain, diag);
}
