/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and checks what a rank registered. Everything that a later stage takes for granted is
 * decided here, with an error that names the tensor: names are valid and sorted, boxes lie inside,
 * groups are sorted and contain this rank, memory does not overlap itself. Equal groups share one
 * array, so that later stages compare them by pointer. Any thread.
 */
#include "share/registered.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define REGISTERED_BYTES_MAX ((size_t)4 << 30)

struct builder {
    struct registered *set;
    struct diag *diag;
    const uint32_t *last_group; /* the shared array of the last group */
    uint32_t last_group_count;
    struct group_node {
        struct group_node *next;
        uint32_t count;
        const uint32_t *ranks;
    } * groups;
};

static int no_memory(const struct builder *builder)
{
    return diag_no_memory(builder->diag, "the list of registered tensors");
}

/* --- texts ----------------------------------------------------------------------- */

/* Checks name, coordinate and placement, and copies the texts into the set. A local item needs a
 * coordinate, and no other may have one. */
static int copy_key(const struct builder *builder, const char *what, const char **name,
                    const char **coordinate, uint32_t placement)
{
    if (!*name || !text_is_valid(strlen(*name), *name, LIMIT_NAME_BYTES)) {
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "the %s name '%.64s' is not valid: it must be 1 to %d bytes of UTF-8", what,
                        *name ? *name : "(NULL)", LIMIT_NAME_BYTES);
    }
    const char *place = *coordinate ? *coordinate : "";
    if (placement < PLACEMENT_REPLICATED || placement > PLACEMENT_LOCAL) {
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "%s '%s' has placement %u; it must be 1, 2 or 3", what, *name, placement);
    }
    if (placement == PLACEMENT_LOCAL &&
        !text_is_valid(strlen(place), place, LIMIT_COORDINATE_BYTES)) {
        return diag_set(
            builder->diag, CAIRN_E_INVALID,
            "%s '%s' is local, so it needs a coordinate of 1 to %d bytes of UTF-8, such as dp=3",
            what, *name, LIMIT_COORDINATE_BYTES);
    }
    if (placement != PLACEMENT_LOCAL && place[0] != '\0') {
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "%s '%s' has the coordinate '%.64s', but is not local; remove the "
                        "coordinate, or make it local",
                        what, *name, place);
    }
    *name = scratch_string(&builder->set->scratch, strlen(*name), *name);
    *coordinate = scratch_string(&builder->set->scratch, strlen(place), place);
    return *name && *coordinate ? 0 : no_memory(builder);
}

/* --- groups ---------------------------------------------------------------------- */

/* Checks that the group is ascending ranks of the world, this one among them. */
static int check_group(const struct builder *builder, const struct registered_tensor *tensor)
{
    const struct registered *set = builder->set;
    bool found = false;
    for (uint32_t i = 0; i < tensor->group_count; i++) {
        if (tensor->group[i] >= set->world_size ||
            (i > 0 && tensor->group[i] <= tensor->group[i - 1])) {
            return diag_set(
                builder->diag, CAIRN_E_INVALID,
                "the group of tensor '%s' must be ascending ranks below %u; its number %u is %u",
                tensor->name, set->world_size, i, tensor->group[i]);
        }
        found = found || tensor->group[i] == set->rank;
    }
    if (!found) {
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "the group of tensor '%s' lacks this rank, %u", tensor->name, set->rank);
    }
    return 0;
}

static bool group_is(const uint32_t *ranks, uint32_t count, const struct registered_tensor *tensor)
{
    return count == tensor->group_count && ranks &&
           (ranks == tensor->group || memcmp(ranks, tensor->group, count * sizeof *ranks) == 0);
}

/* Returns the shared array of ranks that equals the tensor's group, and makes it if it is new. NULL
 * if memory is short. */
static uint32_t *intern(struct builder *builder, const struct registered_tensor *tensor)
{
    if (group_is(builder->last_group, builder->last_group_count, tensor)) {
        return (uint32_t *)(uintptr_t)builder->last_group;
    }
    for (const struct group_node *node = builder->groups; node; node = node->next) {
        if (group_is(node->ranks, node->count, tensor)) {
            return (uint32_t *)(uintptr_t)node->ranks;
        }
    }
    struct scratch *scratch = &builder->set->scratch;
    struct group_node *node = scratch_alloc(scratch, sizeof *node);
    uint32_t *ranks = scratch_copy(scratch, tensor->group_count * sizeof *ranks, tensor->group);
    if (!node || !ranks) {
        return NULL;
    }
    *node =
        (struct group_node){.next = builder->groups, .count = tensor->group_count, .ranks = ranks};
    builder->groups = node;
    return ranks;
}

/* Sets the tensor's group, which is this rank alone if none is given, and this rank's position in
 * it. */
