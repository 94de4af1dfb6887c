/* SPDX-License-Identifier: Apache-2.0
 *
 * See inflate.h. The only file that knows zlib.
 */
#include "formats/inflate.h"

#define ZLIB_CONST
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

enum { PIECE_BYTES = 256 << 10, RATIO_MAX = 1032 }; /* deflate makes no more of a byte */

struct inflating {
    const struct zip_entry *entry;
    int fd;
    z_stream stream;
    const uint8_t *from; /* what the stream was not given yet */
    size_t left;
    uint64_t made;
    uint32_t crc;
    uint8_t piece[PIECE_BYTES];
};

static int broken(const struct zip_entry *entry, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_FORMAT, "%s: %s", entry->name, what);
}

/* A file without a name; where the file system has none of these, one whose name goes at once. */
static int open_nameless(const char *folder)
{
    char path[PATH_MAX];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    if (snprintf(path, sizeof(path), "%s/cairn-XXXXXX", folder) >= (int)sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

static int write_piece(struct inflating *inflating, size_t bytes, struct diag *diag)
{
    const uint8_t *at = inflating->piece;
    inflating->crc = zip_crc(inflating->crc, bytes, at);
    inflating->made += bytes;
    if (inflating->made > inflating->entry->plain_bytes) {
        return broken(inflating->entry, "is longer than the archive says", diag);
    }
    while (bytes > 0) {
        ssize_t wrote = write(inflating->fd, at, bytes);
        if (wrote < 0 && errno != EINTR) {
            return diag_errno(
                diag, errno, "%s: its %llu bytes need room in $TMPDIR, or /var/tmp without it",
                inflating->entry->name, (unsigned long long)inflating->entry->plain_bytes);
        }
        at += wrote > 0 ? wrote : 0;
        bytes -= wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

/* zlib counts in 32 bits: it is given at most a piece at a time. */
static void give(struct inflating *inflating)
{
    z_stream *stream = &inflating->stream;
    if (stream->avail_in == 0) {
        size_t bytes = inflating->left < PIECE_BYTES ? inflating->left : PIECE_BYTES;
        stream->next_in = inflating->from;
        stream->avail_in = (uInt)bytes;
        inflating->from += bytes;
        inflating->left -= bytes;
    }
}

static int inflate_all(struct inflating *inflating, struct diag *diag)
{
    z_stream *stream = &inflating->stream;
    int said = Z_OK, status = 0;
    while (status == 0 && said != Z_STREAM_END) {
        give(inflating);
        stream->next_out = inflating->piece;
        stream->avail_out = PIECE_BYTES;
        said = inflate(stream, Z_NO_FLUSH);
        if (said == Z_MEM_ERROR) {
            return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to decompress");
        }
        if (said != Z_OK && said != Z_STREAM_END) {
            return broken(inflating->entry, "a broken or cut off deflate stream", diag);
        }
        status = write_piece(inflating, PIECE_BYTES - stream->avail_out, diag);
    }
    if (status == 0 && (inflating->made != inflating->entry->plain_bytes ||
                        inflating->crc != inflating->entry->crc)) {
        status =
            broken(inflating->entry, "is not of the length and crc that the archive says", diag);
    }
    return status;
}

static int inflate_to(struct inflating *inflating, struct diag *diag)
{
    if (inflateInit2(&inflating->stream, -MAX_WBITS) != Z_OK) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to decompress");
    }
    int status = inflate_all(inflating, diag);
    inflateEnd(&inflating->stream);
    return status;
}

int inflate_entry(struct bundle *bundle, const struct bundle_file *archive,
                  const struct zip_entry *entry, struct bundle_file *ret, struct diag *diag)
{
    const char *folder = getenv("TMPDIR");
    folder = folder && folder[0] != '\0' ? folder : "/var/tmp";
    if (entry->plain_bytes / RATIO_MAX > entry->bytes) {
        return broken(entry, "no compression makes so much of so little", diag);
    }
    struct inflating *inflating = calloc(1, sizeof(*inflating));
    if (!inflating) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to decompress");
    }
    inflating->entry = entry;
    inflating->from = archive->data + entry->offset;
    inflating->left = entry->bytes;
    inflating->fd = open_nameless(folder);
    int status = inflating->fd >= 0
                     ? inflate_to(inflating, diag)
                     : diag_errno(diag, errno, "make a temporary file in %s ($TMPDIR)", folder);
    status = status != 0 ? status : bundle_map_fd(bundle, inflating->fd, entry->name, ret, diag);
    if (inflating->fd >= 0) {
        close(inflating->fd);
    }
    free(inflating);
    return status;
}
