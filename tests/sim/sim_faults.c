/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a seed: which faults, when; and their end. One thread.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/check.h"
#include "sim_daemon.h"
#include "sim_job.h"

enum fault {
    FAULT_CUT_ALL,
    FAULT_CUT_RANK,
    FAULT_DEAF_DAEMON, /* nothing reaches it from anywhere, for a while */
    FAULT_MUTE_DAEMON, /* nothing that it sends arrives */
    FAULT_SPLIT_RANK,  /* one rank and the daemon do not hear each other */
    FAULT_KILL_DAEMON,
    FAULT_KILL_DAEMON_SILENTLY,
    FAULT_KILL_AT_CALL, /* just before one of the next file calls */
    FAULT_POWER_LOSS,
    FAULT_POWER_LOSS_AT_CALL,
    FAULT_STOP_DAEMON,
    FAULT_KILL_RANK,
    FAULT_KILL_RANK_SILENTLY,
    FAULT_KILL_JOB,
    FAULT_ZOMBIE,
    FAULT_CUT_OFF_ZOMBIE,
    FAULT_REWIND,
    FAULT_ABORT_SAVE,
    FAULT_NEXT_JOB_REWINDS,
    FAULT_FSYNC_FAILS,
    FAULT_DISK_FULL,
    FAULT_STORE,
    FAULT_SLOW_NET,
    FAULT_COUNT
};

static const char *const names[FAULT_COUNT] = {
    [FAULT_CUT_ALL] = "cut all connections",
    [FAULT_CUT_RANK] = "cut a rank's connection",
    [FAULT_DEAF_DAEMON] = "the daemon hears nothing",
    [FAULT_MUTE_DAEMON] = "the daemon is not heard",
    [FAULT_SPLIT_RANK] = "part a rank from the daemon",
    [FAULT_KILL_DAEMON] = "kill the daemon",
    [FAULT_KILL_DAEMON_SILENTLY] = "kill the daemon silently",
    [FAULT_KILL_AT_CALL] = "kill the daemon at a file call",
    [FAULT_POWER_LOSS] = "power loss",
    [FAULT_POWER_LOSS_AT_CALL] = "power loss at a file call",
    [FAULT_STOP_DAEMON] = "stop the daemon",
    [FAULT_KILL_RANK] = "kill a rank",
    [FAULT_KILL_RANK_SILENTLY] = "kill a rank silently",
    [FAULT_KILL_JOB] = "kill the job",
    [FAULT_ZOMBIE] = "the job becomes a zombie",
    [FAULT_CUT_OFF_ZOMBIE] = "the job is cut off and becomes a zombie",
    [FAULT_REWIND] = "rewind",
    [FAULT_ABORT_SAVE] = "a rank aborts its save",
    [FAULT_NEXT_JOB_REWINDS] = "kill the job, its successor rewinds",
    [FAULT_FSYNC_FAILS] = "the next fsync fails",
    [FAULT_STORE] = "operations of the store fail, are slow, or end unknown",
    [FAULT_DISK_FULL] = "the disk is full",
    [FAULT_SLOW_NET] = "the network is slow",
};

static void heal_network(void *user)
{
    struct scene *scene = user;
    sim_partition(scene->sim, NULL, "server", false);
    sim_partition(scene->sim, "server", NULL, false);
    sim_net_set(scene->sim, &(struct sim_net_options){0});
}

static void heal_ranks(void *user)
{
    struct scene *scene = user;
    for (size_t i = 0; i < scene->host_count; i++) {
        const char *name = sim_host_name(scene->hosts[i]);
        sim_partition(scene->sim, name, "server", false);
        sim_partition(scene->sim, "server", name, false);
    }
}

static void heal_disk(void *user)
{
    struct scene *scene = user;
    sim_disk_set_capacity(scene->disk, UINT64_MAX);
}

