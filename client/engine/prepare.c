/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena beside the saves. It is made ahead of the first save: mapping and touching memory takes
 * a second for each GiB, so this is done while the trainer runs its first steps, after the restore.
 * And it is handed to the daemon of this host, once for each connection and again when it was made
 * anew; if the daemon does not take it, bytes go through the socket. Invariant: no save takes an
 * extent while the worker has the arena. If preparing fails, the first save makes the arena itself
 * and reports the error. Loop's thread; on_run on a worker.
 */
#include "engine/engine_private.h"

#include <errno.h>
#include <fcntl.h>

#include "base/check.h"
#include "base/log.h"
#include "gpu/gpu.h"

/* A program that starts registers its tensors and then restores. Touching the arena's memory beside
 * the restore was measured to make the restore three times as slow. So the preparation waits this
 * long for a restore to begin, and for the end of every restore that runs. */
enum { PREPARE_DELAY_MS = 1000 };

static void on_delay(struct timer *timer)
{
    engine_prepare_wake(container_of(timer, struct engine, prepare.delay));
}

void engine_prepare_init(struct engine *engine)
{
    timer_init(&engine->prepare.delay, engine->options.loop, on_delay);
}

struct layout_options engine_layout_options(const struct engine *engine)
{
    const struct link *link = &engine->link;
    return (struct layout_options){
        .chunk_bytes = link->joined.chunk_bytes,
        .payload_bytes = (uint32_t)min_u64(link->welcome.payload_max, LIMIT_CHUNK_BYTES),
        .object_bytes = link->joined.object_bytes};
}

static bool pin(void *user, size_t bytes, void *data) { return gpu_pin(user, bytes, data); }
static void unpin(void *user, void *data) { gpu_unpin(user, data); }

void engine_pin_arena(struct arena *arena, struct gpu *gpu)
{
    if (gpu) {
        const struct arena_lock lock = {.pin = pin, .unpin = unpin, .user = gpu};
        arena_pin(arena, &lock);
    }
}

static void on_run(struct work *work)
{
    struct prepare *prepare = container_of(work, struct prepare, work);
    struct diag diag = DIAG_INIT;
    /* The save that needs the room tries again, and its error is the one that counts. */
    err_ignore(arena_reserve(prepare->arena, prepare->bytes, &diag));
    engine_pin_arena(prepare->arena, prepare->gpu);
}

void engine_log_arena(const struct engine *engine)
{
    const struct arena *arena = engine->options.arena;
    LOG(LOG_INFO, "engine", "the staging memory is ready", lu("bytes", arena_bytes(arena)),
        ls("pages", arena_pages_name(arena_pages(arena))),
        ls("page-locked", arena_is_locked(arena) ? "yes" : "no"));
}

static void on_done(struct work *work)
{
    struct engine *engine = container_of(work, struct engine, prepare.work);
    CHECK(engine->magic == ENGINE_MAGIC);
    CHECK(engine->prepare.running);
    engine->prepare.running = false;
    engine_log_arena(engine);
    engine_wake_stagers(engine);
    engine_prepare_wake(engine);
    engine_op_gone(engine);
}

/* Returns how many bytes to prepare, or 0 if there is nothing to prepare or the layout fails. */
static uint64_t extent_bytes(const struct engine *engine)
{
    struct layout_options options = engine_layout_options(engine);
    struct layout layout;
    struct diag diag = DIAG_INIT;
    if (layout_init(&layout, engine->prepare.set, &options, &diag) != 0) {
        return 0; /* the save reports it */
    }
    uint64_t most = arena_max_bytes(engine->options.arena); /* a larger save goes in waves */
    most -= most % LIMIT_ALIGN_BYTES;
    uint64_t bytes = most > 0 ? min_u64(layout.extent_bytes, most) : layout.extent_bytes;
    CHECK(most == 0 || bytes <= most);
    layout_fini(&layout);
    return bytes;
}

