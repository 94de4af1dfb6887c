/* SPDX-License-Identifier: Apache-2.0
 *
 * reader: see reader.h. Invariant: nothing is decoded that did not match its hash, and nothing is
 * called wrong that was read once only. Runs on the caller's thread, which may wait.
 */
#include "reader/reader.h"

#include "base/array.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum reader_finding reader_finding_of(int status)
{
    switch (status) {
    case 0:
        return READER_WHOLE;
    case CAIRN_E_NOT_FOUND:
        return READER_MISSING;
    case CAIRN_E_DAMAGED:
    case CAIRN_E_FORMAT:
    case CAIRN_E_DIGEST_MISMATCH:
        return READER_DAMAGED;
    case CAIRN_E_IO:
        return READER_UNREADABLE;
    default:
        return READER_NOT_GIVEN;
    }
}

bool reader_is_damage(int status)
{
    enum reader_finding finding = reader_finding_of(status);
    return finding != READER_WHOLE && finding != READER_NOT_GIVEN;
}

/* --- documents -------------------------------------------------------------------------------- */

/* Gets a document that matches its hash: from the medium, at the second try if the first transfer
 * was wrong, or from whoever is told that it is lost. Its bytes are the scratch's. */
static int get(struct reader_source *source, const struct doc_key *document,
               struct scratch *scratch, struct record_value *ret, struct diag *diag)
{
    struct diag why;
    struct reader_bytes bytes;
    unsigned tries = 0;
    int status;
    do {
        why = DIAG_INIT;
        bytes = (struct reader_bytes){0};
        status = source->fetch(source, document, &bytes, &why);
        if (status != 0) {
            break; /* how often that is tried is the source's */
        }
        status = doc_check(document, bytes.count, bytes.data, &why);
        if (status != 0) {
            free(bytes.data);
        }
    } while (status != 0 && ++tries < 2);
    if (reader_is_damage(status) && source->lost) {
        status = source->lost(source, document, status, &bytes, &why);
    }
    if (status != 0) {
        return diag_set(diag, status, "%s", diag_text(&why, status));
    }
    const uint8_t *data = scratch_copy(scratch, bytes.count, bytes.data);
    *ret = (struct record_value){.bytes = bytes.count, .data = data};
    free(bytes.data);
    return data ? 0 : diag_no_memory(diag, "%zu bytes of a document", bytes.count);
}

static struct doc_key document_of(const struct reader *reader, enum store_kind kind,
                                  uint32_t number, uint64_t bytes, const struct sha256 *sha256)
{
    return (struct doc_key){.name = {.run = reader->root.run,
                                     .id = reader->root.id,
                                     .kind = kind,
                                     .number = number,
                                     .tag = reader->root.open_id},
                            .bytes = bytes,
                            .sha256 = *sha256};
}

/* A document that matches its hash and cannot be decoded was made by another version, or wrongly.
 */
static int undecoded(const struct doc_key *document, int status, struct diag *diag)
{
    char text[256];
    if (status != 0) {
        doc_name_text(&document->name, sizeof(text), text);
        diag_add(diag, "%s", text);
    }
    return status;
}

/* Returns room for `count` more items behind the `had` ones of an array, which are copied. */
static void *grow(struct scratch *scratch, const void *items, size_t had, size_t count, size_t size)
{
    void *grown = scratch_array(scratch, had + count + 1, size);
    if (grown && had > 0) {
        memcpy(grown, items, had * size);
    }
    return grown;
}

