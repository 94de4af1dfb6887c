/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a copy: an object, a document, each under the name that it has in the other store.
 * Nothing is checked here: everything is read back before it is entered. Invariant: what is sealed
 * or published is whole, or is not there. On the repair's thread.
 */
#include "copy_private.h"

#include "base/failpoint.h"

#include <stdlib.h>
#include <string.h>

static int copy_ranges(struct copying *c, const struct object_id *id, uint64_t bytes,
                       struct diag *diag)
{
    int status = 0;
    for (uint64_t at = 0; status == 0 && at < bytes; at += COPY_WINDOW_BYTES) {
        struct store_req req = {.op = STORE_READ,
                                .run = c->repair->name,
                                .object = *id,
                                .offset = at,
                                .bytes = min_u64(bytes - at, COPY_WINDOW_BYTES),
                                .data = c->window,
                                .to_end = bytes - at <= COPY_WINDOW_BYTES,
                                .from_medium = true};
        status = repair_check(c->repair, diag);
        if (status == 0) {
            status = ask_store(&c->repair->ask, c->from, &req, diag);
        }
        if (status == 0) {
            repair_count_read(c->repair, req.bytes);
            status = FAILPOINT("copy.write");
        }
        if (status == 0) {
            req.op = STORE_WRITE;
            status = ask_store(&c->repair->ask, c->to, &req, diag);
        }
    }
    return status;
}

static int do_op(struct copying *c, enum store_op op, const struct object_id *id, uint64_t bytes,
                 struct diag *diag)
{
    struct store_req req = {.op = op, .run = c->repair->name, .object = *id, .bytes = bytes};
    return ask_store(&c->repair->ask, c->to, &req, diag);
}

/* Creates the object. What a copy that was killed has left of it is removed first. */
static int create(struct copying *c, const struct object_id *id, uint64_t bytes, struct diag *diag)
{
    struct store_req sweep = {
        .op = STORE_SWEEP, .run = c->repair->name, .id = {id->term, id->step}};
    int status = do_op(c, STORE_CREATE, id, bytes, NULL);
    if (status == CAIRN_E_EXISTS) {
        status = ask_store(&c->repair->ask, c->to, &sweep, diag);
        if (status != 0) {
            return status;
        }
    } else if (status == 0) {
        return 0;
    }
    return do_op(c, STORE_CREATE, id, bytes, diag); /* with the words of the error */
}

int copying_object(struct copying *c, const struct object_id *id, struct diag *diag)
{
    struct store_req stat = {.op = STORE_STAT, .run = c->repair->name, .object = *id};
    struct diag why = DIAG_INIT;
    int status = ask_store(&c->repair->ask, c->to, &stat, &why);
    if (status != CAIRN_E_NOT_FOUND) {
        return status == 0 ? 0 : repair_fail(diag, status, &why);
    }
    stat = (struct store_req){.op = STORE_STAT, .run = c->repair->name, .object = *id};
    status = ask_store(&c->repair->ask, c->from, &stat, diag);
    status = status != 0 ? status : create(c, id, stat.ret_bytes, diag);
    if (status != 0) {
        return status;
    }
    status = copy_ranges(c, id, stat.ret_bytes, diag);
    if (status != 0) {
        err_ignore(do_op(c, STORE_ABORT, id, 0, NULL)); /* else the next opening removes it */
        return status;
    }
    return do_op(c, STORE_SEAL, id, 0, diag);
}

int copying_put(struct copying *c, const struct store_name *name, const struct record_value *value,
                struct diag *diag)
{
    struct store_req there = {.op = STORE_FETCH, .name = *name, .from_medium = true};
    int status = 0, found = ask_store(&c->repair->ask, c->to, &there, NULL);
    bool same = found == 0 && there.ret_bytes == value->bytes &&
                memcmp(there.ret_data, value->data, value->bytes) == 0;
    free(found == 0 ? there.ret_data : NULL);
    if (found == 0 && !same) {
        struct store_req drop = {.op = STORE_DELETE_SMALL, .name = *name};
        status = ask_store(&c->repair->ask, c->to, &drop, diag);
    }
    if (status == 0 && !same) {
        struct store_req put = {.op = STORE_PUBLISH,
                                .name = *name,
                                .bytes = value->bytes,
                                .data = (void *)(uintptr_t)value->data};
        status = ask_store(&c->repair->ask, c->to, &put, diag);
    }
    return status;
}

/* Copies a document; its hash is checked when the checkpoint is read back. */
int copying_document(struct copying *c, const struct store_name *name, struct diag *diag)
{
    struct record_value value = {0};
    int status = repair_fetch_from(c->repair, c->from, name, &value, diag);
    if (status == 0) {
        status = copying_put(c, name, &value, diag);
    }
    free((void *)(uintptr_t)value.data);
    return status;
}

int copying_drop(struct copying *c, struct ckpt_id id, struct diag *diag)
{
    struct store_req list = {.op = STORE_LIST_OBJECTS, .run = c->repair->name, .id = id};
    int status = ask_store(&c->repair->ask, c->to, &list, diag);
    for (size_t i = 0; status == 0 && i < list.ret_count; i++) {
        status = do_op(c, STORE_DELETE_OBJECT, &list.ret_objects[i], 0, diag);
    }
    free(list.ret_objects);
    struct store_req small = {.op = STORE_LIST_SMALL, .run = c->repair->name, .id = id};
    status = status != 0 ? status : ask_store(&c->repair->ask, c->to, &small, diag);
    for (size_t i = 0; status == 0 && i < small.ret_count; i++) {
        struct store_req drop = {.op = STORE_DELETE_SMALL, .name = small.ret_smalls[i]};
        status = ask_store(&c->repair->ask, c->to, &drop, diag);
    }
    free(small.ret_smalls);
    return status;
}
