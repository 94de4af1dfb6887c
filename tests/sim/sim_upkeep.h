/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_upkeep: a daemon's upkeep in the simulated world: garbage collection and scrub, often and
 * without yielding; and what must hold of them. At the end, in a world at rest: what was forgotten
 * comes back within its time, and after some cycles the store holds what is reachable and no more.
 */
#ifndef CAIRN_TEST_SIM_UPKEEP_H
#define CAIRN_TEST_SIM_UPKEEP_H

#include "run/run.h"
#include "sim_scene.h"

enum { UPKEEP_KEEP_CYCLES = 2 };

struct sim_upkeep;

struct sim_upkeep *upkeep_new(struct scene *scene, struct sim_host *host, struct catalog *catalog);
void upkeep_close(struct sim_upkeep *upkeep, void (*closed)(void *user), void *user);
struct catalog *upkeep_catalog(struct sim_upkeep *upkeep);
/* A pass, which begins no cycle, if none is running. */
void upkeep_collect(struct sim_upkeep *upkeep);
/* As many as let a checkpoint go that was forgotten just now, each with a cycle, at once. */
void upkeep_hurry(struct sim_upkeep *upkeep);
/* A pass that begins a cycle, to its end. */
void upkeep_cycle(struct scene *scene);
/* Nobody saves or restores: cycles until all that can go has gone, then a look at what is there. */
void upkeep_check_space(struct scene *scene);

#endif
