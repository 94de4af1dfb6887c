/* SPDX-License-Identifier: Apache-2.0
 *
 * Coverage of a checkpoint: all parts together hold every element once. Boxes that several ranks
 * hold alike (replicas) count as one box, whose cells these ranks together must have written
 * exactly once; the different boxes of a tensor must tile its shape. Every error names the tensor
 * and the ranks. Pure.
 */
#include "part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct held_box { /* a box as one rank holds it */
    const struct part_box *box;
    uint32_t rank;
};

struct written { /* a cell as one rank wrote it */
    uint32_t cell, rank;
};

struct coverage {
    const struct part *parts;
    struct part_group group; /* the tensor or blob that is being checked */
    /* Work memory, grown as needed and kept from tensor to tensor. */
    struct held_box *held;
    struct box *distinct;
    uint32_t *distinct_rank; /* the first rank that holds it */
    struct written *written;
    size_t held_cap, distinct_cap, written_cap;
    struct diag *diag;
};

/* Writes the beginning of every message: "tensor "w" [dp=3]". */
static void name_text(const struct coverage *cov, bool blob, size_t bytes, char *ret)
{
    const char *coordinate = cov->group.coordinate;
    int n = snprintf(ret, bytes, "%s \"%.160s\"%s%.60s", blob ? "blob" : "tensor", cov->group.name,
                     coordinate[0] != '\0' ? " at " : "", coordinate);
    CHECK(n > 0);
}

enum { NAME_TEXT_BYTES = 256, BOX_TEXT_BYTES = 96 };

/* Makes room for `need` items in a work array. */
static int grow(size_t need, size_t *cap, size_t item_bytes, void **items)
{
    if (need <= *cap) {
        return 0;
    }
    size_t want = need < 64 ? 64 : need + need / 2;
    uint64_t bytes = 0;
    void *grown = mul_u64(want, item_bytes, &bytes) ? realloc(*items, (size_t)bytes) : NULL;
    if (grown == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    *items = grown;
    *cap = want;
    return 0;
}

static const struct part_tensor *tensor_of(const struct coverage *cov, size_t member)
{
    struct part_member m = cov->group.members[member];
    return &cov->parts[m.part].tensors[m.idx];
}

static const struct part_blob *blob_of(const struct coverage *cov, size_t member)
{
    struct part_member m = cov->group.members[member];
    return &cov->parts[m.part].blobs[m.idx];
}

static uint32_t rank_of(const struct coverage *cov, size_t member)
{
    return cov->group.members[member].part;
}

/* Checks that a local tensor or blob belongs to one rank only. */
static int check_local(const struct coverage *cov, bool blob, uint32_t placement)
{
    char name[NAME_TEXT_BYTES];
    if (placement != PLACEMENT_LOCAL || cov->group.member_count == 1) {
        return 0;
    }
    name_text(cov, blob, sizeof name, name);
    return diag_set(
        cov->diag, CAIRN_E_COVERAGE,
        "%s is local, but ranks %u and %u both save it; give each rank its own coordinate", name,
        rank_of(cov, 0), rank_of(cov, 1));
}

/* Checks that dtype, shape and placement of the tensor agree on all ranks that have it. */
static int check_tensor_alike(const struct coverage *cov)
{
    const struct part_tensor *first = tensor_of(cov, 0);
    char name[NAME_TEXT_BYTES], a[BOX_TEXT_BYTES], b[BOX_TEXT_BYTES];
    name_text(cov, false, sizeof name, name);
    for (size_t i = 1; i < cov->group.member_count; i++) {
        const struct part_tensor *other = tensor_of(cov, i);
        if (other->dtype != first->dtype) {
            return diag_set(cov->diag, CAIRN_E_DTYPE_MISMATCH,
                            "%s is %s on rank %u but %s on rank %u", name, dtype_name(first->dtype),
                            rank_of(cov, 0), dtype_name(other->dtype), rank_of(cov, i));
        }
        if (!shape_equal(&other->shape, &first->shape)) {
            shape_format(&first->shape, sizeof a, a);
            shape_format(&other->shape, sizeof b, b);
            return diag_set(cov->diag, CAIRN_E_SHAPE_MISMATCH,
                            "%s has the shape %s on rank %u but %s on rank %u", name, a,
                            rank_of(cov, 0), b, rank_of(cov, i));
        }
        if (other->placement != first->placement) {
            return diag_set(cov->diag, CAIRN_E_COVERAGE,
                            "%s has placement %u on rank %u but %u on rank %u", name,
                            first->placement, rank_of(cov, 0), other->placement, rank_of(cov, i));
        }
    }
    return check_local(cov, false, first->placement);
}

static int written_compare(const void *a, const void *b)
{
    const struct written *x = a, *y = b;
    if (x->cell != y->cell) {
        return x->cell < y->cell ? -1 : 1;
    }
    return compare_u64(x->rank, y->rank);
}

/* Checks that written[0, count) are the cells 0 .. cell_count-1, once each. `what` names their box
 * or blob for the message; `holder` is a rank that could have written a missing cell. */
static int check_written(struct coverage *cov, size_t count, uint64_t cell_count, const char *what,
                         uint32_t holder)
{
    struct written *written = cov->written;
    bool sorted = true;
    for (size_t i = 1; i < count && sorted; i++) {
        sorted = written_compare(&written[i - 1], &written[i]) < 0;
    }
    if (!sorted) {
        qsort(written, count, sizeof *written, written_compare);
    }
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && written[i].cell == written[i - 1].cell) {
            return diag_set(
                cov->diag, CAIRN_E_COVERAGE,
                "%s was written twice: cell %u of %llu came from rank %u and from rank %u", what,
                written[i].cell, (unsigned long long)cell_count, written[i - 1].rank,
                written[i].rank);
        }
        if (written[i].cell != i) {
            return diag_set(cov->diag, CAIRN_E_COVERAGE,
                            "%s is incomplete: no rank wrote cell %zu of %llu (rank %u holds it)",
                            what, i, (unsigned long long)cell_count, holder);
        }
    }
    if (count != cell_count) {
        return diag_set(cov->diag, CAIRN_E_COVERAGE,
                        "%s is incomplete: no rank wrote cell %zu of %llu (rank %u holds it)", what,
                        count, (unsigned long long)cell_count, holder);
    }
    return 0;
}