void engine_prepare_wake(struct engine *engine)
{
    struct prepare *prepare = &engine->prepare;
    bool is_idle = !prepare->running && !engine->closing && list_is_empty(&engine->saves) &&
                   list_is_empty(&engine->restores);
    if (engine->restores_done > 0) {
        timer_stop(&prepare->delay); /* the restore is over: only saves follow */
    }
    is_idle = is_idle && !timer_is_active(&prepare->delay);
    if (!prepare->set || !is_idle || !engine->link.joined_once) {
        return;
    }
    prepare->bytes = extent_bytes(engine);
    prepare->gpu = prepare->set->gpu;
    engine_prepare_drop(engine);
    prepare->arena = engine->options.arena;
    bool must_pin = prepare->gpu && prepare->bytes > 0 && !arena_is_pinned(prepare->arena);
    if (prepare->bytes > arena_bytes(prepare->arena) || must_pin) {
        CHECK(prepare->arena != NULL);
        prepare->running = true;
        prepare->work = (struct work){.run = on_run, .done = on_done};
        work_submit(engine->options.pool, &prepare->work);
    }
}

void engine_prepare_drop(struct engine *engine)
{
    timer_stop(&engine->prepare.delay);
    registered_unref(engine->prepare.set);
    engine->prepare.set = NULL;
}

void engine_prepare(struct engine *engine, struct registered *set)
{
    CHECK(engine->magic == ENGINE_MAGIC);
    engine_prepare_drop(engine);
    if (engine->options.arena && !engine->options.viewer && !engine->closing) {
        engine->prepare.set = registered_ref(set);
        timer_start(&engine->prepare.delay, PREPARE_DELAY_MS);
        engine_prepare_wake(engine);
    }
}

/* --- at the daemon ---------------------------------------------------------------- */

static const struct request_ops hand_request_ops;

static struct hand *hand_of(struct request *request)
{
    return container_of(request, struct hand, request);
}

/* Notes that the daemon does not take the arena on this connection; the first refusal is logged. */
static void refuse(struct engine *engine, int status, const char *why)
{
    struct hand *hand = &engine->hand;
    hand->refused = true;
    diag_clear(&hand->why);
    diag_set(&hand->why, status, "%s", why);
    if (!hand->told) {
        hand->told = true;
        LOG(LOG_INFO, "hand", "the daemon does not take the arena; bytes go through the socket",
            lu("rank", engine->options.rank), ls("err", hand->why.text));
    }
}

void hand_reset(struct engine *engine)
{
    struct hand *hand = &engine->hand;
    link_forget(&engine->link, &hand->request);
    hand->request.ops = &hand_request_ops;
    hand->asked = hand->held = 0;
    hand->refused = false;
}

/* Offers the arena to the daemon, with a copy of its descriptor. */
static void ask(struct engine *engine, uint64_t generation)
{
    struct hand *hand = &engine->hand;
    const struct arena *arena = engine->options.arena;
    CHECK(generation != 0);
    CHECK(hand->held != generation);
    int fd = fcntl(arena_fd(arena), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        struct diag diag = DIAG_INIT;
        refuse(engine, diag_errno(&diag, errno, "cannot get a descriptor for the daemon"),
               diag.text);
        return;
    }
    struct msg msg = {.type = MSG_ARENA,
                      .u.arena = {.arena_id = generation, .bytes = arena_bytes(arena)}};
    link_forget(&engine->link, &hand->request); /* a request about an arena that is gone */
    hand->asked = generation;
    link_ask_fd(&engine->link, &hand->request, &msg, fd);
}

enum hand_answer hand_over(struct engine *engine)
{
    struct hand *hand = &engine->hand;
    if (!engine->link.hands_over || hand->refused) {
        return HAND_NO;
    }
    CHECK(engine->options.arena != NULL); /* only then it was offered */
    uint64_t generation = arena_generation(engine->options.arena);
    if (hand->held == generation) {
        return HAND_YES;
    }
    if (hand->asked != generation) {
        ask(engine, generation);
    }
    return hand->refused ? HAND_NO : HAND_WAIT;
}

/* Takes the daemon's answer: it has the arena, or it refuses it. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct hand *hand = hand_of(request);
    struct engine *engine = container_of(hand, struct engine, hand);
    (void)frame, (void)ret_payload;
    if (msg->type == MSG_ERROR) {
        struct diag why = DIAG_INIT;
        int code = engine_read_error(&msg->u.error, &why);
        refuse(engine, code, why.text);
    } else if (msg->u.arena.arena_id == hand->asked) {
        hand->held = hand->asked;
        link_forget(&engine->link, request);
    } else {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the server took another arena than was offered");
    }
    engine_pump(engine);
    return 0;
}

static void on_lost(struct request *request)
{
    struct hand *hand = hand_of(request);
    hand->asked = hand->held = 0;
}

static const struct request_ops hand_request_ops = {.on_reply = on_reply, .on_lost = on_lost};