static int add_entries(struct reader *reader, const struct page *page, struct diag *diag)
{
    size_t count = page->entry_count;
    void *grown = page->kind == PAGE_PARTS ? grow(&reader->scratch, reader->parts,
                                                  reader->part_count, count, sizeof(*page->parts))
                                           : grow(&reader->scratch, reader->index,
                                                  reader->index_count, count, sizeof(*page->index));
    if (!grown) {
        return diag_no_memory(diag, "the entries of a page");
    }
    if (page->kind == PAGE_PARTS) {
        reader->parts = grown;
        memcpy(reader->parts + reader->part_count, page->parts, count * sizeof(*page->parts));
        reader->part_count += count;
    } else {
        reader->index = grown;
        memcpy(reader->index + reader->index_count, page->index, count * sizeof(*page->index));
        reader->index_count += count;
    }
    return 0;
}

/* Writes the runs of an entry's ranks, which ascend, as pairs of first and count. Returns how many
 * numbers that are; writes nothing if ret is NULL. */
static uint32_t take_runs(const struct index_entry *entry, uint32_t *ret)
{
    uint32_t count = 0;
    for (uint32_t i = 0, next; i < entry->rank_count; i = next) {
        for (next = i + 1;
             next < entry->rank_count && entry->ranks[next] == entry->ranks[next - 1] + 1; next++) {
        }
        if (ret) {
            ret[count] = entry->ranks[i];
            ret[count + 1] = next - i;
        }
        count += 2;
    }
    return count;
}

/* Makes the entries of a page, which is passing, the reader's own, with runs for ranks. */
static int shorten(struct reader *reader, struct page *page, struct diag *diag)
{
    struct scratch *scratch = &reader->scratch;
    for (uint32_t i = 0; i < page->entry_count; i++) {
        struct index_entry *entry = &page->index[i];
        uint32_t count = take_runs(entry, NULL);
        uint32_t *runs = scratch_array(scratch, (size_t)count + 1, sizeof(*runs));
        entry->name = scratch_copy(scratch, strlen(entry->name) + 1, entry->name);
        entry->coordinate = scratch_copy(scratch, strlen(entry->coordinate) + 1, entry->coordinate);
        if (!runs || !entry->name || !entry->coordinate) {
            return diag_no_memory(diag, "the index of a checkpoint");
        }
        take_runs(entry, runs);
        entry->ranks = runs;
        entry->rank_count = count;
    }
    return 0;
}

/* Reads a page. The index is kept only for those who want it: it may be as large as all parts. */
static int read_page(struct reader *reader, uint32_t number, bool with_index, struct diag *diag)
{
    const struct page_ref *ref = &reader->manifest.pages[number];
    struct doc_key document = document_of(reader, STORE_PAGE, number, ref->bytes, &ref->sha256);
    struct record_value bytes;
    struct scratch passing;
    struct page page;
    bool kept = ref->kind == PAGE_PARTS || with_index;
    scratch_init(&passing, READER_SCRATCH_MAX);
    bool is_short = ref->kind == PAGE_INDEX && kept && reader->source->short_index;
    struct scratch *scratch = kept && !is_short ? &reader->scratch : &passing;
    int status = get(reader->source, &document, scratch, &bytes, diag);
    if (status == 0) {
        status =
            undecoded(&document, page_decode(bytes.bytes, bytes.data, scratch, &page, diag), diag);
    }
    if (status == 0 && (page.kind != ref->kind || page.entry_count != ref->entry_count)) {
        status = undecoded(
            &document,
            diag_set(diag, CAIRN_E_DAMAGED, "the page holds other entries than the manifest says"),
            diag);
    }
    if (status == 0 && is_short) {
        status = shorten(reader, &page, diag);
    }
    if (status == 0 && kept) {
        status = add_entries(reader, &page, diag);
    }
    scratch_fini(&passing);
    return status;
}

