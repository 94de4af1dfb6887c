/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs: JOIN -> RESTORE -> TRAIN <-> REWIND, any -> FAILED, as the ranks' answers have it. All
 * ranks of a job train in step (as a collective would make them), come to their saves at slightly
 * different times, and have several saves in flight. One thread.
 */
#include "sim_job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "sim_operator.h"

enum { SKEW_MS = 25, RESTORE_DEADLINE_MS = 8000 };

static uint64_t mix(uint64_t history, uint64_t with)
{
    uint64_t z = history ^ (with * UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ (z >> 32);
}

/* --- restoring -------------------------------------------------------------------- */

bool job_is_ready(const struct sim_job *job)
{
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        if (!job->ranks[i]->ready) {
            return false;
        }
    }
    return true;
}

void job_ask_restore(struct sim_job *job, struct selector selector, uint64_t deadline_ms)
{
    job->selector = selector;
    job->asked_ms = scene_now_ms(job->scene);
    job->floor = job->scene->oracle.newest_acked;
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        rank_forget_restore(job->ranks[i]);
        rank_restore(job->ranks[i], selector, deadline_ms);
    }
}

bool job_restore_is_over(const struct sim_job *job)
{
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        if (!job->ranks[i]->restored && !sim_is_dead(job->ranks[i]->host)) {
            return false;
        }
    }
    return true;
}

/* What a restore may be told in a world with these faults. */
static bool is_honest(const struct sim_job *job, const struct sim_rank *rank)
{
    switch (rank->restore_status) {
    case CAIRN_E_TIMED_OUT:
    case CAIRN_E_MISSING_RANKS:
    case CAIRN_E_CONNECTION_LOST:
    case CAIRN_E_UNREACHABLE:
    case CAIRN_E_CLOSED:
        return true;
    case CAIRN_E_IO:
    case CAIRN_E_READ_ONLY:
    case CAIRN_E_NO_SPACE:
    case CAIRN_E_QUOTA:
        return job->scene->disk_was_harmed;
    case CAIRN_E_NOT_FOUND:
        return job->scene->disk_was_harmed || /* a session in memory, and the daemon restarted */
               job->selector.kind == SELECT_STEP ||   /* superseded meanwhile */
               (job->selector.kind == SELECT_EXACT && /* forgotten */
                operator_missed(job->scene->op, job->selector.id, job->asked_ms));
    case CAIRN_E_DAMAGED:
    case CAIRN_E_DIGEST_MISMATCH:
    case CAIRN_E_FORMAT:
        return job->scene->medium_was_harmed;
    default:
        return false;
    }
}

static void took(struct sim_job *job, const struct sim_rank *rank, uint64_t history)
{
    struct scene *scene = job->scene;
    oracle_restored(scene, rank->restore.id, history);
    if (rank->restore.fell_back && !scene->medium_was_harmed) {
        scene_fail(scene, "I1: a restore fell back to %" PRIu64 "@%" PRIu64 ": %s",
                   rank->restore.id.step, rank->restore.id.term, rank->restore.diag.text);
    }
    if (scene->medium_was_harmed) {
        return; /* any older one that is whole is right */
    }
    if (job->selector.kind == SELECT_LATEST) {
        oracle_latest(scene, rank->restore.id, job->floor);
    } else if (rank->restore.id.step != job->selector.id.step) {
        scene_fail(scene, "I4: step %" PRIu64 " was asked for, %" PRIu64 " came",
                   job->selector.id.step, rank->restore.id.step);
    }
}

static bool is_damage(int status)
{
    return status == CAIRN_E_DAMAGED || status == CAIRN_E_DIGEST_MISMATCH ||
           status == CAIRN_E_FORMAT;
}

