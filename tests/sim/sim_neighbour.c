/* SPDX-License-Identifier: Apache-2.0
 *
 * A neighbour has one tensor, whose words all follow from the run and the step, and one save at a
 * time. After a save that failed its process may end, and another one, a new attempt, goes on with
 * the next step. Invariant: what was acknowledged is the latest at the end, or something newer is.
 * One thread.
 */
#include "sim_neighbour.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "save/save.h"
#include "support/made_set.h"

enum { WORDS = 200, GRACE_MS = 12000, RESTORE_MS = 20000 };

/* The process of the moment. */
struct process {
    struct sim_neighbour *neighbour;
    struct engine *engine;
    struct arena *arena;
    struct registered *set;
    struct sim_host *host;
    int64_t words[WORDS];
    struct engine_save save;
    struct engine_restore restore;
    bool ready, saving, restoring, closing, closed;
    int status; /* of the JOIN, later of the restore */
    uint64_t end_ms;
};

struct sim_neighbour {
    struct scene *scene;
    struct run_name name;
    struct process *process; /* NULL between two */
    unsigned number, processes;
    uint64_t step, next_ms;
    struct ckpt_id acked; /* the newest; its term is 0 if there is none */
    bool owes, rests;
};

static int64_t word_of(const struct sim_neighbour *neighbour, uint64_t step, size_t at)
{
    return (int64_t)(neighbour->number * UINT64_C(1000003) + step * 1009 + at);
}

static struct registered *register_words(struct process *process)
{
    static uint32_t alone[] = {0};
    struct registered_box box = made_vector(WORDS, process->words);
    struct registered_tensor tensor = made_tensor("words", CAIRN_I64, PLACEMENT_REPLICATED, &box);
    tensor.group = alone;
    tensor.group_count = 1;
    struct registered_list list = {.world_size = 1, .tensor_count = 1, .tensors = &tensor};
    struct registered *set;
    struct diag diag = DIAG_INIT;
    if (registered_new(&list, &set, &diag) != 0) {
        scene_fail(process->neighbour->scene, "registering: %s", diag.text);
    }
    return set;
}

/* --- a process ------------------------------------------------------------------- */

static void on_ready(void *user, int status, const struct diag *diag)
{
    struct process *process = user;
    process->ready = true;
    process->status = status;
    if (status != 0) {
        scene_tell(process->neighbour->scene, "%s does not join: %s", process->neighbour->name.run,
                   diag->text);
    }
}

static void start(struct sim_neighbour *neighbour)
{
    struct scene *scene = neighbour->scene;
    struct process *process = calloc(1, sizeof *process);
    char name[32];
    struct diag diag = DIAG_INIT;
    CHECK(process);
    neighbour->process = process;
    process->neighbour = neighbour;
    snprintf(name, sizeof name, "%.20s-%u", neighbour->name.run, neighbour->processes++);
    process->host = scene_host(scene, name, NULL);
    process->set = register_words(process);
    struct engine_options options = {.loop = sim_loop(process->host),
                                     .net = sim_net(process->host),
                                     .pool = sim_pool(process->host),
                                     .world_size = 1,
                                     .writer = sim_random(scene->sim) | 1,
                                     .io_deadline_ms = 5000,
                                     .reconnect_ms_min = 20,
                                     .reconnect_ms_max = 1000,
                                     .label = "sim"};
    for (size_t i = 0; i < sizeof options.token.bytes; i++) {
        options.token.bytes[i] = (uint8_t)sim_random(scene->sim);
    }
    int status = arena_new(KIB(64), &process->arena, &diag);
    options.arena = process->arena;
    status = status != 0 ? status : scene_url(scene, neighbour->name.run, &options.url, &diag);
    status =
        status != 0 ? status : engine_new(&options, on_ready, process, &process->engine, &diag);
    if (status != 0) {
        scene_fail(scene, "a neighbour does not start: %s", diag.text);
    }
}

static void end(struct process *process)
{
    process->closing = true;
    engine_close(process->engine, sim_raise, &process->closed);
}

static void bury(struct sim_neighbour *neighbour)
{
    struct process *process = neighbour->process;
    if (process->saving || process->restoring || arena_used_bytes(process->arena) != 0 ||
        process->set->refs != 1) {
        scene_fail(neighbour->scene, "I8: %s closed with an open call", neighbour->name.run);
    }
    registered_unref(process->set);
    arena_free(process->arena);
    free(process);
    neighbour->process = NULL;
    neighbour->next_ms = scene_now_ms(neighbour->scene) + sim_below(neighbour->scene->sim, 500);
}

/* --- saves ------------------------------------------------------------------------ */

static void on_staged(struct engine_save *save, int status)
{
    (void)save; /* the words stay as they are until on_done */
    (void)status;
}

static void on_saved(struct engine_save *save, int status)
{
    struct process *process = container_of(save, struct process, save);
    struct sim_neighbour *neighbour = process->neighbour;
    struct scene *scene = neighbour->scene;
    process->saving = false;
    scene_tell(scene, "%s: save of %" PRIu64 ": %s %s", neighbour->name.run, save->step,
               status ? err_name(status) : "done", status ? save->diag.text : "");
    if (status == 0) {
        scene->oracle.acks++;
        neighbour->acked = save->id;
        neighbour->owes = false;
    } else if (!process->closing && sim_chance(scene->sim, 2)) {
        end(process);
    }
}

