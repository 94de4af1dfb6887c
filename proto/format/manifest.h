/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest: the root of a checkpoint, at most 64 KiB, and its immutable pages: the table of parts,
 * and the index of tensors and blobs sorted by name. The commit entry in the run's record holds the
 * manifest's SHA-256, the manifest those of the pages, the parts page those of the parts, and a
 * part the digests of chunks. Bytes: FORMAT.md 6 and 7. Pure.
 */
#ifndef CAIRN_FORMAT_MANIFEST_H
#define CAIRN_FORMAT_MANIFEST_H

#include "hash/hash.h"
#include "part.h"

enum page_kind { PAGE_PARTS = 1, PAGE_INDEX = 2 };
enum { PAGE_HEADER_BYTES = 32, MANIFEST_PAGE_REF_BYTES = 54 };

/* How a manifest refers to a page: what it holds, and the hash that it must have. */
struct page_ref {
    uint32_t kind, level; /* level 0 has entries; others are for growth, and UNSUPPORTED now */
    uint32_t entry_count;
    uint64_t bytes;
    struct sha256 sha256;
    const char *first_name; /* index pages: name of the first entry; "" for parts pages */
};

enum {
    LABEL_BYTES_MAX = 128
}; /* of a tag, and of a metric's name; at least 1, UTF-8 without NUL */
struct metric {
    const char *name;
    double value;
};

/* The tag of a manifest that `cairn salvage` has made again from the parts. No part holds the
 * save's metadata, tags and metrics, so they are lost, and not empty. */
#define MANIFEST_REMADE_TAG "cairn: manifest made again, metadata lost"

/* A manifest. Pointers of a decoded one are from its scratch. */
struct manifest {
    struct uuid store_uuid, run_uuid;
    struct run_name run;
    struct ckpt_id id, parent; /* parent.term 0 means none */
    struct token token;
    uint32_t world_size;
    uint64_t chunk_bytes;
    int64_t created_wall_ns; /* for display only */
    uint64_t tensor_count, blob_count, box_count, chunk_count, object_count, plain_bytes,
        stored_bytes;
    uint32_t metadata_bytes;
    /* Rank 0's, opaque (Python stores a typed tree), at most LIMIT_METADATA_BYTES. */
    const uint8_t *metadata;
    uint32_t tag_count, metric_count, page_count;
    const char **tags;
    struct metric *metrics;
    struct page_ref *pages; /* parts pages first, then index pages, each in order */
};

/* Encodes the manifest. Sets TOO_LARGE in buf beyond LIMIT_MANIFEST_BYTES or the limit of a
 * list. */
void manifest_encode(const struct manifest *manifest, struct buf *buf);
/* Decodes a manifest; all pointers are from scratch. FORMAT, DAMAGED, UNSUPPORTED, TOO_LARGE or
 * NO_MEMORY. */
int MUST_USE manifest_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                             struct manifest *ret, struct diag *diag);

/* Returns true if a repair has made the manifest again from parts (MANIFEST_REMADE_TAG). */
bool manifest_is_remade(const struct manifest *manifest);

struct part_ref { /* an entry of a parts page, which is sorted by rank */
    uint32_t rank;
    uint64_t writer;
    uint64_t bytes;
    struct sha256 sha256;
    uint64_t plain_bytes, stored_bytes;
    uint32_t tensor_count, chunk_count;
};

enum index_kind { INDEX_TENSOR = 1, INDEX_BLOB = 2 };

/* A tensor or blob. Entries are sorted by (name, coordinate, kind). */
struct index_entry {
    const char *name, *coordinate;
    uint32_t kind, placement;
    uint32_t dtype;     /* of a tensor */
    struct shape shape; /* of a tensor */
    uint32_t blob_kind; /* of a blob */
    uint64_t plain_bytes;
    /* Ranks whose parts hold chunks of it, ascending; none if it has no bytes. */
    uint32_t rank_count;
    uint32_t *ranks;
};

/* A page of either kind; one of the two arrays is used. */
struct page {
    uint32_t kind, level, entry_count;
    struct part_ref *parts;    /* in PAGE_PARTS */
    struct index_entry *index; /* in PAGE_INDEX */
};

/* Returns how many entries from `first` on fit into one page of LIMIT_PAGE_BYTES. That is at least
 * one, because entries are small. */
uint32_t page_fit(const struct page *page, uint32_t first);
/* Orders entries by name, coordinate and kind. */
int index_compare(const struct index_entry *a, const struct index_entry *b);
/* Returns the entry of a sorted index, or NULL if there is none. */
const struct index_entry *index_find(size_t count, const struct index_entry *entries,
                                     const char *name, const char *coordinate,
                                     enum index_kind kind);
/* Builds the whole index of a checkpoint from its parts, which have passed parts_check_coverage(),
 * as one page with kind and level set, to be cut with page_fit(). Names are borrowed from the
 * parts. NO_MEMORY. */
int MUST_USE index_build(size_t count, const struct part *parts, struct scratch *scratch,
                         struct page *ret, struct diag *diag);

void page_encode(const struct page *page, struct buf *buf);
/* Decodes a page; all pointers are from scratch. Errors as above. */
int MUST_USE page_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct page *ret, struct diag *diag);

#endif
