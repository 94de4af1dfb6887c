/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages under a manifest: the table of parts by rank, and the index of tensors and blobs by
 * name. The index is searched by name in a page, and built from all parts of a checkpoint. The
 * ranks of an index entry are stored as runs, so that "all 16384 ranks" is eight bytes. Pure; any
 * thread.
 */
#include "manifest.h"

#include <string.h>

#include "base/array.h"
#include "base/check.h"
#include "doc.h"
#include "rows_private.h"

static const struct doc_kind page_kind = {DOC_MAGIC('C', 'R', 'N', 'G'), "page", PAGE_HEADER_BYTES,
                                          LIMIT_PAGE_BYTES, 0};
enum { PART_REF_BYTES = 80, INDEX_FIXED_BYTES = 40 };

/* Returns how many consecutive ranks start at idx. */
static uint32_t run_length(const struct index_entry *entry, uint32_t idx)
{
    uint32_t end = idx + 1;
    while (end < entry->rank_count && entry->ranks[end] == entry->ranks[end - 1] + 1) {
        end++;
    }
    return end - idx;
}

static uint32_t run_count(const struct index_entry *entry)
{
    uint32_t runs = 0;
    for (uint32_t i = 0; i < entry->rank_count; i += run_length(entry, i)) {
        runs++;
    }
    return runs;
}

static uint64_t index_entry_bytes(const struct index_entry *entry)
{
    return INDEX_FIXED_BYTES + strlen(entry->name) + strlen(entry->coordinate) +
           8 * (uint64_t)entry->shape.ndim + 8 * (uint64_t)run_count(entry);
}

/* Writes one index entry, with its ranks as runs. */
static void put_index_entry(const struct index_entry *entry, struct buf *buf)
{
    size_t name = strlen(entry->name), coordinate = strlen(entry->coordinate);
    CHECK(name > 0 && name <= LIMIT_NAME_BYTES);
    CHECK(coordinate <= LIMIT_COORDINATE_BYTES);
    row_put_index_entry(entry, buf);
    buf_put_u16(buf, (uint16_t)name);
    buf_put_u16(buf, (uint16_t)coordinate);
    buf_put_u32(buf, entry->shape.ndim);
    buf_put_u32(buf, entry->rank_count);
    buf_put_u32(buf, run_count(entry));
    buf_put(buf, name, entry->name);
    buf_put(buf, coordinate, entry->coordinate);
    for (uint32_t d = 0; d < entry->shape.ndim; d++) {
        buf_put_u64(buf, (uint64_t)entry->shape.length[d]);
    }
    for (uint32_t i = 0; i < entry->rank_count; i += run_length(entry, i)) {
        buf_put_u32(buf, entry->ranks[i]);
        buf_put_u32(buf, run_length(entry, i));
    }
}

void page_encode(const struct page *page, struct buf *buf)
{
    CHECK(page->kind == PAGE_PARTS || page->kind == PAGE_INDEX);
    size_t start = doc_begin(buf, &page_kind);
    row_put_page(page, buf);
    for (uint32_t i = 0; i < page->entry_count; i++) {
        if (page->kind == PAGE_PARTS) {
            row_put_part_ref(&page->parts[i], buf);
        } else {
            put_index_entry(&page->index[i], buf);
        }
    }
    doc_end(buf, &page_kind, start);
}

uint32_t page_fit(const struct page *page, uint32_t first)
{
    uint64_t bytes = PAGE_HEADER_BYTES;
    uint32_t count = 0;
    while (first + count < page->entry_count) {
        bytes += page->kind == PAGE_PARTS ? PART_REF_BYTES
                                          : index_entry_bytes(&page->index[first + count]);
        if (bytes > LIMIT_PAGE_BYTES) {
            break;
        }
        count++;
    }
    return count;
}

static bool take_part_ref(struct cur *cur, uint32_t idx, struct part_ref *part)
{
    row_take_part_ref(cur, part);
    return cur->status == 0 && part->rank < LIMIT_WORLD_SIZE && part->bytes > 0 &&
           part->bytes <= LIMIT_PART_BYTES && (idx == 0 || part[-1].rank < part->rank);
}

/* Reads the runs of ranks, which must ascend, must not touch (they would then be one run), and add
 * up to rank_count. */