int reader_open(struct reader *reader, struct reader_source *source, const struct reader_root *root,
                bool with_index, struct diag *diag)
{
    struct record_value bytes;
    CHECK(source->fetch);
    *reader = (struct reader){.source = source, .root = *root};
    scratch_init(&reader->scratch, READER_SCRATCH_MAX);
    struct doc_key document =
        document_of(reader, STORE_MANIFEST, 0, root->manifest_bytes, &root->manifest_sha256);
    int status = get(source, &document, &reader->scratch, &bytes, diag);
    if (status == 0) {
        status = undecoded(
            &document,
            manifest_decode(bytes.bytes, bytes.data, &reader->scratch, &reader->manifest, diag),
            diag);
    }
    if (status == 0 && !ckpt_id_equal(reader->manifest.id, root->id)) {
        status = diag_set(diag, CAIRN_E_DAMAGED, "the manifest is another checkpoint's");
    }
    if (status != 0) {
        reader->manifest.page_count = 0;
        return status;
    }
    for (uint32_t i = 0; i < reader->manifest.page_count; i++) {
        struct diag why = DIAG_INIT;
        int one = read_page(reader, i, with_index, &why);
        if (one != 0 && status == 0) {
            status = diag_set(diag, one, "%s", diag_text(&why, one));
        }
        if (one != 0 && !reader_is_damage(one)) {
            break;
        }
    }
    CHECK(reader->part_count == 0 || reader->parts);
    if (status == 0 && with_index) {
        reader->held =
            scratch_array(&reader->scratch, reader->index_count + 1, sizeof(*reader->held));
        status = reader->held ? 0 : diag_no_memory(diag, "the index of a checkpoint");
    }
    return status;
}

void reader_fini(struct reader *reader) { scratch_fini(&reader->scratch); }

int reader_part(struct reader *reader, size_t number, struct scratch *scratch, struct part *ret,
                struct diag *diag)
{
    CHECK(number < reader->part_count);
    const struct part_ref *ref = &reader->parts[number];
    struct doc_key document = document_of(reader, STORE_PART, ref->rank, ref->bytes, &ref->sha256);
    struct record_value bytes;
    int status = get(reader->source, &document, scratch, &bytes, diag);
    return status != 0 ? status
                       : undecoded(&document,
                                   part_decode(bytes.bytes, bytes.data, scratch, ret, diag), diag);
}

/* --- the index -------------------------------------------------------------------------------- */

/* Says in which page an entry of the index is, and of which checkpoint, and what it is about. */
static int disagree(const struct reader *reader, size_t at, const struct index_entry *entry,
                    const char *what, struct diag *diag)
{
    struct store_name name = {.run = reader->root.run, .id = reader->root.id, .kind = STORE_PAGE};
    const struct page_ref *pages = reader->manifest.pages;
    size_t first = 0;
    char text[256];
    for (; name.number + 1 < reader->manifest.page_count; name.number++) {
        first += pages[name.number].kind == PAGE_INDEX ? pages[name.number].entry_count : 0;
        if (at < first) {
            break;
        }
    }
    doc_name_text(&name, sizeof(text), text);
    return diag_set(diag, CAIRN_E_DAMAGED,
                    "%s is whole and does not agree with the parts: %s %.100s%s%.60s %s", text,
                    entry->kind == INDEX_BLOB ? "blob" : "tensor", entry->name,
                    entry->coordinate[0] != '\0' ? " of " : "", entry->coordinate, what);
}

static bool has_rank(const struct reader *reader, const struct index_entry *entry, uint32_t rank)
{
    const uint32_t *ranks = entry->ranks;
    if (!reader->source->short_index) {
        return array_find(&rank, ranks, entry->rank_count, sizeof(rank), order_u32) != NULL;
    }
    for (uint32_t i = 0; i < entry->rank_count; i += 2) {
        if (rank >= ranks[i] && rank - ranks[i] < ranks[i + 1]) {
            return true;
        }
    }
    return false;
}

/* Returns what an entry says wrongly of the part of a rank, in words, or NULL. `own` is the part's
 * own entry, or NULL if it has no such tensor or blob. */
