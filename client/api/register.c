/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_set_tensors and cairn_set_blobs turn structs of cairn.h into the engine's, with the
 * defaults filled in. Only what could not be copied otherwise is checked here; registered_new
 * checks the rest. Invariant: a set never changes; a new one takes its place, and only while no
 * operation borrows the tensors. Any thread.
 */
#include "api_private.h"

#include "format/tree.h"

#include <stdio.h>
#include <string.h>

#define REGISTER_BYTES_MAX ((size_t)4 << 30)

struct registration {
    struct cairn *cairn;
    struct scratch scratch;
    struct diag *diag;
    char coordinate[32];     /* "rank=3", for local items without a coordinate */
    uint32_t *all_ranks;     /* the group of replicated items without a group */
    const char *what, *name; /* for error texts */
};

static int invalid(struct registration *reg, const char *why)
{
    return diag_set(reg->diag, CAIRN_E_INVALID, "%s \"%.200s\": %s", reg->what, reg->name, why);
}

static int no_memory(struct registration *reg)
{
    return diag_no_memory(reg->diag, "registering %s \"%.200s\"", reg->what, reg->name);
}

/* Copies one element. Element [0].size is the distance between elements; fields that only a newer
 * caller knows must be 0. */
static int take(struct registration *reg, const void *array, size_t idx, size_t bytes, void *ret)
{
    size_t distance;
    memcpy(&distance, array, sizeof distance);
    bool is_tensor = strcmp(reg->what, "tensor") == 0;
    if (distance < args_first_bytes(is_tensor ? "cairn_tensor" : "cairn_blob", bytes)) {
        return diag_set(reg->diag, CAIRN_E_INVALID,
                        "%s [0].size is %zu, but must be %zu or more: initialise the struct with "
                        "its INIT macro of cairn.h",
                        reg->what, distance, bytes);
    }
    const uint8_t *from = (const uint8_t *)array + idx * distance;
    for (size_t i = bytes; i < distance; i++) {
        if (from[i] != 0) {
            return diag_set(
                reg->diag, CAIRN_E_UNSUPPORTED,
                "%s [%zu] has a field set that libcairn %s does not know; install a newer libcairn",
                reg->what, idx, CAIRN_VERSION);
        }
    }
    memcpy((uint8_t *)ret + sizeof distance, from + sizeof distance,
           (distance < bytes ? distance : bytes) - sizeof distance);
    return 0;
}

static const char *coordinate_of(const struct registration *reg, int placement,
                                 const char *coordinate)
{
    if (coordinate != NULL) {
        return coordinate;
    }
    return placement == CAIRN_LOCAL ? reg->coordinate : "";
}

/* --- tensors ------------------------------------------------------------------------------ */

/* Converts one box; no stride means that it is contiguous. */
static int convert_box(struct registration *reg, const struct cairn_tensor *tensor,
                       const struct cairn_box *from, struct registered_box *to)
{
    if (tensor->ndim > 0 && (from->offset == NULL || from->length == NULL)) {
        return invalid(reg, "the offset or length of one of its boxes is NULL");
    }
    to->box.ndim = tensor->ndim;
    to->contiguous = from->stride == NULL;
    to->data = from->data;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        to->box.offset[d] = from->offset[d];
        to->box.length[d] = from->length[d];
        to->stride[d] = from->stride != NULL ? from->stride[d] : 0;
    }
    return 0;
}

/* Converts the boxes. A tensor without boxes is one box, the whole of it. */
static int convert_boxes(struct registration *reg, const struct cairn_tensor *from,
                         struct registered_tensor *to)
{
    int rc = 0;
    to->box_count = from->box_count > 0 ? from->box_count : 1;
    to->boxes = scratch_array(&reg->scratch, to->box_count, sizeof *to->boxes);
    if (to->boxes == NULL) {
        return no_memory(reg);
    }
    if (from->box_count == 0) {
        to->boxes[0] = (struct registered_box){
            .box = box_whole(&to->shape), .contiguous = true, .data = from->data};
        return 0;
    }
    if (from->boxes == NULL) {
        return invalid(reg, "its boxes is NULL, but box_count is not 0");
    }
    for (size_t i = 0; i < from->box_count && rc == 0; i++) {
        rc = convert_box(reg, from, &from->boxes[i], &to->boxes[i]);
    }
    return rc;
}

