/* SPDX-License-Identifier: Apache-2.0
 *
 * save_base: the checkpoint that a save refers to: the server names it with OPENED, and of it those
 * objects that are mostly dead. From save_base_begin on, base_of of struct save tells the base's
 * chunk at each piece's place. Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_BASE_H
#define CAIRN_SAVE_SAVE_BASE_H

#include "save/save_private.h"

enum { SAVE_GAIN_PERCENT_MIN = 10, SAVE_LOOK_EVERY = 10 };

/* Opened, or laid out: when both, finds the base, at once or a little later. */
void save_base_begin(struct save *save);
/* Known, but not to be used: everything is sent. Before anything was digested or described. */
void save_base_leave(struct save *save);
/* Copies the message's array, which is borrowed, and takes it out of the message. */
void save_base_note_sparse(struct save *save, struct msg_opened *opened);
void save_base_keep(struct save *save); /* committed: the next one's base */
void save_base_end(struct save *save);  /* gives up fetching; wakes the save when that is over */
void save_base_fini(struct save *save);

#endif
