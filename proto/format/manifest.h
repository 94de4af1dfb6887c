/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest: the root of a checkpoint, at most 64 KiB, and its immutable pages: the table of parts,
 * and the index of tensors and blobs sorted by name. The commit entry in the run's record holds the
 * manifest's SHA-256; the manifest holds the pages'; the parts page holds the parts'; a part holds
 * the digests. Bytes: FORMAT.md 6 and 7. Pure.
 */
#ifndef CAIRN_FORMAT_MANIFEST_H
#define CAIRN_FORMAT_MANIFEST_H

#include "hash/hash.h"
#include "part.h"

enum page_kind { PAGE_PARTS = 1, PAGE_INDEX = 2 };
enum { PAGE_HEADER_BYTES = 32, MANIFEST_PAGE_REF_BYTES = 54 };

struct page_ref {
    uint32_t kind, level; /* level 0: entries; others are for growth and UNSUPPORTED now */
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

/* The tag of a manifest that `cairn salvage` made again from the parts: no part holds the save's
 * metadata, tags and metrics, so these are lost, and not empty. */
#define MANIFEST_REMADE_TAG "cairn: manifest made again, metadata lost"

struct manifest {
    struct uuid store_uuid, run_uuid;
    struct run_name run;
    struct ckpt_id id, parent; /* parent.term 0: none */
    struct token token;
    uint32_t world_size;
    uint64_t chunk_bytes;
    int64_t created_wall_ns; /* display only */
    uint64_t tensor_count, blob_count, box_count, chunk_count, object_count, plain_bytes,
        stored_bytes;
    uint32_t metadata_bytes;
    const uint8_t *metadata; /* rank 0's, opaque (Python: a typed tree), <= LIMIT_METADATA_BYTES */
    uint32_t tag_count, metric_count, page_count;
    const char **tags;
    struct metric *metrics;
    struct page_ref *pages; /* parts pages first, then index pages, each in order */
};

/* TOO_LARGE in buf beyond LIMIT_MANIFEST_BYTES or a list's limit. */
void manifest_encode(const struct manifest *manifest, struct buf *buf);
/* All pointers are from scratch. FORMAT, DAMAGED, UNSUPPORTED, TOO_LARGE, NO_MEMORY. */
int MUST_USE manifest_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                             struct manifest *ret, struct diag *diag);

bool manifest_is_remade(const struct manifest *manifest);

struct part_ref { /* entry of a parts page, by rank */
    uint32_t rank;
    uint64_t writer;
    uint64_t bytes;
    struct sha256 sha256;
    uint64_t plain_bytes, stored_bytes;
    uint32_t tensor_count, chunk_count;
};

enum index_kind { INDEX_TENSOR = 1, INDEX_BLOB = 2 };

struct index_entry { /* sorted by (name, coordinate, kind); one a tensor or blob */
    const char *name, *coordinate;
    uint32_t kind, placement;
    uint32_t dtype;     /* tensors */
    struct shape shape; /* tensors */
    uint32_t blob_kind; /* blobs */
    uint64_t plain_bytes;
    uint32_t
        rank_count; /* ranks whose parts hold chunks of it, ascending; none if it has no bytes */
    uint32_t *ranks;
};

struct page {
    uint32_t kind, level, entry_count;
    struct part_ref *parts;    /* PAGE_PARTS */
    struct index_entry *index; /* PAGE_INDEX */
};

/* How many entries from `first` on fit into one page of LIMIT_PAGE_BYTES (at least one: entries are
 * small). */
uint32_t page_fit(const struct page *page, uint32_t first);
/* By name, coordinate, kind. */
int index_compare(const struct index_entry *a, const struct index_entry *b);
/* NULL where there is none. */
const struct index_entry *index_find(const struct page *page, const char *name,
                                     const char *coordinate, enum index_kind kind);
/* The whole index of a checkpoint from its parts, which have passed parts_check_coverage(): as one
 * page (kind and level set), to be cut with page_fit(). Names are the parts'. NO_MEMORY. */
int MUST_USE index_build(size_t count, const struct part *parts, struct scratch *scratch,
                         struct page *ret, struct diag *diag);

void page_encode(const struct page *page, struct buf *buf);
/* All pointers are from scratch. Errors as above. */
int MUST_USE page_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct page *ret, struct diag *diag);

#endif
