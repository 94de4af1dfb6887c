/* SPDX-License-Identifier: Apache-2.0
 *
 * The landing: memory of this process that a daemon of the same host reads into, so that restored
 * bytes pass no socket. A worker makes it while the restore is still being planned, and it is
 * handed over once; workers then verify what has landed while they copy it to where it belongs.
 * Invariant: a place is named in one READ at a time, and after a READ was given up (the connection
 * was lost, or the restore ends) nothing lands any more, because the daemon may still be writing.
 * If any of this fails, READs go through the socket. Loop's thread; the memory is made on a worker.
 */
#include "engine/restore_private.h"

#include "arena/arena.h"
#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>

/* A smaller restore does not land, because making and mapping the memory costs some
 * milliseconds. */
#define WORTH_BYTES (UINT64_C(64) << 20)

static const struct request_ops landing_request_ops;

/* Called when it is decided whether reads land: READs may begin. */
static void settled(struct restore *restore)
{
    if (restore_is_reading(restore)) {
        restore_read_pump(restore);
    }
    restore_wake(restore);
}

static void refuse(struct restore *restore, const char *why)
{
    struct landing *landing = &restore->landing;
    LOG(LOG_INFO, "restore",
        "the daemon does not write into this process's memory; bytes come through the socket",
        lu("rank", restore->engine->options.rank), ls("err", why));
    link_forget(&restore->engine->link, &landing->request);
    landing->state = LANDING_NONE;
    settled(restore);
}

/* --- making it ------------------------------------------------------------------- */

static void on_make_run(struct work *work)
{
    struct landing *landing = container_of(work, struct landing, work);
    const uint64_t bytes = (uint64_t)RESTORE_LANDING_SLOTS * landing->place_bytes;
    landing->status = arena_new(bytes, &landing->arena, &landing->diag);
    if (landing->status == 0) {
        landing->status = arena_reserve(landing->arena, bytes, &landing->diag);
    }
}

/* Offers the memory to the daemon, with a copy of its descriptor. */
static void offer(struct restore *restore)
{
    struct landing *landing = &restore->landing;
    struct engine *engine = restore->engine;
    struct diag diag = DIAG_INIT;
    int fd = fcntl(arena_fd(landing->arena), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        err_ignore(diag_errno(&diag, errno,
                              "cannot get a descriptor for the daemon")); /* for its text only */
        refuse(restore, diag.text);
        return;
    }
    CHECK(landing->state == LANDING_MAKING);
    CHECK(landing->data != NULL);
    landing->state = LANDING_OFFERED;
    landing->id = restore->ordinal; /* there is one in each restore */
    struct msg msg = {
        .type = MSG_LANDING,
        .u.landing = {.landing_id = landing->id, .bytes = arena_bytes(landing->arena)}};
    link_ask_fd(&engine->link, &landing->request, &msg, fd);
}

/* Called when the memory is made, or could not be. Offers it, if the connection still takes it. */
static void on_make_done(struct work *work)
{
    struct landing *landing = container_of(work, struct landing, work);
    struct restore *restore = container_of(landing, struct restore, landing);
    const struct link *link = &restore->engine->link;
    CHECK(landing->state == LANDING_MAKING);
    if (landing->status == 0) {
        landing->data =
            arena_take(landing->arena, (uint64_t)RESTORE_LANDING_SLOTS * landing->place_bytes);
    }
    if (!landing->data) {
        refuse(restore, diag_text(&landing->diag, landing->status));
    } else if (!link_is_up(link) || !link->lands) {
        refuse(restore, "the connection was lost");
    } else {
        offer(restore);
    }
}

void restore_land_begin(struct restore *restore)
{
    struct landing *landing = &restore->landing;
    const struct link *link = &restore->engine->link;
    CHECK(landing->state == LANDING_NONE);
    landing->request.ops = &landing_request_ops;
    bool is_worth_it = restore->user->info.plain_bytes >= WORTH_BYTES ||
                       restore->engine->options.transport == TRANSPORT_MEMFD;
    if (link_is_up(link) && link->lands && is_worth_it && restore->status == 0) {
        landing->state = LANDING_MAKING;
        /* No READ needs more than the checkpoint has. */
        landing->place_bytes = (uint32_t)min_u64(
            LIMIT_CHUNK_BYTES,
            round_up_u64(min_u64(restore->user->info.plain_bytes, LIMIT_CHUNK_BYTES) + 1,
                         LIMIT_ALIGN_BYTES));
        CHECK(landing->place_bytes % LIMIT_ALIGN_BYTES == 0);
        CHECK(landing->place_bytes <= LIMIT_CHUNK_BYTES);
        landing->work = (struct work){.run = on_make_run, .done = on_make_done};
        work_submit(restore->engine->options.pool, &landing->work);
    }
}

