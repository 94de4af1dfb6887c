/* SPDX-License-Identifier: Apache-2.0
 *
 * What the base of a save holds for this rank is known from our own last save, or is fetched after
 * a restore or a restart. Digests wait for it, so that each chunk is compared once. If it cannot be
 * had, the save sends everything, which is always right and only costs bytes. Loop's thread.
 */
#include "save/save_base.h"

#include "base/array.h"
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

void save_base_keep(const struct save_common *common, const struct buf *part)
{
    struct engine *engine = common->engine;
    struct base_part *base;
    struct diag diag = DIAG_INIT;
    if (find(engine, common->user->id)) {
        return;
    }
    int rc = base_part_new(common->user->id, part->bytes, part->data, &base, &diag);
    if (rc == 0) {
        keep(engine, base);
    } else {
        LOG(LOG_WARN, "save", "the next save sends everything", ls("err", diag_text(&diag, rc)));
    }
}

/* A daemon of the same host writes what it is handed at once, without waiting for digests, and
 * comparing costs more when nothing is unchanged. So a save that compared decides for those behind
 * it: while a good part of the bytes was unchanged they compare as well, otherwise one save in
 * SAVE_COMPARE_EVERY does. */
bool save_base_is_worth_comparing(struct engine *engine)
{
    if (!engine->gain.known || engine->gain.percent > SAVE_GAIN_PERCENT_MIN) {
        return true;
    }
    engine->gain.skipped = (engine->gain.skipped + 1) % SAVE_COMPARE_EVERY;
    return engine->gain.skipped == 0;
}

/* --- finding it -------------------------------------------------------------------- */

static bool is_sparse(const struct save_base *base, const struct object_id *id)
{
    return array_find(id, base->sparse, base->sparse_count, sizeof(*id), object_id_order) != NULL;
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
static void match(struct save_base *base)
{
    const struct layout *layout = &base->room->layout;
    const struct part *part = &base->part->part;
    const struct layout_piece *last = NULL;
    struct part_run run = {0};
    for (uint32_t i = 0; i < layout->piece_count; i++) {
        uint32_t idx = layout->by_part[i];
        const struct layout_piece *piece = &layout->pieces[idx];
        if (!last || last->tensor != piece->tensor || last->box != piece->box) {
            struct part_place place = place_of(base->common->set, piece);
            run = part_find_run(part, &place);
        }
        last = piece;
        uint32_t found = part_find_cell(part, run, piece->cell, piece->bytes);
        if (found != 0) {
            const struct part_chunk *chunk = &part->chunks[found - 1];
            bool is_usable = chunk->digest_alg == DIGEST_XXH3_128 &&
                             !is_sparse(base, &part->objects[chunk->object].id);
            found = is_usable ? found : 0;
        }
        base->chunk_of[idx] = found;
    }
}

/* Settles what the base is; digests may begin. part may be NULL. */
static void known(struct save_base *base, struct base_part *part)
{
    CHECK(base->state != BASE_KNOWN);
    if (part && part->part.chunk_bytes == base->common->chunk_bytes &&
        !save_is_over(base->common)) {
        base->part = base_part_ref(part);
        match(base);
    }
    base->state = BASE_KNOWN;
}

/* Called when the part of the base was fetched, or could not be. Then digests may begin. */
static void on_fetched(struct engine_call *call, int status)
{
    struct save_base *base = container_of(call, struct save_base, fetch);
    struct engine *engine = base->common->engine;
    struct base_part *part = NULL;
    struct diag diag = call->diag;
    if (status == 0) {
        status = base_part_new(call->request.u.fetch.id, call->payload_bytes, call->payload, &part,
                               &diag);
    }
    if (status == 0) {
        keep(engine, part);
    } else if (status != CAIRN_E_CANCELLED) {
        LOG(LOG_INFO, "save", "nothing to refer to, everything is sent",
            lu("step", base->common->user->step), ls("err", diag_text(&diag, status)));
    }
    free(call->payload);
    engine_call_fini(call);
    known(base, part);
    engine_pump(engine); /* digests begin */
    save_wake(base->common);
}

void save_base_begin(struct save_base *base, bool compares)
{
    const struct save_common *common = base->common;
    struct ckpt_id id = compares ? base->id : (struct ckpt_id){0};
    CHECK(common->reach >= REACH_OPENED);
    CHECK(common->chunk_bytes != 0);
    CHECK(base->state == BASE_UNKNOWN);
    struct base_part *part = id.term != 0 ? find(common->engine, id) : NULL;
    if (id.term == 0 || part || base->room->layout.piece_count == 0) {
        known(base, part);
        return;
    }
    base->state = BASE_FETCHING;
    base->fetch = (struct engine_call){
        .request = {.type = MSG_FETCH,
                    .u.fetch = {.id = id,
                                .kind = FETCH_PART,
                                .number = common->engine->options.rank}},
        .deadline_ms = min_u64(common->engine->options.io_deadline_ms,
                               engine_ms_left(common->engine, common->end_ms) / 4 + 1),
        .done = on_fetched};
    engine_call_start(common->engine, &base->fetch);
}

const struct digest *save_base_digest(const struct save_base *base, uint32_t piece)
{
    if (!base->part || base->chunk_of[piece] == 0) {
        return NULL;
    }
    return &base->part->part.chunks[base->chunk_of[piece] - 1].digest;
}

void save_base_leave(struct save_base *base)
{
    CHECK(base->state == BASE_KNOWN);
    base_part_unref(base->part);
    base->part = NULL;
}

void save_base_note(struct save_base *base, struct msg_opened *opened)
{
    const struct object_id *sparse = opened->sparse;
    size_t bytes = opened->sparse_count * sizeof *sparse;
    opened->sparse = NULL;
    if (base->common->reach >= REACH_OPENED) {
        return;
    }
    base->id = opened->state == CKPT_OPEN ? opened->base : (struct ckpt_id){0};
    free(base->sparse);
    base->sparse = bytes > 0 ? malloc(bytes) : NULL;
    base->sparse_count = base->sparse ? opened->sparse_count : 0;
    if (base->sparse) { /* without memory they are referred to, which only costs space later */
        memcpy(base->sparse, sparse, bytes);
    }
}

void save_base_end(struct save_base *base)
{
    if (base->state == BASE_FETCHING) {
        engine_call_cancel(&base->fetch);
    }
}

void save_base_fini(struct save_base *base)
{
    CHECK(base->state != BASE_FETCHING);
    base_part_unref(base->part);
    free(base->sparse);
}