/* Converts the group. Without one a replicated tensor belongs to all ranks, any other to this
 * one. */
static int convert_group(struct registration *reg, const struct cairn_tensor *from,
                         struct registered_tensor *to)
{
    const struct engine_options *engine = &reg->cairn->engine_options;
    if (from->group == NULL) {
        if (from->group_count != 0) {
            return invalid(reg, "its group is NULL, but group_count is not 0");
        }
        if (to->placement == CAIRN_REPLICATED) {
            to->group = reg->all_ranks;
            to->group_count = engine->world_size;
        }
        return 0; /* otherwise only this rank */
    }
    if (from->group_count == 0) {
        return invalid(reg, "its group is empty; use NULL for the default");
    }
    to->group = scratch_array(&reg->scratch, from->group_count, sizeof *to->group);
    if (to->group == NULL) {
        return no_memory(reg);
    }
    to->group_count = from->group_count;
    for (uint32_t i = 0; i < from->group_count; i++) {
        if (from->group[i] < 0) {
            return invalid(reg, "its group has a negative rank");
        }
        to->group[i] = (uint32_t)from->group[i];
    }
    return 0;
}

/* Converts one tensor, and fills in the defaults. */
static int convert_tensor(struct registration *reg, const struct cairn_tensor *from,
                          struct registered_tensor *to)
{
    reg->name = from->name != NULL ? from->name : "(NULL)";
    if (from->name == NULL) {
        return invalid(reg, "a tensor needs a name");
    }
    if (from->dtype <= 0) {
        return invalid(reg, "its dtype is not set; use one of enum cairn_dtype");
    }
    if (from->ndim > LIMIT_NDIM) {
        return invalid(reg, "it has more than 8 dimensions");
    }
    if (from->ndim > 0 && from->shape == NULL) {
        return invalid(reg, "its shape is NULL");
    }
    to->name = from->name;
    to->dtype = (uint32_t)from->dtype;
    to->placement = from->placement != 0 ? (uint32_t)from->placement : CAIRN_REPLICATED;
    to->coordinate = coordinate_of(reg, from->placement, from->coordinate);
    to->eager = from->eager != 0;
    if (from->device < 0) {
        return invalid(reg,
                       "its device is negative; use 0 for the host, and 1 + N for CUDA device N");
    }
    to->device = (uint32_t)from->device;
    to->shape.ndim = from->ndim;
    for (uint32_t d = 0; d < from->ndim; d++) {
        to->shape.length[d] = from->shape[d];
        if (from->shape[d] < 0) {
            return invalid(reg, "a length of its shape is negative");
        }
    }
    int rc = convert_boxes(reg, from, to);
    return rc != 0 ? rc : convert_group(reg, from, to);
}

/* --- blobs -------------------------------------------------------------------------------- */

/* Converts one blob, and fills in the defaults. */
static int convert_blob(struct registration *reg, const struct cairn_blob *from,
                        struct registered_blob *to)
{
    reg->name = from->name != NULL ? from->name : "(NULL)";
    if (from->name == NULL) {
        return invalid(reg, "a blob needs a name");
    }
    if (from->kind != 0 && from->kind != CAIRN_BYTES && from->kind != CAIRN_TREE) {
        return invalid(reg, "its kind is neither CAIRN_BYTES nor CAIRN_TREE");
    }
    if (from->data == NULL && from->data_bytes > 0) {
        return invalid(reg, "its data is NULL, but data_bytes is not 0");
    }
    to->name = from->name;
    to->kind = from->kind != 0 ? (uint32_t)from->kind : CAIRN_BYTES;
    to->placement = from->placement != 0 ? (uint32_t)from->placement : CAIRN_REPLICATED;
    to->coordinate = coordinate_of(reg, from->placement, from->coordinate);
    to->bytes = from->data_bytes;
    to->data = from->data;
    int rc = to->kind == CAIRN_TREE ? tree_check(to->bytes, to->data, reg->diag) : 0;
    if (rc != 0) {
        diag_add(reg->diag, "blob \"%.200s\"", from->name);
    }
    return rc;
}

