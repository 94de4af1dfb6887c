/* SPDX-License-Identifier: Apache-2.0
 *
 * verify: reads what a checkpoint consists of and checks all of it: manifest, pages and parts by
 * hash, that they agree, coverage, and of every object each stored byte: chunks (crc and plain
 * digest), padding (zero), footer (against the part). Of objects that it shares with older
 * checkpoints: its chunks.
 */
#ifndef CAIRN_TOOLS_VERIFY_H
#define CAIRN_TOOLS_VERIFY_H

#include "documents.h"

struct verify_options {
    bool read_data;
    uint64_t subset_n, subset_t; /* 0: everything */
};

struct verify_finding {
    char text[640];
};

struct verify_result {
    uint64_t objects, chunks, bytes; /* read and checked */
    size_t unread;                   /* of the findings: what was not given in time */
    size_t untold; /* for which there was no memory: then it ends with NO_MEMORY */
    size_t finding_count, finding_cap;
    struct verify_finding *findings; /* damage, in words; owned */
};

/* Reads and checks a checkpoint. Damage is no error: the function returns 0, and *io has the
 * findings. Returns an error if it could not read to the end (unreachable, interrupted). */
int MUST_USE verify_checkpoint(struct cli *cli, const struct ckpt_info *info,
                               const struct verify_options *options, struct verify_result *io,
                               struct diag *diag);
void verify_result_fini(struct verify_result *result);

#endif
