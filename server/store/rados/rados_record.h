/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys and sums that the reader of a record (rados_record.c) and its recovery from the log share.
 * Any thread; the record's lock is held.
 */
#ifndef CAIRN_STORE_RADOS_RADOS_RECORD_H
#define CAIRN_STORE_RADOS_RADOS_RECORD_H

#include "rados_private.h"

enum {
    VERSION_BYTES = 8 + 32,
    SUM_BYTES = 8 + 8 + 4,
    MAKER_BYTES = 16,
    KEY_MAX = 2 + LIMIT_RECORD_KEY_BYTES,
    UPDATE_SCRATCH_BYTES = 4 * LIMIT_RECORD_UPDATE_BYTES
};

/* Runs the steps as one compound operation on the record's object. Returns what cluster_do()
 * returns; the caller makes the text of an error. */
int MUST_USE rados_record_call(struct rados_store *store, const struct rados_record *rec,
                               size_t count, struct cluster_step *steps);
/* Reads all entries, page by page. With skips_damaged it leaves out entries whose crc does not
 * match. */
int MUST_USE rados_record_load_map(struct rados_store *store, struct rados_record *rec,
                                   bool skips_damaged, struct diag *diag);
uint32_t rados_record_crc(const char *key, const struct record_value *value);
uint64_t rados_record_sum(const struct record *record);
void rados_record_encode_sum(uint64_t version, uint64_t sum, uint8_t ret[SUM_BYTES]);
void rados_record_encode_version(uint64_t version, const struct sha256 *last,
                                 uint8_t ret[VERSION_BYTES]);

/* rados_recover.c: reads a record of which an entry, or the version, is damaged or missing, with
 * the help of its log, and writes that entry again. Returns false if the log does not have it. */
bool rados_record_recover(struct rados_store *store, struct rados_record *rec);

#endif