/* --- the set ------------------------------------------------------------------------------ */

/* Returns BUSY while an operation still reads from or writes to the registered memory. */
static int refuse_while_borrowed(struct cairn *cairn, struct diag *diag)
{
    pthread_mutex_lock(&cairn->lock);
    unsigned borrow_count = cairn->borrow_count;
    pthread_mutex_unlock(&cairn->lock);
    if (borrow_count == 0) {
        return 0;
    }
    return diag_set(
        diag, CAIRN_E_BUSY,
        "%u operation(s) use the registered tensors; wait until the save is released or "
        "the restore has ended",
        borrow_count);
}

/* Checks the memory of device tensors, and loads the driver once, for the first tensor that needs
 * it. set_lock must be held. */
static int check_devices(struct registration *reg, size_t count,
                         const struct registered_tensor *tensors)
{
    struct cairn *cairn = reg->cairn;
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        const struct registered_tensor *tensor = &tensors[i];
        if (tensor->device != 0 && cairn->gpu == NULL) {
            rc = gpu_open(&cairn->gpu, reg->diag);
        }
        for (size_t b = 0; tensor->device != 0 && b < tensor->box_count && rc == 0; b++) {
            const struct registered_box *box = &tensor->boxes[b];
            rc = box_elements(&box->box) == 0 || box->data == NULL
                     ? 0
                     : gpu_check(cairn->gpu, tensor->device - 1, box->data, reg->diag);
        }
        if (rc != 0) {
            diag_add(reg->diag, "tensor \"%.200s\"", tensor->name);
        }
    }
    return rc;
}

/* Makes the new set and puts it in place of the old one. set_lock must be held, so that the half of
 * the set that is kept is the present one. */
static int replace(struct registration *reg, const size_t counts[2],
                   struct registered_tensor *tensors, struct registered_blob *blobs)
{
    struct cairn *cairn = reg->cairn;
    const struct engine_options *engine = &cairn->engine_options;
    struct registered *old = cairn->set, *set = NULL;
    size_t blob_count = blobs != NULL ? counts[1] : old->blob_count;

    struct registered_list list = {.rank = engine->rank,
                                   .world_size = engine->world_size,
                                   .same = tensors != NULL ? NULL : old,
                                   .tensor_count = counts[0],
                                   .tensors = tensors,
                                   .blob_count = blob_count,
                                   .blobs = blobs != NULL ? blobs : old->blobs};
    int rc = tensors != NULL ? check_devices(reg, counts[0], tensors) : 0;
    list.gpu = cairn->gpu;
    rc = rc != 0 ? rc : registered_new(&list, &set, reg->diag);
    if (rc != 0) {
        return rc;
    }
    pthread_mutex_lock(&cairn->lock);
    bool swapped = cairn->borrow_count == 0;
    if (swapped) {
        cairn->set = set;
    }
    pthread_mutex_unlock(&cairn->lock);
    registered_unref(swapped ? old : set);
    if (swapped && !cairn->viewer) {
        loop_post(cairn->loop, &cairn->prepare_post);
    }
    return swapped ? 0 : refuse_while_borrowed(cairn, reg->diag);
}

void register_on_prepare(struct post *post)
{
    struct cairn *cairn = container_of(post, struct cairn, prepare_post);
    pthread_mutex_lock(&cairn->lock);
    struct registered *set = registered_ref(cairn->set);
    pthread_mutex_unlock(&cairn->lock);
    if (cairn->engine != NULL) {
        engine_prepare(cairn->engine, set);
    }
    registered_unref(set);
}

struct register_call {
    struct cairn *cairn;
    const void *array;
    size_t count;
};