bool job_take_restore(struct sim_job *job)
{
    const struct sim_rank *first = NULL;
    bool all = true, damaged = false;
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        struct sim_rank *rank = job->ranks[i];
        bool empty = rank->restored && rank->restore.empty;
        bool found_damage = rank->restored && is_damage(rank->restore_status);
        damaged = damaged || found_damage;
        if (sim_is_dead(rank->host) || (rank->restore_status != 0 && !empty)) {
            if (!sim_is_dead(rank->host) && !is_honest(job, rank)) {
                scene_fail(job->scene, "job %u rank %u: the restore ended with %s: %s", job->number,
                           i, err_name(rank->restore_status), rank->restore.diag.text);
            }
            all = false;
            continue;
        }
        uint64_t history = empty ? 0 : rank_check_restored(rank);
        if (empty) {
            oracle_latest(job->scene, (struct ckpt_id){0, 0}, job->floor);
        } else {
            took(job, rank, history);
        }
        if (first && (first->restore.empty != rank->restore.empty ||
                      !ckpt_id_equal(first->restore.id, rank->restore.id))) {
            scene_fail(job->scene,
                       "I4: job %u: rank %u restored %" PRIu64 "@%" PRIu64 ", rank %u %" PRIu64
                       "@%" PRIu64,
                       job->number, first->idx, first->restore.id.step, first->restore.id.term, i,
                       rank->restore.id.step, rank->restore.id.term);
        }
        first = rank;
        job->history = empty ? mix(job->scene->seed, job->number) : history;
        job->step = rank->restore.id.step;
    }
    if (damaged && first) {
        scene_fail(job->scene, "I4: job %u: rank %u has restored, another met damage", job->number,
                   first->idx);
    }
    return all;
}

/* --- training --------------------------------------------------------------------- */

static unsigned running(const struct sim_job *job)
{
    unsigned most = 0;
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        unsigned count = rank_saves_running(job->ranks[i]);
        most = count > most ? count : most;
    }
    return most;
}

static bool has_dead_rank(const struct sim_job *job)
{
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        if (sim_is_dead(job->ranks[i]->host)) {
            return true;
        }
    }
    return false;
}

/* A rank that is told that its attempt is over exits; so does one whose handle is dead. */
static bool must_stop(const struct sim_job *job)
{
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        for (size_t j = 0; j < RANK_SAVES_MAX; j++) {
            const struct sim_rank_save *slot = &job->ranks[i]->saves[j];
            bool fenced = slot->status == CAIRN_E_FENCED || slot->status == CAIRN_E_TOKEN_MISMATCH;
            if (slot->done && fenced) {
                return true;
            }
        }
    }
    return false;
}

static void begin_save(struct sim_job *job)
{
    static const uint64_t deadlines[] = {1500, 4000, 4000, 10000};
    struct scene *scene = job->scene;
    if (!job->repeat) { /* a program may try a step again, with the same state */
        job->step++;
        job->history = mix(mix(job->history, job->step), job->number);
    }
    job->current = oracle_begin(scene, job->number, job->step, job->history);
    job->deadline_ms =
        scene->healed ? 10000 : deadlines[sim_below(scene->sim, ARRAY_LEN(deadlines))];
    faults_on_save(scene);
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        job->started[i] = false;
        job->start_ms[i] = scene_now_ms(scene) + sim_below(scene->sim, SKEW_MS);
    }
}

/* True while ranks are on their way to the current save. */
static bool start_ranks(struct sim_job *job)
{
    bool waits = false;
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        struct sim_rank *rank = job->ranks[i];
        if (!job->started[i] && !sim_is_dead(rank->host)) {
            job->started[i] = scene_now_ms(job->scene) >= job->start_ms[i] &&
                              rank_save(rank, job->current, job->deadline_ms);
        }
        waits = waits || !job->started[i] || rank_is_staging(rank);
    }
    return waits;
}

static bool last_failed(const struct sim_job *job)
{
    const struct oracle *oracle = &job->scene->oracle;
    for (size_t i = oracle->save_count; i-- > 0;) {
        if (oracle->saves[i]->job == job->number) {
            return oracle->saves[i]->dead;
        }
    }
    return false;
}

