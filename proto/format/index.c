/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of a checkpoint: found by name in a page, and built from all its parts. Pure; any
 * thread.
 */
#include "manifest.h"

#include <string.h>

#include "base/check.h"

int index_compare(const struct index_entry *a, const struct index_entry *b)
{
    int order = part_name_compare(a->name, a->coordinate, b->name, b->coordinate);
    return order != 0 ? order : a->kind < b->kind ? -1 : a->kind > b->kind;
}

const struct index_entry *index_find(const struct page *page, const char *name,
                                     const char *coordinate, enum index_kind kind)
{
    struct index_entry wanted = {.name = name, .coordinate = coordinate, .kind = kind};
    uint32_t from = 0, to = page->kind == PAGE_INDEX ? page->entry_count : 0;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        int order = index_compare(&page->index[mid], &wanted);
        if (order == 0) {
            return &page->index[mid];
        }
        from = order < 0 ? mid + 1 : from;
        to = order < 0 ? to : mid;
    }
    return NULL;
}

/* Tensors and blobs of all parts, walked side by side. */
struct both_walk {
    struct parts_walk walk[2]; /* tensors, blobs */
    struct part_group group[2];
    bool has[2];
};

static int both_init(struct both_walk *both, size_t count, const struct part *parts,
                     struct scratch *scratch)
{
    for (int b = 0; b < 2; b++) {
        int rc = parts_walk_init(&both->walk[b], count, parts, b == 1, scratch);
        if (rc != 0) {
            return rc;
        }
        both->has[b] = parts_walk_next(&both->walk[b], &both->group[b]);
    }
    return 0;
}

/* Which comes next: 0 a tensor, 1 a blob, -1 none. A tensor goes before a blob of the same name. */
static int both_next(const struct both_walk *both)
{
    if (!both->has[0] || !both->has[1]) {
        return both->has[0] ? 0 : both->has[1] ? 1 : -1;
    }
    const struct part_group *tensor = &both->group[0], *blob = &both->group[1];
    return part_name_compare(tensor->name, tensor->coordinate, blob->name, blob->coordinate) <= 0
               ? 0
               : 1;
}

static bool member_has_chunks(const struct part *part, uint32_t idx, bool blob)
{
    if (blob) {
        return part->blobs[idx].chunk_count > 0;
    }
    const struct part_tensor *tensor = &part->tensors[idx];
    for (uint32_t b = 0; b < tensor->box_count; b++) {
        if (part->boxes[tensor->box_first + b].chunk_count > 0) {
            return true;
        }
    }
    return false;
}

static bool entry_from_group(const struct part *parts, const struct part_group *group, bool blob,
                             struct scratch *scratch, struct index_entry *entry)
{
    const struct part *part = &parts[group->members[0].part];
    uint32_t idx = group->members[0].idx;
    entry->name = group->name;
    entry->coordinate = group->coordinate;
    if (blob) {
        entry->kind = INDEX_BLOB;
        entry->placement = part->blobs[idx].placement;
        entry->blob_kind = part->blobs[idx].kind;
        entry->plain_bytes = part->blobs[idx].plain_bytes;
    } else {
        struct box whole = box_whole(&part->tensors[idx].shape);
        entry->kind = INDEX_TENSOR;
        entry->placement = part->tensors[idx].placement;
        entry->dtype = part->tensors[idx].dtype;
        entry->shape = part->tensors[idx].shape;
        entry->plain_bytes = box_bytes(&whole, entry->dtype);
    }
    uint32_t holders = 0;
    for (size_t i = 0; i < group->member_count; i++) {
        holders += member_has_chunks(&parts[group->members[i].part], group->members[i].idx, blob);
    }
    entry->ranks = scratch_array(scratch, (size_t)holders + 1, sizeof *entry->ranks);
    if (entry->ranks == NULL) {
        return false;
    }
    for (size_t i = 0; i < group->member_count; i++) {
        struct part_member member = group->members[i];
        if (member_has_chunks(&parts[member.part], member.idx, blob)) {
            entry->ranks[entry->rank_count++] = parts[member.part].rank;
        }
    }
    return true;
}

/* One walk to count, one to fill: the memory is what the index needs. */
int index_build(size_t count, const struct part *parts, struct scratch *scratch, struct page *ret,
                struct diag *diag)
{
    struct both_walk both;
    struct page page = {.kind = PAGE_INDEX};
    for (int pass = 0; pass < 2; pass++) {
        int rc = both_init(&both, count, parts, scratch);
        if (rc != 0) {
            return diag_set(diag, rc, "building the index of %zu parts", count);
        }
        uint32_t at = 0;
        for (int which = both_next(&both); which >= 0; which = both_next(&both), at++) {
            if (pass == 1 && !entry_from_group(parts, &both.group[which], which == 1, scratch,
                                               &page.index[at])) {
                return diag_set(diag, CAIRN_E_NO_MEMORY, "building the index of %zu parts", count);
            }
            both.has[which] = parts_walk_next(&both.walk[which], &both.group[which]);
        }
        page.entry_count = at;
        if (pass == 0) {
            page.index = scratch_array(scratch, (size_t)at + 1, sizeof *page.index);
            if (page.index == NULL) {
                return diag_set(diag, CAIRN_E_NO_MEMORY, "building the index of %zu parts", count);
            }
        }
    }
    *ret = page;
    return 0;
}
