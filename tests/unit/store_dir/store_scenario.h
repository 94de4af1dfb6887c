/* SPDX-License-Identifier: Apache-2.0
 *
 * A short life of a store, step by step, and what must hold of it afterwards whatever happened:
 * what was acknowledged is there and whole, what was not is there whole or not at all.
 */
#ifndef CAIRN_TEST_STORE_SCENARIO_H
#define CAIRN_TEST_STORE_SCENARIO_H

#include "store/store_bed.h"

enum { SCENARIO_UPDATES = 7, SCENARIO_OBJECTS = 4, SCENARIO_SMALLS = 3, SCENARIO_BYTES = 12288 };

enum fate { FATE_NOT_TRIED, FATE_DONE, FATE_REFUSED, FATE_MAYBE };

struct scenario {
    bool is_opened;
    enum fate objects[SCENARIO_OBJECTS], smalls[SCENARIO_SMALLS];
    enum fate deleted, exchanged, exchanged_small;
    bool is_paired; /* there are two to exchange */ /* object 0 */
    unsigned version;                               /* acknowledged */
    bool is_version_open;                           /* one more update may be there */
    int worst;                                      /* the last status that was not 0 */
};

/* Opens the store (making it) and lives through it; stops trying nothing: every step is tried, as a
 * daemon would. */
void scenario_run(struct bed *bed, struct scenario *scenario);
/* The store is open. Checks all of it. */
void scenario_check(struct bed *bed, const struct scenario *scenario);

#endif
