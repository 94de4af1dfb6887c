/* SPDX-License-Identifier: Apache-2.0
 *
 * writeout: the bytes of a checkpoint's tensors and blobs from the source into sinks (files, or
 * memory for trees), each chunk checked (crc, digest) before it is written. Several reads in
 * flight, memory bounded by their number.
 */
#ifndef CAIRN_TOOLS_WRITEOUT_H
#define CAIRN_TOOLS_WRITEOUT_H

#include "documents.h"
#include "formats/safetensors.h"

struct sink { /* one tensor or blob, or a rectangle of a tensor */
    const struct index_entry *entry;
    /* NULL means all of it; its bytes then lie row-major in file or memory. */
    const struct box *box;
    int fd;           /* -1: memory */
    uint64_t base;    /* where its bytes start in the file */
    uint8_t *memory;  /* as many bytes as the box or the entry has */
    uint64_t written; /* set by writeout() */
};

/* Writes all bytes of every sink. Returns DAMAGED if an object of the checkpoint is missing or its
 * bytes were changed, NOT_FOUND if a server has reclaimed the checkpoint meanwhile, and NO_SPACE or
 * IO if the target cannot be written. */
int MUST_USE writeout(struct cli *cli, const struct ckpt_info *info, size_t count,
                      struct sink *sinks, struct diag *diag);

struct tensor_file { /* a new file, for some of the tensors of a checkpoint */
    int fd;
    const char *name; /* for errors */
    size_t count;
    struct safetensor *tensors; /* are sorted, and get their offsets */
};
/* Writes a safetensors file, and closes it in any case. */
int MUST_USE writeout_tensors(struct cli *cli, const struct documents *documents,
                              const struct tensor_file *file, struct diag *diag);

#endif
