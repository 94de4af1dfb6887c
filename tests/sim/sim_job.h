/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_job: an attempt of three ranks, as a launcher starts it: join, restore, then train and save
 * in a loop; and the launcher, which starts the next one when a job has ended. One thread.
 */
#ifndef CAIRN_TEST_SIM_JOB_H
#define CAIRN_TEST_SIM_JOB_H

#include "sim_rank.h"

enum job_state { JOB_JOIN, JOB_RESTORE, JOB_TRAIN, JOB_REWIND, JOB_FAILED };

struct sim_job {
    struct scene *scene;
    struct list link;
    unsigned number;
    struct sim_rank *ranks[SCENE_WORLD_SIZE];
    enum job_state state;
    uint64_t history, step;
    struct selector selector;
    uint64_t asked_ms;           /* of the restore */
    struct ckpt_id floor;        /* the newest acknowledged when latest was asked for */
    struct oracle_save *current; /* the save that ranks are starting */
    bool started[SCENE_WORLD_SIZE];
    uint64_t start_ms[SCENE_WORLD_SIZE]; /* when each rank comes to its save */
    uint64_t next_ms, deadline_ms, acked_before;
    unsigned in_flight_max;
    bool repeat; /* the next save is of the same step once more */
    bool one_failed;
};

/* Starts, ends and buries jobs, and lets each take its next step; called each tick. */
void jobs_tick(struct scene *scene);
void job_kill_rank(struct scene *scene, uint32_t idx, enum sim_death death);
void job_kill(struct scene *scene);
/* The job goes on although its launcher has started another, seen by the daemon or not. */
void job_make_zombie(struct scene *scene, bool cut_off, uint64_t for_ms);
void job_abort_save(struct scene *scene, uint32_t idx);
void job_rewind(struct scene *scene); /* in the running attempt, to a step that was saved */
/* For the end: a job that restores what it is told; NULL selector: it saves nothing. */
struct sim_job *job_new(struct scene *scene, struct selector selector);
bool job_restore_is_over(const struct sim_job *job);
void job_ask_restore(struct sim_job *job, struct selector selector, uint64_t deadline_ms);
/* After a restore: all at one step, all bytes right. False: it failed for all who have an answer.
 */
bool job_take_restore(struct sim_job *job);
bool job_is_ready(const struct sim_job *job);
void job_close(struct sim_job *job);
bool jobs_are_gone(struct scene *scene);

#endif