static const char *difference(const struct reader *reader, const struct index_entry *entry,
                              const struct index_entry *own, uint32_t rank)
{
    if (!own) {
        return has_rank(reader, entry, rank) ? "is not in the part of a rank that the page names"
                                             : NULL;
    }
    if (has_rank(reader, entry, rank) != (own->rank_count > 0)) {
        return "has chunks of other ranks than the page names";
    }
    bool same = entry->placement == own->placement && entry->plain_bytes == own->plain_bytes;
    if (entry->kind == INDEX_BLOB) {
        same = same && entry->blob_kind == own->blob_kind;
    } else {
        same = same && entry->dtype == own->dtype && shape_equal(&entry->shape, &own->shape);
    }
    return same ? NULL : "has another type, shape, placement or size there";
}

/* Compares the index with the part's own, both in order. */
static int compare_index(struct reader *reader, const struct page *own, uint32_t rank,
                         struct diag *diag)
{
    size_t next = 0;
    for (size_t i = 0; i < reader->index_count; i++) {
        const struct index_entry *entry = &reader->index[i], *mine = NULL;
        int order = next < own->entry_count ? index_compare(&own->index[next], entry) : 1;
        if (order < 0) {
            return disagree(reader, i, &own->index[next], "is missing from it", diag);
        }
        if (order == 0) {
            mine = &own->index[next++];
            reader->held[i] = true;
        }
        const char *what = difference(reader, entry, mine, rank);
        if (what) {
            return disagree(reader, i, entry, what, diag);
        }
    }
    return next == own->entry_count ? 0
                                    : disagree(reader, reader->index_count, &own->index[next],
                                               "is missing from it", diag);
}

int reader_agrees(struct reader *reader, size_t number, const struct part *part, struct diag *diag)
{
    const struct part_ref *ref = &reader->parts[number];
    struct scratch scratch;
    struct page own;
    CHECK(number < reader->part_count);
    if (part->rank != ref->rank || part->chunk_count != ref->chunk_count ||
        part->tensor_count != ref->tensor_count || !ckpt_id_equal(part->id, reader->root.id)) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the pages of checkpoint %s are whole and do not agree with the "
                        "part of rank %u: it has %u tensors in %u chunks, not %u in %u",
                        ckpt_id_text(reader->root.id).at, ref->rank, part->tensor_count,
                        part->chunk_count, ref->tensor_count, ref->chunk_count);
    }
    if (!reader->held) {
        return 0;
    }
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = index_build(1, part, &scratch, &own, diag);
    status = status != 0 ? status : compare_index(reader, &own, part->rank, diag);
    scratch_fini(&scratch);
    return status;
}

int reader_agrees_all(const struct reader *reader, struct diag *diag)
{
    for (size_t i = 0; reader->held && i < reader->index_count; i++) {
        if (!reader->held[i]) {
            return disagree(reader, i, &reader->index[i], "is in no part", diag);
        }
    }
    return 0;
}

/* --- object tables ---------------------------------------------------------------------------- */

/* Gives as many bytes as the header says that there are. */
static int fetch_all(struct reader_source *source, const struct store_name *part,
                     const struct reader_span *span, struct reader_bytes *ret, struct diag *diag)
{
    free(ret->data);
    *ret = (struct reader_bytes){0};
    int status = source->fetch_range(source, part, span, ret, diag);
    return status != 0 || ret->count >= span->bytes
               ? status
               : diag_set(diag, CAIRN_E_DAMAGED, "the part is shorter than its header says");
}

