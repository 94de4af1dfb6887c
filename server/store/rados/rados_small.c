/* SPDX-License-Identifier: Apache-2.0
 *
 * Small things (parts, pages, manifests): one RADOS object each, made exclusively, with all its
 * bytes in one operation. A part may be larger than one operation; the rest goes into tails with
 * a name that is drawn for this try, which exist before the head that names them. The list of
 * small things names the tails until the head does, and again before the head is removed
 * (rados_list.c), so a sweep finds what a crash leaves.
 *
 * The head: magic, bytes of the whole, tail name, bytes per tail (all u64), then the first
 * bytes.
 */
#include "rados_small.h"

#include "base/buf.h"
#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FIRST_BYTES: bytes of the data that are read along with the head; manifests and most pages are no
 * longer than that. */
enum {
    HEAD_BYTES = 32,
    HEAD_DATA_BYTES = 4 << 20,
    TAIL_BYTES = 16 << 20,
    FIRST_BYTES = 64 << 10,
    BURY_TRIES = 3
};
#define HEAD_MAGIC  UINT64_C(0x31304c4c414d5343) /* "CSMALL01" */
#define STONE_MAGIC UINT64_C(0x3130454e4f545343) /* "CSTONE01" */
static const char STONE_KEY[] = "stone";

struct small { /* the names of its objects */
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
    char tail[CLUSTER_OBJECT_NAME_MAX + 48];
};

static void place_of(const struct rados_store *store, const struct store_name *name,
                     struct small *ret)
{
    rados_space_of(store, &name->run, ret->space);
    rados_name_small(name, ret->object);
}

static const char *tail_of(struct small *small, uint64_t name, uint64_t number)
{
    snprintf(small->tail, sizeof(small->tail), "%s+%016" PRIx64 "-%" PRIu64, small->object, name,
             number);
    return small->tail;
}

static int call(struct rados_store *store, const struct small *small, const char *object,
                size_t count, struct cluster_step *steps)
{
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = small->space,
                                .object = object,
                                .step_count = count,
                                .steps = steps};
    return cluster_do(store->cluster, &call);
}

static int make(struct rados_store *store, const struct small *small, const char *object,
                struct record_value bytes)
{
    struct cluster_step steps[] = {
        {.kind = STEP_CREATE}, {.kind = STEP_WRITE_FULL, .data = bytes.data, .bytes = bytes.bytes}};
    return call(store, small, object, 2, steps);
}

/* Tries to remove all tails. Returns the first error; it is no error if a tail is not there. */
static int remove_tails(struct rados_store *store, struct small *small,
                        const struct rados_tails *tails)
{
    int failed = 0;
    for (uint32_t i = 0; i < tails->count; i++) {
        struct cluster_step step = {.kind = STEP_REMOVE};
        int rc = call(store, small, tail_of(small, tails->name, i), 1, &step);
        failed = failed == 0 && rc != -ENOENT ? rc : failed;
    }
    return failed;
}

int rados_small_drop_tails(struct rados_store *store, const struct store_name *name,
                           const struct rados_tails *tails, struct diag *diag)
{
    struct small small;
    place_of(store, name, &small);
    int rc = remove_tails(store, &small, tails);
    return rc == 0 ? 0 : rados_error(rc, true, small.object, diag);
}

/* --- publish ---------------------------------------------------------------------------------- */

/* Writes what does not fit into the head. Nothing refers to it until the head is written. */
static int write_tails(struct rados_store *store, struct small *small, const struct store_req *req,
                       uint64_t name)
{
    uint64_t at = HEAD_DATA_BYTES;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && at < req->bytes; i++) {
        uint64_t left = req->bytes - at;
        struct record_value bytes = {.bytes = (size_t)(left < TAIL_BYTES ? left : TAIL_BYTES),
                                     .data = (const uint8_t *)req->data + at};
        rc = make(store, small, tail_of(small, name, i), bytes);
        if (rc == -ETIMEDOUT) {
            rc = -EAGAIN; /* nothing refers to it, so no outcome is unknown */
        }
        at += bytes.bytes;
    }
    return rc;
}

static uint32_t tail_count(uint64_t bytes)
{
    uint64_t behind = bytes > HEAD_DATA_BYTES ? bytes - HEAD_DATA_BYTES : 0;
    return (uint32_t)((behind + TAIL_BYTES - 1) / TAIL_BYTES);
}

