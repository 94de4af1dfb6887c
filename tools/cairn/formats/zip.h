/* SPDX-License-Identifier: Apache-2.0
 *
 * zip: archives, also larger than 4 GiB, as torch.save and numpy.savez write them: entries are
 * stored, or (savez_compressed) deflated. Reading works on mapped bytes; writing makes the records
 * around data that others put where it belongs. Pure.
 */
#ifndef CAIRN_TOOLS_ZIP_H
#define CAIRN_TOOLS_ZIP_H

#include "base/buf.h"
#include "base/diag.h"
#include "base/scratch.h"

struct zip_entry {
    const char *name;
    uint64_t offset, bytes; /* of its data, in the archive */
    uint64_t plain_bytes;   /* decompressed; of what is stored: bytes */
    uint32_t crc;
    uint16_t method; /* 0: stored; 8: deflated (inflate.h); others are not read */
};

struct zip {
    size_t count;
    struct zip_entry *entries; /* from scratch, in the order of the directory */
};

/* FORMAT; every entry's data lies in the archive, and no two overlap. TOO_LARGE: more than 2^20
 * entries. */
int MUST_USE zip_read(size_t bytes, const uint8_t *data, struct scratch *scratch, struct zip *ret,
                      struct diag *diag);
const struct zip_entry *zip_find(const struct zip *zip, const char *name);

/* The record in front of an entry's data, appended to buf, padded so that the data begins at a
 * multiple of align when the record begins at offset. Sizes beyond 32 bits: zip64. */
void zip_put_local(struct buf *buf, uint64_t offset, const struct zip_entry *entry, unsigned align);
/* Directory and end, for an archive in which they begin at `at`. local[i]: where the record of
 * entries[i] begins. */
void zip_put_directory(struct buf *buf, uint64_t at, const struct zip *zip, const uint64_t *local);
/* CRC-32 (IEEE), going on from crc; begin with 0. */
uint32_t zip_crc(uint32_t crc, size_t bytes, const uint8_t *data);

#endif
