/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets by group. registered gives equal groups one array, so a group is known by its pointer.
 * The first of two passes over the sorted list makes places and sums; the second gives every tensor
 * the sum of its bucket. Pure; any thread.
 */
#include "share/share.h"

#include "base/check.h"

#include <string.h>

#define SHARE_BYTES_MAX ((size_t)4 << 30)
enum { SHARE_GROUPS_MAX = 4096 };

struct group {
    const uint32_t *ranks; /* shared by registered, so the pointer is its identity */
    uint64_t total_bytes;
};

struct groups {
    struct group *items;
    uint32_t count, last;
    struct diag *diag;
};

static int no_memory(struct diag *diag)
{
    return diag_no_memory(diag, "dividing the registered tensors among the ranks");
}

bool share_writes_blob(const struct registered *set, const struct registered_blob *blob)
{
    return blob->placement != PLACEMENT_REPLICATED || set->rank == 0;
}

bool share_is_mine(const struct share *share, uint32_t tensor, uint64_t start)
{
    CHECK(tensor < share->tensor_count);
    const struct share_tensor *of = &share->tensors[tensor];
    return of->split.members > 0 && split_is_mine(&of->split, of->at + start);
}

/* Gives the index of the group with this array of ranks, and adds it if it is new. The search
 * begins at the last one found, because neighbours are often alike. */
static int find_group(struct groups *groups, const uint32_t *ranks, uint32_t *ret)
{
    for (uint32_t n = 0; n < groups->count; n++) {
        uint32_t i = (groups->last + n) % groups->count;
        if (groups->items[i].ranks == ranks) {
            groups->last = i;
            *ret = i;
            return 0;
        }
    }
    if (groups->count == SHARE_GROUPS_MAX) {
        return diag_set(groups->diag, CAIRN_E_TOO_LARGE,
                        "the tensors have more than %d different groups of ranks",
                        SHARE_GROUPS_MAX);
    }
    groups->items[groups->count] = (struct group){.ranks = ranks};
    groups->last = groups->count++;
    *ret = groups->last;
    return 0;
}

/* Places the tensor at the end of its group's bucket. */
static int place_tensor(struct share *share, struct groups *groups, uint32_t *group_of,
                        const struct registered *set, size_t t)
{
    const struct registered_tensor *tensor = &set->tensors[t];
    int rc = find_group(groups, tensor->group, &group_of[t]);
    if (rc != 0) {
        return rc;
    }
    struct group *group = &groups->items[group_of[t]];
    share->tensors[t] = (struct share_tensor){
        .split = {.member = tensor->group_member, .members = tensor->group_count},
        .at = group->total_bytes};
    CHECK(tensor->group_member < tensor->group_count);
    uint64_t bytes = registered_bytes(tensor);
    if (bytes == UINT64_MAX || !add_u64(group->total_bytes, bytes, &group->total_bytes)) {
        rc = diag_set(groups->diag, CAIRN_E_TOO_LARGE,
                      "the tensors have more than 2^64 bytes in total");
    }
    return rc;
}

int share_init_alike(struct share *share, const struct registered *set, struct diag *diag)
{
    struct groups groups = {.diag = diag};
    size_t count = set->tensor_count;
    memset(share, 0, sizeof *share);
    scratch_init(&share->scratch, SHARE_BYTES_MAX);
    share->tensor_count = count;
    share->tensors = scratch_array(&share->scratch, count + 1, sizeof *share->tensors);
    uint32_t *group_of = scratch_array(&share->scratch, count + 1, sizeof *group_of);
    groups.items = scratch_array(&share->scratch, SHARE_GROUPS_MAX, sizeof *groups.items);
    int rc = share->tensors && group_of && groups.items ? 0 : no_memory(diag);
    for (size_t t = 0; t < count && rc == 0; t++) {
        rc = place_tensor(share, &groups, group_of, set, t);
    }
    for (size_t t = 0; t < count && rc == 0; t++) {
        CHECK(group_of[t] < groups.count);
        share->tensors[t].split.total_bytes = groups.items[group_of[t]].total_bytes;
    }
    if (rc != 0) {
        share_fini(share);
    }
    return rc;
}

void share_fini(struct share *share)
{
    scratch_fini(&share->scratch);
    memset(share, 0, sizeof *share);
}