static bool is_head_of(size_t bytes, const uint8_t *head, uint64_t name)
{
    return bytes == HEAD_BYTES && load_u64(head) == HEAD_MAGIC && load_u64(head + 16) == name;
}

/* Called if the name is taken. Each try draws the name of its tails, so the head shows whether it
 * was this try, whose answer was lost and which was sent again (R10). Returns 0 if it was, and
 * -EEXIST if it was another. Returns -ESTALE if a sweep holds the name, or has held it, so that the
 * tails of this try are garbage. */
static int check_made(struct rados_store *store, const struct small *small, uint64_t name)
{
    uint8_t head[HEAD_BYTES];
    struct cluster_step step = {.kind = STEP_READ, .bytes = sizeof(head), .into = head};
    int rc = call(store, small, small->object, 1, &step);
    if (rc != 0 && rc != -ENOENT) {
        return -ETIMEDOUT; /* unknown things are not removed */
    }
    if (rc == -ENOENT || (step.ret_bytes == HEAD_BYTES && load_u64(head) == STONE_MAGIC)) {
        return -ESTALE;
    }
    return is_head_of((size_t)step.ret_bytes, head, name) ? 0 : -EEXIST;
}

int rados_op_publish(struct rados_store *store, struct store_req *req)
{
    struct small small;
    size_t inside = req->bytes < HEAD_DATA_BYTES ? (size_t)req->bytes : HEAD_DATA_BYTES;
    uint64_t name = store->writer ^ atomic_fetch_add(&store->next, 1);
    const struct rados_tails tails = {.name = name, .count = tail_count(req->bytes)};
    uint8_t *head = malloc(HEAD_BYTES + inside);
    if (head == NULL) {
        return diag_no_memory(&req->diag, "publishing %zu bytes", inside);
    }
    int rc = rados_list_enter_small(store, &req->name, &tails, &req->diag);
    if (rc != 0) {
        free(head);
        return rc;
    }
    place_of(store, &req->name, &small);
    store_u64(head, HEAD_MAGIC);
    store_u64(head + 8, req->bytes);
    store_u64(head + 16, name);
    store_u64(head + 24, TAIL_BYTES);
    if (inside > 0) {
        memcpy(head + HEAD_BYTES, req->data, inside);
    }
    rc = write_tails(store, &small, req, name);
    if (rc == 0) {
        rc = make(store, &small, small.object,
                  (struct record_value){.bytes = HEAD_BYTES + inside, .data = head});
    }
    free(head);
    rc = rc == -EEXIST ? check_made(store, &small, name) : rc;
    if (rc != 0 && rc != -ETIMEDOUT) {
        err_ignore(remove_tails(store, &small, &tails)); /* the list names what is left */
    }
    if (rc == -ESTALE) {
        return diag_set(&req->diag, CAIRN_E_IO,
                        "%s is being removed as the leftover of a dead writer", small.object);
    }
    if (rc == 0 && tails.count > 0) {
        return rados_list_settle_small(store, &req->name, &tails, &req->diag);
    }
    return rc == 0 ? 0 : rados_error(rc, true, small.object, &req->diag);
}

/* --- fetch ------------------------------------------------------------------------------------ */

struct head {
    uint64_t bytes, tail_name, tail_bytes;
    uint64_t inside, ready; /* of the data: in the head's object, and read along with the head */
};

static int damaged(const struct small *small, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_DAMAGED, "%s/%s is damaged: %s", small->space, small->object,
                    what);
}

/* Reads what does not fit into the head to `data`. */
static int read_tails(struct rados_store *store, struct small *small, const struct head *head,
                      uint8_t *data, struct diag *diag)
{
    uint64_t at = HEAD_DATA_BYTES;
    for (uint64_t i = 0; at < head->bytes; i++) {
        uint64_t left = head->bytes - at;
        struct cluster_step step = {.kind = STEP_READ,
                                    .bytes =
                                        (size_t)(left < head->tail_bytes ? left : head->tail_bytes),
                                    .into = data + at};
        int rc = call(store, small, tail_of(small, head->tail_name, i), 1, &step);
        if (rc == -ENOENT || (rc == 0 && step.ret_bytes != step.bytes)) {
            return damaged(small, "a tail is missing or too short", diag);
        }
        if (rc != 0) {
            return rados_error(rc, false, small->object, diag);
        }
        at += step.bytes;
    }
    return 0;
}

struct room { /* for a head alone, or with the first bytes of the data behind it */
    size_t bytes;
    uint8_t *data;
};

