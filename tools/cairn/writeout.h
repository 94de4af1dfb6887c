/* SPDX-License-Identifier: Apache-2.0
 *
 * writeout: the bytes of a checkpoint's tensors and blobs from the source into sinks (files, or
 * memory for trees), each chunk checked (crc, digest) before it is written. Several reads in
 * flight, memory bounded by their number.
 */
#ifndef CAIRN_TOOLS_WRITEOUT_H
#define CAIRN_TOOLS_WRITEOUT_H

#include "documents.h"

struct sink { /* one tensor or blob */
    const struct index_entry *entry;
    int fd;          /* -1: memory */
    uint64_t base;   /* where its bytes start in the file */
    uint8_t *memory; /* entry->plain_bytes */
};

/* DAMAGED, DIGEST_MISMATCH ...: what the checkpoint lacks; NO_SPACE, IO: the target. */
int MUST_USE writeout(struct cli *cli, const struct ckpt_info *info, size_t count,
                      struct sink *sinks, struct diag *diag);

#endif