static int copy_group(struct builder *builder, struct registered_tensor *tensor)
{
    if (tensor->group_count == 0 || !tensor->group) {
        tensor->group = &builder->set->rank; /* only this rank */
        tensor->group_count = 1;
    }
    int rc = check_group(builder, tensor);
    if (rc != 0) {
        return rc;
    }
    uint32_t *ranks = intern(builder, tensor);
    if (!ranks) {
        return no_memory(builder);
    }
    builder->last_group = ranks;
    builder->last_group_count = tensor->group_count;
    tensor->group = ranks;
    tensor->group_member = 0;
    while (ranks[tensor->group_member] != builder->set->rank) {
        CHECK(tensor->group_member + 1 < tensor->group_count); /* check_group() has found it */
        tensor->group_member++;
    }
    return 0;
}

/* --- boxes ----------------------------------------------------------------------- */

static int64_t magnitude(int64_t n) { return n < 0 ? -n : n; }

/* Checks that elements do not share memory: in order of distance, each stride must step over
 * everything that the smaller ones reach. Marks memory without holes in row-major order as
 * contiguous. */
static int check_strides(const struct builder *builder, const char *name,
                         struct registered_box *box)
{
    uint32_t order[LIMIT_NDIM], count = 0;
    int64_t reach = 0, packed = 1;
    bool contiguous = true;
    for (uint32_t d = box->box.ndim; d-- > 0;) {
        int64_t length = box->box.length[d], stride = box->stride[d];
        if (stride == INT64_MIN ||
            magnitude(stride) > (INT64_MAX >> 8) / (length > 0 ? length : 1)) {
            return diag_set(builder->diag, CAIRN_E_INVALID,
                            "tensor '%s' has stride %lld of dimension %u, which is too large", name,
                            (long long)stride, d);
        }
        contiguous = contiguous && (length == 1 || stride == packed);
        packed *= length;
        if (length > 1) {
            uint32_t at = count++;
            while (at > 0 && magnitude(box->stride[order[at - 1]]) > magnitude(stride)) {
                order[at] = order[at - 1];
                at--;
            }
            order[at] = d;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        int64_t stride = magnitude(box->stride[order[i]]);
        if (stride <= reach) {
            return diag_set(builder->diag, CAIRN_E_INVALID,
                            "tensor '%s' has elements that share memory (stride %lld of dimension "
                            "%u); save a copy of it",
                            name, (long long)box->stride[order[i]], order[i]);
        }
        reach += stride * (box->box.length[order[i]] - 1);
    }
    CHECK(count <= box->box.ndim);
    box->contiguous = contiguous;
    return 0;
}

/* Checks that a box has memory and that its elements do not overlap. */
static int check_memory(const struct builder *builder, const struct registered_tensor *tensor,
                        struct registered_box *box)
{
    char text[160];
    if (box_elements(&box->box) == 0) {
        box->contiguous = true;
        return 0;
    }
    if (!box->data) {
        box_format(&box->box, sizeof text, text);
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "tensor '%s' has a box %s whose data is NULL", tensor->name, text);
    }
    int rc = box->contiguous ? 0 : check_strides(builder, tensor->name, box);
    if (rc == 0 && tensor->device != 0 && !box->contiguous) {
        rc = diag_set(builder->diag, CAIRN_E_INVALID,
                      "tensor '%s' is on a device, where boxes must be row-major without holes; "
                      "save a contiguous copy",
                      tensor->name);
    }
    return rc;
}

static int compare_boxes(const void *a, const void *b)
{
    return box_compare(&((const struct registered_box *)a)->box,
                       &((const struct registered_box *)b)->box);
}

/* Copies, checks and sorts the boxes of a tensor. */
static int copy_boxes(const struct builder *builder, struct registered_tensor *tensor)
{
    char text[160];
    if (tensor->box_count == 0 || !tensor->boxes) {
        return diag_set(builder->diag, CAIRN_E_INVALID, "tensor '%s' has no box", tensor->name);
    }
    struct registered_box *boxes =
        scratch_array(&builder->set->scratch, tensor->box_count, sizeof *boxes);
    if (!boxes) {
        return no_memory(builder);
    }
    memcpy(boxes, tensor->boxes, tensor->box_count * sizeof *boxes);
    tensor->boxes = boxes;
    for (size_t i = 0; i < tensor->box_count; i++) {
        int rc = box_check(&boxes[i].box, &tensor->shape, builder->diag);
        rc = rc != 0 ? rc : check_memory(builder, tensor, &boxes[i]);
        if (rc != 0) {
            diag_add(builder->diag, "tensor '%s', box %zu", tensor->name, i);
            return rc;
        }
    }
    qsort(boxes, tensor->box_count, sizeof *boxes, compare_boxes);
    for (size_t i = 1; i < tensor->box_count; i++) {
        if (box_equal(&boxes[i - 1].box, &boxes[i].box)) {
            box_format(&boxes[i].box, sizeof text, text);
            return diag_set(builder->diag, CAIRN_E_INVALID, "tensor '%s' has the box %s twice",
                            tensor->name, text);
        }
    }
    return 0;
}