/* Reads the head. ret->ready says how many of the data's first bytes are in the room. */
static int read_head(struct rados_store *store, const struct small *small, struct room room,
                     struct head *ret, struct diag *diag)
{
    struct cluster_step step = {.kind = STEP_READ, .bytes = room.bytes, .into = room.data};
    int rc = call(store, small, small->object, 1, &step);
    if (rc != 0) {
        return rados_error(rc, false, small->object, diag);
    }
    if (step.ret_bytes < HEAD_BYTES || load_u64(room.data) != HEAD_MAGIC) {
        return damaged(small, "its head is missing or malformed", diag);
    }
    *ret = (struct head){.bytes = load_u64(room.data + 8),
                         .tail_name = load_u64(room.data + 16),
                         .tail_bytes = load_u64(room.data + 24)};
    ret->inside = min_u64(ret->bytes, HEAD_DATA_BYTES);
    ret->ready = min_u64(ret->inside, room.bytes - HEAD_BYTES);
    if (ret->bytes > LIMIT_PART_BYTES || step.ret_bytes != HEAD_BYTES + ret->ready ||
        ret->tail_bytes == 0) {
        return damaged(small, "its length is not what its head says", diag);
    }
    return 0;
}

/* Reads the part of the head's object that did not come along with the head, and one byte more, for
 * which `data` has room, so that an object that is too long is noticed. */
static int read_inside(struct rados_store *store, const struct small *small,
                       const struct head *head, uint8_t *data, struct diag *diag)
{
    if (head->ready == head->inside) {
        return 0;
    }
    size_t left = (size_t)(head->inside - head->ready);
    struct cluster_step step = {.kind = STEP_READ,
                                .offset = HEAD_BYTES + head->ready,
                                .bytes = left + 1,
                                .into = data + head->ready};
    int rc = call(store, small, small->object, 1, &step);
    if (rc != 0) {
        return rados_error(rc, false, small->object, diag);
    }
    return step.ret_bytes == left ? 0
                                  : damaged(small, "its length is not what its head says", diag);
}

/* Reads a range that lies in the head. */
static int fetch_range(struct rados_store *store, struct store_req *req)
{
    struct small small;
    uint8_t *data = malloc(req->bytes);
    struct cluster_step step = {.kind = STEP_READ,
                                .offset = HEAD_BYTES + req->offset,
                                .bytes = (size_t)req->bytes,
                                .into = data};
    if (data == NULL) {
        return diag_no_memory(&req->diag, "fetching a document");
    }
    place_of(store, &req->name, &small);
    int rc = call(store, &small, small.object, 1, &step);
    if (rc != 0) {
        free(data);
        return rados_error(rc, false, small.object, &req->diag);
    }
    req->ret_data = data;
    req->ret_bytes = step.ret_bytes;
    return 0;
}

int rados_op_fetch(struct rados_store *store, struct store_req *req)
{
    if (req->bytes > 0 && req->bytes <= HEAD_DATA_BYTES &&
        req->offset <= HEAD_DATA_BYTES - req->bytes) {
        return fetch_range(store, req);
    }
    struct small small;
    struct head head;
    uint8_t *data = NULL, *room = malloc(HEAD_BYTES + FIRST_BYTES);
    place_of(store, &req->name, &small);
    int rc = room != NULL ? read_head(store, &small, (struct room){HEAD_BYTES + FIRST_BYTES, room},
                                      &head, &req->diag)
                          : diag_no_memory(&req->diag, "fetching a document");
    if (rc == 0) {
        data = malloc(head.bytes + 1);
        rc = data != NULL ? 0 : diag_no_memory(&req->diag, "fetching a document");
    }
    if (rc == 0) {
        memcpy(data, room + HEAD_BYTES, head.ready);
        rc = read_inside(store, &small, &head, data, &req->diag);
    }
    if (rc == 0) {
        rc = read_tails(store, &small, &head, data, &req->diag);
    }
    free(room);
    if (rc != 0) {
        free(data);
        return rc;
    }
    req->ret_data = data;
    req->ret_bytes = head.bytes;
    if (req->bytes > 0) { /* behind the head: rare, so the whole is read and cut */
        uint64_t from = min_u64(req->offset, head.bytes);
        req->ret_bytes = min_u64(req->bytes, head.bytes - from);
        memmove(data, data + from, req->ret_bytes);
    }
    return 0;
}

