/* SPDX-License-Identifier: Apache-2.0
 *
 * No invariant of ARCHITECTURE.md breaks under random faults. Method: the real session, driver,
 * store, link, save and restore code of a daemon on a disk, or of two or three on one cluster, and
 * of jobs of three ranks, in one thread, a world for each seed. After a random plan of faults comes
 * an end of faults, after which everything must heal; then a power loss, and every checkpoint that
 * was promised is restored and compared. See README.md for the environment's variables.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "sim_daemon.h"
#include "sim_job.h"
#include "sim_mutant.h"
#include "sim_neighbour.h"
#include "sim_operator.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 200, SHARED_SEEDS = 60 }; /* what only a sanitizer sees: ten times slower */
#else
enum { SEEDS = 1600, SHARED_SEEDS = 400 };
#endif
enum {
    SEEDS_FULL = 40000,
    MUTANT_SEEDS =
        6000, /* most are found by one of the first ten, the rarest by one of a thousand */
    MUTANT_SEEDS_FULL = 20000,
    REPLAY_EACH = 50,
    HEAL_MS = 30000,
    FETCH_MS = 20000
};

static char seed_text[128]; /* of the seed that runs, for the signal handler */

/* --- the end of a seed ------------------------------------------------------------ */

static bool is_healed(struct scene *scene)
{
    for (size_t i = 0; i < scene->oracle.save_count; i++) {
        if (scene->oracle.saves[i]->wanted && scene->oracle.saves[i]->acked) {
            return true;
        }
    }
    return false;
}

static bool is_silent(struct scene *scene) { return daemon_is_gone(scene); }
static bool is_ready(struct scene *scene) { return job_is_ready(scene->job); }
static bool is_restored(struct scene *scene) { return job_restore_is_over(scene->job); }

/* The list that the last job asks for. */
struct checker {
    struct engine_call call;
    bool done;
};
static struct checker checker; /* one at a time */

static void on_call_done(struct engine_call *call, int status)
{
    (void)call; /* its reply says whether it went well */
    (void)status;
    checker.done = true;
}

static bool is_listed(struct scene *scene)
{
    (void)scene;
    return checker.done;
}

static void restore_one(struct scene *scene, struct selector selector)
{
    job_ask_restore(scene->job, selector, FETCH_MS);
    scene_await(scene, is_restored, FETCH_MS + 5000, "the last restores' end");
    if (!job_take_restore(scene->job)) {
        const struct sim_rank *rank = scene->job->ranks[0];
        if (rank->restore_status == CAIRN_E_NOT_FOUND && selector.kind == SELECT_EXACT &&
            operator_may_miss(scene->op, selector.id)) {
            return; /* a forgetting of unknown outcome has landed after all */
        }
        scene_fail(scene, "I1: %" PRIu64 "@%" PRIu64 " cannot be restored at the end: %s: %s",
                   selector.id.step, selector.id.term, err_name(rank->restore_status),
                   rank->restore.diag.text);
    }
}

/* What was forgotten comes back; what can go goes; what stays is what it was. */
static void check_care(struct scene *scene, size_t count, const struct ckpt_id *listed)
{
    size_t last = count - 1;
    if (count > 1 && operator_try_undelete(scene, listed[last])) {
        restore_one(scene, (struct selector){.kind = SELECT_EXACT, .id = listed[last]});
    }
    upkeep_check_space(scene);
    for (size_t i = 0; i < count; i++) {
        restore_one(scene, (struct selector){.kind = SELECT_EXACT, .id = listed[i]});
    }
}

