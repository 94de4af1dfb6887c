/* SPDX-License-Identifier: Apache-2.0
 *
 * The world of a seed, its clockwork, and how a broken invariant is reported. One thread.
 */
#include "sim_scene.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "sim_daemon.h"
#include "sim_job.h"
#include "sim_mutant.h"
#include "sim_neighbour.h"
#include "sim_operator.h"
#include "sim_plant.h"

uint64_t scene_now_ms(const struct scene *scene) { return sim_now_ns(scene->sim) / 1000000; }

void scene_tell(struct scene *scene, const char *fmt, ...)
{
    if (!scene->verbose) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%8.3f  ", (double)sim_now_ns(scene->sim) / 1e9);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

void scene_fail(struct scene *scene, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "\nseed %" PRIu64 ", event %" PRIu64 ", %.3f s: ", scene->seed,
            sim_steps(scene->sim), (double)sim_now_ns(scene->sim) / 1e9);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\nthe plan:\n");
    faults_print(scene);
    fprintf(stderr, "replay: CAIRN_SEED=%" PRIu64 "%s%s test_sim%s\n", scene->seed,
            scene->mutant ? " CAIRN_MUTANT=" : "", scene->mutant ? scene->mutant->name : "",
            scene->shared ? " shared" : "");
    _exit(1); /* at once: leaks and the like would only hide what matters */
}

void scene_keep_host(struct scene *scene, struct sim_host *host)
{
    CHECK(scene->host_count < SCENE_HOSTS_MAX);
    scene->hosts[scene->host_count++] = host;
}

struct sim_host *scene_host(struct scene *scene, const char *name, struct sim_disk *disk)
{
    struct sim_host *host = sim_host_new(scene->sim, name, disk);
    scene_keep_host(scene, host);
    return host;
}

static void on_tick(void *user)
{
    struct scene *scene = user;
    if (scene->ticking) {
        daemon_tick(scene);
        jobs_tick(scene);
        neighbours_tick(scene);
        sim_at(scene->sim, SCENE_TICK_MS, on_tick, scene);
    }
}

static void seats_init(struct scene *scene)
{
    scene->seat_count = 1;
    snprintf(scene->seats[0].name, sizeof scene->seats[0].name, "server");
    if (!scene->shared) {
        return;
    }
    scene->cluster = fake_medium_new();
    scene->weather.timeout_us = 300000 + sim_below(scene->sim, 900000);
    scene->poll_ms = sim_chance(scene->sim, 2) ? 100 : 5 + sim_below(scene->sim, 300);
    scene->seat_count = 2 + (unsigned)sim_below(scene->sim, SCENE_DAEMONS_MAX - 1);
    for (unsigned i = 0; i < scene->seat_count; i++) {
        snprintf(scene->seats[i].name, sizeof scene->seats[i].name, "server%u", i);
    }
}

struct scene *scene_new(uint64_t seed, const struct scene_options *options)
{
    struct scene *scene = calloc(1, sizeof *scene);
    CHECK(scene);
    *scene = (struct scene){.seed = seed,
                            .mutant = options->mutant,
                            .verbose = options->verbose,
                            .shared = options->shared};
    scene->sim = sim_new(seed);
    scene->disk = sim_disk_new(scene->sim);
    seats_init(scene);
    if (mutant_is(scene->mutant, MUTANT_FENCE_UNGUARDED)) {
        scene->poll_ms = 3000; /* two grants must meet: daemons look less often at what others do */
    }
    scene->local = seed % 2 == 1;
    scene->object_bytes = KIB(12) << sim_below(scene->sim, 3);
    scene->part_bytes = sim_chance(scene->sim, 3) ? KIB(4) : MIB(1);
    scene->cache_bytes = sim_chance(scene->sim, 3) ? 1 : 0;
    scene->deadline_ms_max = sim_chance(scene->sim, 3) ? 3000 : 0;
    scene->sessions_max = sim_chance(scene->sim, 3) ? 4 : 64;
    scene->snapshot_every = 2 + (unsigned)sim_below(scene->sim, 8);
    scene->tended = mutant_needs_upkeep(scene->mutant) || (seed / 2) % 2 == 1;
    if (scene->tended) {
        scene->gc_every_ms = 10 + sim_below(scene->sim, sim_chance(scene->sim, 2) ? 150 : 1500);
        scene->scrub_every_ms = sim_chance(scene->sim, 2) ? 100 + sim_below(scene->sim, 2000) : 0;
        scene->op = operator_new(scene);
    }
    /* Over the socket: what is handed over, the daemon refers by itself. */
    scene->liar =
        seed % 4 == 0 || (mutant_is(scene->mutant, MUTANT_ANY_REFERENCE) && !scene->local);
    plant(scene, scene->mutant);
    if ((seed / 8) % 2 == 1) {
        scene->sessions_max += SCENE_NEIGHBOURS_MAX;
        for (uint64_t n = 1 + sim_below(scene->sim, SCENE_NEIGHBOURS_MAX - 1); n > 0; n--) {
            neighbour_add(scene);
        }
    }
    list_init(&scene->daemons_ending);
    list_init(&scene->jobs_ending);
    scene->ticking = true;
    sim_at(scene->sim, 0, on_tick, scene);
    return scene;
}

int scene_url(const struct scene *scene, const char *run, struct url *ret, struct diag *diag)
{
    char text[160] = "cairn://";
    if (!scene->shared && scene->local) {
        snprintf(text, sizeof text, "cairn+unix:///server?run=sim/%s", run);
        return url_parse(text, NULL, false, ret, diag);
    }
    for (unsigned i = 0; i < scene->seat_count; i++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s:%d", i > 0 ? "," : "", scene->seats[i].name,
                 SCENE_PORT);
    }
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "/sim/%s", run);
    int status = url_parse(text, NULL, false, ret, diag);
    /* The first server is on the ranks' machine: what is handed over to it may go on at another. */
    if (status == 0 && scene->local) {
        snprintf(ret->servers[0], sizeof ret->servers[0], "unix:/%s", scene->seats[0].name);
    }
    return status;
}

struct waits {
    struct scene *scene;
    bool (*done)(struct scene *scene);
};

static bool is_over(void *user)
{
    const struct waits *waits = user;
    return waits->done(waits->scene);
}

void scene_await(struct scene *scene, bool (*done)(struct scene *scene), uint64_t within_ms,
                 const char *what)
{
    struct waits waits = {scene, done};
    if (!sim_run_until(scene->sim, is_over, &waits, within_ms)) {
        scene_fail(scene, "%s did not happen within %" PRIu64 " ms", what, within_ms);
    }
}

/* I8: whatever ran on any host has given everything back. */
static void check_hosts(struct scene *scene)
{
    for (size_t i = 0; i < scene->host_count; i++) {
        const struct sim_host *host = scene->hosts[i];
        if (sim_open_socks(host) || sim_open_files(host) || sim_open_works(host)) {
            scene_fail(scene, "I8: host %s (number %zu) left %zu sockets, %zu files, %zu works",
                       sim_host_name(host), i, sim_open_socks(host), sim_open_files(host),
                       sim_open_works(host));
        }
    }
}

void scene_free(struct scene *scene)
{
    scene->ticking = false;
    sim_run_for(scene->sim, 5000); /* what lingers: sockets that say goodbye */
    check_hosts(scene);
    sim_free(scene->sim);
    operator_free(scene->op);
    neighbours_free(scene);
    plant_fini();
    fake_medium_free(scene->cluster);
    oracle_fini(&scene->oracle);
    free(scene);
}
