/* SPDX-License-Identifier: Apache-2.0
 *
 * From what is registered to READs. The server intersects the wants with the stored chunks. Here
 * every record is checked against its want, and all records of a want together must tile it
 * exactly: a plan that leaves a hole is an error, not stale memory. Then records that are
 * neighbours in an object are read together. Loop's thread.
 */
#include "engine/restore_private.h"

#include "arena/strided.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { PLAN_MESSAGE_BYTES = LIMIT_MESSAGE_BYTES / 2, PLAN_WANTS_MAX = 1024, PLAN_WANT_BYTES = 96 };

static int no_memory(struct diag *diag) { return diag_no_memory(diag, "the plan of a restore"); }

/* --- wants ----------------------------------------------------------------------- */

/* Adds a want for each box of the tensor that is not empty. */
static void add_tensor(struct restore *restore, const struct registered_tensor *tensor)
{
    for (size_t b = 0; b < tensor->box_count; b++) {
        const struct registered_box *box = &tensor->boxes[b];
        if (box_elements(&box->box) == 0) {
            continue;
        }
        restore->plan_wants[restore->want_count] =
            (struct plan_want){.name = tensor->name,
                               .coordinate = tensor->coordinate,
                               .dtype = tensor->dtype,
                               .shape = tensor->shape,
                               .box = box->box};
        restore->wants[restore->want_count++] = (struct want){
            .tensor = tensor, .box = box, .bytes = box_bytes(&box->box, tensor->dtype)};
    }
}

/* Allocates the memory of a blob, and adds a want for it unless it is empty. */
static int add_blob(struct restore *restore, const struct index_entry *entry, struct diag *diag)
{
    struct restored_blobs *blobs = &restore->user->blobs;
    struct restored_blob *blob = &blobs->items[blobs->count];
    if (entry->plain_bytes > RESTORE_BLOB_BYTES_MAX) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "blob '%s' has %llu bytes, but at most %d can be restored", entry->name,
                        (unsigned long long)entry->plain_bytes, RESTORE_BLOB_BYTES_MAX);
    }
    *blob = (struct restored_blob){
        .name = entry->name,
        .coordinate = entry->coordinate,
        .kind = entry->blob_kind,
        .bytes = (size_t)entry->plain_bytes,
        .data = scratch_alloc(&restore->user->scratch, (size_t)entry->plain_bytes + 1)};
    if (!blob->data) {
        return no_memory(diag);
    }
    blobs->count++;
    if (blob->bytes > 0) {
        restore->plan_wants[restore->want_count] = (struct plan_want){
            .is_blob = true, .name = entry->name, .coordinate = entry->coordinate};
        restore->wants[restore->want_count++] = (struct want){.blob = blob, .bytes = blob->bytes};
    }
    return 0;
}

/* Returns an upper bound of the number of wants, and the number of blobs among them. */
static size_t count_wants(const struct restore *restore, size_t *ret_blobs)
{
    const struct registered *set = restore->set;
    size_t count = 0;
    *ret_blobs = 0;
    for (size_t i = 0; i < set->tensor_count; i++) {
        count += set->tensors[i].box_count;
    }
    for (size_t i = 0; i < restore->index.count; i++) {
        *ret_blobs += restore_takes_blob(restore, &restore->index.entries[i]);
    }
    return count + *ret_blobs;
}

int restore_make_wants(struct restore *restore, struct diag *diag)
{
    struct scratch *scratch = &restore->user->scratch;
    size_t blob_count, count = count_wants(restore, &blob_count);
    restore->want_count = restore->want_at = 0;
    restore->record_count = 0;
    restore->wants = scratch_array(scratch, count + 1, sizeof *restore->wants);
    restore->plan_wants = scratch_array(scratch, count + 1, sizeof *restore->plan_wants);
    restore->user->blobs.count = 0;
    restore->user->blobs.items =
        scratch_array(scratch, blob_count + 1, sizeof *restore->user->blobs.items);
    if (!restore->wants || !restore->plan_wants || !restore->user->blobs.items) {
        return no_memory(diag);
    }
    for (size_t i = 0; i < restore->set->tensor_count; i++) {
        const struct registered_tensor *tensor = &restore->set->tensors[i];
        if (restore_is_chosen(restore, tensor->name) && restore_entry_of(restore, tensor)) {
            add_tensor(restore, tensor);
        }
    }
    for (size_t i = 0; i < restore->index.count; i++) {
        const struct index_entry *entry = &restore->index.entries[i];
        int rc = restore_takes_blob(restore, entry) ? add_blob(restore, entry, diag) : 0;
        if (rc != 0) {
            return rc;
        }
    }
    CHECK(restore->want_count <= count);
    CHECK(restore->user->blobs.count == blob_count);
    uint64_t total = 0;
    for (size_t i = 0; i < restore->want_count; i++) {
        total += restore->wants[i].bytes;
    }
    atomic_store(&restore->user->total_bytes, total);
    atomic_store(&restore->user->done_bytes, 0);
    return 0;
}