static void check_all(struct scene *scene)
{
    struct ckpt_id listed[256];
    size_t count = 0;
    checker = (struct checker){.call = {.request = {.type = MSG_LIST, .u.list = {.limit = 256}},
                                        .deadline_ms = FETCH_MS,
                                        .done = on_call_done}};
    engine_call_start(scene->job->ranks[0]->engine, &checker.call);
    scene_await(scene, is_listed, FETCH_MS + 1000, "the list");
    const struct msg_list_reply *reply = &checker.call.reply.u.list_reply;
    if (checker.call.reply.type != MSG_LIST_REPLY || reply->more) {
        scene_fail(scene, "no list, or not all of it: %s", checker.call.diag.text);
    }
    oracle_listed(scene, reply->count, reply->entries);
    for (uint32_t i = 0; i < reply->count && count < ARRAY_LEN(listed); i++) {
        if (reply->entries[i].state == CKPT_COMMITTED) {
            listed[count++] = reply->entries[i].id;
        }
    }
    free(checker.call.payload);
    engine_call_fini(&checker.call);
    restore_one(scene, (struct selector){.kind = SELECT_LATEST});
    for (size_t i = 0; i < count; i++) {
        restore_one(scene, (struct selector){.kind = SELECT_EXACT, .id = listed[i]});
    }
    if (scene->tended) {
        check_care(scene, count, listed);
    }
}

/* --- a medium that fails ---------------------------------------------------------- */

struct pick {
    const char *within; /* a part of the path */
    uint64_t skip;
    size_t count;
    char path[512];
    uint64_t bytes;
};

static void on_file(void *user, const char *path, uint64_t bytes)
{
    struct pick *pick = user;
    if (bytes == 0 || !strstr(path, pick->within) || strncmp(path, "/store/runs/", 12) != 0) {
        return; /* the store's own record: its damage is a refusal to start, tested elsewhere */
    }
    if (pick->count++ == pick->skip) {
        snprintf(pick->path, sizeof pick->path, "%s", path);
        pick->bytes = bytes;
    }
}

static bool is_up(struct scene *scene) { return daemon_are_up(scene); }

static void start_checker(struct scene *scene)
{
    scene->over = false;
    scene->job_start_ms = UINT64_MAX; /* the launcher rests */
    scene_await(scene, is_up, 30000, "the daemon's start on the surviving disk");
    scene->job = job_new(scene, (struct selector){.kind = SELECT_LATEST});
    scene->job->state = JOB_FAILED; /* it does nothing by itself */
    scene->job_end_ms = UINT64_MAX;
    scene_await(scene, is_ready, 10000, "the last job's joining");
}

static void end_checker(struct scene *scene)
{
    scene->over = true;
    job_close(scene->job);
    scene->job = NULL;
    scene->job_end_ms = 0;
    scene_await(scene, jobs_are_gone, 10000, "the last job's end");
    sim_run_for(scene->sim, 3000); /* until the daemon knows that they are gone */
    daemon_check_idle(scene);
    daemon_stop_all(scene, 1000);
    scene_await(scene, is_silent, 20000, "the daemon's orderly end");
}

/* False: there is nothing to damage. */
static bool damage_cluster(struct scene *scene)
{
    uint64_t bytes = fake_medium_bytes(scene->cluster);
    uint64_t at = bytes > 0 ? sim_below(scene->sim, bytes) : 0;
    scene_tell(scene, "byte %" PRIu64 " of the cluster is damaged", at);
    return fake_medium_flip(scene->cluster, at, (unsigned)sim_below(scene->sim, 8));
}

static bool damage_disk(struct scene *scene)
{
    const struct ckpt_id newest = scene->oracle.newest_acked;
    char text[64];
    snprintf(text, sizeof text, "/%" PRIu64 "-%" PRIu64 "/", newest.term, newest.step);
    const char *within = sim_chance(scene->sim, 3) ? "" : text;
    struct pick count = {.within = within, .skip = UINT64_MAX};
    sim_disk_each_file(scene->disk, on_file, &count);
    if (count.count == 0) {
        return false;
    }
    struct pick pick = {.within = within, .skip = sim_below(scene->sim, count.count)};
    sim_disk_each_file(scene->disk, on_file, &pick);
    uint64_t byte = sim_below(scene->sim, pick.bytes);
    scene_tell(scene, "byte %" PRIu64 " of %s is damaged", byte, pick.path);
    CHECK(sim_disk_flip(scene->disk, pick.path, byte, (unsigned)sim_below(scene->sim, 8)));
    return true;
}

/* I4 under damage. One bit flips. Then a restore of latest brings one of the promised checkpoints,
 * the same to all ranks and every byte right, or a named error; never other bytes. */