/* --- what the server says -------------------------------------------------------- */

/* Takes the daemon's answer: it has mapped the memory, or it refuses it. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct landing *landing = container_of(request, struct landing, request);
    struct restore *restore = container_of(landing, struct restore, landing);
    (void)frame;
    (void)ret_payload;
    if (msg->type == MSG_ERROR) {
        refuse(restore, msg->u.error.text && msg->u.error.text[0] ? msg->u.error.text
                                                                  : err_text(msg->u.error.code));
        return 0;
    }
    if (msg->u.landing.landing_id != landing->id) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the server took other memory than was offered");
    }
    CHECK(landing->state == LANDING_OFFERED);
    link_forget(&restore->engine->link, request);
    arena_close_fd(landing->arena);
    landing->state = LANDING_HELD;
    LOG(LOG_DEBUG, "restore", "the daemon writes what it reads into this process's memory",
        lu("rank", restore->engine->options.rank), lu("bytes", arena_bytes(landing->arena)));
    settled(restore);
    return 0;
}

static void on_lost(struct request *request)
{
    struct landing *landing = container_of(request, struct landing, request);
    refuse(container_of(landing, struct restore, landing), "the connection was lost");
}

static const struct request_ops landing_request_ops = {.on_reply = on_reply, .on_lost = on_lost};

/* --- its use --------------------------------------------------------------------- */

bool restore_land_is_settled(const struct restore *restore)
{
    return restore->landing.state == LANDING_NONE || restore->landing.state == LANDING_HELD;
}

bool restore_land_is_busy(const struct restore *restore)
{
    return restore->landing.state == LANDING_MAKING;
}

void restore_land_stop(struct restore *restore) { restore->landing.state = LANDING_NONE; }

uint8_t *restore_land_place(const struct restore *restore, const struct read_slot *slot)
{
    size_t idx = (size_t)(slot - restore->slots);
    CHECK(idx < RESTORE_LANDING_SLOTS);
    CHECK(restore->landing.data != NULL);
    return restore->landing.data + idx * restore->landing.place_bytes;
}

/* Widens the range to whole pages, as a direct read wants it. This never passes the end of the
 * object, because an object's data ends with a whole page and its footer follows. */
bool restore_land_range(const struct restore *restore, const struct read_slot *slot,
                        const struct read_group *group, struct msg_read *ret)
{
    const struct landing *landing = &restore->landing;
    uint64_t from = group->offset - group->offset % LIMIT_ALIGN_BYTES;
    uint64_t to = round_up_u64(group->offset + group->bytes, LIMIT_ALIGN_BYTES);
    uint64_t most = min_u64(restore->engine->link.welcome.payload_max, landing->place_bytes);
    if (landing->state != LANDING_HELD || to - from > most) {
        return false;
    }
    CHECK(from <= group->offset);
    CHECK(to - from >= group->bytes);
    ret->offset = from;
    ret->bytes = (uint32_t)(to - from);
    ret->landing_id = landing->id;
    ret->landing_offset = arena_offset(landing->arena, restore_land_place(restore, slot));
    return true;
}

/* Tells the daemon to let go of the memory, so that it does not hold it longer than this process.
 * The answer is dropped. */
static void take_back(struct restore *restore)
{
    struct link *link = &restore->engine->link;
    struct request nobody = {.ops = NULL};
    struct msg msg = {.type = MSG_LANDING, .u.landing = {.landing_id = restore->landing.id}};
    nobody.stream = link->next_stream++;
    link_send(link, &nobody, &msg);
}

void restore_land_fini(struct restore *restore)
{
    struct landing *landing = &restore->landing;
    CHECK(landing->state != LANDING_MAKING);
    if (landing->id != 0 && link_is_up(&restore->engine->link) && restore->engine->link.lands) {
        take_back(restore);
    }
    link_forget(&restore->engine->link, &landing->request);
    if (landing->data) {
        arena_give(landing->arena, landing->data);
    }
    CHECK(landing->request.stream == 0);
    arena_free(landing->arena);
    landing->arena = NULL;
    landing->data = NULL;
}
