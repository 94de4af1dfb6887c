/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a seed: which faults, when; and their end. One thread.
 */
#include <errno.h>
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
    FAULT_COUNT_DISK, /* the ones above happen to one daemon on a disk */
    FAULT_PAUSE_DAEMON = FAULT_COUNT_DISK,
    FAULT_PART_CLUSTER, /* a daemon and the cluster do not hear each other */
    FAULT_CLUSTER_STORM,
    FAULT_CLUSTER_FULL,
    FAULT_CLUSTER_REFUSES,
    FAULT_SLOW_CLUSTER,
    FAULT_KILL_ALL_DAEMONS,
    FAULT_COUNT
};

/* What happens to several on a cluster. */
static const enum fault shared_faults[] = {
    FAULT_CUT_ALL,         FAULT_CUT_RANK,      FAULT_DEAF_DAEMON,      FAULT_MUTE_DAEMON,
    FAULT_SPLIT_RANK,      FAULT_KILL_DAEMON,   FAULT_PAUSE_DAEMON,     FAULT_KILL_AT_CALL,
    FAULT_CLUSTER_STORM,   FAULT_STOP_DAEMON,   FAULT_KILL_RANK,        FAULT_KILL_RANK_SILENTLY,
    FAULT_KILL_JOB,        FAULT_ZOMBIE,        FAULT_CUT_OFF_ZOMBIE,   FAULT_PART_CLUSTER,
    FAULT_REWIND,          FAULT_ABORT_SAVE,    FAULT_PAUSE_DAEMON,     FAULT_CLUSTER_REFUSES,
    FAULT_CLUSTER_FULL,    FAULT_STORE,         FAULT_SLOW_NET,         FAULT_KILL_DAEMON_SILENTLY,
    FAULT_SLOW_CLUSTER,    FAULT_CLUSTER_STORM, FAULT_NEXT_JOB_REWINDS, FAULT_PART_CLUSTER,
    FAULT_KILL_ALL_DAEMONS};

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
    [FAULT_PAUSE_DAEMON] = "a daemon stands still",
    [FAULT_PART_CLUSTER] = "part a daemon from the cluster",
    [FAULT_CLUSTER_STORM] = "the cluster loses, repeats and delays",
    [FAULT_CLUSTER_FULL] = "the cluster is full",
    [FAULT_CLUSTER_REFUSES] = "the cluster refuses",
    [FAULT_SLOW_CLUSTER] = "the cluster is slow",
    [FAULT_KILL_ALL_DAEMONS] = "kill all daemons",
};

static void heal_network(void *user)
{
    struct scene *scene = user;
    for (unsigned i = 0; i < scene->seat_count; i++) {
        sim_partition(scene->sim, NULL, scene->seats[i].name, false);
        sim_partition(scene->sim, scene->seats[i].name, NULL, false);
    }
    sim_net_set(scene->sim, &(struct sim_net_options){0});
}

void faults_part_host(struct scene *scene, const char *name, bool on)
{
    for (unsigned i = 0; i < scene->seat_count; i++) {
        sim_partition(scene->sim, name, scene->seats[i].name, on);
        sim_partition(scene->sim, scene->seats[i].name, name, on);
    }
}

static void heal_ranks(void *user)
{
    struct scene *scene = user;
    for (size_t i = 0; i < scene->host_count; i++) {
        faults_part_host(scene, sim_host_name(scene->hosts[i]), false);
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
        const char *server = daemon_name(scene, arg);
        if (arg & 0x100) {
            sim_partition(scene->sim, name, server, true);
        }
        if (!(arg & 0x100) || arg & 0x200) {
            sim_partition(scene->sim, server, name, true);
        }
        sim_at(scene->sim, 100 + arg % 5000, heal_ranks, scene);
    }
}

/* --- the cluster ------------------------------------------------------------------ */

static void heal_cluster(void *user)
{
    struct scene *scene = user;
    scene->weather = (struct sim_weather){.timeout_us = scene->weather.timeout_us};
    if (scene->cluster) {
        fake_medium_capacity(scene->cluster, 0);
    }
}

static void heal_ways(void *user)
{
    struct scene *scene = user;
    for (unsigned i = 0; i < scene->seat_count; i++) {
        daemon_part(scene, (uint64_t)i << 3, false, false);
    }
}

