/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_daemon: the parts of cairnd on simulated hosts, put together as server/daemon does, and the
 * supervisor that starts them again. arg: a fault's number, which also says which daemon it hits.
 * One thread.
 */
#ifndef CAIRN_TEST_SIM_DAEMON_H
#define CAIRN_TEST_SIM_DAEMON_H

#include "sim_scene.h"

struct sim_upkeep;

/* Starts, restarts and buries daemons; called each tick. */
void daemon_tick(struct scene *scene);
/* Returns the upkeep at a seat, or NULL while its daemon does not serve. */
struct sim_upkeep *daemon_care(struct scene *scene, uint64_t seat);
const char *daemon_name(struct scene *scene, uint64_t arg);
/* Do a fault to a daemon that runs. They have no effect when there is none. */
void daemon_kill(struct scene *scene, uint64_t arg, enum sim_death death);
void daemon_kill_all(struct scene *scene);
void daemon_kill_at_call(struct scene *scene, uint64_t arg, uint64_t call);
void daemon_pause(struct scene *scene, uint64_t arg, uint64_t ms);
void daemon_part(struct scene *scene, uint64_t arg, bool mute, bool deaf); /* from the cluster */
void daemon_harm_store(struct scene *scene, uint64_t arg); /* some of its operations fail */
void daemon_heal_stores(struct scene *scene);
void daemon_stop(struct scene *scene, uint64_t arg, uint64_t grace_ms);
void daemon_stop_all(struct scene *scene, uint64_t grace_ms);
bool daemon_are_up(struct scene *scene); /* all of them */
void daemon_check_idle(struct scene *scene);
bool daemon_is_gone(struct scene *scene); /* none is there, and none is being torn down */

#endif
