/* SPDX-License-Identifier: Apache-2.0
 *
 * part_table: see part_table.h. The header has a checksum of its own. The pages are checked against
 * the table of checksums, and that table against its own checksum.
 */
#include "reader/part_table.h"

#include "base/check.h"
#include "format/part_layout.h"
#include "hash/hash.h"

#include <string.h>

int part_table_begin(size_t bytes, const uint8_t *data, struct part_table *ret, struct diag *diag)
{
    uint8_t header[PART_HEADER_BYTES];
    struct part part = {.chunk_count = 0};
    struct part_layout layout;
    if (bytes < PART_HEADER_BYTES) {
        return diag_set(diag, CAIRN_E_DAMAGED, "the part has %zu bytes, which is too short", bytes);
    }
    memcpy(header, data, sizeof(header));
    uint32_t crc = load_u32(header + 16);
    uint32_t have = crc32c(crc32c(0, 16, header), PART_HEADER_BYTES - DOC_PROLOGUE_BYTES,
                           header + DOC_PROLOGUE_BYTES);
    if (memcmp(header, "CRNP", 4) != 0 || crc != have) {
        return diag_set(diag, CAIRN_E_DAMAGED, "the part's header is damaged");
    }
    if (load_u32(header + 4) != DOC_VERSION) {
        return diag_set(
            diag, CAIRN_E_UNSUPPORTED,
            "the part has version %u, which this program cannot read; use a newer Cairn",
            load_u32(header + 4));
    }
    memcpy(part.run_uuid.bytes, header + 24, sizeof(part.run_uuid.bytes));
    part.id = (struct ckpt_id){load_u64(header + 40), load_u64(header + 48)};
    part.rank = load_u32(header + 72);
    part.object_count = load_u32(header + 80);
    part.tensor_count = load_u32(header + 84);
    part.box_count = load_u32(header + 88);
    part.blob_count = load_u32(header + 92);
    part.chunk_count = load_u32(header + 96);
    uint64_t dims = load_u64(header + 104), strings = load_u64(header + 112);
    if (dims > LIMIT_PART_BYTES || strings > LIMIT_PART_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "the part's header is malformed");
    }
    part_layout_init(&layout, &part, dims, strings);
    if (layout.bytes != load_u64(header + 8) || layout.bytes > LIMIT_PART_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "the part's counts do not add up to its length");
    }
    uint64_t end = layout.objects + (uint64_t)part.object_count * PART_OBJECT_BYTES;
    *ret =
        (struct part_table){.run_uuid = part.run_uuid,
                            .id = part.id,
                            .rank = part.rank,
                            .object_count = part.object_count,
                            .pages_bytes = min_u64(round_up_u64(end, PART_PAGE_BYTES), layout.crcs),
                            .crcs_offset = layout.crcs,
                            .crcs_bytes = 4 * layout.page_count + 4};
    ret->page_count = (ret->pages_bytes + PART_PAGE_BYTES - 1) / PART_PAGE_BYTES;
    CHECK(end <= ret->pages_bytes);
    CHECK(4 * ret->page_count + 4 <= ret->crcs_bytes);
    return 0;
}

int part_table_read(const struct part_table *table, const uint8_t *pages, const uint8_t *crcs,
                    struct object_id *ret_ids, struct diag *diag)
{
    CHECK(table->crcs_bytes >= 4);
    size_t crc_bytes = (size_t)table->crcs_bytes - 4;
    if (crc32c(0, crc_bytes, crcs) != load_u32(crcs + crc_bytes)) {
        return diag_set(diag, CAIRN_E_DAMAGED, "the part's checksums are damaged");
    }
    for (uint64_t page = 0; page < table->page_count; page++) {
        uint64_t from = page * PART_PAGE_BYTES;
        size_t bytes = (size_t)min_u64(PART_PAGE_BYTES, table->pages_bytes - from);
        if (crc32c(0, bytes, pages + from) != load_u32(crcs + 4 * page)) {
            return diag_set(diag, CAIRN_E_DAMAGED, "the part's object table is damaged");
        }
    }
    for (uint32_t i = 0; i < table->object_count; i++) {
        const uint8_t *at = pages + PART_HEADER_BYTES + (size_t)i * PART_OBJECT_BYTES;
        ret_ids[i] = (struct object_id){.term = load_u64(at),
                                        .step = load_u64(at + 8),
                                        .writer = load_u64(at + 16),
                                        .rank = load_u32(at + 24),
                                        .sequence = load_u32(at + 28)};
    }
    return 0;
}