/* Checks that a set may be registered now, and prepares what all items need. */
static int registration_init(struct registration *reg, const struct register_call *call,
                             const char *what, struct diag *diag)
{
    int rc = guard_check(call->cairn, diag);
    if (rc == 0 && call->array == NULL && call->count > 0) {
        rc = diag_set(diag, CAIRN_E_INVALID, "the array of %ss is NULL, but its count is %zu", what,
                      call->count);
    }
    rc = rc != 0 ? rc : refuse_while_borrowed(call->cairn, diag);
    if (rc != 0) {
        return rc;
    }
    const struct engine_options *engine = &call->cairn->engine_options;
    *reg = (struct registration){.cairn = call->cairn, .diag = diag, .what = what, .name = ""};
    scratch_init(&reg->scratch, REGISTER_BYTES_MAX);
    int length = snprintf(reg->coordinate, sizeof reg->coordinate, "rank=%u", engine->rank);
    CHECK(length > 0);
    reg->all_ranks = scratch_array(&reg->scratch, engine->world_size, sizeof *reg->all_ranks);
    if (reg->all_ranks == NULL) {
        return no_memory(reg); /* an empty scratch holds nothing */
    }
    for (uint32_t i = 0; i < engine->world_size; i++) {
        reg->all_ranks[i] = i;
    }
    return 0;
}

/* Converts the tensors and puts them into a new set, beside the present blobs. */
static int run_tensors(void *arg, struct diag *diag)
{
    const struct register_call *call = arg;
    struct registration reg;
    int rc = registration_init(&reg, call, "tensor", diag);
    if (rc != 0) {
        return rc;
    }
    struct registered_tensor *tensors =
        scratch_array(&reg.scratch, call->count + 1, sizeof *tensors);
    if (tensors == NULL) {
        rc = no_memory(&reg);
        scratch_fini(&reg.scratch);
        return rc;
    }
    for (size_t i = 0; i < call->count && rc == 0; i++) {
        struct cairn_tensor tensor = CAIRN_TENSOR_INIT;
        rc = take(&reg, call->array, i, sizeof tensor, &tensor);
        if (rc == 0) {
            rc = convert_tensor(&reg, &tensor, &tensors[i]);
        }
    }
    if (rc == 0) {
        pthread_mutex_lock(&call->cairn->set_lock);
        rc = replace(&reg, (size_t[2]){call->count, 0}, tensors, NULL);
        pthread_mutex_unlock(&call->cairn->set_lock);
    }
    scratch_fini(&reg.scratch);
    return rc;
}

/* Converts the blobs and puts them into a new set, beside the present tensors. */
static int run_blobs(void *arg, struct diag *diag)
{
    const struct register_call *call = arg;
    struct registration reg;
    int rc = registration_init(&reg, call, "blob", diag);
    if (rc != 0) {
        return rc;
    }
    struct registered_blob *blobs = scratch_array(&reg.scratch, call->count + 1, sizeof *blobs);
    if (blobs == NULL) {
        rc = no_memory(&reg);
        scratch_fini(&reg.scratch);
        return rc;
    }
    for (size_t i = 0; i < call->count && rc == 0; i++) {
        struct cairn_blob blob = CAIRN_BLOB_INIT;
        rc = take(&reg, call->array, i, sizeof blob, &blob);
        if (rc == 0) {
            rc = convert_blob(&reg, &blob, &blobs[i]);
        }
    }
    if (rc == 0) {
        pthread_mutex_lock(&call->cairn->set_lock);
        rc = replace(&reg, (size_t[2]){0, call->count}, NULL, blobs);
        pthread_mutex_unlock(&call->cairn->set_lock);
    }
    scratch_fini(&reg.scratch);
    return rc;
}

int cairn_set_tensors(cairn_t *cairn, const struct cairn_tensor *tensors, size_t count,
                      struct cairn_error *err)
{
    struct register_call call = {cairn, tensors, count};
    return guard_call(cairn, run_tensors, &call, err);
}

int cairn_set_blobs(cairn_t *cairn, const struct cairn_blob *blobs, size_t count,
                    struct cairn_error *err)
{
    struct register_call call = {cairn, blobs, count};
    return guard_call(cairn, run_blobs, &call, err);
}
