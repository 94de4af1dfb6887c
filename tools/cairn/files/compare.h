/* SPDX-License-Identifier: Apache-2.0
 *
 * compare: one tensor or blob of two checkpoints. Chunks whose digests are equal are not read; of
 * the others the same rectangle is read from both, a few at a time.
 */
#ifndef CAIRN_TOOLS_COMPARE_H
#define CAIRN_TOOLS_COMPARE_H

#include "files/cells.h"

struct norms {
    double a2, b2, difference2; /* sums of squares */
    double largest;             /* of the differences' magnitudes; NaN where one is */
};

struct compare_options {
    bool
        read_data; /* else only digests are compared, and changed bytes are those of whole chunks */
    bool norms;    /* of tensors that changed; reads all of them */
};

struct compare_result {
    uint64_t changed_bytes, changed_chunks, chunks; /* chunks: of the second checkpoint */
    uint64_t read_bytes;
    bool exact; /* changed_bytes counts bytes, not chunks' bytes */
    bool has_norms;
    struct norms norms;
};

struct compare_side {
    const struct documents *documents;
    const struct index_entry *entry;
};

/* Entries of the same kind, type, shape and size. */
int MUST_USE compare_entries(struct cli *cli, const struct compare_side sides[2],
                             const struct compare_options *options, struct compare_result *ret,
                             struct diag *diag);

#endif
