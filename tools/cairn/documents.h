/* SPDX-License-Identifier: Apache-2.0
 *
 * documents: a checkpoint's manifest, pages and parts as a command needs them, each checked here
 * against the hash above it: the chain entry's for the manifest, the manifest's for pages, the
 * parts page's for parts. Who sent them is not trusted.
 */
#ifndef CAIRN_TOOLS_DOCUMENTS_H
#define CAIRN_TOOLS_DOCUMENTS_H

#include "cli.h"

#include "reader/reader.h"

/* Stored bytes that the chunks of a checkpoint take in objects of an older one. */
struct documents_share {
    struct ckpt_id id;
    uint64_t stored_bytes;
};

struct documents {
    struct cli *cli;
    struct ckpt_info info;
    struct reader_source source;
    struct reader
        of; /* manifest, refs of the parts, index of all pages; its scratch owns all below */
    struct part *parts; /* by rank; only after documents_parts */
};

/* Manifest and pages. DAMAGED names what does not match. documents_fini also after a failure. It
 * stays where it is until then. */
int MUST_USE documents_load(struct cli *cli, const struct ckpt_info *info, struct documents *ret,
                            struct diag *diag);
int MUST_USE documents_parts(struct documents *documents, struct diag *diag);
/* What of the checkpoint lies in objects of which older ones, newest first. Reads all parts, and
 * keeps none: memory for one at a time. The result lies in the documents' scratch. */
int MUST_USE documents_shares(struct documents *documents, size_t *ret_count,
                              struct documents_share **ret, struct diag *diag);
void documents_fini(struct documents *documents);

#endif