static int add_written(struct coverage *cov, size_t *count, const struct part *part, uint32_t first,
                       uint32_t chunks)
{
    void *items = cov->written;
    int rc = grow(*count + chunks, &cov->written_cap, sizeof *cov->written, &items);
    cov->written = items;
    if (rc != 0) {
        return diag_set(cov->diag, rc, "checking the coverage of \"%.160s\"", cov->group.name);
    }
    for (uint32_t i = 0; i < chunks; i++) {
        cov->written[(*count)++] = (struct written){part->chunks[first + i].cell, part->rank};
    }
    return 0;
}

/* Checks held[from, to), which are the same box of different ranks. */
static int check_box(struct coverage *cov, const struct part_tensor *tensor, size_t from, size_t to)
{
    char what[NAME_TEXT_BYTES + BOX_TEXT_BYTES + 8], name[NAME_TEXT_BYTES], text[BOX_TEXT_BYTES];
    struct grid grid;
    size_t count = 0;
    const struct box *box = &cov->held[from].box->box;
    for (size_t i = from; i < to; i++) {
        const struct held_box *held = &cov->held[i];
        int rc = add_written(cov, &count, &cov->parts[held->rank], held->box->chunk_first,
                             held->box->chunk_count);
        if (rc != 0) {
            return rc;
        }
    }
    grid_init(&grid, box, tensor->dtype, cov->parts[0].chunk_bytes);
    name_text(cov, false, sizeof name, name);
    box_format(box, sizeof text, text);
    int n = snprintf(what, sizeof what, "%s, box %s", name, text);
    CHECK(n > 0);
    return check_written(cov, count, grid.cell_count, what, cov->held[from].rank);
}

