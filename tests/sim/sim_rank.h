/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_rank: one rank's process: an engine on a simulated host with a small state, all of whose
 * bytes follow from (history, step, rank), so that any restored byte can be checked. One thread.
 */
#ifndef CAIRN_TEST_SIM_RANK_H
#define CAIRN_TEST_SIM_RANK_H

#include "save/save.h"
#include "sim_scene.h"

enum { RANK_SAVES_MAX = 3 };

struct sim_rank_save {
    struct engine_save save; /* first */
    struct sim_rank *rank;
    struct registered *set;
    struct oracle_save *what;
    bool used, released, staged, done, is_wanted;
    int status;
    uint64_t end_ms; /* it must have ended by then: I7 */
};

struct sim_rank {
    unsigned saves_begun;
    struct scene *scene;
    struct list link; /* of those that are being closed */
    struct sim_host *host;
    uint32_t idx;
    unsigned job;
    struct engine *engine;
    struct arena *arena;
    uint8_t *memory;
    struct registered *set; /* the restore's */
    bool ready, closing, closed;
    int ready_status;
    struct sim_rank_save saves[RANK_SAVES_MAX];
    bool restoring, restored;
    struct engine_restore restore;
    int restore_status;
    uint64_t restore_end_ms;
};

struct sim_rank *rank_new(struct scene *scene, unsigned job, uint32_t idx,
                          const struct token *token);
/* Fills the memory and saves it. False: all slots are in use. */
bool rank_save(struct sim_rank *rank, struct oracle_save *what, uint64_t deadline_ms);
bool rank_is_staging(const struct sim_rank *rank); /* its memory is still being read */
unsigned rank_saves_running(const struct sim_rank *rank);
void rank_restore(struct sim_rank *rank, struct selector selector, uint64_t deadline_ms);
/* The history that the memory holds, after every byte, the blobs too, was compared. */
uint64_t rank_check_restored(struct sim_rank *rank);
/* Takes back what the last restore gave; before the next one. */
void rank_forget_restore(struct sim_rank *rank);
/* I7: nothing of a living rank is late. */
void rank_check_deadlines(const struct sim_rank *rank);
/* Closes; rank_bury() frees it once that is done. */
void rank_close(struct sim_rank *rank);
bool rank_bury(struct sim_rank *rank);

#endif
