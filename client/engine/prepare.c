/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena ahead of the first save: mapping and touching it takes a second a GiB, which a trainer
 * should not wait for, so it is done while the trainer runs its first steps. Invariant: nobody
 * takes an extent while the worker has the arena; what cannot be prepared is left to the save,
 * which reports why. Loop's thread; on_run on a worker.
 */
#include "engine/engine_private.h"

#include "base/check.h"
#include "base/log.h"

struct layout_options engine_layout_options(const struct engine *engine)
{
    const struct link *link = &engine->link;
    return (struct layout_options){
        .chunk_bytes = link->joined.chunk_bytes,
        .payload_bytes = (uint32_t)min_u64(link->welcome.payload_max, LIMIT_CHUNK_BYTES),
        .object_bytes = link->joined.object_bytes};
}

static void on_run(struct work *work)
{
    struct prepare *prepare = container_of(work, struct prepare, work);
    struct diag diag = DIAG_INIT;
    /* The save that needs the room tries again, and its error is the one that counts. */
    err_ignore(arena_reserve(prepare->arena, prepare->bytes, &diag));
}

void engine_log_arena(const struct engine *engine)
{
    const struct arena *arena = engine->options.arena;
    LOG(LOG_INFO, "engine", "staging memory", lu("bytes", arena_bytes(arena)),
        ls("pages", arena_pages_name(arena_pages(arena))));
}

static void on_done(struct work *work)
{
    struct engine *engine = container_of(work, struct engine, prepare.work);
    CHECK(engine->magic == ENGINE_MAGIC);
    engine->prepare.running = false;
    engine_log_arena(engine);
    engine_wake_stagers(engine);
    engine_prepare_wake(engine);
    engine_op_gone(engine);
}

/* 0: nothing to prepare, or no way to tell. */
static uint64_t extent_bytes(const struct engine *engine)
{
    struct layout_options options = engine_layout_options(engine);
    struct layout layout;
    struct diag diag = DIAG_INIT;
    if (layout_init(&layout, engine->prepare.set, &options, &diag) != 0) {
        return 0; /* the save will say so */
    }
    uint64_t most = arena_max_bytes(engine->options.arena); /* a larger save goes in waves */
    most -= most % LIMIT_ALIGN_BYTES;
    uint64_t bytes = most > 0 ? min_u64(layout.extent_bytes, most) : layout.extent_bytes;
    layout_fini(&layout);
    return bytes;
}

void engine_prepare_wake(struct engine *engine)
{
    struct prepare *prepare = &engine->prepare;
    bool is_idle = !prepare->running && !engine->closing && list_is_empty(&engine->saves);
    if (!prepare->set || !is_idle || !engine->link.joined_once) {
        return;
    }
    prepare->bytes = extent_bytes(engine);
    engine_prepare_drop(engine);
    prepare->arena = engine->options.arena;
    if (prepare->bytes > arena_bytes(prepare->arena)) {
        prepare->running = true;
        prepare->work = (struct work){.run = on_run, .done = on_done};
        work_submit(engine->options.pool, &prepare->work);
    }
}

void engine_prepare_drop(struct engine *engine)
{
    registered_unref(engine->prepare.set);
    engine->prepare.set = NULL;
}

void engine_prepare(struct engine *engine, struct registered *set)
{
    CHECK(engine->magic == ENGINE_MAGIC);
    engine_prepare_drop(engine);
    if (engine->options.arena && !engine->options.viewer && !engine->closing) {
        engine->prepare.set = registered_ref(set);
        engine_prepare_wake(engine);
    }
}
