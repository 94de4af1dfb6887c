/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_read records. Invariant: a record that decodes has passed its crc and every check of a range
 * that the record alone allows. Pure; any thread.
 */
#include "wire/plan.h"

#include "base/buf.h"
#include "base/check.h"
#include "hash/hash.h"

#include <string.h>

enum {
    AT_WANT = 0,
    AT_ENCODING = 4,
    AT_DIGEST_ALG = 5,
    AT_NDIM = 6,
    AT_RESERVED = 7,
    AT_TERM = 8,
    AT_STEP = 16,
    AT_WRITER = 24,
    AT_RANK = 32,
    AT_SEQUENCE = 36,
    AT_OFFSET = 40,
    AT_STORED_BYTES = 48,
    AT_PLAIN_BYTES = 52,
    AT_STORED_CRC = 56,
    AT_RESERVED2 = 60,
    AT_DIGEST = 64,
    AT_BLOB_OFFSET = 96,
    AT_CELL_OFFSET = 104,
    AT_CELL_LENGTH = 168,
    AT_RESERVED3 = 232,
    AT_CRC = 252,
};
_Static_assert(AT_CELL_LENGTH + 8 * LIMIT_NDIM == AT_RESERVED3, "the cell fills its place");
_Static_assert(AT_CRC + 4 == PLAN_READ_BYTES, "the crc ends the record");

void plan_read_encode(const struct plan_read *read, uint8_t ret[PLAN_READ_BYTES])
{
    CHECK(read->cell.ndim <= LIMIT_NDIM);
    memset(ret, 0, PLAN_READ_BYTES);
    store_u32(ret + AT_WANT, read->want);
    ret[AT_ENCODING] = read->encoding;
    ret[AT_DIGEST_ALG] = read->digest_alg;
    ret[AT_NDIM] = (uint8_t)read->cell.ndim;
    store_u64(ret + AT_TERM, read->object.term);
    store_u64(ret + AT_STEP, read->object.step);
    store_u64(ret + AT_WRITER, read->object.writer);
    store_u32(ret + AT_RANK, read->object.rank);
    store_u32(ret + AT_SEQUENCE, read->object.sequence);
    store_u64(ret + AT_OFFSET, read->offset);
    store_u32(ret + AT_STORED_BYTES, read->stored_bytes);
    store_u32(ret + AT_PLAIN_BYTES, read->plain_bytes);
    store_u32(ret + AT_STORED_CRC, read->stored_crc);
    memcpy(ret + AT_DIGEST, read->digest.bytes, sizeof(read->digest.bytes));
    store_u64(ret + AT_BLOB_OFFSET, read->blob_offset);
    for (uint32_t i = 0; i < read->cell.ndim; i++) {
        store_u64(ret + AT_CELL_OFFSET + (size_t)8 * i, (uint64_t)read->cell.offset[i]);
        store_u64(ret + AT_CELL_LENGTH + (size_t)8 * i, (uint64_t)read->cell.length[i]);
    }
    store_u32(ret + AT_CRC, crc32c(0, AT_CRC, ret));
}

/* Reads the rectangle of a cell. Dimensions that it does not have must be zero. */
static int get_cell(const uint8_t *bytes, struct box *ret, struct diag *diag)
{
    for (uint32_t i = 0; i < LIMIT_NDIM; i++) {
        uint64_t offset = load_u64(bytes + AT_CELL_OFFSET + (size_t)8 * i);
        uint64_t length = load_u64(bytes + AT_CELL_LENGTH + (size_t)8 * i);
        uint64_t end;
        if (!add_u64(offset, length, &end) || end > INT64_MAX) {
            return diag_set(diag, CAIRN_E_PROTOCOL,
                            "a plan record's cell leaves the range of int64");
        }
        if (i >= ret->ndim && end != 0) {
            return diag_set(diag, CAIRN_E_PROTOCOL,
                            "a plan record's cell has more than its %u dimensions", ret->ndim);
        }
        ret->offset[i] = (int64_t)offset;
        ret->length[i] = (int64_t)length;
    }
    return 0;
}

/* Checks every range that the record alone shows. */
static int check_numbers(const struct plan_read *read, struct diag *diag)
{
    if (read->object.term == 0 || read->object.rank >= LIMIT_WORLD_SIZE) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "a plan record names no valid object");
    }
    if (read->offset > LIMIT_OBJECT_BYTES ||
        read->stored_bytes > LIMIT_OBJECT_BYTES - read->offset) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "a plan record's range leaves its object");
    }
    int status = encoding_check(read->encoding, read->stored_bytes, read->plain_bytes, diag);
    status = status != 0 ? status : digest_check(read->digest_alg, &read->digest, diag);
    if (status != 0) {
        diag_add(diag, "a plan record");
    }
    return status;
}

int plan_read_decode(const uint8_t bytes[PLAN_READ_BYTES], struct plan_read *ret, struct diag *diag)
{
    if (load_u32(bytes + AT_CRC) != crc32c(0, AT_CRC, bytes)) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "a plan record came damaged: its crc does not match");
    }
    if (bytes[AT_NDIM] > LIMIT_NDIM || bytes[AT_RESERVED] != 0 ||
        !is_all_zero(4, bytes + AT_RESERVED2) ||
        !is_all_zero(AT_CRC - AT_RESERVED3, bytes + AT_RESERVED3)) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "a plan record has reserved bytes set, or %u dimensions", bytes[AT_NDIM]);
    }
    struct plan_read read = {
        .want = load_u32(bytes + AT_WANT),
        .object = {load_u64(bytes + AT_TERM), load_u64(bytes + AT_STEP),
                   load_u64(bytes + AT_WRITER), load_u32(bytes + AT_RANK),
                   load_u32(bytes + AT_SEQUENCE)},
        .offset = load_u64(bytes + AT_OFFSET),
        .stored_bytes = load_u32(bytes + AT_STORED_BYTES),
        .plain_bytes = load_u32(bytes + AT_PLAIN_BYTES),
        .stored_crc = load_u32(bytes + AT_STORED_CRC),
        .encoding = bytes[AT_ENCODING],
        .digest_alg = bytes[AT_DIGEST_ALG],
        .cell = {.ndim = bytes[AT_NDIM]},
        .blob_offset = load_u64(bytes + AT_BLOB_OFFSET),
    };
    memcpy(read.digest.bytes, bytes + AT_DIGEST, sizeof(read.digest.bytes));
    int status = get_cell(bytes, &read.cell, diag);
    status = status != 0 ? status : check_numbers(&read, diag);
    if (status == 0) {
        *ret = read;
    }
    return status;
}