bool restore_next_plan(struct restore *restore, struct msg_plan *ret)
{
    size_t bytes = 0, first = restore->want_at;
    while (restore->want_at < restore->want_count && restore->want_at - first < PLAN_WANTS_MAX &&
           bytes < PLAN_MESSAGE_BYTES) {
        const struct plan_want *want = &restore->plan_wants[restore->want_at++];
        /* A number takes at most 10 bytes, and there are three for each dimension. */
        bytes += PLAN_WANT_BYTES + strlen(want->name) + strlen(want->coordinate) +
                 (size_t)want->shape.ndim * 30;
    }
    CHECK(restore->want_at <= restore->want_count);
    restore->want_batch = first;
    *ret = (struct msg_plan){.id = restore->user->id,
                             .want_count = (uint32_t)(restore->want_at - first),
                             .wants = &restore->plan_wants[first]};
    return ret->want_count > 0;
}

/* --- records --------------------------------------------------------------------- */

bool restore_part_of(const struct want *want, const struct plan_read *read, struct box *ret)
{
    return box_intersect(&read->cell, &want->box->box, ret);
}

static int broken_plan(const struct want *want, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_PROTOCOL, "the server's plan for '%s' is not valid: %s",
                    want->tensor ? want->tensor->name : want->blob->name, what);
}

/* Checks that the chunk of a record lies in the tensor and meets the wanted box, and counts the
 * bytes that it gives to the want. */
static int check_tensor_record(struct want *want, const struct plan_read *read, struct diag *diag)
{
    struct box part;
    int rc = box_check(&read->cell, &want->tensor->shape, diag);
    if (rc != 0) {
        return broken_plan(want, "a chunk is outside the tensor", diag);
    }
    if (box_bytes(&read->cell, want->tensor->dtype) != read->plain_bytes ||
        !restore_part_of(want, read, &part)) {
        return broken_plan(want, "a chunk has another place or length than the tensor's grid gives",
                           diag);
    }
    want->planned_bytes += box_bytes(&part, want->tensor->dtype);
    return 0;
}

/* Checks a record of the plan that belongs to the want, and counts its bytes as planned. Returns
 * PROTOCOL if it cannot be right. */
static int check_record(struct want *want, const struct plan_read *read, struct diag *diag)
{
    if (read->stored_bytes == 0 || read->stored_bytes > LIMIT_CHUNK_BYTES ||
        read->plain_bytes == 0 || read->plain_bytes > LIMIT_CHUNK_BYTES ||
        read->offset > LIMIT_OBJECT_BYTES) {
        return broken_plan(want, "a chunk has an impossible length", diag);
    }
    if (want->tensor) {
        return check_tensor_record(want, read, diag);
    }
    uint64_t end;
    if (!add_u64(read->blob_offset, read->plain_bytes, &end) || end > want->bytes) {
        return broken_plan(want, "a chunk is beyond the blob's end", diag);
    }
    want->planned_bytes += read->plain_bytes;
    return 0;
}

/* Makes room for more records, within RESTORE_RECORDS_MAX. */
static int grow_records(struct restore *restore, size_t more, struct diag *diag)
{
    size_t needed = restore->record_count + more;
    if (needed > RESTORE_RECORDS_MAX) {
        return diag_set(
            diag, CAIRN_E_TOO_LARGE,
            "this rank would restore more than %d chunks at once; restore fewer tensors at a time",
            RESTORE_RECORDS_MAX);
    }
    if (needed > restore->record_cap) {
        size_t cap = needed > restore->record_cap * 2 ? needed : restore->record_cap * 2;
        struct plan_read *records = realloc(restore->records, cap * sizeof *records);
        if (!records) {
            return no_memory(diag);
        }
        restore->records = records;
        restore->record_cap = cap;
    }
    return 0;
}

