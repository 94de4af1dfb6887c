/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the engine tell each other of the link, and of the arena ahead of the saves.
 */
#ifndef CAIRN_ENGINE_PRIVATE_H
#define CAIRN_ENGINE_PRIVATE_H

#include "engine/operations.h"

/* engine.c: called by the link */
void engine_on_up(struct engine *engine);
void engine_on_down(struct engine *engine);
void engine_on_final(struct engine *engine, int status, const struct diag *diag);
void engine_on_granted(struct engine *engine);

/* prepare.c. wake: the connection is there, or the last save or restore went. */
void engine_prepare_init(struct engine *engine);
void engine_prepare_wake(struct engine *engine);
void engine_prepare_drop(struct engine *engine);
void hand_reset(struct engine *engine); /* a connection comes or goes */

#endif
