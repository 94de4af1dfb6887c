/* SPDX-License-Identifier: Apache-2.0
 *
 * Two passes over the registered list with one walk function: the first counts the pieces, the
 * second notes those that this rank writes (share.c decides which). Then the pieces are laid out:
 * whole ones first, each a payload of its own, in the order of the part, so that a restore reads
 * sequentially; small ones packed behind them. Pure; any thread.
 */
#include "share/layout.h"

#include "base/check.h"

#include <string.h>

#define LAYOUT_BYTES_MAX ((size_t)4 << 30)
enum {
    LAYOUT_OBJECT_BYTES = 64 << 20,
};

struct walk {
    const struct registered *set;
    uint64_t chunk_bytes;
    struct layout *layout;
    struct layout_piece *found; /* NULL in the pass that counts */
    const struct share *share;
    struct diag *diag;
};

static int no_memory(struct diag *diag) { return diag_no_memory(diag, "the layout of a save"); }

/* --- what is this rank's --------------------------------------------------------- */

/* Counts a piece that this rank writes, and notes it in the second pass. */
static int add_piece(struct walk *walk, const struct layout_piece *piece)
{
    struct layout *layout = walk->layout;
    if (layout->piece_count == UINT32_MAX / 2) {
        return diag_set(walk->diag, CAIRN_E_TOO_LARGE,
                        "this rank would save more than %u chunks; register fewer or larger boxes",
                        UINT32_MAX / 2);
    }
    if (walk->found) {
        walk->found[layout->piece_count] = *piece;
    }
    layout->piece_count++;
    layout->plain_bytes += piece->bytes;
    return 0;
}

/* Walks the cells of one box. `at` is where the box begins in the tensor's bytes. */
static int walk_box(struct walk *walk, uint32_t tensor_idx, uint32_t box_idx, uint64_t at)
{
    const struct registered_tensor *tensor = &walk->set->tensors[tensor_idx];
    const struct box *box = &tensor->boxes[box_idx].box;
    struct grid grid;
    int rc = 0;
    grid_init(&grid, box, tensor->dtype, walk->chunk_bytes);
    if (grid.cell_count > UINT32_MAX) {
        return diag_set(walk->diag, CAIRN_E_TOO_LARGE, "tensor '%s' has more than 2^32 chunks",
                        tensor->name);
    }
    for (uint64_t cell = 0; cell < grid.cell_count && rc == 0; cell++) {
        struct layout_piece piece = {.tensor = tensor_idx, .box = box_idx, .cell = (uint32_t)cell};
        struct box rectangle;
        uint64_t bytes;
        grid_cell(&grid, cell, &rectangle, &piece.source, &bytes);
        CHECK(bytes <= walk->chunk_bytes);
        piece.bytes = (uint32_t)bytes;
        if (share_is_mine(walk->share, tensor_idx, at + piece.source)) {
            rc = add_piece(walk, &piece);
        }
    }
    return rc;
}

/* Walks the chunks of a blob, if this rank writes it. */
static int walk_blob(struct walk *walk, uint32_t idx)
{
    const struct registered_blob *blob = &walk->set->blobs[idx];
    uint64_t count = blob->bytes / walk->chunk_bytes + (blob->bytes % walk->chunk_bytes != 0);
    int rc = 0;
    if (!share_writes_blob(walk->set, blob)) {
        return 0;
    }
    if (count > UINT32_MAX) {
        return diag_set(walk->diag, CAIRN_E_TOO_LARGE, "blob '%s' has more than 2^32 chunks",
                        blob->name);
    }
    for (uint64_t i = 0; i < count && rc == 0; i++) {
        uint64_t at = i * walk->chunk_bytes;
        struct layout_piece piece = {.tensor = LAYOUT_BLOB | idx,
                                     .cell = (uint32_t)i,
                                     .source = at,
                                     .bytes =
                                         (uint32_t)min_u64(walk->chunk_bytes, blob->bytes - at)};
        rc = add_piece(walk, &piece);
    }
    return rc;
}