static void split_rank(struct scene *scene, uint64_t arg)
{
    if (scene->job) {
        const char *name = sim_host_name(scene->job->ranks[arg % SCENE_WORLD_SIZE]->host);
        if (arg & 0x100) {
            sim_partition(scene->sim, name, "server", true);
        }
        if (!(arg & 0x100) || arg & 0x200) {
            sim_partition(scene->sim, "server", name, true);
        }
        sim_at(scene->sim, 100 + arg % 5000, heal_ranks, scene);
    }
}

static void harm_network(struct scene *scene, enum fault fault, uint64_t arg)
{
    uint64_t for_ms = arg % 4 == 0 ? 2000 + arg % 4000 : 50 + arg % 600;
    if (fault == FAULT_CUT_ALL) {
        (void)sim_cut(scene->sim, NULL, NULL);
    } else if (fault == FAULT_CUT_RANK && scene->job) {
        const char *name = sim_host_name(scene->job->ranks[arg % SCENE_WORLD_SIZE]->host);
        (void)sim_cut(scene->sim, name, NULL);
    } else if (fault == FAULT_SPLIT_RANK) {
        split_rank(scene, arg);
    } else if (fault == FAULT_SLOW_NET) {
        sim_net_set(scene->sim,
                    &(struct sim_net_options){.latency_min_us = 500, .latency_max_us = 60000});
        sim_at(scene->sim, for_ms, heal_network, scene);
    } else if (fault == FAULT_DEAF_DAEMON) {
        sim_partition(scene->sim, NULL, "server", true);
        sim_at(scene->sim, for_ms, heal_network, scene);
    } else if (fault == FAULT_MUTE_DAEMON) {
        sim_partition(scene->sim, "server", NULL, true);
        sim_at(scene->sim, for_ms, heal_network, scene);
    }
}

static void harm_daemon(struct scene *scene, enum fault fault, uint64_t arg)
{
    if (fault == FAULT_STOP_DAEMON) {
        daemon_stop(scene, arg % 2 ? 3000 : 0);
        return;
    }
    if (fault == FAULT_POWER_LOSS || fault == FAULT_POWER_LOSS_AT_CALL) {
        scene->power_loss = scene->daemon != NULL;
        scene->lose_all = scene->power_loss && arg % 3 == 0;
    }
    if (fault == FAULT_KILL_AT_CALL || fault == FAULT_POWER_LOSS_AT_CALL) {
        daemon_kill_at_call(scene, 1 + arg % 200);
    } else {
        daemon_kill(scene, fault == FAULT_KILL_DAEMON_SILENTLY ? SIM_SILENT : SIM_RESET);
    }
}

static void harm_disk(struct scene *scene, enum fault fault, uint64_t arg)
{
    scene->disk_was_harmed = true;
    if (fault == FAULT_FSYNC_FAILS) {
        sim_disk_fail_next_fsync(scene->disk);
    } else if (fault == FAULT_STORE) {
        daemon_harm_store(scene, arg);
    } else {
        sim_disk_set_capacity(scene->disk, sim_disk_used(scene->disk) + arg % 40000);
        sim_at(scene->sim, 100 + arg % 1500, heal_disk, scene);
    }
}

static void strike(void *user);

static void happen(void *user)
{
    struct scene_fault *fault = user;
    fault->armed = fault->at_save;
    if (!fault->at_save) {
        strike(fault);
    }
}

void faults_on_save(struct scene *scene)
{
    for (size_t i = 0; i < scene->fault_count; i++) {
        if (scene->faults[i].armed) {
            scene->faults[i].armed = false;
            sim_at(scene->sim, sim_below(scene->sim, 90), strike, &scene->faults[i]);
        }
    }
}

