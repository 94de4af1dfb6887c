/* SPDX-License-Identifier: Apache-2.0
 *
 * rank_files: a checkpoint rank by rank, as files: rank-<R>.safetensors with rectangles of tensors,
 * and ranks.json, which says where each belongs. The ranks are those that saved, with what each of
 * them held; or any number of others, each with an even share of every tensor's rows.
 */
#ifndef CAIRN_TOOLS_RANK_FILES_H
#define CAIRN_TOOLS_RANK_FILES_H

#include "documents.h"
#include "target.h"

enum { RANKS_BYTES = LIMIT_WORLD_SIZE / 8 };
struct rank_set {
    uint8_t bits[RANKS_BYTES]; /* of LIMIT_WORLD_SIZE ranks */
    uint32_t count, highest;
};

/* "0,3-5": an OPTION_OTHER's take. */
int MUST_USE rank_set_take(void *to, const char *text, struct diag *diag);

struct rank_choice {
    const struct rank_set *ranks; /* an empty set means all */
    uint32_t as_ranks; /* shares for so many; 0 means what the checkpoint's own ranks held */
};

/* Writes the files of the chosen ranks, with the tensors that documents' index still holds; --only
 * may have narrowed it. Returns INVALID if a chosen rank does not exist. */
int MUST_USE rank_files_write(struct cli *cli, struct documents *documents,
                              const struct rank_choice *choice, struct target *target,
                              struct diag *diag);

#endif