int restore_take_plan(struct restore *restore, size_t bytes, const uint8_t *data, struct diag *diag)
{
    size_t count = bytes / PLAN_READ_BYTES, in_batch = restore->want_at - restore->want_batch;
    int rc = grow_records(restore, count, diag);
    CHECK(restore->want_batch <= restore->want_at);
    for (size_t i = 0; i < count && rc == 0; i++) {
        struct plan_read *read = &restore->records[restore->record_count];
        rc = plan_read_decode(data + i * PLAN_READ_BYTES, read, diag);
        if (rc == 0 && read->want >= in_batch) {
            rc = diag_set(diag, CAIRN_E_PROTOCOL,
                          "the server's plan answers request number %u, but only the numbers below "
                          "%zu were asked for; this is an error of the server: report it with the "
                          "server's log",
                          read->want, in_batch);
        }
        if (rc == 0) {
            read->want += (uint32_t)restore->want_batch;
            CHECK(read->want < restore->want_count);
            rc = check_record(&restore->wants[read->want], read, diag);
            restore->record_count++;
        }
    }
    return rc;
}

/* --- coverage -------------------------------------------------------------------- */

static int compare_by_want(const void *a, const void *b)
{
    const struct plan_read *x = a, *y = b;
    if (x->want != y->want) {
        return x->want < y->want ? -1 : 1;
    }
    return x->blob_offset < y->blob_offset ? -1 : x->blob_offset > y->blob_offset;
}

/* Checks that the chunks of a blob, in order, leave no hole and do not overlap. */
static int check_blob_tiling(const struct want *want, size_t count, const struct plan_read *reads,
                             struct diag *diag)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (reads[i].blob_offset != at) {
            return broken_plan(want, "its chunks leave a hole or overlap", diag);
        }
        at += reads[i].plain_bytes;
    }
    return at == want->bytes ? 0 : broken_plan(want, "its chunks leave a hole", diag);
}

/* Checks that the parts of the chunks which the want needs tile its box. */
static int check_tensor_tiling(const struct want *want, size_t count, const struct plan_read *reads,
                               struct diag *diag)
{
    struct box *boxes = malloc((count + 1) * sizeof *boxes);
    struct shape shape = {.ndim = want->box->box.ndim};
    if (!boxes) {
        return no_memory(diag);
    }
    memcpy(shape.length, want->box->box.length, sizeof shape.length);
    for (size_t i = 0; i < count; i++) {
        bool meets = restore_part_of(want, &reads[i], &boxes[i]);
        CHECK(meets); /* check_record has checked it */
        for (uint32_t d = 0; d < shape.ndim; d++) {
            boxes[i].offset[d] -= want->box->box.offset[d];
        }
    }
    int rc = boxes_tile(&shape, count, boxes, diag);
    free(boxes);
    if (rc != 0) {
        diag_add(diag, "the server's plan for '%s'", want->tensor->name);
    }
    return rc;
}

/* Checks for each want that its records give every byte exactly once. */
static int check_coverage(struct restore *restore, struct diag *diag)
{
    size_t at = 0;
    if (restore->record_count > 0) { /* a rank may hold nothing */
        qsort(restore->records, restore->record_count, sizeof *restore->records, compare_by_want);
    }
    for (size_t i = 0; i < restore->want_count; i++) {
        const struct want *want = &restore->wants[i];
        size_t first = at;
        while (at < restore->record_count && restore->records[at].want == i) {
            at++;
        }
        int rc = want->planned_bytes != want->bytes
                     ? broken_plan(want, "it does not give every byte exactly once", diag)
                 : want->tensor
                     ? check_tensor_tiling(want, at - first, &restore->records[first], diag)
                     : check_blob_tiling(want, at - first, &restore->records[first], diag);
        if (rc != 0) {
            return rc;
        }
    }
    CHECK(at == restore->record_count);
    return 0;
}

/* --- groups ---------------------------------------------------------------------- */

/* Orders records by their place in the store, and by want where they share it. */
static int compare_by_place(const void *a, const void *b)
{
    const struct plan_read *x = a, *y = b;
    int order = object_id_compare(&x->object, &y->object);
    if (order != 0) {
        return order;
    }
    return x->offset < y->offset   ? -1
           : x->offset > y->offset ? 1
           : x->want < y->want     ? -1
                                   : x->want > y->want;
}