static void save(struct process *process)
{
    struct sim_neighbour *neighbour = process->neighbour;
    struct scene *scene = neighbour->scene;
    neighbour->step++;
    for (size_t i = 0; i < WORDS; i++) {
        process->words[i] = word_of(neighbour, neighbour->step, i);
    }
    process->save = (struct engine_save){.step = neighbour->step,
                                         .deadline_ms = 1000 + sim_below(scene->sim, 3000),
                                         .set = process->set,
                                         .on_staged = on_staged,
                                         .on_done = on_saved};
    process->saving = true;
    process->end_ms = scene_now_ms(scene) + process->save.deadline_ms + GRACE_MS;
    neighbour->next_ms = scene_now_ms(scene) + 50 + sim_below(scene->sim, 400);
    engine_save_start(process->engine, &process->save);
}

/* --- all of them ------------------------------------------------------------------ */

void neighbour_add(struct scene *scene)
{
    struct sim_neighbour *neighbour = calloc(1, sizeof *neighbour);
    CHECK(neighbour);
    CHECK(scene->neighbour_count < SCENE_NEIGHBOURS_MAX);
    *neighbour = (struct sim_neighbour){.scene = scene,
                                        .number = scene->neighbour_count,
                                        .next_ms = scene_now_ms(scene) + sim_below(scene->sim, 800),
                                        .owes = true,
                                        .name = {.project = "sim"}};
    snprintf(neighbour->name.run, sizeof neighbour->name.run, "neighbour%u",
             scene->neighbour_count);
    scene->neighbours[scene->neighbour_count++] = neighbour;
}

static void tick(struct sim_neighbour *neighbour)
{
    struct process *process = neighbour->process;
    uint64_t now = scene_now_ms(neighbour->scene);
    if (process == NULL) {
        if (!neighbour->rests && now >= neighbour->next_ms) {
            start(neighbour);
        }
        return;
    }
    if (process->closed) {
        bury(neighbour);
    } else if ((process->saving || process->restoring) && now > process->end_ms) {
        scene_fail(neighbour->scene, "I7: a save or restore of %s hangs past its deadline",
                   neighbour->name.run);
    } else if (!process->closing &&
               (neighbour->rests || (process->ready && process->status != 0))) {
        end(process);
    } else if (!process->closing && process->ready && !process->saving && !process->restoring &&
               !neighbour->scene->over && now >= neighbour->next_ms) {
        save(process);
    }
}

void neighbours_tick(struct scene *scene)
{
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        tick(scene->neighbours[i]);
    }
}

void neighbours_expect(struct scene *scene)
{
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        scene->neighbours[i]->owes = true;
    }
}

bool neighbours_have_saved(struct scene *scene)
{
    bool all = true;
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        all = all && !scene->neighbours[i]->owes;
    }
    return all;
}

void neighbours_end(struct scene *scene)
{
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        scene->neighbours[i]->rests = true;
    }
}

bool neighbours_are_gone(struct scene *scene)
{
    bool all = true;
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        all = all && scene->neighbours[i]->process == NULL;
    }
    return all;
}

/* --- the end ---------------------------------------------------------------------- */

static struct process *checked; /* one at a time */

static void on_restored(struct engine_restore *restore, int status)
{
    struct process *process = container_of(restore, struct process, restore);
    process->restoring = false;
    process->status = status;
}

static bool is_ready(struct scene *scene)
{
    (void)scene;
    return checked->ready;
}

static bool is_restored(struct scene *scene)
{
    (void)scene;
    return !checked->restoring;
}

static void check_words(const struct sim_neighbour *neighbour)
{
    struct ckpt_id id = checked->restore.id;
    if (ckpt_id_compare(id, neighbour->acked) < 0) {
        scene_fail(neighbour->scene,
                   "I1: %s restored %" PRIu64 "@%" PRIu64 ", older than %" PRIu64 "@%" PRIu64,
                   neighbour->name.run, id.step, id.term, neighbour->acked.step,
                   neighbour->acked.term);
    }
    for (size_t i = 0; i < WORDS; i++) {
        if (checked->words[i] != word_of(neighbour, id.step, i)) {
            scene_fail(neighbour->scene, "I4: %s: word %zu of step %" PRIu64 " is wrong",
                       neighbour->name.run, i, id.step);
        }
    }
    neighbour->scene->oracle.restores++;
}

static void check(struct sim_neighbour *neighbour)
{
    struct scene *scene = neighbour->scene;
    neighbour->next_ms = UINT64_MAX; /* it saves nothing, and has no other process after this one */
    start(neighbour);
    checked = neighbour->process;
    scene_await(scene, is_ready, RESTORE_MS, "the join of a neighbour at the end");
    CHECK(checked->status == 0);
    checked->restoring = true;
    checked->end_ms = UINT64_MAX;
    checked->restore = (struct engine_restore){.selector = {.kind = SELECT_LATEST},
                                               .strict = true,
                                               .deadline_ms = RESTORE_MS,
                                               .set = checked->set,
                                               .on_done = on_restored};
    engine_restore_start(checked->engine, &checked->restore);
    scene_await(scene, is_restored, RESTORE_MS + 5000, "the restore of a neighbour at the end");
    if (checked->status != 0) {
        scene_fail(scene, "I1: %s cannot be restored at the end: %s: %s", neighbour->name.run,
                   err_name(checked->status), checked->restore.diag.text);
    }
    check_words(neighbour);
    engine_restore_fini(&checked->restore);
    neighbour->rests = true;
}

void neighbours_check(struct scene *scene)
{
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        scene->neighbours[i]->rests = false;
        check(scene->neighbours[i]);
        scene_await(scene, neighbours_are_gone, 10000, "the end of a neighbour");
    }
}

void neighbours_free(struct scene *scene)
{
    for (unsigned i = 0; i < scene->neighbour_count; i++) {
        CHECK(scene->neighbours[i]->process == NULL);
        free(scene->neighbours[i]);
    }
}
