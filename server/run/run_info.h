/* SPDX-License-Identifier: Apache-2.0
 *
 * From a run's decoded state to what LIST and STATUS answer. Pure; strings come from the scratch.
 */
#ifndef CAIRN_RUN_RUN_INFO_H
#define CAIRN_RUN_RUN_INFO_H

#include "core/commit.h"
#include "wire/msg.h"

/* A page of the list: with before_seq 0 the open saves first (newest first), then committed ones,
 * newest first by sequence, below before_seq (0: from the newest). At most limit entries (0: all).
 * NO_MEMORY. */
int MUST_USE run_info_list(const struct run_state *state, uint64_t before_seq, uint32_t limit,
                           struct scratch *scratch, struct msg_list_reply *ret);
/* The truth about one save, whatever it is: CKPT_NONE when nothing is known of it. NO_MEMORY. */
int MUST_USE run_info_find(const struct run_state *state, struct ckpt_id id,
                           struct scratch *scratch, struct ckpt_info *ret);

#endif
