/* SPDX-License-Identifier: Apache-2.0
 *
 * What the base of a save holds for this rank is known from our own last save, or is fetched after
 * a restore or a restart. Digests wait for it, so that each chunk is compared once. If it cannot be
 * had, the save sends everything, which is always right and only costs bytes. Loop's thread.
 */
#include "save/save_base.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { FETCH_PART = 2 }; /* the wire's number for a part */

/* Returns the engine's base of that checkpoint, or NULL. The engine keeps the reference. */
static struct base_part *find(struct engine *engine, struct ckpt_id id)
{
    for (unsigned i = 0; i < ENGINE_BASES; i++) {
        if (engine->bases[i] && ckpt_id_equal(engine->bases[i]->id, id)) {
            return engine->bases[i];
        }
    }
    return NULL;
}

/* Puts the base in front of the others and takes the reference. The oldest one goes. */
static void keep(struct engine *engine, struct base_part *base)
{
    base_part_unref(engine->bases[ENGINE_BASES - 1]);
    memmove(&engine->bases[1], &engine->bases[0], sizeof engine->bases - sizeof engine->bases[0]);
    engine->bases[0] = base;
}

void save_base_keep(struct save *save)
{
    struct engine *engine = save->common.engine;
    struct base_part *base;
    struct diag diag = DIAG_INIT;
    bool is_known = save->told || save->way == WAY_SOCKET;
    if (save->base && save->layout.plain_bytes > 0 && is_known) {
        engine->gain.known = true;
        engine->gain.percent = (uint32_t)(save->shared_bytes * 100 / save->layout.plain_bytes);
    }
    if (save->way == WAY_HAND || !save->part.made || save->common.reach != REACH_SEALED ||
        save->part.doubtful || find(engine, save->common.user->id)) {
        return; /* its digests are not here, or another part of ours may be the committed one */
    }
    int rc = base_part_new(save->common.user->id, save->part.buf.bytes, save->part.buf.data, &base,
                           &diag);
    if (rc == 0) {
        keep(engine, base);
    } else {
        LOG(LOG_WARN, "save", "the next save sends everything", ls("err", diag_text(&diag, rc)));
    }
}

/* Returns whether comparing with the base is likely to pay. A daemon of the same host writes what
 * it is handed at once, without waiting for digests, and comparing costs more when nothing is
 * unchanged. So a save that compared decides for those behind it: while a good part of the bytes
 * was unchanged they compare as well, otherwise one save in SAVE_LOOK_EVERY does. If the daemon
 * itself cannot compare, these saves go through the socket. */
static bool is_worth_looking(struct save *save)
{
    struct engine *engine = save->common.engine;
    bool may_hand = save_hand_may(save);
    bool may_look =
        !may_hand || save_hand_packs(save) || engine->options.transport != TRANSPORT_MEMFD;
    if (!may_hand || !may_look) {
        return may_look;
    }
    if (!engine->gain.known || engine->gain.percent > SAVE_GAIN_PERCENT_MIN) {
        return true;
    }
    engine->gain.skipped = (engine->gain.skipped + 1) % SAVE_LOOK_EVERY;
    return engine->gain.skipped == 0;
}

/* --- finding it -------------------------------------------------------------------- */

static int object_order(const void *a, const void *b) { return object_id_compare(a, b); }

static bool is_sparse(const struct save *save, const struct object_id *id)
{
    return save->sparse_count > 0 && bsearch(id, save->sparse, save->sparse_count,
                                             sizeof *save->sparse, object_order) != NULL;
}

/* Returns the place of a piece as the base's part knows it: tensor and box, or blob. */
static struct part_place place_of(const struct registered *set, const struct layout_piece *piece)
{
    if (piece->tensor & LAYOUT_BLOB) {
        const struct registered_blob *blob = &set->blobs[piece->tensor & ~LAYOUT_BLOB];
        return (struct part_place){.name = blob->name, .coordinate = blob->coordinate};
    }
    const struct registered_tensor *tensor = &set->tensors[piece->tensor];
    return (struct part_place){.name = tensor->name,
                               .coordinate = tensor->coordinate,
                               .dtype = tensor->dtype,
                               .box = &tensor->boxes[piece->box].box};
}

