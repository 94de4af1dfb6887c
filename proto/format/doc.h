/* SPDX-License-Identifier: Apache-2.0
 *
 * doc: the prologue that parts, manifests, pages and record files share: magic, version, length of
 * the whole, crc32c of all bytes except its own four. Its place never changes, so that any version
 * can tell damage from a newer version. Bytes: FORMAT.md 1. Pure; for the files of this folder.
 */
#ifndef CAIRN_FORMAT_DOC_H
#define CAIRN_FORMAT_DOC_H

#include "base/buf.h"
#include "base/diag.h"
#include "base/scratch.h"

/* Returns four characters, read as a little-endian number. */
#define DOC_MAGIC(a, b, c, d) \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)

enum { DOC_PROLOGUE_BYTES = 20, DOC_VERSION = 1 };

/* One kind of document: its magic and its limits. Kinds are static constants. */
struct doc_kind {
    uint32_t magic;
    const char *what; /* "manifest", for messages */
    uint64_t bytes_min, bytes_max;
    size_t covered; /* how many bytes the crc covers, without its own four; 0 means all */
};

/* Writes the prologue, with length and crc still open. Returns where the document starts. */
size_t doc_begin(struct buf *buf, const struct doc_kind *kind);
/* Fills in the length and the crc. A document above the limit of its kind sets TOO_LARGE. */
void doc_end(struct buf *buf, const struct doc_kind *kind, size_t start);
/* Checks magic, length, crc and version, in this order (TOO_LARGE, FORMAT, DAMAGED, UNSUPPORTED),
 * and leaves cur behind the prologue. */
int MUST_USE doc_open(const struct doc_kind *kind, size_t bytes, const uint8_t *data,
                      struct cur *ret, struct diag *diag);

/* Returns the error of a cursor that failed, or 0. */
int MUST_USE doc_finish(const struct doc_kind *kind, const struct cur *cur, struct diag *diag);
/* Turns INVALID into FORMAT, in the diag too, for a check of arguments that failed on stored
 * bytes. */
int doc_as_format(int code, struct diag *diag);
int doc_no_memory(const char *what, struct diag *diag);

/* Returns a text with a length in front (u16), of 1..max bytes of UTF-8 (or 0 if empty_allowed),
 * copied to scratch. On failure sets *status to FORMAT or NO_MEMORY and returns "". Does nothing if
 * *status is already set. */
const char *doc_text(struct cur *cur, size_t max, bool empty_allowed, struct scratch *scratch,
                     int *status);
void doc_put_text(struct buf *buf, const char *text);

#endif
