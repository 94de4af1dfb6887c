/* SPDX-License-Identifier: Apache-2.0
 *
 * The bump allocator of the control plane: a list of blocks, each twice the size of the last, up to
 * a bound. Invariants: `used` counts what was handed out, rounded to 16, and never passes max; a
 * call that fails changes nothing. A scratch belongs to one thread.
 */
#include "base/scratch.h"

#include "base/check.h"

#include <string.h>

enum { SCRATCH_ALIGN = 16, SCRATCH_BLOCK_MIN = 4096, SCRATCH_BLOCK_MAX = 1 << 20 };

struct scratch_block {
    struct scratch_block *next;
    size_t at, cap; /* of data */
    _Alignas(SCRATCH_ALIGN) uint8_t data[];
};

void scratch_init(struct scratch *scratch, size_t max_bytes)
{
    *scratch = (struct scratch){.max = max_bytes};
}

void scratch_fini(struct scratch *scratch)
{
    if (scratch == NULL) {
        return;
    }
    struct scratch_block *block = scratch->head;
    while (block != NULL) {
        struct scratch_block *next = block->next;
        free(block);
        block = next;
    }
    *scratch = (struct scratch){.max = scratch->max};
}

/* Adds a block with room for bytes at the head of the list. Returns NULL if memory is short. */
static struct scratch_block *scratch_grow(struct scratch *scratch, size_t bytes)
{
    size_t cap = scratch->head != NULL ? scratch->head->cap * 2 : SCRATCH_BLOCK_MIN;
    cap = cap > SCRATCH_BLOCK_MAX ? SCRATCH_BLOCK_MAX : cap;
    cap = cap < bytes ? bytes : cap;
    if (cap > SIZE_MAX - sizeof(struct scratch_block)) {
        return NULL;
    }
    struct scratch_block *block = calloc(1, sizeof(*block) + cap);
    if (block == NULL) {
        return NULL;
    }
    block->cap = cap;
    block->next = scratch->head;
    scratch->head = block;
    scratch->held += sizeof(*block) + cap;
    return block;
}

void *scratch_alloc(struct scratch *scratch, size_t bytes)
{
    CHECK(scratch->used <= scratch->max);
    if (bytes > SIZE_MAX - SCRATCH_ALIGN) {
        return NULL;
    }
    /* Zero bytes take a place of their own as well, so that NULL always means failure. */
    size_t rounded = bytes == 0 ? SCRATCH_ALIGN : (size_t)round_up_u64(bytes, SCRATCH_ALIGN);
    if (rounded > scratch->max - scratch->used) {
        return NULL;
    }
    struct scratch_block *block = scratch->head;
    if (block == NULL || rounded > block->cap - block->at) {
        block = scratch_grow(scratch, rounded);
        if (block == NULL) {
            return NULL;
        }
    }
    void *memory = block->data + block->at;
    block->at += rounded;
    scratch->used += rounded;
    return memory;
}

void *scratch_array(struct scratch *scratch, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    return scratch_alloc(scratch, bytes);
}

char *scratch_string(struct scratch *scratch, size_t bytes, const void *data)
{
    if (bytes == SIZE_MAX) {
        return NULL;
    }
    char *text = scratch_alloc(scratch, bytes + 1);
    if (text != NULL && bytes > 0) {
        memcpy(text, data, bytes);
    }
    return text;
}

void *scratch_copy(struct scratch *scratch, size_t bytes, const void *data)
{
    void *memory = scratch_alloc(scratch, bytes);
    if (memory != NULL && bytes > 0) {
        memcpy(memory, data, bytes);
    }
    return memory;
}
