/* SPDX-License-Identifier: Apache-2.0
 *
 * copy: brings the checkpoints of a run from another store, the repair's mirror, into this one,
 * oldest first. Objects, parts, pages and manifest are stored under the names that they have, what
 * is there already is not sent again, and each checkpoint is read from this store's medium and
 * checked as a whole before one update of the record enters it (EVENT_ADOPT, as a salvage does). So
 * a copy may be killed at any moment and begun again, and whatever this store lists is complete. A
 * repair object does the work on its thread.
 */
#ifndef CAIRN_REPAIR_COPY_H
#define CAIRN_REPAIR_COPY_H

#include "repair/salvage.h"

/* Begins a copy of all checkpoints that the other store lists of the run. Only same_marks of `how`
 * is used. Returns the errors of repair_begin(); repair_options.ended tells its end, with INVALID
 * if both are one store, and STORE_LOCKED if a daemon serves this one, a shared store.
 * salvage_take() gives an item for each checkpoint: WHOLE was copied, THERE was here, LEFT was not
 * copied, for the reason in its text. */
int MUST_USE copy_begin(struct repair *repair, const struct run_name *run,
                        const struct salvage_options *how, const char *actor, struct diag *diag);

#endif
