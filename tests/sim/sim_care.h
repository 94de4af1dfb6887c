/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_care: a daemon's upkeep in the simulated world: garbage collection and scrub, often and
 * without yielding; and what must hold of them. At the end, in a world at rest: what was forgotten
 * comes back within its time, and after some cycles the store holds what is reachable and no more.
 */
#ifndef CAIRN_TEST_SIM_CARE_H
#define CAIRN_TEST_SIM_CARE_H

#include "run/run.h"
#include "sim_scene.h"

enum { CARE_KEEP_CYCLES = 2 };

struct sim_care;

struct sim_care *care_new(struct scene *scene, struct sim_host *host, struct catalog *catalog);
void care_close(struct sim_care *care, void (*closed)(void *user), void *user);
struct catalog *care_catalog(struct sim_care *care);
/* A pass, which begins no cycle, if none is running. */
void care_collect(struct sim_care *care);
/* As many as let a checkpoint go that was forgotten just now, each with a cycle, at once. */
void care_hurry(struct sim_care *care);
/* A pass that begins a cycle, to its end. */
void care_cycle(struct scene *scene);
/* Nobody saves or restores: cycles until all that can go has gone, then a look at what is there. */
void care_check_space(struct scene *scene);

#endif
