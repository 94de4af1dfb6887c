/* SPDX-License-Identifier: Apache-2.0
 *
 * save_base: the checkpoint that a save refers to, called its base. The server names it in OPENED,
 * together with those of its objects that are mostly dead and must not be referred to. From
 * save_base_begin on, base_of in struct save gives the base's chunk at the place of each piece.
 * Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_BASE_H
#define CAIRN_SAVE_SAVE_BASE_H

#include "save/save_private.h"

/* Below SAVE_GAIN_PERCENT_MIN per cent of unchanged bytes, only one save in SAVE_LOOK_EVERY
 * compares. */
enum { SAVE_GAIN_PERCENT_MIN = 10, SAVE_LOOK_EVERY = 10 };

/* Called when the save is opened, and when it is laid out. Once both are done, finds the base, at
 * once or after fetching it. */
void save_base_begin(struct save *save);
/* Drops a base that is known but must not be used, so that everything is sent. Only before any
 * payload was digested or described. */
void save_base_leave(struct save *save);
/* Copies the array of sparse objects, which is borrowed, and takes it out of the message. */
void save_base_note_sparse(struct save *save, struct msg_opened *opened);
/* Called when committed: this part becomes a base for the next save. */
void save_base_keep(struct save *save);
void save_base_end(struct save *save); /* stops fetching; wakes the save when that is over */
void save_base_fini(struct save *save);

#endif
