/* SPDX-License-Identifier: Apache-2.0
 *
 * A group is known by registered's pointer to its ranks. One pass finds the groups and counts, a
 * second one fills the lists. A list's hash is the hash of its keys in order, so equal lists have
 * equal hashes, whatever else a rank holds. Pure; any thread.
 */
#include "share/held.h"

#include "base/check.h"

#include <string.h>

#define HELD_BYTES_MAX ((size_t)4 << 30)
enum { HELD_GROUPS_MAX = 4096 };

static int no_memory(struct diag *diag)
{
    return diag_no_memory(diag, "comparing the registered tensors");
}

/* Returns the key of a tensor: the hash of everything that ranks which hold it together must have
 * alike. */
static struct xxh128 key_of(struct xxh3_stream *stream, const struct registered_tensor *tensor)
{
    uint32_t head[4] = {tensor->dtype, tensor->placement, tensor->shape.ndim,
                        (uint32_t)tensor->box_count};
    xxh3_stream_reset(stream);
    xxh3_stream_add(stream, strlen(tensor->name) + 1, tensor->name);
    xxh3_stream_add(stream, strlen(tensor->coordinate) + 1, tensor->coordinate);
    xxh3_stream_add(stream, sizeof head, head);
    xxh3_stream_add(stream, tensor->shape.ndim * sizeof tensor->shape.length[0],
                    tensor->shape.length);
    for (size_t b = 0; b < tensor->box_count; b++) {
        const struct box *box = &tensor->boxes[b].box;
        xxh3_stream_add(stream, box->ndim * sizeof box->offset[0], box->offset);
        xxh3_stream_add(stream, box->ndim * sizeof box->length[0], box->length);
    }
    return xxh3_stream_digest(stream);
}

/* Returns the index of the tensor's group, or HELD_GROUPS_MAX if there are too many groups. */
static uint32_t find_group(struct held *held, const struct registered_tensor *tensor)
{
    for (uint32_t i = held->group_count; i-- > 0;) { /* neighbours are often alike */
        if (held->groups[i].ranks == tensor->group) {
            return i;
        }
    }
    if (held->group_count == HELD_GROUPS_MAX) {
        return HELD_GROUPS_MAX;
    }
    CHECK(tensor->group_member < tensor->group_count);
    held->groups[held->group_count] = (struct held_group){
        .ranks = tensor->group,
        .members = tensor->group_count,
        .member = tensor->group_member,
        .key = xxh3_128(tensor->group_count * sizeof *tensor->group, tensor->group)};
    return held->group_count++;
}

/* Finds the group of each tensor, and counts the tensors of each group. */
static int find_groups(struct held *held, const struct registered *set, struct diag *diag)
{
    for (size_t t = 0; t < set->tensor_count; t++) {
        const struct registered_tensor *tensor = &set->tensors[t];
        held->group_of[t] = HELD_ALONE;
        if (tensor->group_count < 2) {
            continue;
        }
        uint32_t group = find_group(held, tensor);
        if (group == HELD_GROUPS_MAX) {
            return diag_set(diag, CAIRN_E_TOO_LARGE,
                            "the tensors have more than %d different groups of ranks",
                            HELD_GROUPS_MAX);
        }
        held->group_of[t] = group;
        held->groups[group].tensor_count++;
    }
    return 0;
}

/* Fills the lists of the groups in the order of the set, and computes keys and hashes. */
static int fill_groups(struct held *held, const struct registered *set, struct xxh3_stream *stream,
                       struct diag *diag)
{
    for (uint32_t g = 0; g < held->group_count; g++) {
        struct held_group *group = &held->groups[g];
        group->tensors = scratch_array(&held->scratch, group->tensor_count, sizeof *group->tensors);
        if (!group->tensors) {
            return no_memory(diag);
        }
        group->tensor_count = 0;
    }
    for (uint32_t t = 0; t < set->tensor_count; t++) {
        held->keys[t] = key_of(stream, &set->tensors[t]);
        if (held->group_of[t] != HELD_ALONE) {
            struct held_group *group = &held->groups[held->group_of[t]];
            group->tensors[group->tensor_count++] = t;
        }
    }
    for (uint32_t g = 0; g < held->group_count; g++) {
        struct held_group *group = &held->groups[g];
        xxh3_stream_reset(stream);
        for (uint32_t i = 0; i < group->tensor_count; i++) {
            xxh3_stream_add(stream, sizeof(struct xxh128), &held->keys[group->tensors[i]]);
        }
        CHECK(group->tensor_count > 0); /* a group is made for a tensor */
        group->list_hash = xxh3_stream_digest(stream);
    }
    return 0;
}

int held_init(struct held *held, const struct registered *set, struct diag *diag)
{
    size_t count = set->tensor_count;
    memset(held, 0, sizeof *held);
    scratch_init(&held->scratch, HELD_BYTES_MAX);
    held->group_of = scratch_array(&held->scratch, count + 1, sizeof *held->group_of);
    held->keys = scratch_array(&held->scratch, count + 1, sizeof *held->keys);
    held->groups = scratch_array(&held->scratch, HELD_GROUPS_MAX, sizeof *held->groups);
    struct xxh3_stream *stream = xxh3_stream_new();
    int rc = held->group_of && held->keys && held->groups && stream ? 0 : no_memory(diag);
    if (rc == 0) {
        rc = find_groups(held, set, diag);
    }
    if (rc == 0) {
        rc = fill_groups(held, set, stream, diag);
    }
    xxh3_stream_free(stream);
    if (rc != 0) {
        held_fini(held);
    }
    return rc;
}

void held_fini(struct held *held)
{
    scratch_fini(&held->scratch);
    memset(held, 0, sizeof *held);
}