static void check_damage(struct scene *scene)
{
    if (!(scene->shared ? damage_cluster(scene) : damage_disk(scene))) {
        return;
    }
    scene->medium_was_harmed = true;
    start_checker(scene);
    if (scene->job->ranks[0]->ready_status == 0) {
        job_ask_restore(scene->job, (struct selector){.kind = SELECT_LATEST}, FETCH_MS);
        scene_await(scene, is_restored, FETCH_MS + 5000, "a restore from a damaged disk");
        bool restored = job_take_restore(scene->job);
        scene_tell(scene, "%s", restored ? "restored" : "refused");
    }
    end_checker(scene);
}

static bool is_empty(struct scene *scene)
{
    return jobs_are_gone(scene) && neighbours_are_gone(scene);
}

static void end_world(struct scene *scene)
{
    /* The ranks die as they are, the machine loses its power, and all that is left is the disk. */
    scene->over = true;
    if (scene->job) {
        job_close(scene->job);
        scene->job = NULL;
    }
    neighbours_end(scene);
    scene_await(scene, is_empty, 10000, "the end of the jobs");
    scene->calm = true;
    scene->power_loss = scene->lose_all = true;
    daemon_kill_all(scene);
    scene_await(scene, is_silent, 20000, "the end of the dead daemons");
    start_checker(scene);
    check_all(scene);
    neighbours_check(scene);
    end_checker(scene);
    if (sim_chance(scene->sim, 3)) {
        check_damage(scene);
    }
}

struct outcome {
    uint64_t trace, steps, acks, restores, failures;
};

static struct outcome run_seed(uint64_t seed, const struct scene_options *options)
{
    snprintf(seed_text, sizeof seed_text,
             "\nseed %" PRIu64 " got a signal; replay: CAIRN_SEED=%" PRIu64 " test_sim\n", seed,
             seed);
    struct scene *scene = scene_new(seed, options);
    uint64_t harm_ms = 500 + sim_below(scene->sim, 4000);
    faults_plan(scene, harm_ms);
    if (scene->op) {
        operator_start(scene->op);
    }
    sim_run_for(scene->sim, harm_ms);
    faults_heal(scene);
    if (scene->neighbour_count > 0) {
        neighbours_expect(scene);
        neighbour_add(scene); /* a new run opens, whatever the daemon's last start met */
    }
    scene_await(scene, is_healed, HEAL_MS, "I7: a save after the end of all faults");
    scene_await(scene, neighbours_have_saved, HEAL_MS, "I7: the same of all other runs");
    end_world(scene);
    struct outcome outcome = {sim_trace_hash(scene->sim), sim_steps(scene->sim), scene->oracle.acks,
                              scene->oracle.restores, scene->oracle.failures};
    scene_free(scene);
    return outcome;
}

/* --- campaigns -------------------------------------------------------------------- */

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void on_abort(int signum)
{
    err_ignore(write(STDERR_FILENO, seed_text, strlen(seed_text)) < 0); /* nothing is left to do */
    signal(signum, SIG_DFL);
    raise(signum);
}

static void replay_twice(uint64_t seed, const struct scene_options *options,
                         const struct outcome *first)
{
    struct outcome second = run_seed(seed, options);
    if (memcmp(&second, first, sizeof second) != 0) {
        fprintf(stderr, "seed %" PRIu64 " was not replayed: %" PRIu64 " events, then %" PRIu64 "\n",
                seed, first->steps, second.steps);
        exit(1);
    }
}

