/* SPDX-License-Identifier: Apache-2.0
 *
 * rank_files: what single ranks held of a checkpoint, as files: rank-<R>.safetensors with the
 * rectangles of each tensor that rank R registered, and ranks.json, which says where each belongs.
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
bool rank_set_has(const struct rank_set *set, uint32_t rank);

/* Of tensors that documents' index (which --only may have narrowed) still holds. INVALID: a rank
 * that the checkpoint does not have. */
int MUST_USE rank_files_write(struct cli *cli, struct documents *documents,
                              const struct rank_set *ranks, struct target *target,
                              struct diag *diag);

#endif