/* Walks all boxes of all tensors, and then the blobs. */
static int walk_all(struct walk *walk)
{
    int rc = 0;
    walk->layout->piece_count = 0;
    walk->layout->plain_bytes = 0;
    for (uint32_t t = 0; t < walk->set->tensor_count && rc == 0; t++) {
        const struct registered_tensor *tensor = &walk->set->tensors[t];
        uint64_t at = 0;
        for (uint32_t b = 0; b < tensor->box_count && rc == 0; b++) {
            rc = walk_box(walk, t, b, at);
            at += box_bytes(&tensor->boxes[b].box, tensor->dtype);
        }
    }
    for (uint32_t i = 0; i < walk->set->blob_count && rc == 0; i++) {
        rc = walk_blob(walk, i);
    }
    return rc;
}

/* --- where it lies --------------------------------------------------------------- */

struct placer {
    struct layout *layout;
    const struct registered *set;
    const struct layout_options *options;
    uint64_t object_bytes;
    uint32_t piece_at;
};

/* Starts a payload behind the last one, and a new object if the present one would grow too long. */
static struct layout_payload *new_payload(struct placer *placer, uint32_t bytes_expected)
{
    struct layout *layout = placer->layout;
    CHECK(layout->objects != NULL);
    struct layout_object *object =
        layout->object_count > 0 ? &layout->objects[layout->object_count - 1] : NULL;
    if (!object || object->data_bytes + bytes_expected > placer->object_bytes ||
        object->piece_count >= LAYOUT_OBJECT_PIECES_MAX) {
        object = &layout->objects[layout->object_count++];
        *object = (struct layout_object){.at = layout->extent_bytes,
                                         .payload_first = layout->payload_count};
    }
    CHECK(layout->payload_count < layout->piece_count);
    struct layout_payload *payload = &layout->payloads[layout->payload_count++];
    *payload = (struct layout_payload){.at = layout->extent_bytes,
                                       .piece_first = placer->piece_at,
                                       .object = layout->object_count - 1};
    object->payload_count++;
    return payload;
}

/* Puts the piece at the end of the payload. */
static void put_piece(struct placer *placer, struct layout_payload *payload,
                      const struct layout_piece *piece, uint32_t part_idx)
{
    struct layout *layout = placer->layout;
    CHECK(placer->piece_at < layout->piece_count);
    CHECK(part_idx < layout->piece_count);
    struct layout_piece *to = &layout->pieces[placer->piece_at];
    *to = *piece;
    to->payload = (uint32_t)(payload - layout->payloads);
    to->at = payload->bytes;
    layout->by_part[part_idx] = placer->piece_at++;
    payload->bytes += piece->bytes;
    payload->piece_count++;
    layout->objects[payload->object].piece_count++;
}

static void end_payload(struct placer *placer, const struct layout_payload *payload)
{
    struct layout *layout = placer->layout;
    struct layout_object *object = &layout->objects[payload->object];
    CHECK(payload->bytes > 0);
    layout->extent_bytes = round_up_u64(payload->at + payload->bytes, LIMIT_ALIGN_BYTES);
    object->data_bytes = layout->extent_bytes - object->at;
}

static bool is_eager(const struct placer *placer, const struct layout_piece *piece)
{
    return !(piece->tensor & LAYOUT_BLOB) && placer->set->tensors[piece->tensor].eager;
}

/* Gives each large piece a payload of its own. The eager ones and the others are placed by separate
 * calls. */
static void place_whole(struct placer *placer, const struct layout_piece *found, bool eager)
{
    for (uint32_t i = 0; i < placer->layout->piece_count; i++) {
        if (found[i].bytes >= LIMIT_PACK_PIECE_BYTES && is_eager(placer, &found[i]) == eager) {
            struct layout_payload *payload = new_payload(placer, found[i].bytes);
            put_piece(placer, payload, &found[i], i);
            end_payload(placer, payload);
        }
    }
}

/* Places the small pieces in payloads that they share, within the size and the number of pieces of
 * a payload. */