static int held_compare(const void *a, const void *b)
{
    const struct held_box *x = a, *y = b;
    int order = box_compare(&x->box->box, &y->box->box);
    return order != 0 ? order : compare_u64(x->rank, y->rank);
}

/* Gathers all boxes of the present tensor, sorted by box and rank. */
static int gather_boxes(struct coverage *cov, size_t *ret_count)
{
    size_t count = 0;
    for (size_t i = 0; i < cov->group.member_count; i++) {
        const struct part_tensor *tensor = tensor_of(cov, i);
        void *items = cov->held;
        int rc = grow(count + tensor->box_count, &cov->held_cap, sizeof *cov->held, &items);
        cov->held = items;
        if (rc != 0) {
            return diag_set(cov->diag, rc, "checking the coverage of \"%.160s\"", cov->group.name);
        }
        for (uint32_t b = 0; b < tensor->box_count; b++) {
            cov->held[count++] = (struct held_box){
                &cov->parts[rank_of(cov, i)].boxes[tensor->box_first + b], rank_of(cov, i)};
        }
    }
    if (count > 1) {
        qsort(cov->held, count, sizeof *cov->held, held_compare);
    }
    *ret_count = count;
    return 0;
}

/* Reports a hole or an overlap with the tensor, the element, and the ranks whose boxes are
 * concerned. */
static int report_fault(const struct coverage *cov, const struct tile_fault *fault)
{
    char name[NAME_TEXT_BYTES], point[BOX_TEXT_BYTES], a[BOX_TEXT_BYTES], b[BOX_TEXT_BYTES];
    name_text(cov, false, sizeof name, name);
    box_format(&fault->point, sizeof point, point);
    if (fault->kind == TILE_HOLE) {
        size_t last = cov->group.member_count - 1;
        return diag_set(cov->diag, CAIRN_E_COVERAGE,
                        "%s is incomplete: no rank saves the element %s (%zu ranks from %u to %u "
                        "have boxes of it)",
                        name, point, last + 1, rank_of(cov, 0), rank_of(cov, last));
    }
    box_format(&cov->distinct[fault->first], sizeof a, a);
    box_format(&cov->distinct[fault->second], sizeof b, b);
    return diag_set(
        cov->diag, CAIRN_E_COVERAGE,
        "the boxes of %s overlap: box %s of rank %u and box %s of rank %u share the element %s",
        name, a, cov->distinct_rank[fault->first], b, cov->distinct_rank[fault->second], point);
}

/* Makes room in the array for `need` elements. Returns NO_MEMORY if there is none. */
static int grow_distinct(struct coverage *cov, size_t need)
{
    void *boxes = cov->distinct, *ranks = cov->distinct_rank;
    size_t cap = cov->distinct_cap;
    int rc = grow(need, &cap, sizeof *cov->distinct, &boxes);
    cov->distinct = boxes;
    rc = rc != 0 ? rc : grow(need, &cov->distinct_cap, sizeof *cov->distinct_rank, &ranks);
    cov->distinct_rank = ranks;
    return rc == 0
               ? 0
               : diag_set(cov->diag, rc, "checking the coverage of \"%.160s\"", cov->group.name);
}

/* Checks one tensor: its ranks agree, each distinct box is written once, and the boxes tile the
 * shape. */
static int check_tensor(struct coverage *cov)
{
    const struct part_tensor *tensor = tensor_of(cov, 0);
    size_t count = 0, distinct = 0;
    struct tile_fault fault;
    int rc = check_tensor_alike(cov);
    if (rc == 0) {
        rc = gather_boxes(cov, &count);
    }
    if (rc == 0) {
        rc = grow_distinct(cov, count + 1);
    }
    for (size_t from = 0, to = 0; from < count && rc == 0; from = to) {
        while (to < count && box_equal(&cov->held[from].box->box, &cov->held[to].box->box)) {
            to++;
        }
        cov->distinct[distinct] = cov->held[from].box->box;
        cov->distinct_rank[distinct++] = cov->held[from].rank;
        rc = check_box(cov, tensor, from, to);
    }
    if (rc == 0) {
        rc = boxes_tile_fault(&tensor->shape, distinct, cov->distinct, &fault, cov->diag);
    }
    if (rc == 0 && fault.kind != TILE_EXACT) {
        rc = report_fault(cov, &fault);
    }
    return rc;
}