/* Returns where the plain bytes of a record can be received as they are, or NULL. That needs a
 * chunk that is raw, wanted as a whole, and one run of the destination. */
static uint8_t *direct_place(const struct restore *restore, const struct plan_read *read)
{
    const struct want *want = &restore->wants[read->want];
    struct box part;
    uint64_t offset;
    if (read->encoding != ENCODING_RAW || read->stored_bytes != read->plain_bytes) {
        return NULL;
    }
    if (!want->tensor) {
        return want->blob->data + read->blob_offset;
    }
    if (want->tensor->device != 0 || !want->box->contiguous ||
        !restore_part_of(want, read, &part) || !box_equal(&part, &read->cell) ||
        !strided_run(&want->box->box, &part, dtype_bits(want->tensor->dtype) / 8, &offset)) {
        return NULL;
    }
    return want->box->data + offset;
}

/* Returns whether the record is read together with the group, in one READ of at most max bytes. */
static bool joins(const struct read_group *group, const struct restore *restore,
                  const struct plan_read *read, uint32_t max)
{
    const struct plan_read *first = &restore->records[group->first];
    uint64_t end = group->offset + group->bytes;
    /* Whole chunks go straight into place, one by one; what is packed is read together. */
    return read->stored_bytes < LIMIT_PACK_PIECE_BYTES &&
           first->stored_bytes < LIMIT_PACK_PIECE_BYTES &&
           object_id_equal(&first->object, &read->object) &&
           read->offset <= end + RESTORE_GAP_BYTES &&
           read->offset + read->stored_bytes - group->offset <= max;
}

/* Returns whether the group reads bytes of a chunk that this rank does not want, which are then
 * wanted by others. */
static bool is_partial(const struct restore *restore, const struct read_group *group)
{
    const struct plan_read *read = &restore->records[group->first];
    const struct want *want = &restore->wants[read->want];
    struct box part;
    return group->count == 1 && want->tensor && restore_part_of(want, read, &part) &&
           !box_equal(&part, &read->cell);
}

/* Moves the chunks that other ranks want as well to the front, in the same order on each rank. The
 * ranks then ask for them at about the same time, and the daemon reads them once
 * (session_land.c). */
static int put_partial_first(struct restore *restore, struct diag *diag)
{
    struct read_group *groups = calloc(restore->group_count + 1, sizeof *groups);
    size_t count = 0;
    if (!groups) {
        return no_memory(diag);
    }
    for (int partial = 1; partial >= 0; partial--) {
        for (size_t i = 0; i < restore->group_count; i++) {
            if (is_partial(restore, &restore->groups[i]) == (partial == 1)) {
                groups[count++] = restore->groups[i];
            }
        }
    }
    CHECK(count == restore->group_count);
    free(restore->groups);
    restore->groups = groups;
    return 0;
}

int restore_end_plan(struct restore *restore, struct diag *diag)
{
    uint32_t max = (uint32_t)min_u64(restore->engine->link.welcome.payload_max, LIMIT_CHUNK_BYTES);
    int rc = check_coverage(restore, diag);
    if (rc != 0) {
        return rc;
    }
    free(restore->groups);
    restore->group_count = restore->group_at = restore->redo_count = 0;
    restore->groups = calloc(restore->record_count + 1, sizeof *restore->groups);
    if (!restore->groups) {
        return no_memory(diag);
    }
    if (restore->record_count > 0) { /* a rank may hold nothing */
        qsort(restore->records, restore->record_count, sizeof *restore->records, compare_by_place);
    }
    struct read_group *group = NULL;
    for (size_t i = 0; i < restore->record_count; i++) {
        const struct plan_read *read = &restore->records[i];
        if (group && joins(group, restore, read, max)) {
            uint64_t end = max_u64(group->offset + group->bytes, read->offset + read->stored_bytes);
            group->bytes = (uint32_t)(end - group->offset);
            group->count++;
            group->place = NULL;
            continue;
        }
        group = &restore->groups[restore->group_count++];
        *group = (struct read_group){.first = (uint32_t)i,
                                     .count = 1,
                                     .offset = read->offset,
                                     .bytes = read->stored_bytes,
                                     .place = direct_place(restore, read)};
    }
    CHECK(restore->group_count <= restore->record_count);
    return put_partial_first(restore, diag);
}
