/* SPDX-License-Identifier: Apache-2.0
 *
 * neighbours: the other runs of the store, each with a job of one rank. Those that are there from
 * the beginning save all the time; one that nobody has heard of comes when all faults are over.
 */
#ifndef CAIRN_TEST_SIM_NEIGHBOUR_H
#define CAIRN_TEST_SIM_NEIGHBOUR_H

#include "sim_scene.h"

/* Makes a run of its own and a job that saves to it. */
void neighbour_add(struct scene *scene);
/* Called each tick: starts, ends and buries processes, and begins saves. */
void neighbours_tick(struct scene *scene);
/* From here on each of them owes a save that is acknowledged. */
void neighbours_expect(struct scene *scene);
bool neighbours_have_saved(struct scene *scene);
/* Lets each neighbour end its process and start no other. */
void neighbours_end(struct scene *scene);
bool neighbours_are_gone(struct scene *scene);
/* Restores the latest checkpoint of each run and compares it. */
void neighbours_check(struct scene *scene);
void neighbours_free(struct scene *scene);

#endif
