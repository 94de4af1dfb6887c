/* SPDX-License-Identifier: Apache-2.0
 *
 * Searching parts: by name in one, and by name through many at once (a merge of sorted lists with a
 * heap, so that a checkpoint of many ranks is read in O(n log ranks)). Pure; any thread.
 */
#include "part.h"

#include <string.h>

#include "base/array.h"
#include "base/check.h"

int part_name_compare(const char *name_a, const char *coordinate_a, const char *name_b,
                      const char *coordinate_b)
{
    int order = strcmp(name_a, name_b);
    return order != 0 ? order : strcmp(coordinate_a, coordinate_b);
}

void part_count_objects(struct part *part)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        part->objects[i].bytes_used = 0;
    }
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        CHECK(part->chunks[i].object < part->object_count);
        part->objects[part->chunks[i].object].bytes_used += part->chunks[i].stored_bytes;
    }
}

int part_order(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return part_name_compare(x[0], x[1], y[0], y[1]);
}

const struct part_tensor *part_find_tensor(const struct part *part, const char *name,
                                           const char *coordinate)
{
    _Static_assert(offsetof(struct part_tensor, coordinate) == sizeof(char *), "as in part_order");
    const char *const key[] = {name, coordinate};
    return array_find(key, part->tensors, part->tensor_count, sizeof(*part->tensors), part_order);
}

const struct part_blob *part_find_blob(const struct part *part, const char *name,
                                       const char *coordinate)
{
    _Static_assert(offsetof(struct part_blob, coordinate) == sizeof(char *), "as in part_order");
    const char *const key[] = {name, coordinate};
    return array_find(key, part->blobs, part->blob_count, sizeof(*part->blobs), part_order);
}

uint64_t blob_chunk_count(uint64_t plain_bytes, uint64_t chunk_bytes)
{
    return plain_bytes / chunk_bytes + (plain_bytes % chunk_bytes != 0);
}

uint64_t blob_chunk_bytes(uint64_t plain_bytes, uint64_t chunk_bytes, uint64_t idx)
{
    CHECK(idx < blob_chunk_count(plain_bytes, chunk_bytes));
    return min_u64(chunk_bytes, plain_bytes - idx * chunk_bytes);
}

static void member_name(const struct parts_walk *walk, struct part_member member,
                        const char **ret_name, const char **ret_coordinate)
{
    const struct part *part = &walk->parts[member.part];
    *ret_name = walk->blobs ? part->blobs[member.idx].name : part->tensors[member.idx].name;
    *ret_coordinate =
        walk->blobs ? part->blobs[member.idx].coordinate : part->tensors[member.idx].coordinate;
}

static int name_compare(const struct parts_walk *walk, struct part_member a, struct part_member b)
{
    const char *name_a, *name_b, *coordinate_a, *coordinate_b;
    member_name(walk, a, &name_a, &coordinate_a);
    member_name(walk, b, &name_b, &coordinate_b);
    return part_name_compare(name_a, coordinate_a, name_b, coordinate_b);
}

static bool member_before(const struct parts_walk *walk, struct part_member a, struct part_member b)
{
    int order = name_compare(walk, a, b);
    return order != 0 ? order < 0 : a.part < b.part;
}

/* Moves the member at idx down to its place. */
static void heap_sift(struct parts_walk *walk, size_t idx)
{
    struct part_member *heap = walk->heap;
    for (;;) {
        size_t least = idx, left = 2 * idx + 1, right = left + 1;
        if (left < walk->heap_count && member_before(walk, heap[left], heap[least])) {
            least = left;
        }
        if (right < walk->heap_count && member_before(walk, heap[right], heap[least])) {
            least = right;
        }
        if (least == idx) {
            return;
        }
        struct part_member moved = heap[idx];
        heap[idx] = heap[least];
        heap[least] = moved;
        idx = least;
    }
}

static uint32_t walk_count(const struct parts_walk *walk, uint32_t part)
{
    return walk->blobs ? walk->parts[part].blob_count : walk->parts[part].tensor_count;
}

int parts_walk_init(struct parts_walk *walk, size_t count, const struct part *parts, bool blobs,
                    struct scratch *scratch)
{
    CHECK(count <= LIMIT_WORLD_SIZE);
    *walk = (struct parts_walk){.part_count = count, .parts = parts, .blobs = blobs};
    walk->heap = scratch_array(scratch, count + 1, sizeof *walk->heap);
    walk->members = scratch_array(scratch, count + 1, sizeof *walk->members);
    if (walk->heap == NULL || walk->members == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (walk_count(walk, i) > 0) {
            walk->heap[walk->heap_count++] = (struct part_member){i, 0};
        }
    }
    for (size_t i = walk->heap_count / 2; i-- > 0;) {
        heap_sift(walk, i);
    }
    return 0;
}

bool parts_walk_next(struct parts_walk *walk, struct part_group *ret)
{
    size_t count = 0;
    while (walk->heap_count > 0 &&
           (count == 0 || name_compare(walk, walk->members[0], walk->heap[0]) == 0)) {
        struct part_member *top = &walk->heap[0];
        CHECK(count < walk->part_count); /* a sorted part has each name once */
        walk->members[count++] = *top;
        if (++top->idx == walk_count(walk, top->part)) {
            *top = walk->heap[--walk->heap_count];
        }
        heap_sift(walk, 0);
    }
    if (count == 0) {
        return false;
    }
    member_name(walk, walk->members[0], &ret->name, &ret->coordinate);
    ret->member_count = count;
    ret->members = walk->members;
    return true;
}
