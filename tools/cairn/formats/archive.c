/* SPDX-License-Identifier: Apache-2.0
 *
 * See archive.h.
 */
#include "formats/archive.h"

#include "formats/zip.h"
#include "target.h"

#include "base/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20, RECORDS_MAX = 1 << 30 };

static struct zip_entry entry_of(const struct archive_member *member, uint32_t crc)
{
    return (struct zip_entry){
        .name = member->name, .bytes = member->head_bytes + member->tensor_bytes, .crc = crc};
}

int archive_layout(struct archive *archive, struct diag *diag)
{
    struct buf record;
    uint64_t at = 0; /* an archive's offsets are its own */
    int status = 0;
    buf_init(&record, KIB(128));
    for (size_t i = 0; status == 0 && i < archive->count; i++) {
        struct archive_member *member = &archive->members[i];
        struct zip_entry entry = entry_of(member, 0);
        buf_reset(&record);
        zip_put_local(&record, at, &entry, archive->align);
        status = buf_status(&record);
        member->local = archive->at + at;
        member->data = member->local + record.bytes + member->head_bytes;
        at = member->data + member->tensor_bytes - archive->at;
    }
    archive->end = archive->at + at;
    buf_fini(&record);
    return status == 0 ? 0 : diag_set(diag, status, "the records of an archive");
}

static int put_directory(const struct archive *archive, const uint32_t *crcs, struct buf *buf,
                         struct diag *diag)
{
    struct zip zip = {.count = archive->count,
                      .entries = calloc(archive->count + 1, sizeof(*zip.entries))};
    uint64_t *locals = calloc(archive->count + 1, sizeof(*locals));
    int status = zip.entries && locals ? 0 : CAIRN_E_NO_MEMORY;
    for (size_t i = 0; status == 0 && i < archive->count; i++) {
        zip.entries[i] = entry_of(&archive->members[i], crcs ? crcs[i] : 0);
        locals[i] = archive->members[i].local - archive->at;
    }
    if (status == 0) {
        zip_put_directory(buf, archive->end - archive->at, &zip, locals);
        status = buf_status(buf);
    }
    free(zip.entries);
    free(locals);
    return status == 0 ? 0 : diag_set(diag, status, "the directory of an archive");
}

int archive_bytes(const struct archive *archive, uint64_t *ret, struct diag *diag)
{
    struct buf directory;
    buf_init(&directory, RECORDS_MAX);
    int status = put_directory(archive, NULL, &directory, diag);
    if (status == 0) {
        *ret = archive->end - archive->at + directory.bytes;
    }
    buf_fini(&directory);
    return status;
}

/* What was written, as the file has it. */
static int read_crc(int fd, const struct archive_member *member, uint8_t *piece, uint32_t *io,
                    struct diag *diag)
{
    for (uint64_t at = 0; at < member->tensor_bytes;) {
        uint64_t want = member->tensor_bytes - at;
        ssize_t got =
            pread(fd, piece, want < PIECE_BYTES ? want : PIECE_BYTES, (off_t)(member->data + at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return diag_errno(diag, got < 0 ? errno : EIO, "read %s back", member->name);
        }
        *io = zip_crc(*io, (size_t)got, piece);
        at += (uint64_t)got;
    }
    return 0;
}

static int write_record(const struct archive *archive, const struct archive_member *member,
                        uint32_t crc, int fd, struct diag *diag)
{
    struct buf record;
    struct zip_entry entry = entry_of(member, crc);
    buf_init(&record, RECORDS_MAX);
    zip_put_local(&record, member->local - archive->at, &entry, archive->align);
    buf_put(&record, member->head_bytes, member->head);
    int status = buf_status(&record);
    struct target_piece piece = {
        .name = member->name, .offset = member->local, .bytes = record.bytes, .data = record.data};
    status = status != 0 ? diag_set(diag, status, "the record of %s", member->name)
                         : target_write(fd, &piece, diag);
    buf_fini(&record);
    return status;
}

int archive_finish(struct archive *archive, int fd, const char *name, struct diag *diag)
{
    uint32_t *crcs = calloc(archive->count + 1, sizeof(*crcs));
    uint8_t *piece = malloc(PIECE_BYTES);
    struct buf directory;
    buf_init(&directory, RECORDS_MAX);
    int status = crcs && piece ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %s", name);
    for (size_t i = 0; status == 0 && i < archive->count; i++) {
        const struct archive_member *member = &archive->members[i];
        crcs[i] = zip_crc(0, member->head_bytes, member->head);
        status = read_crc(fd, member, piece, &crcs[i], diag);
        status = status != 0 ? status : write_record(archive, member, crcs[i], fd, diag);
    }
    status = status != 0 ? status : put_directory(archive, crcs, &directory, diag);
    if (status == 0) {
        struct target_piece end = {
            .name = name, .offset = archive->end, .bytes = directory.bytes, .data = directory.data};
        status = target_write(fd, &end, diag);
        archive->end += directory.bytes;
    }
    buf_fini(&directory);
    free(piece);
    free(crcs);
    return status;
}