static void train(struct sim_job *job)
{
    struct scene *scene = job->scene;
    if (job->current && start_ranks(job)) {
        return;
    }
    if (job->current) {
        job->current = NULL;
        job->next_ms = scene_now_ms(scene) + sim_below(scene->sim, 250);
        job->in_flight_max = 1 + (unsigned)sim_below(scene->sim, RANK_SAVES_MAX);
        job->repeat = !scene->healed && sim_chance(scene->sim, last_failed(job) ? 2 : 30);
    }
    bool again_waits = job->repeat && running(job) > 0; /* as a program that looks, then retries */
    if (must_stop(job)) {
        scene_tell(scene, "job %u is fenced and stops", job->number);
        job->state = JOB_FAILED;
    } else if (!has_dead_rank(job) && !again_waits && scene_now_ms(scene) >= job->next_ms &&
               running(job) < job->in_flight_max) {
        begin_save(job);
    }
}

/* --- a job's life ----------------------------------------------------------------- */

struct sim_job *job_new(struct scene *scene, struct selector selector)
{
    struct sim_job *job = calloc(1, sizeof *job);
    struct token token;
    uint64_t halves[2] = {sim_random(scene->sim), sim_random(scene->sim)};
    CHECK(job);
    memcpy(token.bytes, halves, sizeof token.bytes);
    job->scene = scene;
    job->number = ++scene->job_count;
    job->selector = selector;
    job->in_flight_max = 1;
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        job->ranks[i] = rank_new(scene, job->number, i, &token);
    }
    scene_tell(scene, "job %u begins", job->number);
    return job;
}

static void job_tick(struct sim_job *job)
{
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        rank_check_deadlines(job->ranks[i]);
        if (job->ranks[i]->ready && job->ranks[i]->ready_status != 0) {
            job->state = JOB_FAILED; /* could not join */
        }
    }
    switch (job->state) {
    case JOB_JOIN:
        if (job_is_ready(job)) {
            job->state = JOB_RESTORE;
            job_ask_restore(job, job->selector, RESTORE_DEADLINE_MS);
        }
        break;
    case JOB_REWIND:
        if (job->current) {
            job->current = start_ranks(job) && !has_dead_rank(job) ? job->current : NULL;
        } else if (running(job) == 0 && !job->ranks[0]->restoring) {
            job_ask_restore(job, job->selector, RESTORE_DEADLINE_MS);
        } else if (running(job) == 0) {
            job->state = JOB_RESTORE;
        }
        break;
    case JOB_RESTORE:
        if (job_restore_is_over(job)) {
            bool good = job_take_restore(job);
            for (uint32_t i = 0; good && i < SCENE_WORLD_SIZE; i++) {
                rank_forget_restore(job->ranks[i]);
            }
            job->state = good ? JOB_TRAIN : JOB_FAILED;
            job->repeat = false;
        }
        break;
    case JOB_TRAIN:
        train(job);
        break;
    case JOB_FAILED:
        break;
    }
}

/* The processes end: killed as a launcher does, or by their own close. */
void job_close(struct sim_job *job)
{
    struct scene *scene = job->scene;
    scene_tell(scene, "job %u ends", job->number);
    for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
        if (sim_chance(scene->sim, 2)) {
            sim_kill(job->ranks[i]->host, SIM_RESET);
        }
        rank_close(job->ranks[i]);
    }
    list_add_tail(&scene->jobs_ending, &job->link);
}

static void bury(struct scene *scene)
{
    list_each_safe (node, &scene->jobs_ending) {
        struct sim_job *job = list_item(node, struct sim_job, link);
        bool all = true;
        for (uint32_t i = 0; i < SCENE_WORLD_SIZE; i++) {
            if (job->ranks[i] && rank_bury(job->ranks[i])) {
                job->ranks[i] = NULL;
            }
            all = all && !job->ranks[i];
        }
        if (all) {
            list_remove(&job->link);
            free(job);
        }
    }
}