static void place_packed(struct placer *placer, const struct layout_piece *found, bool eager)
{
    struct layout_payload *pack = NULL;
    for (uint32_t i = 0; i < placer->layout->piece_count; i++) {
        if (found[i].bytes >= LIMIT_PACK_PIECE_BYTES || is_eager(placer, &found[i]) != eager) {
            continue;
        }
        if (pack && (pack->bytes + found[i].bytes > placer->options->payload_bytes ||
                     pack->piece_count == LAYOUT_PACK_PIECES_MAX)) {
            end_payload(placer, pack);
            pack = NULL;
        }
        if (!pack) {
            pack = new_payload(placer, placer->options->payload_bytes);
        }
        put_piece(placer, pack, &found[i], i);
    }
    if (pack) {
        end_payload(placer, pack);
    }
}

/* Places eager pieces first, because the save may return when they are copied: one number then says
 * how far that is. */
static void place_all(struct placer *placer, const struct layout_piece *found)
{
    place_whole(placer, found, true);
    place_packed(placer, found, true);
    placer->layout->eager_payload_count = placer->layout->payload_count;
    place_whole(placer, found, false);
    place_packed(placer, found, false);
}

/* Counts the pieces in a first walk, and makes the arrays, each as long as there are pieces, which
 * is enough for every one of them. */
static int allocate(struct walk *walk)
{
    struct layout *layout = walk->layout;
    int rc = walk_all(walk);
    if (rc != 0) {
        return rc;
    }
    size_t count = layout->piece_count;
    walk->found = scratch_array(&layout->scratch, count + 1, sizeof *walk->found);
    layout->pieces = scratch_array(&layout->scratch, count + 1, sizeof *layout->pieces);
    layout->by_part = scratch_array(&layout->scratch, count + 1, sizeof *layout->by_part);
    layout->payloads = scratch_array(&layout->scratch, count + 1, sizeof *layout->payloads);
    layout->objects = scratch_array(&layout->scratch, count + 1, sizeof *layout->objects);
    return walk->found && layout->pieces && layout->by_part && layout->payloads && layout->objects
               ? 0
               : no_memory(walk->diag);
}

/* Checks that objects and payloads follow each other in the extent without overlap, and that every
 * piece has one place. */
static void check_layout(const struct layout *layout)
{
    uint64_t at = 0;
    uint32_t payloads = 0, pieces = 0;
    for (uint32_t i = 0; i < layout->object_count; i++) {
        const struct layout_object *object = &layout->objects[i];
        CHECK(object->at == at);
        CHECK(object->payload_first == payloads);
        CHECK(object->data_bytes % LIMIT_ALIGN_BYTES == 0);
        at += object->data_bytes;
        payloads += object->payload_count;
        pieces += object->piece_count;
    }
    CHECK(at == layout->extent_bytes);
    CHECK(payloads == layout->payload_count);
    CHECK(pieces == layout->piece_count);
    CHECK(layout->eager_payload_count <= layout->payload_count);
}

uint64_t layout_object_bytes(uint64_t preferred)
{
    return min_u64(preferred > 0 ? preferred : LAYOUT_OBJECT_BYTES, LIMIT_OBJECT_BYTES / 2);
}

int layout_init(struct layout *layout, const struct registered *set,
                const struct layout_options *options, struct diag *diag)
{
    struct walk walk = {
        .set = set, .chunk_bytes = options->chunk_bytes, .layout = layout, .diag = diag};
    struct share alike = {0};
    int rc = 0;
    memset(layout, 0, sizeof *layout);
    CHECK(options->chunk_bytes > 0);
    scratch_init(&layout->scratch, LAYOUT_BYTES_MAX);
    CHECK(options->payload_bytes >= options->chunk_bytes);
    walk.share = options->share;
    if (!walk.share) {
        rc = share_init_alike(&alike, set, diag);
        walk.share = &alike;
    }
    if (rc == 0) {
        rc = allocate(&walk);
    }
    if (rc == 0) {
        rc = walk_all(&walk);
    }
    share_fini(&alike);
    if (rc != 0) {
        layout_fini(layout);
        return rc;
    }
    struct placer placer = {.layout = layout,
                            .set = set,
                            .options = options,
                            .object_bytes = layout_object_bytes(options->object_bytes)};
    place_all(&placer, walk.found);
    CHECK(placer.piece_at == layout->piece_count);
    check_layout(layout);
    return 0;
}

void layout_fini(struct layout *layout)
{
    scratch_fini(&layout->scratch);
    memset(layout, 0, sizeof *layout);
}
