/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the engine tell each other about the link and about preparing the arena. Loop's
 * thread. */
#ifndef CAIRN_ENGINE_PRIVATE_H
#define CAIRN_ENGINE_PRIVATE_H

#include "engine/operations.h"

/* engine.c. The link calls these when the connection is joined (is_new: for the first time), when
 * the engine is to begin without one, when it is lost, when it has failed for good, and when the
 * server grants credit. */
void engine_on_up(struct engine *engine, bool is_new);
void engine_on_unmet(struct engine *engine);
void engine_on_down(struct engine *engine);
void engine_on_final(struct engine *engine, int status, const struct diag *diag);
void engine_on_granted(struct engine *engine);

/* link_requests.c. The link hands these what comes for a request: a reply (or an ERROR), the
 * payload of the last reply, the loss of the connection. Results that are not 0 close the
 * connection. */
int MUST_USE link_reply(struct link *link, const struct frame *frame, const struct msg *msg,
                        void **ret_payload, struct diag *diag);
int MUST_USE link_payload(struct link *link, const struct frame *frame, const struct msg *msg,
                          void *payload, struct diag *diag);
void link_lose_requests(struct link *link);

/* prepare.c. engine_prepare_wake is called when the connection comes up, and when the last save or
 * restore has ended; engine_prepare_drop gives up a preparation that has not started. */
void engine_prepare_init(struct engine *engine);
void engine_prepare_wake(struct engine *engine);
void engine_prepare_drop(struct engine *engine);
/* Forgets what the daemon knows of the arena. Called when a connection comes or goes. */
void hand_reset(struct engine *engine);

#endif