/* --- tensors and blobs ----------------------------------------------------------- */

/* Copies and checks one tensor. The texts, boxes and group are the set's afterwards; the data stays
 * the caller's. */
static int copy_tensor(struct builder *builder, struct registered_tensor *tensor)
{
    uint64_t bytes;
    int rc = copy_key(builder, "tensor", &tensor->name, &tensor->coordinate, tensor->placement);
    if (rc != 0) {
        return rc;
    }
    if (!dtype_is_known(tensor->dtype)) {
        return diag_set(builder->diag, CAIRN_E_INVALID, "tensor '%s' has the unknown dtype %u",
                        tensor->name, tensor->dtype);
    }
    rc = shape_check(&tensor->shape, tensor->dtype, &bytes, builder->diag);
    if (rc != 0) {
        diag_add(builder->diag, "tensor '%s'", tensor->name);
        return rc;
    }
    rc = copy_boxes(builder, tensor);
    return rc != 0 ? rc : copy_group(builder, tensor);
}

/* Copies and checks one blob, with its bytes. */
static int copy_blob(const struct builder *builder, struct registered_blob *blob)
{
    int rc = copy_key(builder, "blob", &blob->name, &blob->coordinate, blob->placement);
    if (rc != 0) {
        return rc;
    }
    if (blob->kind != BLOB_BYTES && blob->kind != BLOB_TREE) {
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "blob '%s' has kind %u, which is neither bytes nor tree", blob->name,
                        blob->kind);
    }
    if (blob->bytes > 0 && !blob->data) {
        return diag_set(builder->diag, CAIRN_E_INVALID,
                        "blob '%s' has %zu bytes, but its data is NULL", blob->name, blob->bytes);
    }
    blob->data = scratch_copy(&builder->set->scratch, blob->bytes > 0 ? blob->bytes : 1,
                              blob->bytes > 0 ? blob->data : (const uint8_t *)"");
    return blob->data ? 0 : no_memory(builder);
}

/* Copies and checks all tensors and blobs. */
static int copy_all(struct builder *builder, const struct registered_tensor *tensors,
                    const struct registered_blob *blobs)
{
    struct registered *set = builder->set;
    struct registered_tensor *own =
        set->same ? NULL
                  : scratch_array(&set->scratch, set->tensor_count + 1, sizeof *set->tensors);
    set->tensors = set->same ? set->same->tensors : own;
    set->blobs = scratch_array(&set->scratch, set->blob_count + 1, sizeof *set->blobs);
    if (!set->tensors || !set->blobs) {
        return no_memory(builder);
    }
    int rc = 0;
    for (size_t i = 0; own && i < set->tensor_count && rc == 0; i++) {
        set->tensors[i] = tensors[i];
        rc = copy_tensor(builder, &set->tensors[i]);
    }
    for (size_t i = 0; i < set->blob_count && rc == 0; i++) {
        set->blobs[i] = blobs[i];
        rc = copy_blob(builder, &set->blobs[i]);
    }
    return rc;
}

/* Sorts the set, and refuses a name that is registered twice. */
static int sort_all(const struct builder *builder)
{
    _Static_assert(offsetof(struct registered_tensor, coordinate) == sizeof(char *),
                   "as in part_order");
    _Static_assert(offsetof(struct registered_blob, coordinate) == sizeof(char *),
                   "as in part_order");
    struct registered *set = builder->set;
    if (!set->same) {
        qsort(set->tensors, set->tensor_count, sizeof *set->tensors, part_order);
    }
    qsort(set->blobs, set->blob_count, sizeof *set->blobs, part_order);
    for (size_t i = 1; !set->same && i < set->tensor_count; i++) {
        if (part_order(&set->tensors[i - 1], &set->tensors[i]) == 0) {
            return diag_set(builder->diag, CAIRN_E_INVALID, "tensor '%s' is registered twice",
                            set->tensors[i].name);
        }
    }
    for (size_t i = 1; i < set->blob_count; i++) {
        if (part_order(&set->blobs[i - 1], &set->blobs[i]) == 0) {
            return diag_set(builder->diag, CAIRN_E_INVALID, "blob '%s' is registered twice",
                            set->blobs[i].name);
        }
    }
    return 0;
}