/* Checks one blob: its ranks agree, and all its chunks are written once. */
static int check_blob(struct coverage *cov)
{
    const struct part_blob *first = blob_of(cov, 0);
    char name[NAME_TEXT_BYTES];
    size_t count = 0;
    name_text(cov, true, sizeof name, name);
    for (size_t i = 0; i < cov->group.member_count; i++) {
        const struct part_blob *other = blob_of(cov, i);
        if (other->kind != first->kind || other->plain_bytes != first->plain_bytes ||
            other->placement != first->placement) {
            return diag_set(cov->diag, CAIRN_E_COVERAGE,
                            "%s differs between ranks: kind %u, placement %u, %llu bytes on rank "
                            "%u; kind %u, placement %u, %llu bytes on rank %u",
                            name, first->kind, first->placement,
                            (unsigned long long)first->plain_bytes, rank_of(cov, 0), other->kind,
                            other->placement, (unsigned long long)other->plain_bytes,
                            rank_of(cov, i));
        }
        int rc = add_written(cov, &count, &cov->parts[rank_of(cov, i)], other->chunk_first,
                             other->chunk_count);
        if (rc != 0) {
            return rc;
        }
    }
    int rc = check_local(cov, true, first->placement);
    return rc != 0 ? rc
                   : check_written(cov, count,
                                   blob_chunk_count(first->plain_bytes, cov->parts[0].chunk_bytes),
                                   name, rank_of(cov, 0));
}

/* Checks that the parts belong together. */
static int check_headers(size_t count, const struct part *parts, struct diag *diag)
{
    for (size_t i = 0; i < count; i++) {
        const struct part *part = &parts[i];
        if (part->rank != i || part->world_size != count) {
            return diag_set(
                diag, CAIRN_E_COVERAGE,
                "part %zu of %zu belongs to rank %u in a world of %u ranks, which does not fit", i,
                count, part->rank, part->world_size);
        }
        if (!ckpt_id_equal(part->id, parts[0].id) ||
            memcmp(&part->run_uuid, &parts[0].run_uuid, sizeof part->run_uuid) != 0 ||
            part->chunk_bytes != parts[0].chunk_bytes) {
            return diag_set(diag, CAIRN_E_COVERAGE,
                            "the parts of rank 0 and rank %zu belong to different runs or "
                            "checkpoints, or have different chunk sizes",
                            i);
        }
    }
    return 0;
}

int parts_check_coverage(size_t count, const struct part *parts, struct scratch *scratch,
                         struct diag *diag)
{
    struct coverage cov;
    struct parts_walk walk;
    memset(&cov, 0, sizeof cov);
    cov.parts = parts;
    cov.diag = diag;
    if (count == 0 || count > LIMIT_WORLD_SIZE) {
        return diag_set(diag, CAIRN_E_COVERAGE, "a checkpoint cannot have %zu parts", count);
    }
    int rc = check_headers(count, parts, diag);
    for (int blobs = 0; blobs <= 1 && rc == 0; blobs++) {
        rc = parts_walk_init(&walk, count, parts, blobs == 1, scratch);
        if (rc != 0) {
            rc = diag_set(diag, rc, "checking the coverage of %zu parts", count);
        }
        while (rc == 0 && parts_walk_next(&walk, &cov.group)) {
            rc = blobs == 1 ? check_blob(&cov) : check_tensor(&cov);
        }
    }
    free(cov.held);
    free(cov.distinct);
    free(cov.distinct_rank);
    free(cov.written);
    return rc;
}
