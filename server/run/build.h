/* SPDX-License-Identifier: Apache-2.0
 *
 * build: from all parts of a save to its pages and manifest: checks that the parts are this save's
 * and cover it, then lays out the parts table and the index. Pure and heavy: runs on a pool thread.
 */
#ifndef CAIRN_RUN_BUILD_H
#define CAIRN_RUN_BUILD_H

#include "format/entries.h"
#include "format/manifest.h"

/* About how large a page becomes, where nothing else is said. */
enum { BUILD_PAGE_BYTES = 3 << 20 };

struct build_input { /* borrowed, all of it, until build_fini() */
    struct uuid store_uuid, run_uuid;
    struct run_name run;
    struct ckpt_id id, parent;
    struct token token;
    uint32_t world_size;
    uint64_t chunk_bytes, page_bytes; /* page_bytes: about how large a page becomes */
    int64_t created_wall_ns;
    const struct entry_open *open;
    const struct entry_seal *seals; /* by rank, world_size of them */
    const struct part *parts;       /* by rank */
};

struct build_page {
    uint8_t *data;
    size_t bytes;
};

struct build {
    struct scratch scratch;
    struct manifest manifest; /* its pages: refs of build.pages, in order */
    size_t page_count;
    struct build_page *pages; /* from scratch, the data owned */
    struct buf bytes;         /* the encoded manifest */
};

/* COVERAGE, SHAPE_MISMATCH, DTYPE_MISMATCH name the tensor; INVALID: a part is not this save's;
 * TOO_LARGE. ret is to be ended by build_fini() in any case. */
int MUST_USE build_checkpoint(const struct build_input *input, struct build *ret,
                              struct diag *diag);
/* Encodes the manifest again, as made at another wall time: the only thing that may differ between
 * two tries. */
int MUST_USE build_manifest_at(struct build *build, int64_t created_wall_ns, struct diag *diag);
void build_fini(struct build *build);

#endif
