/* SPDX-License-Identifier: Apache-2.0
 *
 * build: makes the pages and the manifest of a save from its parts. It checks that the parts belong
 * to this save and cover it, then lays out the parts table and the index. Pure and heavy: runs on a
 * pool thread.
 */
#ifndef CAIRN_RUN_BUILD_H
#define CAIRN_RUN_BUILD_H

#include "format/entries.h"
#include "format/manifest.h"

/* The approximate size of a page unless the caller asks for another. */
enum { BUILD_PAGE_BYTES = 3 << 20 };

struct build_input { /* everything in it is borrowed until build_fini() */
    struct uuid store_uuid, run_uuid;
    struct run_name run;
    struct ckpt_id id, parent;
    struct token token;
    uint32_t world_size;
    uint64_t chunk_bytes, page_bytes; /* page_bytes: approximate size of a page */
    int64_t created_wall_ns;
    const struct entry_open *open;
    const struct entry_seal *seals; /* world_size of them, sorted by rank */
    const struct part *parts;       /* the same number, sorted by rank */
};

struct build_page {
    uint8_t *data;
    size_t bytes;
};

struct build {
    struct scratch scratch;
    struct manifest manifest; /* its pages are the references of build.pages, in the same order */
    size_t page_count;
    struct build_page *pages; /* the array is from scratch; the data is owned */
    struct buf bytes;         /* the encoded manifest */
};

/* Builds pages and manifest into ret. Returns COVERAGE, SHAPE_MISMATCH or DTYPE_MISMATCH, naming
 * the tensor; INVALID if a part is not this save's; or TOO_LARGE. The caller has to call
 * build_fini() in any case. */
int MUST_USE build_checkpoint(const struct build_input *input, struct build *ret,
                              struct diag *diag);
/* Encodes the manifest again with another creation time. Two tries to publish the same manifest may
 * differ in nothing else. */
int MUST_USE build_manifest_at(struct build *build, int64_t created_wall_ns, struct diag *diag);
void build_fini(struct build *build);

#endif
