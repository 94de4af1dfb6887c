/* SPDX-License-Identifier: Apache-2.0
 *
 * What the record's map (record.c) and its stored forms (record_codec.c) share: sizes, the rules of keys
 * and updates, and the append that decoding uses. For the files of this folder.
 */
#ifndef CAIRN_FORMAT_RECORD_CODEC_H
#define CAIRN_FORMAT_RECORD_CODEC_H

#include "record.h"

enum { RECORD_UPDATE_HEADER_BYTES = 64, RECORD_SNAPSHOT_HEADER_BYTES = 64, RECORD_ENTRY_HEADER_BYTES = 8 };

bool record_key_is_valid(size_t bytes, const char *key);
int MUST_USE record_change_check(const struct record_change *change, struct diag *diag);
/* The changes by key, checked: INVALID (a bad key, one key twice), TOO_LARGE, NO_MEMORY. free() it. */
int MUST_USE record_changes_sorted(const struct record_update *update, const struct record_change ***ret,
                                   struct diag *diag);
/* Puts an entry behind all others: key must be greater than the last one. TOO_LARGE, NO_MEMORY. */
int MUST_USE record_append(struct record *record, const char *key, struct record_value value,
                           struct diag *diag);

#endif