static int read_table(struct reader_source *source, const struct store_name *part,
                      struct part_table *table, struct object_id **ret_ids, struct diag *diag)
{
    struct reader_bytes pages = {0}, crcs = {0};
    struct object_id *ids = NULL;
    int status = source->fetch_range(source, part, &(struct reader_span){0, PART_TABLE_FIRST_BYTES},
                                     &pages, diag);
    status = status != 0 ? status : part_table_begin(pages.count, pages.data, table, diag);
    if (status != 0 || !ret_ids) {
        goto out;
    }
    if (table->pages_bytes > pages.count) {
        struct reader_span span = {0, table->pages_bytes};
        status = fetch_all(source, part, &span, &pages, diag);
    }
    if (status == 0) {
        struct reader_span span = {table->crcs_offset, table->crcs_bytes};
        status = fetch_all(source, part, &span, &crcs, diag);
    }
    if (status == 0) {
        ids = calloc((size_t)table->object_count + 1, sizeof(*ids));
        status = ids ? part_table_read(table, pages.data, crcs.data, ids, diag)
                     : diag_no_memory(diag, "an object table");
    }
    if (status == 0) {
        *ret_ids = ids;
        ids = NULL;
    }
out:
    free(ids);
    free(crcs.data);
    free(pages.data);
    return status;
}

int reader_table(struct reader_source *source, const struct store_name *part,
                 struct part_table *ret, struct object_id **ret_ids, struct diag *diag)
{
    struct diag why;
    unsigned tries = 0;
    int status;
    CHECK(source->fetch_range);
    CHECK(part->kind == STORE_PART);
    do {
        why = DIAG_INIT;
        status = read_table(source, part, ret, ret_ids, &why);
    } while (reader_finding_of(status) == READER_DAMAGED && ++tries < 2);
    return status == 0 ? 0 : diag_set(diag, status, "%s", diag_text(&why, status));
}

/* --- objects ---------------------------------------------------------------------------------- */

struct scan_piece *reader_pieces(const struct part *part)
{
    struct scan_piece *pieces = calloc((size_t)part->chunk_count + 1, sizeof(*pieces));
    if (pieces) {
        scan_pieces_of(part, pieces);
        scan_sort(part->chunk_count, pieces);
    }
    return pieces;
}

size_t reader_object_pieces(size_t count, const struct scan_piece *pieces)
{
    size_t end = 1;
    CHECK(count > 0);
    while (end < count && object_id_equal(pieces[end].id, pieces[0].id)) {
        end++;
    }
    return end;
}

void reader_source_fini(struct reader_source *source)
{
    for (size_t i = 0; i < READER_DEPTH_MAX; i++) {
        free(source->rooms[i].memory);
        source->rooms[i] = (struct reader_room){0};
    }
}

/* Reads one object at a time, one range at a time; several lanes are under way at once, each at an
 * object of its own, so that one that does not come holds up no other. */
struct lane {
    bool is_busy; /* its range is to be read */
    struct reader_object object;
    struct object_scan scan;
    struct reader_range range;
};

struct reading {
    struct reader_source *source;
    struct reader_visitor *visitor;
    struct lane lanes[READER_DEPTH_MAX];
};

static int end_object(struct reading *r, struct lane *lane)
{
    lane->is_busy = false;
    return r->visitor->done ? r->visitor->done(r->visitor, &lane->scan) : 0;
}

/* Gives the next range its memory, and begins to read it if reads may be begun; or ends the
 * object. */
static int next_range(struct reading *r, struct lane *lane, struct diag *diag)
{
    unsigned slot = (unsigned)(lane - r->lanes);
    struct reader_room *room = &r->source->rooms[slot];
    if (!object_scan_next(&lane->scan, &r->visitor->sink)) {
        return end_object(r, lane);
    }
    size_t bytes = round_up_u64(lane->scan.bytes, LIMIT_ALIGN_BYTES) + LIMIT_ALIGN_BYTES;
    if (room->bytes < bytes) {
        free(room->memory);
        room->bytes = max_u64(bytes, LIMIT_CHUNK_BYTES + 2 * (size_t)LIMIT_ALIGN_BYTES);
        room->memory = aligned_alloc(LIMIT_ALIGN_BYTES, room->bytes);
        room->bytes = room->memory ? room->bytes : 0;
    }
    lane->is_busy = room->memory != NULL;
    if (!lane->is_busy) {
        return diag_no_memory(diag, "reading an object");
    }
    lane->range = (struct reader_range){.object = lane->object.at,
                                        .from = lane->scan.from,
                                        .bytes = lane->scan.bytes,
                                        .to_end = lane->scan.in_footer,
                                        .memory = room->memory,
                                        .slot = slot};
    if (r->source->begin) {
        r->source->begin(r->source, &lane->range);
    }
    return 0;
}