/* part of parts: ctest runs several beside each other. */
static int run_campaign(uint64_t part, uint64_t parts, bool shared)
{
    const struct scene_options options = {.shared = shared};
    uint64_t count = shared ? SHARED_SEEDS : SEEDS;
    count = env_number("CAIRN_SEEDS", getenv("CAIRN_FULL") ? SEEDS_FULL : count);
    count /= parts;
    uint64_t first = env_number("CAIRN_FIRST_SEED", 1) + (part - 1) * count;
    struct outcome sum = {0};
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + count - 1);
    fflush(stdout);
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct outcome one = run_seed(seed, &options);
        if (seed % REPLAY_EACH == 0) {
            replay_twice(seed, &options, &one);
        }
        sum.steps += one.steps;
        sum.acks += one.acks;
        sum.restores += one.restores;
        sum.failures += one.failures;
    }
    printf("%" PRIu64 " seeds: %" PRIu64 " events, %" PRIu64
           " acknowledged saves of a rank, %" PRIu64 " failed ones, %" PRIu64
           " restores of a rank compared\n",
           count, sum.steps, sum.acks, sum.failures, sum.restores);
    if (sum.acks == 0 || sum.failures == 0 || sum.restores == 0) {
        fprintf(stderr, "the simulation does not do what it is for\n");
        return 1;
    }
    return 0;
}

/* A child runs seeds with a mutant until one is found: it exits with 1, or dies by a broken CHECK.
 */
static bool is_caught(const struct sim_mutant *mutant, uint64_t count, bool verbose)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (!verbose && !freopen("/dev/null", "w", stderr)) {
            _exit(2);
        }
        for (uint64_t tried = 0; tried < count; tried++) {
            uint64_t seed = mutant->seed + tried;
            printf("\r%s: seed %" PRIu64, mutant->name, seed);
            fflush(stdout);
            const struct scene_options options = {.mutant = mutant,
                                                  .shared = mutant_is_shared(mutant)};
            (void)run_seed(seed, &options);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    bool survived = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s\n", survived ? ": NOT FOUND" : ": found");
    return !survived;
}

static const struct sim_mutant *mutant_of_env(void)
{
    const char *name = getenv("CAIRN_MUTANT");
    for (int kind = 0; name && kind < MUTANT_COUNT; kind++) {
        if (strcmp(mutant_get((enum mutant)kind)->name, name) == 0) {
            return mutant_get((enum mutant)kind);
        }
    }
    return NULL;
}

static int run_mutants(bool shared)
{
    bool full = getenv("CAIRN_FULL") != NULL;
    uint64_t count = env_number("CAIRN_SEEDS", full ? MUTANT_SEEDS_FULL : MUTANT_SEEDS);
    int first = shared ? MUTANT_COUNT_DISK : 0, end = shared ? MUTANT_COUNT : MUTANT_COUNT_DISK;
    const struct sim_mutant *only = mutant_of_env();
    int missed = 0;
    for (int kind = first; kind < end; kind++) {
        const struct sim_mutant *mutant = mutant_get((enum mutant)kind);
        if (only && only != mutant) {
            continue;
        }
        if (mutant->rare && !full && !only) {
            printf("%s: looked for with CAIRN_FULL only\n", mutant->name);
            continue;
        }
        missed += !is_caught(mutant, count, getenv("CAIRN_VERBOSE") != NULL);
    }
    return missed ? 1 : 0;
}

int main(int argc, char **argv)
{
    bool verbose = getenv("CAIRN_VERBOSE") != NULL;
    bool shared = argc > 1 && strcmp(argv[1], "shared") == 0;
    char **args = argv + 1 + shared;
    int count = argc - 1 - shared;
    log_setup(verbose ? LOG_DEBUG : LOG_ERROR, LOG_TEXT);
    if (count == 1 && strcmp(args[0], "mutants") == 0) {
        return run_mutants(shared);
    }
    uint64_t part = count == 2 ? strtoull(args[0], NULL, 10) : 1;
    uint64_t parts = count == 2 ? strtoull(args[1], NULL, 10) : 1;
    if (count == 1 || count > 2 || part < 1 || part > parts) {
        fprintf(stderr, "usage: test_sim [shared] [mutants | PART PARTS]\n");
        return 2;
    }
    signal(SIGABRT, on_abort);
    signal(SIGSEGV, on_abort);
    if (getenv("CAIRN_SEED")) {
        const struct scene_options options = {
            .mutant = mutant_of_env(), .verbose = true, .shared = shared};
        struct outcome one = run_seed(env_number("CAIRN_SEED", 1), &options);
        printf("%" PRIu64 " events, trace %016" PRIx64 "\n", one.steps, one.trace);
        return 0;
    }
    return run_campaign(part, parts, shared);
}
