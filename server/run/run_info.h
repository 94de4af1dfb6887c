/* SPDX-License-Identifier: Apache-2.0
 *
 * run_info: turns the decoded state of a run into the answers of LIST and STATUS. Pure; strings
 * come from the scratch.
 */
#ifndef CAIRN_RUN_RUN_INFO_H
#define CAIRN_RUN_RUN_INFO_H

#include "core/commit.h"
#include "wire/msg.h"

/* Gives one page of the list that `ask` wants, with at most ask->limit entries (0 means all). With
 * before_seq 0 the page starts with the open saves, newest first. Then follow the committed
 * checkpoints below before_seq (0 means from the newest), newest sequence first. With `forgotten`
 * the page has only checkpoints that can be brought back. Returns NO_MEMORY if there is no memory.
 */
int MUST_USE run_info_list(const struct run_state *state, const struct msg_list *ask,
                           struct scratch *scratch, struct msg_list_reply *ret);
/* Gives one page of what has happened to the run: the entries of its chain, newest first, and on
 * the first page also the restores that have ended. Returns NO_MEMORY if there is no memory, and
 * FORMAT or UNSUPPORTED if the note of a restore cannot be read. */
int MUST_USE run_info_log(const struct run_state *state, const struct msg_log *ask,
                          struct scratch *scratch, struct msg_log_reply *ret, struct diag *diag);
/* Gives the state of one save; CKPT_NONE if nothing is known of it. Returns NO_MEMORY if there is
 * no memory. */
int MUST_USE run_info_find(const struct run_state *state, struct ckpt_id id,
                           struct scratch *scratch, struct ckpt_info *ret);

#endif
