/* SPDX-License-Identifier: Apache-2.0
 *
 * scene: one seed's world: a daemon with its disk, or several on one cluster, the jobs that save to
 * it, the plan of faults, and the oracle that knows what was promised. One thread; every choice
 * comes from the world's generator. A broken invariant ends the process, after saying how to replay
 * it.
 */
#ifndef CAIRN_TEST_SIM_SCENE_H
#define CAIRN_TEST_SIM_SCENE_H

#include "base/err.h"
#include "sim/env/sim.h"
#include "sim_cluster.h"
#include "sim_oracle.h"

enum {
    SCENE_WORLD_SIZE = 3,
    SCENE_PORT = 7421,
    SCENE_CHUNK_BYTES = 4096,
    SCENE_BUFFER_BYTES = 16 << 10,
    SCENE_HOSTS_MAX = 512,
    SCENE_FAULTS_MAX = 20,
    SCENE_TICK_MS = 10,
    SCENE_DAEMONS_MAX = 3,
    SCENE_NEIGHBOURS_MAX = 4,
};

struct sim_daemon;
struct sim_job;
struct sim_mutant;
struct sim_neighbour;
struct sim_operator;

struct scene_fault {
    struct scene *scene;
    unsigned kind;
    uint64_t at_ms, arg;
    bool at_save; /* shortly after a save begins, not at the moment itself */
    bool armed, happened;
};

/* Where a daemon runs: its host's name stays, processes come and go. */
struct scene_seat {
    char name[24];
    struct sim_daemon *daemon; /* the current one; NULL between two daemons */
    uint64_t start_ms;         /* when the supervisor starts the next */
    bool is_mute, is_deaf;     /* its way to the cluster */
};

struct scene {
    uint64_t seed;
    struct sim *sim;
    const struct sim_mutant *mutant; /* NULL if the code runs as it is */
    bool verbose;
    bool local; /* ranks and daemon share a machine: arenas are handed over. Every other seed */
    struct oracle oracle;
    struct sim_host *hosts[SCENE_HOSTS_MAX]; /* all there ever were */
    size_t host_count;
    /* daemons and their supervisor */
    bool shared; /* several of them on a cluster; else one on a disk */
    struct sim_disk *disk;
    struct fake_medium *cluster; /* shared */
    struct sim_weather weather;
    struct scene_seat seats[SCENE_DAEMONS_MAX];
    unsigned seat_count;
    struct list daemons_ending; /* killed ones that are being torn down */
    uint64_t daemon_epoch;
    bool power_loss, lose_all; /* the next death takes unsynced writes along */
    /* the jobs and their launcher */
    struct sim_job *job, *zombie;
    struct list jobs_ending;
    unsigned job_count;
    uint64_t job_start_ms, job_end_ms, zombie_end_ms; /* 0 while none is planned */
    bool next_job_rewinds;
    struct sim_neighbour *neighbours[SCENE_NEIGHBOURS_MAX]; /* in every second eight seeds */
    unsigned neighbour_count;
    bool ticking, healed, over;
    /* retention, garbage collection, scrub: every second seed, and where a mutant needs them */
    bool tended;
    bool calm; /* the end: gc only when asked, no scrub */
    uint64_t gc_every_ms, scrub_every_ms;
    struct sim_operator *op;
    /* the plan */
    struct scene_fault faults[SCENE_FAULTS_MAX];
    size_t fault_count;
    bool disk_was_harmed;   /* NO_SPACE and IO are then honest answers */
    bool medium_was_harmed; /* DAMAGED and an older checkpoint are */
    bool liar, lied;        /* a rank refers once to what its base does not hold; INVALID is */
    /* sizes of this seed */
    uint64_t object_bytes, part_bytes, cache_bytes, deadline_ms_max;
    unsigned snapshot_every, sessions_max;
    uint64_t poll_ms; /* shared: how often a daemon looks at the record while somebody waits */
};

struct scene_options {
    const struct sim_mutant *mutant;
    bool verbose, shared;
};
struct scene *scene_new(uint64_t seed, const struct scene_options *options);
void scene_free(struct scene *scene);
/* The address of a run of project sim, at all daemons. */
int MUST_USE scene_url(const struct scene *scene, const char *run, struct url *ret,
                       struct diag *diag);
struct sim_host *scene_host(struct scene *scene, const char *name, struct sim_disk *disk);
void scene_keep_host(struct scene *scene, struct sim_host *host);
uint64_t scene_now_ms(const struct scene *scene);
/* Runs until done or the virtual time is over; then the invariant is broken. */
void scene_await(struct scene *scene, bool (*done)(struct scene *scene), uint64_t within_ms,
                 const char *what);
/* Says what broke, the plan, and how to replay; does not return. */
_Noreturn void scene_fail(struct scene *scene, const char *fmt, ...) PRINTF(2, 3);
/* A line of the story, told only when a seed is replayed. */
void scene_tell(struct scene *scene, const char *fmt, ...) PRINTF(2, 3);

/* sim_faults.c */
void faults_plan(struct scene *scene, uint64_t within_ms);
void faults_print(const struct scene *scene);
void faults_heal(struct scene *scene);
void faults_on_save(struct scene *scene); /* a job begins a save */
/* A host and all daemons do not hear each other. */
void faults_part_host(struct scene *scene, const char *name, bool on);

#endif
