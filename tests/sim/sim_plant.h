/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_plant: bugs inside the parts that references, retention and garbage collection are made of,
 * put before their functions by the linker (CMakeLists.txt); in the same way, a second look at what
 * a pass is about to remove, and a rank that lies in its part.
 */
#ifndef CAIRN_TEST_SIM_PLANT_H
#define CAIRN_TEST_SIM_PLANT_H

#include "sim_mutant.h"

struct scene;

/* Prepares the world that begins: puts the mutant in its place, unless it is NULL, and lets each
 * decision of gc be checked by a second, naive one. */
void plant(struct scene *scene, const struct sim_mutant *mutant);
void plant_fini(void);

#endif