static void strike(void *user)
{
    struct scene_fault *fault = user;
    struct scene *scene = fault->scene;
    if (scene->healed) {
        return;
    }
    fault->happened = true;
    scene_tell(scene, "FAULT: %s (%" PRIu64 ")", names[fault->kind], fault->arg);
    switch ((enum fault)fault->kind) {
    case FAULT_CUT_ALL:
    case FAULT_CUT_RANK:
    case FAULT_DEAF_DAEMON:
    case FAULT_MUTE_DAEMON:
    case FAULT_SPLIT_RANK:
    case FAULT_SLOW_NET:
        harm_network(scene, fault->kind, fault->arg);
        break;
    case FAULT_KILL_DAEMON:
    case FAULT_KILL_DAEMON_SILENTLY:
    case FAULT_KILL_AT_CALL:
    case FAULT_POWER_LOSS:
    case FAULT_POWER_LOSS_AT_CALL:
    case FAULT_STOP_DAEMON:
        harm_daemon(scene, fault->kind, fault->arg);
        break;
    case FAULT_KILL_RANK:
        job_kill_rank(scene, (uint32_t)(fault->arg % SCENE_WORLD_SIZE), SIM_RESET);
        break;
    case FAULT_KILL_RANK_SILENTLY:
        job_kill_rank(scene, (uint32_t)(fault->arg % SCENE_WORLD_SIZE), SIM_SILENT);
        break;
    case FAULT_NEXT_JOB_REWINDS:
        scene->next_job_rewinds = true;
        job_kill(scene);
        break;
    case FAULT_KILL_JOB:
        job_kill(scene);
        break;
    case FAULT_ZOMBIE:
    case FAULT_CUT_OFF_ZOMBIE:
        job_make_zombie(scene, fault->kind == FAULT_CUT_OFF_ZOMBIE, 300 + fault->arg % 5000);
        if (fault->arg & 0x1000) { /* it wakes up */
            sim_at(scene->sim, 200 + fault->arg % 2500, heal_ranks, scene);
        }
        break;
    case FAULT_ABORT_SAVE:
        job_abort_save(scene, (uint32_t)(fault->arg % SCENE_WORLD_SIZE));
        break;
    case FAULT_REWIND:
        job_rewind(scene);
        break;
    case FAULT_FSYNC_FAILS:
    case FAULT_DISK_FULL:
    case FAULT_STORE:
        harm_disk(scene, fault->kind, fault->arg);
        break;
    case FAULT_COUNT:
        break;
    }
}

void faults_plan(struct scene *scene, uint64_t within_ms)
{
    /* Quiet seeds find what one fault does, stormy ones what meets on the way. */
    scene->fault_count = sim_below(scene->sim, sim_chance(scene->sim, 2) ? SCENE_FAULTS_MAX : 6);
    uint64_t only = sim_chance(scene->sim, 3) ? 1 + sim_below(scene->sim, 4) : FAULT_COUNT;
    uint64_t base = sim_below(scene->sim, FAULT_COUNT);
    for (size_t i = 0; i < scene->fault_count; i++) {
        struct scene_fault *fault = &scene->faults[i];
        *fault = (struct scene_fault){
            .scene = scene,
            .kind = (unsigned)((base + sim_below(scene->sim, only) * 5) % FAULT_COUNT),
            .at_save = sim_chance(scene->sim, 2),
            .at_ms = sim_below(scene->sim, within_ms),
            .arg = sim_below(scene->sim, 1 << 20)};
        sim_at(scene->sim, fault->at_ms, happen, fault);
    }
}

void faults_print(const struct scene *scene)
{
    for (size_t i = 0; i < scene->fault_count; i++) {
        const struct scene_fault *fault = &scene->faults[i];
        fprintf(stderr, "  %6" PRIu64 " ms  %s (%" PRIu64 ")%s\n", fault->at_ms, names[fault->kind],
                fault->arg, fault->happened ? "" : ", not yet");
    }
}

void faults_heal(struct scene *scene)
{
    scene->healed = true;
    heal_network(scene);
    heal_ranks(scene);
    heal_disk(scene);
    daemon_kill_at_call(scene, 0);
    daemon_heal_store(scene);
    if (scene->disk_was_harmed) {
        daemon_stop(scene, 0); /* the operator: it may have given up writing */
    }
    if (scene->zombie) {
        scene->zombie_end_ms = scene_now_ms(scene);
    }
    if (scene->job_end_ms > scene_now_ms(scene)) {
        scene->job_end_ms = scene_now_ms(scene);
    }
    scene_tell(scene, "no more faults");
}