/* Hashes what all ranks must have alike: the tensors that every rank of the world holds. */
static int hash_list(const struct builder *builder)
{
    struct registered *set = builder->set;
    if (set->same) {
        set->list_hash = set->same->list_hash;
        return 0;
    }
    struct xxh3_stream *stream = xxh3_stream_new();
    if (!stream) {
        return no_memory(builder);
    }
    xxh3_stream_reset(stream);
    for (size_t i = 0; i < set->tensor_count; i++) {
        const struct registered_tensor *tensor = &set->tensors[i];
        if (tensor->group_count != set->world_size || tensor->placement == PLACEMENT_LOCAL) {
            continue;
        }
        uint32_t head[3] = {tensor->dtype, tensor->placement, tensor->shape.ndim};
        xxh3_stream_add(stream, strlen(tensor->name) + 1, tensor->name);
        xxh3_stream_add(stream, sizeof head, head);
        xxh3_stream_add(stream, tensor->shape.ndim * sizeof tensor->shape.length[0],
                        tensor->shape.length);
        for (size_t b = 0; b < tensor->box_count; b++) {
            const struct box *box = &tensor->boxes[b].box;
            xxh3_stream_add(stream, box->ndim * sizeof box->offset[0], box->offset);
            xxh3_stream_add(stream, box->ndim * sizeof box->length[0], box->length);
        }
    }
    set->list_hash = xxh3_stream_digest(stream);
    xxh3_stream_free(stream);
    return 0;
}

int registered_new(const struct registered_list *list, struct registered **ret, struct diag *diag)
{
    CHECK(list->tensors != NULL || list->tensor_count == 0);
    CHECK(list->blobs != NULL || list->blob_count == 0);
    if (list->world_size == 0 || list->world_size > LIMIT_WORLD_SIZE ||
        list->rank >= list->world_size) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "rank %u of a world of %u is not possible: the rank must be below the "
                        "world size, and that must be within the limit",
                        list->rank, list->world_size);
    }
    struct registered *set = calloc(1, sizeof *set);
    struct builder builder = {.set = set, .diag = diag};
    if (!set) {
        return no_memory(&builder);
    }
    atomic_init(&set->refs, 1);
    scratch_init(&set->scratch, REGISTERED_BYTES_MAX);
    set->rank = list->rank;
    set->world_size = list->world_size;
    if (list->same) { /* which may have its tensors from an older one itself */
        set->same = registered_ref(list->same->same ? list->same->same : list->same);
    }
    set->tensor_count = set->same ? set->same->tensor_count : list->tensor_count;
    set->blob_count = list->blob_count;
    set->gpu = list->gpu;
    int rc = copy_all(&builder, list->tensors, list->blobs);
    if (rc == 0) {
        rc = sort_all(&builder);
    }
    if (rc == 0) {
        rc = hash_list(&builder);
    }
    if (rc != 0) {
        registered_unref(set);
        return rc;
    }
    CHECK(set->rank < set->world_size);
    *ret = set;
    return 0;
}

uint64_t registered_bytes(const struct registered_tensor *tensor)
{
    uint64_t bytes = 0;
    for (size_t b = 0; b < tensor->box_count; b++) {
        if (!add_u64(bytes, box_bytes(&tensor->boxes[b].box, tensor->dtype), &bytes)) {
            return UINT64_MAX;
        }
    }
    return bytes;
}

uint64_t registered_state_bytes(const struct registered *set)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < set->tensor_count; i++) {
        const struct registered_tensor *tensor = &set->tensors[i];
        struct box whole = box_whole(&tensor->shape);
        uint64_t bytes = tensor->placement == PLACEMENT_LOCAL ? registered_bytes(tensor)
                                                              : box_bytes(&whole, tensor->dtype);
        if (!add_u64(sum, bytes, &sum)) {
            return UINT64_MAX;
        }
    }
    for (size_t i = 0; i < set->blob_count; i++) {
        if (!add_u64(sum, set->blobs[i].bytes, &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

struct registered *registered_ref(struct registered *set)
{
    uint32_t before = atomic_fetch_add(&set->refs, 1);
    CHECK(before > 0);
    return set;
}

void registered_unref(struct registered *set)
{
    if (set && atomic_fetch_sub(&set->refs, 1) == 1) {
        registered_unref(set->same);
        scratch_fini(&set->scratch);
        free(set);
    }
}

struct strided registered_memory(const struct registered_box *box, uint32_t element_bytes)
{
    CHECK(element_bytes > 0);
    struct strided memory = {.data = box->data};
    if (box->contiguous) {
        return strided_packed(box->data, &box->box, element_bytes);
    }
    for (uint32_t d = 0; d < box->box.ndim; d++) {
        memory.stride[d] = box->stride[d] * (int64_t)element_bytes;
    }
    return memory;
}