/* Notes for each piece the base's chunk at its place, if there is one that may be referred to. */
static void match(struct save *save)
{
    const struct layout *layout = &save->layout;
    const struct base_part *base = save->base;
    const struct layout_piece *last = NULL;
    struct part_run run = {0};
    for (uint32_t i = 0; i < layout->piece_count; i++) {
        uint32_t idx = layout->by_part[i];
        const struct layout_piece *piece = &layout->pieces[idx];
        if (!last || last->tensor != piece->tensor || last->box != piece->box) {
            struct part_place place = place_of(save->common.set, piece);
            run = part_find_run(&base->part, &place);
        }
        last = piece;
        uint32_t found = part_find_cell(&base->part, run, piece->cell, piece->bytes);
        if (found != 0) {
            const struct part_chunk *chunk = &base->part.chunks[found - 1];
            bool is_usable = chunk->digest_alg == DIGEST_XXH3_128 &&
                             !is_sparse(save, &base->part.objects[chunk->object].id);
            found = is_usable ? found : 0;
        }
        save->base_of[idx] = found;
    }
}

/* Settles what the base is; digests may begin. base may be NULL. */
static void known(struct save *save, struct base_part *base)
{
    if (base && base->part.chunk_bytes == save->common.chunk_bytes &&
        !save_is_over(&save->common)) {
        save->base = base_part_ref(base);
        match(save);
    }
    save->base_known = true;
}

/* Called when the part of the base was fetched, or could not be. Then digests may begin. */
static void on_fetched(struct engine_call *call, int status)
{
    struct save *save = container_of(call, struct save, fetch);
    struct base_part *base = NULL;
    struct diag diag = call->diag;
    save->fetching = false;
    if (status == 0) {
        status = base_part_new(call->request.u.fetch.id, call->payload_bytes, call->payload, &base,
                               &diag);
    }
    if (status == 0) {
        keep(save->common.engine, base);
    } else if (status != CAIRN_E_CANCELLED) {
        LOG(LOG_INFO, "save", "nothing to refer to, everything is sent",
            lu("step", save->common.user->step), ls("err", diag_text(&diag, status)));
    }
    free(call->payload);
    engine_call_fini(call);
    known(save, base);
    save_digest_start(save);
    engine_pump(save->common.engine);
    save_wake(&save->common);
}

void save_base_begin(struct save *save)
{
    struct ckpt_id id = save->base_id;
    if (save->common.reach < REACH_OPENED || !save->laid_out || save->base_known ||
        save->fetching) {
        return;
    }
    id = id.term != 0 && is_worth_looking(save) ? id : (struct ckpt_id){0};
    struct base_part *base = id.term != 0 ? find(save->common.engine, id) : NULL;
    if (id.term == 0 || base || save->layout.piece_count == 0) {
        known(save, base);
        return;
    }
    save->fetching = true;
    save->fetch = (struct engine_call){
        .request = {.type = MSG_FETCH,
                    .u.fetch = {.id = id,
                                .kind = FETCH_PART,
                                .number = save->common.engine->options.rank}},
        .deadline_ms = min_u64(save->common.engine->options.io_deadline_ms,
                               engine_ms_left(save->common.engine, save->common.end_ms) / 4 + 1),
        .done = on_fetched};
    engine_call_start(save->common.engine, &save->fetch);
}

void save_base_leave(struct save *save)
{
    CHECK(save->way == WAY_OPEN);
    CHECK(save->digest_next == 0);
    base_part_unref(save->base);
    save->base = NULL;
}

void save_base_note_sparse(struct save *save, struct msg_opened *opened)
{
    const struct object_id *sparse = opened->sparse;
    size_t bytes = opened->sparse_count * sizeof *sparse;
    opened->sparse = NULL;
    if (save->common.reach >= REACH_OPENED || opened->sparse_count == 0) {
        return;
    }
    free(save->sparse);
    save->sparse = malloc(bytes);
    save->sparse_count = save->sparse ? opened->sparse_count : 0;
    if (save->sparse) { /* without memory they are referred to, which only costs space later */
        memcpy(save->sparse, sparse, bytes);
    }
}

void save_base_end(struct save *save)
{
    if (save->fetching) {
        engine_call_cancel(&save->fetch);
    }
}

void save_base_fini(struct save *save)
{
    CHECK(!save->fetching);
    base_part_unref(save->base);
    free(save->sparse);
}