static int take_ranks(struct cur *cur, uint32_t runs, struct scratch *scratch,
                      struct index_entry *entry)
{
    const uint8_t *from = cur_bytes(cur, (size_t)runs * 8);
    uint32_t count = 0;
    uint64_t next = 0;
    if (cur->status != 0 || entry->rank_count > LIMIT_WORLD_SIZE || runs > entry->rank_count) {
        return CAIRN_E_FORMAT;
    }
    entry->ranks = scratch_array(scratch, (size_t)entry->rank_count + 1, sizeof *entry->ranks);
    if (entry->ranks == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t r = 0; r < runs; r++) {
        uint32_t first = load_u32(from + (size_t)8 * r),
                 length = load_u32(from + (size_t)8 * r + 4);
        if (length == 0 || length > entry->rank_count - count || first >= LIMIT_WORLD_SIZE ||
            length > LIMIT_WORLD_SIZE - first || (r > 0 && first <= next)) {
            return CAIRN_E_FORMAT;
        }
        for (uint32_t i = 0; i < length; i++) {
            entry->ranks[count++] = first + i;
        }
        next = (uint64_t)first + length;
    }
    return count == entry->rank_count ? 0 : CAIRN_E_FORMAT;
}

/* Reads the name and the coordinate, whose lengths were read before. */
static int take_names(struct cur *cur, size_t name_bytes, size_t coordinate_bytes,
                      struct scratch *scratch, struct index_entry *entry)
{
    const char *name = (const char *)cur_bytes(cur, name_bytes);
    const char *coordinate = (const char *)cur_bytes(cur, coordinate_bytes);
    if (cur->status != 0 || !text_is_valid(name_bytes, name, LIMIT_NAME_BYTES) ||
        (coordinate_bytes > 0 &&
         !text_is_valid(coordinate_bytes, coordinate, LIMIT_COORDINATE_BYTES))) {
        return CAIRN_E_FORMAT;
    }
    entry->name = scratch_string(scratch, name_bytes, name);
    entry->coordinate =
        coordinate_bytes == 0 ? "" : scratch_string(scratch, coordinate_bytes, coordinate);
    return entry->name == NULL || entry->coordinate == NULL ? CAIRN_E_NO_MEMORY : 0;
}

/* Checks that the fields agree with each other. UNSUPPORTED for values that a newer version may
 * have written. */
static int check_index_entry(const struct index_entry *entry, struct diag *diag)
{
    uint64_t bytes = entry->plain_bytes;
    bool good = entry->placement >= PLACEMENT_REPLICATED && entry->placement <= PLACEMENT_LOCAL &&
                (entry->placement == PLACEMENT_LOCAL) == (entry->coordinate[0] != '\0') &&
                (entry->rank_count == 0) == (entry->plain_bytes == 0);
    if (entry->kind == INDEX_TENSOR) {
        int rc = shape_check(&entry->shape, entry->dtype, &bytes, diag);
        if (rc != 0) {
            diag_add(diag, "tensor \"%.200s\"", entry->name);
            return doc_as_format(rc, diag);
        }
        good = good && entry->blob_kind == 0 && bytes == entry->plain_bytes;
    } else if (entry->kind == INDEX_BLOB) {
        good =
            good && entry->dtype == 0 && entry->shape.ndim == 0 && entry->plain_bytes <= INT64_MAX;
        if (entry->blob_kind != BLOB_BYTES && entry->blob_kind != BLOB_TREE) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "blob \"%.200s\" has kind %u, which needs a newer Cairn than this",
                            entry->name, entry->blob_kind);
        }
    } else {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "\"%.200s\" has kind %u, which needs a newer Cairn than this", entry->name,
                        entry->kind);
    }
    return good ? 0
                : diag_set(diag, CAIRN_E_FORMAT, "the index's entry \"%.200s\" contradicts itself",
                           entry->name);
}