static void harm_cluster(struct scene *scene, enum fault fault, uint64_t arg)
{
    struct sim_weather *weather = &scene->weather;
    uint64_t for_ms = 100 + (arg >> 6) % 3000;
    scene->disk_was_harmed = true;
    if (fault == FAULT_PART_CLUSTER) {
        bool mute = arg % 4 != 0, deaf = arg % 4 != 1;
        daemon_part(scene, arg, mute, deaf);
        sim_at(scene->sim, for_ms, heal_ways, scene);
        return;
    }
    if (fault == FAULT_CLUSTER_FULL) {
        fake_medium_capacity(scene->cluster, 1 + fake_medium_used(scene->cluster) + arg % 30000);
    } else if (fault == FAULT_CLUSTER_REFUSES) {
        static const int errors[] = {ENOSPC, EDQUOT}; /* EIO would be a damaged medium's */
        weather->refused = 1 + (unsigned)(arg % 30);
        weather->error = errors[(arg >> 5) % ARRAY_LEN(errors)];
    } else if (fault == FAULT_SLOW_CLUSTER) {
        weather->latency_max_us = 20000 + arg % 300000;
    } else {
        weather->lost = (unsigned)(arg % 8);
        weather->unanswered = (unsigned)((arg >> 3) % 16);
        weather->late = (unsigned)((arg >> 7) % 16);
        weather->twice = (unsigned)((arg >> 11) % 16);
    }
    sim_at(scene->sim, for_ms, heal_cluster, scene);
}

static void harm_shared(struct scene *scene, enum fault fault, uint64_t arg)
{
    if (fault == FAULT_PAUSE_DAEMON) {
        daemon_pause(scene, arg, 100 + (arg >> 6) % 6000);
    } else if (fault == FAULT_KILL_ALL_DAEMONS) {
        daemon_kill_all(scene);
    } else {
        harm_cluster(scene, fault, arg);
    }
}

/* --- the rest --------------------------------------------------------------------- */

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
        sim_partition(scene->sim, NULL, daemon_name(scene, arg), true);
        sim_at(scene->sim, for_ms, heal_network, scene);
    } else if (fault == FAULT_MUTE_DAEMON) {
        sim_partition(scene->sim, daemon_name(scene, arg), NULL, true);
        sim_at(scene->sim, for_ms, heal_network, scene);
    }
}

static void harm_daemon(struct scene *scene, enum fault fault, uint64_t arg)
{
    if (fault == FAULT_STOP_DAEMON) {
        daemon_stop(scene, arg, arg % 2 ? 3000 : 0);
        return;
    }
    if (fault == FAULT_POWER_LOSS || fault == FAULT_POWER_LOSS_AT_CALL) {
        scene->power_loss = scene->seats[0].daemon != NULL;
        scene->lose_all = scene->power_loss && arg % 3 == 0;
    }
    if (fault == FAULT_KILL_AT_CALL || fault == FAULT_POWER_LOSS_AT_CALL) {
        daemon_kill_at_call(scene, arg, 1 + arg % 200);
    } else {
        daemon_kill(scene, arg, fault == FAULT_KILL_DAEMON_SILENTLY ? SIM_SILENT : SIM_RESET);
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
    case FAULT_PAUSE_DAEMON:
    case FAULT_PART_CLUSTER:
    case FAULT_CLUSTER_STORM:
    case FAULT_CLUSTER_FULL:
    case FAULT_CLUSTER_REFUSES:
    case FAULT_SLOW_CLUSTER:
    case FAULT_KILL_ALL_DAEMONS:
        harm_shared(scene, fault->kind, fault->arg);
        break;
    case FAULT_COUNT:
        break;
    }
}

void faults_plan(struct scene *scene, uint64_t within_ms)
{
    /* Quiet seeds find what one fault does, stormy ones what meets on the way. */
    scene->fault_count = sim_below(scene->sim, sim_chance(scene->sim, 2) ? SCENE_FAULTS_MAX : 6);
    uint64_t kinds = scene->shared ? ARRAY_LEN(shared_faults) : FAULT_COUNT_DISK;
    uint64_t only = sim_chance(scene->sim, 3) ? 1 + sim_below(scene->sim, 4) : kinds;
    uint64_t base = sim_below(scene->sim, kinds);
    for (size_t i = 0; i < scene->fault_count; i++) {
        struct scene_fault *fault = &scene->faults[i];
        unsigned kind = (unsigned)((base + sim_below(scene->sim, only) * 5) % kinds);
        *fault = (struct scene_fault){.scene = scene,
                                      .kind = scene->shared ? shared_faults[kind] : kind,
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
    heal_cluster(scene);
    daemon_heal_stores(scene);
    if (scene->disk_was_harmed && !scene->shared) {
        daemon_stop(scene, 0, 0); /* the operator: it may have given up writing */
    }
    if (scene->zombie) {
        scene->zombie_end_ms = scene_now_ms(scene);
    }
    if (scene->job_end_ms > scene_now_ms(scene)) {
        scene->job_end_ms = scene_now_ms(scene);
    }
    scene_tell(scene, "no more faults");
}
