/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_daemon: the parts of cairnd on a simulated host, put together as server/daemon does, and the
 * supervisor that starts it again. One thread.
 */
#ifndef CAIRN_TEST_SIM_DAEMON_H
#define CAIRN_TEST_SIM_DAEMON_H

#include "sim_scene.h"

/* Starts, restarts and buries daemons; called each tick. */
void daemon_tick(struct scene *scene);
/* What a fault does to the current one; no effect when there is none. */
void daemon_kill(struct scene *scene, enum sim_death death);
void daemon_kill_at_call(struct scene *scene, uint64_t call);
void daemon_harm_store(struct scene *scene, uint64_t arg); /* some of its operations fail */
void daemon_heal_store(struct scene *scene);
void daemon_stop(struct scene *scene, uint64_t grace_ms);
bool daemon_is_up(struct scene *scene);
void daemon_check_idle(struct scene *scene);
bool daemon_is_gone(struct scene *scene); /* none is there, and none is being torn down */

#endif