/* Takes the next object, if there is one. */
static int next_object(struct reading *r, struct lane *lane, bool *io_more, struct diag *diag)
{
    struct reader_object *object = &lane->object;
    *io_more = *io_more && r->visitor->next(r->visitor, object);
    if (!*io_more) {
        return 0;
    }
    size_t taken =
        object_scan_begin(&lane->scan, object->count, object->pieces, object->chunks_only);
    CHECK(taken == object->count);
    return next_range(r, lane, diag);
}

struct count_sink {
    struct scan_sink sink;
    size_t count;
};

static void count_found(struct scan_sink *sink, const struct scan_piece *piece,
                        enum scan_where where, const char *why)
{
    (void)piece;
    (void)where;
    (void)why;
    container_of(sink, struct count_sink, sink)->count++;
}

static int range_unread(struct reading *r, struct lane *lane, int status, struct diag *why,
                        struct diag *diag)
{
    if (r->visitor->unread) {
        status = r->visitor->unread(r->visitor, &lane->scan, status, why);
        return status == 0 ? end_object(r, lane)
                           : diag_set(diag, status, "%s", diag_text(why, status));
    }
    if (!reader_is_damage(status)) {
        return diag_set(diag, status, "%s", diag_text(why, status));
    }
    object_scan_unreadable(&lane->scan, diag_text(why, status), &r->visitor->sink);
    return next_range(r, lane, diag);
}

/* Reads a range and checks it. A fault is told only if it is still there when the range has been
 * read once more. */
static int read_range(struct reading *r, struct lane *lane, struct diag *diag)
{
    const struct object_scan before = lane->scan;
    struct count_sink count = {.sink.found = count_found};
    for (unsigned try = 0;; try++) {
        struct diag why = DIAG_INIT;
        if (try > 0 && r->source->begin) {
            r->source->begin(r->source, &lane->range);
        }
        int status = r->source->read(r->source, &lane->range, &why);
        lane->scan = before;
        if (status != 0) {
            lane->is_busy = false;
            return range_unread(r, lane, status, &why, diag);
        }
        object_scan_check(&lane->scan, lane->range.memory,
                          try == 0 ? &count.sink : &r->visitor->sink);
        if (try > 0 || count.count == 0) {
            return next_range(r, lane, diag);
        }
    }
}

/* Ends a read whose bytes are not wanted any more. */
static void drain(struct reading *r, struct lane *lane)
{
    if (lane->is_busy && r->source->begin) {
        err_ignore(r->source->read(r->source, &lane->range, NULL)); /* only its memory matters */
    }
    lane->is_busy = false;
}

int reader_objects(struct reader_source *source, struct reader_visitor *visitor, struct diag *diag)
{
    struct reading r = {.source = source, .visitor = visitor};
    unsigned depth = source->begin ? source->depth : 1, busy;
    bool more = true;
    int status = 0;
    CHECK(source->read);
    CHECK(visitor->next && visitor->sink.found);
    CHECK(depth >= 1 && depth <= READER_DEPTH_MAX);
    do {
        busy = 0;
        for (unsigned i = 0; i < depth; i++) {
            struct lane *lane = &r.lanes[i];
            if (status == 0 && lane->is_busy) {
                status = read_range(&r, lane, diag);
            }
            while (status == 0 && more && !lane->is_busy) {
                status = next_object(&r, lane, &more, diag);
            }
            busy += lane->is_busy;
        }
    } while (status == 0 && busy > 0);
    for (unsigned i = 0; i < depth; i++) {
        drain(&r, &r.lanes[i]);
    }
    return status;
}