/* Reads one index entry and checks it. */
static int take_index_entry(struct cur *cur, struct scratch *scratch, uint32_t idx,
                            struct index_entry *entry, struct diag *diag)
{
    row_take_index_entry(cur, entry);
    size_t name_bytes = cur_u16(cur), coordinate_bytes = cur_u16(cur);
    entry->shape.ndim = cur_u32(cur);
    entry->rank_count = cur_u32(cur);
    uint32_t runs = cur_u32(cur);
    int rc = entry->shape.ndim > LIMIT_NDIM
                 ? CAIRN_E_FORMAT
                 : take_names(cur, name_bytes, coordinate_bytes, scratch, entry);
    for (uint32_t d = 0; d < entry->shape.ndim && rc == 0; d++) {
        entry->shape.length[d] = (int64_t)cur_u64(cur);
    }
    rc = rc != 0 ? rc : take_ranks(cur, runs, scratch, entry);
    if (rc != 0) {
        return rc == CAIRN_E_NO_MEMORY
                   ? doc_no_memory("index page", diag)
                   : diag_set(diag, CAIRN_E_FORMAT, "the index's entry %u is broken", idx);
    }
    if (idx > 0 && index_compare(&entry[-1], entry) >= 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the index's entry %u, \"%.200s\", is out of order",
                        idx, entry->name);
    }
    return check_index_entry(entry, diag);
}

/* Reads the entries of a page, which must be sorted and without duplicates. */
static int take_entries(struct cur *cur, struct scratch *scratch, struct page *page,
                        struct diag *diag)
{
    bool index = page->kind == PAGE_INDEX;
    size_t count = page->entry_count;
    if (count > cur_left(cur) / (index ? INDEX_FIXED_BYTES : PART_REF_BYTES)) {
        return diag_set(diag, CAIRN_E_FORMAT, "the page is too short for its %zu entries", count);
    }
    void *entries =
        index ? (void *)(page->index = scratch_array(scratch, count + 1, sizeof *page->index))
              : (void *)(page->parts = scratch_array(scratch, count + 1, sizeof *page->parts));
    if (entries == NULL) {
        return doc_no_memory("page", diag);
    }
    for (uint32_t i = 0; i < count; i++) {
        int rc = 0;
        if (index) {
            rc = take_index_entry(cur, scratch, i, &page->index[i], diag);
        } else if (!take_part_ref(cur, i, &page->parts[i])) {
            rc = diag_set(diag, CAIRN_E_FORMAT, "entry %u of the table of parts is broken", i);
        }
        if (rc != 0) {
            return rc;
        }
    }
    return doc_finish(&page_kind, cur, diag);
}

int page_decode(size_t bytes, const uint8_t *data, struct scratch *scratch, struct page *ret,
                struct diag *diag)
{
    struct page page;
    struct cur cur;
    memset(&page, 0, sizeof page);
    int rc = doc_open(&page_kind, bytes, data, &cur, diag);
    if (rc != 0) {
        return rc;
    }
    row_take_page(&cur, &page);
    if ((page.kind != PAGE_PARTS && page.kind != PAGE_INDEX) || page.level != 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a page of kind %u and level %u needs a newer Cairn than this", page.kind,
                        page.level);
    }
    rc = take_entries(&cur, scratch, &page, diag);
    if (rc == 0) {
        *ret = page;
    }
    return rc;
}

/* --- the index, found by name in a page, and built from all parts ------------------------- */

int index_compare(const struct index_entry *a, const struct index_entry *b)
{
    int order = part_name_compare(a->name, a->coordinate, b->name, b->coordinate);
    return order != 0 ? order : a->kind < b->kind ? -1 : a->kind > b->kind;
}

static int index_order(const void *a, const void *b) { return index_compare(a, b); }

const struct index_entry *index_find(size_t count, const struct index_entry *entries,
                                     const char *name, const char *coordinate, enum index_kind kind)
{
    struct index_entry wanted = {.name = name, .coordinate = coordinate, .kind = kind};
    return array_find(&wanted, entries, count, sizeof(wanted), index_order);
}

/* The tensors and the blobs of all parts, walked side by side. */
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

/* Returns what comes next: 0 for a tensor, 1 for a blob, -1 for the end. A tensor goes before a
 * blob of the same name. */
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

/* Makes the index entry of a tensor or blob from all parts that have it. Returns false if memory is
 * short. */
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

/* Walks once to count and once to fill, so that it takes only the memory that the index needs. */
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
                return diag_no_memory(diag, "building the index of %zu parts", count);
            }
            both.has[which] = parts_walk_next(&both.walk[which], &both.group[which]);
        }
        page.entry_count = at;
        if (pass == 0) {
            page.index = scratch_array(scratch, (size_t)at + 1, sizeof *page.index);
            if (page.index == NULL) {
                return diag_no_memory(diag, "building the index of %zu parts", count);
            }
        }
    }
    *ret = page;
    return 0;
}