/* Puts a stone in the place of a head that was never made, so that it cannot be made while its
 * tails are being removed. */
static int lay_stone(struct rados_store *store, const struct small *small, uint64_t name)
{
    uint8_t stone[HEAD_BYTES] = {0};
    store_u64(stone, STONE_MAGIC);
    store_u64(stone + 16, name);
    struct cluster_step steps[] = {
        {.kind = STEP_CREATE},
        {.kind = STEP_WRITE_FULL, .data = stone, .bytes = sizeof(stone)},
        {.kind = STEP_KEY_SET, .key = STONE_KEY, .data = stone + 16, .bytes = 8}};
    return call(store, small, small->object, 3, steps);
}

int rados_small_bury(struct rados_store *store, const struct store_name *name,
                     const struct rados_tails *tails, enum rados_burial *ret, struct diag *diag)
{
    struct small small;
    int rc = -EEXIST;
    *ret = BURIAL_DONE;
    place_of(store, name, &small);
    for (unsigned i = 0; i < BURY_TRIES && rc == -EEXIST; i++) { /* a head was made in between */
        uint8_t head[HEAD_BYTES];
        struct cluster_step step = {.kind = STEP_READ, .bytes = sizeof(head), .into = head};
        rc = call(store, &small, small.object, 1, &step);
        bool whole = rc == 0 && step.ret_bytes == HEAD_BYTES;
        if (whole && load_u64(head) == STONE_MAGIC) {
            *ret = load_u64(head + 16) == tails->name ? BURIAL_DONE : BURIAL_BUSY;
            return 0;
        }
        if (whole && load_u64(head) == HEAD_MAGIC) {
            *ret = load_u64(head + 16) == tails->name ? BURIAL_NAMED : BURIAL_DONE;
            return 0;
        }
        if (rc == 0) {
            return damaged(&small, "its head is missing or malformed", diag);
        }
        rc = rc == -ENOENT ? lay_stone(store, &small, tails->name) : rc;
    }
    return rc == 0 ? 0 : rados_error(rc, true, small.object, diag);
}

int rados_small_unbury(struct rados_store *store, const struct store_name *name,
                       const struct rados_tails *tails, struct diag *diag)
{
    struct small small;
    uint8_t stone[8];
    place_of(store, name, &small);
    store_u64(stone, tails->name);
    struct cluster_step steps[] = {
        {.kind = STEP_KEY_IS, .key = STONE_KEY, .data = stone, .bytes = sizeof(stone)},
        {.kind = STEP_REMOVE}};
    int rc = call(store, &small, small.object, 2, steps);
    return rc == 0 || rc == -ECANCELED || rc == -ENOENT ? 0
                                                        : rados_error(rc, true, small.object, diag);
}

int rados_small_drop_head(struct rados_store *store, const struct store_name *name,
                          struct diag *diag)
{
    struct small small;
    place_of(store, name, &small);
    struct cluster_step step = {.kind = STEP_REMOVE};
    int rc = call(store, &small, small.object, 1, &step);
    return rc == 0 || rc == -ENOENT ? 0 : rados_error(rc, true, small.object, diag);
}

int rados_op_delete_small(struct rados_store *store, struct store_req *req)
{
    struct small small;
    struct head head;
    struct rados_tails tails = {.count = 0};
    uint8_t room[HEAD_BYTES];
    place_of(store, &req->name, &small);
    int rc = read_head(store, &small, (struct room){sizeof room, room}, &head, &req->diag);
    if (rc != 0 && rc != CAIRN_E_DAMAGED) {
        if (rc == CAIRN_E_NOT_FOUND) {
            rados_list_leave_small(store, &req->name, NULL);
        }
        return rc;
    }
    diag_clear(&req->diag);
    if (rc == 0) {
        tails = (struct rados_tails){.name = head.tail_name, .count = tail_count(head.bytes)};
        rc = tails.count > 0 ? rados_list_doom_small(store, &req->name, &tails, &req->diag) : 0;
        if (rc != 0) {
            return rc;
        }
    }
    struct cluster_step step = {.kind = STEP_REMOVE};
    int removed = call(store, &small, small.object, 1, &step);
    if (removed != 0) {
        return rados_error(removed, true, small.object, &req->diag);
    }
    bool all = remove_tails(store, &small, &tails) == 0; /* otherwise a sweep finds the rest */
    rados_list_leave_small(store, &req->name, all ? &tails : NULL);
    return 0;
}