/* --- the launcher ----------------------------------------------------------------- */

static void launch(struct scene *scene)
{
    struct selector selector = {.kind = SELECT_LATEST};
    if (scene->next_job_rewinds && oracle_pick(scene, &selector.id)) {
        selector.kind = sim_chance(scene->sim, 2) ? SELECT_EXACT : SELECT_STEP;
        selector.id.term = selector.kind == SELECT_STEP ? 0 : selector.id.term;
    }
    scene->next_job_rewinds = false;
    scene->job = job_new(scene, selector);
}

void jobs_tick(struct scene *scene)
{
    uint64_t now = scene_now_ms(scene);
    bury(scene);
    if (scene->zombie) {
        job_tick(scene->zombie);
        if (scene->zombie->state == JOB_FAILED || now >= scene->zombie_end_ms) {
            job_close(scene->zombie);
            scene->zombie = NULL;
        }
    }
    if (!scene->job) {
        if (!scene->over && now >= scene->job_start_ms) {
            launch(scene);
        }
        return;
    }
    job_tick(scene->job);
    if (scene->job_end_ms == 0 && (scene->job->state == JOB_FAILED || has_dead_rank(scene->job))) {
        /* The launcher learns of it sooner or later; later: deadlines pass. */
        scene->job_end_ms = now + sim_below(scene->sim, sim_chance(scene->sim, 3) ? 6000 : 300);
    }
    if (scene->job_end_ms != 0 && now >= scene->job_end_ms) {
        job_close(scene->job);
        scene->job = NULL;
        scene->job_end_ms = 0;
        scene->job_start_ms = now + sim_below(scene->sim, 500);
    }
}

/* --- harm ------------------------------------------------------------------------- */

void job_kill_rank(struct scene *scene, uint32_t idx, enum sim_death death)
{
    if (scene->job) {
        sim_kill(scene->job->ranks[idx]->host, death);
    }
}

void job_kill(struct scene *scene)
{
    for (uint32_t i = 0; scene->job && i < SCENE_WORLD_SIZE; i++) {
        sim_kill(scene->job->ranks[i]->host, SIM_RESET);
    }
}

void job_make_zombie(struct scene *scene, bool cut_off, uint64_t for_ms)
{
    struct sim_job *job = scene->job;
    if (!job || scene->zombie || job->state == JOB_FAILED || has_dead_rank(job)) {
        return;
    }
    for (uint32_t i = 0; cut_off && i < SCENE_WORLD_SIZE; i++) {
        faults_part_host(scene, sim_host_name(job->ranks[i]->host), true);
    }
    scene->zombie = job;
    scene->zombie_end_ms = scene_now_ms(scene) + for_ms;
    scene->job = NULL;
    scene->job_end_ms = 0;
    scene->job_start_ms = scene_now_ms(scene) + sim_below(scene->sim, 500);
}

void job_abort_save(struct scene *scene, uint32_t idx)
{
    for (size_t i = 0; scene->job && i < RANK_SAVES_MAX; i++) {
        if (scene->job->ranks[idx]->saves[i].used) {
            engine_save_abort(&scene->job->ranks[idx]->saves[i].save);
            return;
        }
    }
}

void job_rewind(struct scene *scene)
{
    struct sim_job *job = scene->job;
    struct ckpt_id id;
    if (job && job->state == JOB_TRAIN && oracle_pick(scene, &id)) {
        job->selector = (struct selector){.kind = SELECT_EXACT, .id = id};
        job->state = JOB_REWIND;
    }
}

bool jobs_are_gone(struct scene *scene)
{
    return !scene->job && !scene->zombie && list_is_empty(&scene->jobs_ending);
}
