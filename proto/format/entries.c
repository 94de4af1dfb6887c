/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of a run's record (entry_keys.c has their keys): one encoder and one decoder for each
 * kind, most of them made of the rows of entries.def. A value begins with a version byte, has no
 * checksum of its own (the update and the snapshot that hold it have one), and is read to its last
 * byte. Pure; any thread.
 */
#include "entries.h"

#include <string.h>

#include "base/utf8.h"
#include "doc.h"
#include "manifest.h"

enum { ENTRY_VERSION = 1, CHAIN_VERSION_BASE = 2, CHAIN_VERSION_MARK = 3 };

static void put_id(struct buf *buf, struct ckpt_id id)
{
    buf_put_u64(buf, id.term);
    buf_put_u64(buf, id.step);
}

static struct ckpt_id take_id(struct cur *cur)
{
    uint64_t term = cur_u64(cur);
    return (struct ckpt_id){term, cur_u64(cur)};
}

/* Writes a reason, which is text for people in a fixed array: it is cut at the end of the array,
 * and at a broken UTF-8 sequence. */
static void put_reason(struct buf *buf, const char reason[ENTRY_REASON_BYTES])
{
    size_t bytes = strnlen(reason, ENTRY_REASON_BYTES - 1);
    while (bytes > 0 && !utf8_is_valid(bytes, reason)) {
        bytes--;
    }
    buf_put_u16(buf, (uint16_t)bytes);
    buf_put(buf, bytes, reason);
}

/* Reads a reason, which must pass text_is_valid() and fit into ENTRY_REASON_BYTES with its NUL.
 * Otherwise sets the cursor's status to FORMAT and returns an empty text. */
static void take_reason(struct cur *cur, char ret[ENTRY_REASON_BYTES])
{
    size_t bytes = cur_u16(cur);
    const uint8_t *text = cur_bytes(cur, bytes);
    memset(ret, 0, ENTRY_REASON_BYTES);
    if (cur->status != 0 || bytes == 0) {
        return;
    }
    if (!text_is_valid(bytes, (const char *)text, ENTRY_REASON_BYTES - 1)) {
        cur->status = CAIRN_E_FORMAT;
        return;
    }
    memcpy(ret, text, bytes);
}

/* Opens a value, and checks that this program reads its version. *ret_version is the newest known
 * one before, and that of the value afterwards. */
static int entry_open_version(const char *what, struct record_value value, struct cur *ret,
                              uint8_t *ret_version, struct diag *diag)
{
    if (value.bytes == 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the %s entry is empty", what);
    }
    cur_init(ret, value.bytes, value.data);
    uint8_t version = cur_u8(ret);
    if (version < ENTRY_VERSION || version > *ret_version) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the %s entry has version %u; this program reads %d", what, version,
                        *ret_version);
    }
    *ret_version = version;
    return 0;
}

/* Ends a decoder. `good` says whether what was read also makes sense. */
static int entry_finish(const char *what, const struct cur *cur, bool good, struct diag *diag)
{
    if (cur_finish(cur) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the %s entry is broken at offset %zu of %zu", what,
                        cur->at, cur->bytes);
    }
    return good ? 0 : diag_set(diag, CAIRN_E_FORMAT, "the %s entry contradicts itself", what);
}

/* --- the entries of entries.def --------------------------------------------------------------- */

#define ENTRY(name, version_, newest)                                            \
    void entry_##name##_encode(const struct entry_##name *self, struct buf *buf) \
    {                                                                            \
        uint8_t version = (version_);                                            \
        buf_put_u8(buf, version);
#define U32(f)         buf_put_u32(buf, self->f);
#define S32(f)         buf_put_u32(buf, (uint32_t)self->f);
#define U64(f)         buf_put_u64(buf, self->f);
#define S64(f)         buf_put_u64(buf, (uint64_t)self->f);
#define BYTES(type, f) buf_put(buf, sizeof self->f.bytes, self->f.bytes);
#define ID(f)          put_id(buf, self->f);
#define REASON(f)      put_reason(buf, self->f);
#define SINCE(v)       if (version >= (v)) {
#define END_SINCE      }
#define END            }
#include "entries.def"

/* Read the fields. *ret_good says whether they make sense. */
#define ENTRY(name, version_, newest)                                                    \
    static void take_##name(struct cur *cur, uint8_t version, struct entry_##name *self, \
                            bool *ret_good)                                              \
    {                                                                                    \
        (void)version;                                                                   \
        *ret_good = true;                                                                \
        memset(self, 0, sizeof *self);
#define U32(f)         self->f = cur_u32(cur);
#define S32(f)         self->f = (int32_t)cur_u32(cur);
#define U64(f)         self->f = cur_u64(cur);
#define S64(f)         self->f = (int64_t)cur_u64(cur);
#define BYTES(type, f) cur_copy(cur, sizeof self->f.bytes, self->f.bytes);
#define ID(f)          self->f = take_id(cur);
#define REASON(f)      take_reason(cur, self->f);
#define SINCE(v)       if (version >= (v)) {
#define END_SINCE      }
#define GOOD(holds)    *ret_good = *ret_good && (holds);
#define END            }
#include "entries.def"

/* The decoders. Nothing in these entries has a length of its own, so the scratch is not needed. */
#define ENTRY(name, version_, newest)                                             \
    int entry_##name##_decode(struct record_value value, struct scratch *scratch, \
                              struct entry_##name *ret, struct diag *diag)        \
    {                                                                             \
        struct entry_##name entry;                                                \
        struct cur cur;                                                           \
        uint8_t version = (newest);                                               \
        bool good = false;                                                        \
        (void)scratch;                                                            \
        int rc = entry_open_version(#name, value, &cur, &version, diag);          \
        if (rc == 0) {                                                            \
            take_##name(&cur, version, &entry, &good);                            \
            rc = entry_finish(#name, &cur, good, diag);                           \
        }                                                                         \
        if (rc == 0) {                                                            \
            *ret = entry;                                                         \
        }                                                                         \
        return rc;                                                                \
    }
#include "entries.def"

void entry_past_encode(struct buf *buf) { buf_put_u8(buf, ENTRY_VERSION); }

uint64_t day_of(int64_t wall_ns)
{
    const int64_t day_ns = INT64_C(86400) * 1000 * 1000 * 1000;
    return wall_ns > 0 ? (uint64_t)(wall_ns / day_ns) : 0;
}

/* --- chain ------------------------------------------------------------------------------------ */

static void put_marks(struct buf *buf, const struct entry_chain *entry)
{
    if (entry->id_count > CHAIN_IDS_MAX) {
        buf->status = buf->status != 0 ? buf->status : CAIRN_E_TOO_LARGE;
        return;
    }
    doc_put_text(buf, entry->actor != NULL ? entry->actor : "");
    doc_put_text(buf, entry->reason != NULL ? entry->reason : "");
    buf_put_u64(buf, entry->cycle);
    buf_put_u32(buf, entry->id_count - 1);
    for (uint32_t i = 1; i < entry->id_count; i++) {
        put_id(buf, entry->ids[i]);
    }
}

static uint8_t chain_version(const struct entry_chain *entry)
{
    bool marks = entry->kind != CHAIN_COMMIT && entry->id_count > 0;
    bool based = entry->kind == CHAIN_COMMIT && entry->base.term != 0;
    return marks ? CHAIN_VERSION_MARK : based ? CHAIN_VERSION_BASE : ENTRY_VERSION;
}

/* A full checkpoint gets an entry of the first version, as always. */
void entry_chain_encode(const struct entry_chain *entry, struct buf *buf)
{
    uint8_t version = chain_version(entry);
    buf_put_u8(buf, version);
    buf_put_u32(buf, entry->kind);
    buf_put_u64(buf, entry->seq);
    buf_put(buf, sizeof entry->previous.bytes, entry->previous.bytes);
    put_id(buf, version == CHAIN_VERSION_MARK ? entry->ids[0] : entry->id);
    buf_put_u64(buf, (uint64_t)entry->wall_ns);
    if (entry->kind == CHAIN_COMMIT) {
        buf_put(buf, sizeof entry->manifest_sha256.bytes, entry->manifest_sha256.bytes);
        buf_put_u64(buf, entry->manifest_bytes);
        buf_put_u64(buf, entry->plain_bytes);
        buf_put_u64(buf, entry->stored_bytes);
        buf_put_u32(buf, entry->world_size);
        buf_put_u64(buf, entry->open_id);
    }
    if (version == CHAIN_VERSION_BASE) {
        put_id(buf, entry->base);
    }
    if (version == CHAIN_VERSION_MARK) {
        put_marks(buf, entry);
    }
}

/* Reads the fields of a commit. Returns whether they make sense. */
static bool take_commit(struct cur *cur, uint8_t version, struct entry_chain *entry)
{
    cur_copy(cur, sizeof entry->manifest_sha256.bytes, entry->manifest_sha256.bytes);
    entry->manifest_bytes = cur_u64(cur);
    entry->plain_bytes = cur_u64(cur);
    entry->stored_bytes = cur_u64(cur);
    entry->world_size = cur_u32(cur);
    entry->open_id = cur_u64(cur);
    bool good = entry->manifest_bytes > 0 && entry->manifest_bytes <= LIMIT_MANIFEST_BYTES &&
                entry->world_size > 0 && entry->world_size <= LIMIT_WORLD_SIZE;
    if (version == CHAIN_VERSION_BASE) {
        entry->base = take_id(cur);
        good = good && entry->base.term > 0;
    }
    return good && version != CHAIN_VERSION_MARK;
}

/* Reads who, why and which. *ret_good says whether the ids are in order, none twice. */
static int take_marks(struct cur *cur, struct scratch *scratch, struct entry_chain *entry,
                      bool *ret_good)
{
    int status = 0;
    entry->actor = doc_text(cur, ENTRY_ACTOR_BYTES - 1, true, scratch, &status);
    entry->reason = doc_text(cur, ENTRY_REASON_BYTES - 1, true, scratch, &status);
    entry->cycle = cur_u64(cur);
    uint32_t more = cur_u32(cur);
    if (status != 0 || cur->status != 0) {
        return status;
    }
    if (more >= CHAIN_IDS_MAX) {
        cur->status = CAIRN_E_FORMAT;
        return 0;
    }
    struct ckpt_id *ids = scratch_array(scratch, more + 1u, sizeof(*ids));
    if (ids == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    ids[0] = entry->id;
    for (uint32_t i = 1; i <= more; i++) {
        ids[i] = take_id(cur);
        *ret_good = *ret_good && ckpt_id_compare(ids[i - 1], ids[i]) < 0;
    }
    entry->id_count = more + 1;
    entry->ids = ids;
    return 0;
}

/* Reads a chain entry of any kind. */
static int take_chain(struct cur *cur, uint8_t version, struct scratch *scratch,
                      struct entry_chain *entry, struct diag *diag)
{
    entry->kind = cur_u32(cur);
    entry->seq = cur_u64(cur);
    cur_copy(cur, sizeof entry->previous.bytes, entry->previous.bytes);
    entry->id = take_id(cur);
    entry->wall_ns = (int64_t)cur_u64(cur);
    if (cur->status == 0 && (entry->kind < CHAIN_COMMIT || entry->kind > CHAIN_REMOVE)) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a chain entry of kind %u needs a newer Cairn than this", entry->kind);
    }
    bool good = true;
    if (entry->kind == CHAIN_COMMIT) {
        good = take_commit(cur, version, entry);
    } else if (version == CHAIN_VERSION_MARK) {
        int status = take_marks(cur, scratch, entry, &good);
        if (status != 0) {
            return status == CAIRN_E_NO_MEMORY
                       ? doc_no_memory("chain entry", diag)
                       : diag_set(diag, CAIRN_E_FORMAT, "the chain entry is broken at offset %zu",
                                  cur->at);
        }
    } else {
        good = version == ENTRY_VERSION && entry->kind <= CHAIN_RECLAIM;
    }
    bool named = entry->id.term > 0;
    if (entry->kind == CHAIN_REMOVE) {
        good = good && !named && entry->id.step == 0 && entry->id_count == 1 && entry->cycle > 0;
        named = true;
    }
    return entry_finish("chain", cur, good && entry->seq > 0 && named, diag);
}

int entry_chain_decode(struct record_value value, struct scratch *scratch, struct entry_chain *ret,
                       struct diag *diag)
{
    struct entry_chain entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    uint8_t version = CHAIN_VERSION_MARK;
    int rc = entry_open_version("chain", value, &cur, &version, diag);
    rc = rc != 0 ? rc : take_chain(&cur, version, scratch, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

/* --- open ------------------------------------------------------------------------------------- */

void entry_open_encode(const struct entry_open *entry, struct buf *buf)
{
    if (entry->metadata_bytes > LIMIT_METADATA_BYTES || entry->tag_count > LIMIT_TAGS ||
        entry->metric_count > LIMIT_METRICS) {
        buf->status = buf->status != 0 ? buf->status : CAIRN_E_TOO_LARGE;
        return;
    }
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u64(buf, entry->open_id);
    buf_put_u64(buf, entry->deadline_ms);
    put_id(buf, entry->base);
    buf_put_u32(buf, entry->metadata_bytes);
    buf_put_u32(buf, entry->tag_count);
    buf_put_u32(buf, entry->metric_count);
    if (entry->metadata_bytes > 0) {
        buf_put(buf, entry->metadata_bytes, entry->metadata);
    }
    for (uint32_t i = 0; i < entry->tag_count; i++) {
        doc_put_text(buf, entry->tags[i]);
    }
    for (uint32_t i = 0; i < entry->metric_count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &entry->metric_values[i], sizeof bits);
        doc_put_text(buf, entry->metric_names[i]);
        buf_put_u64(buf, bits);
    }
}

/* Reads the arrays of an open entry, after its counts were found to be within their limits. */
static int take_open_lists(struct cur *cur, struct scratch *scratch, struct entry_open *entry)
{
    int status = 0;
    const uint8_t *metadata = cur_bytes(cur, entry->metadata_bytes);
    entry->tags = scratch_array(scratch, entry->tag_count + 1u, sizeof *entry->tags);
    entry->metric_names =
        scratch_array(scratch, entry->metric_count + 1u, sizeof *entry->metric_names);
    entry->metric_values =
        scratch_array(scratch, entry->metric_count + 1u, sizeof *entry->metric_values);
    if (entry->tags == NULL || entry->metric_names == NULL || entry->metric_values == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    if (cur->status == 0 && entry->metadata_bytes > 0) {
        entry->metadata = scratch_copy(scratch, entry->metadata_bytes, metadata);
        status = entry->metadata == NULL ? CAIRN_E_NO_MEMORY : 0;
    }
    for (uint32_t i = 0; i < entry->tag_count && status == 0; i++) {
        entry->tags[i] = doc_text(cur, LABEL_BYTES_MAX, false, scratch, &status);
    }
    for (uint32_t i = 0; i < entry->metric_count && status == 0; i++) {
        entry->metric_names[i] = doc_text(cur, LABEL_BYTES_MAX, false, scratch, &status);
        uint64_t bits = cur_u64(cur);
        memcpy(&entry->metric_values[i], &bits, sizeof bits);
    }
    return status;
}

/* Reads an open entry, and checks its counts before anything is allocated. */
static int take_open(struct cur *cur, struct scratch *scratch, struct entry_open *entry,
                     struct diag *diag)
{
    entry->open_id = cur_u64(cur);
    entry->deadline_ms = cur_u64(cur);
    entry->base = take_id(cur);
    entry->metadata_bytes = cur_u32(cur);
    entry->tag_count = cur_u32(cur);
    entry->metric_count = cur_u32(cur);
    if (cur->status == 0 &&
        (entry->metadata_bytes > LIMIT_METADATA_BYTES || entry->tag_count > LIMIT_TAGS ||
         entry->metric_count > LIMIT_METRICS)) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the open entry has more metadata, tags or metrics than allowed");
    }
    int status = cur->status != 0 ? cur->status : take_open_lists(cur, scratch, entry);
    if (status == CAIRN_E_NO_MEMORY) {
        return doc_no_memory("open entry", diag);
    }
    return status != 0
               ? diag_set(diag, CAIRN_E_FORMAT, "the open entry is broken at offset %zu", cur->at)
               : entry_finish("open", cur, true, diag);
}

int entry_open_decode(struct record_value value, struct scratch *scratch, struct entry_open *ret,
                      struct diag *diag)
{
    struct entry_open entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    uint8_t version = ENTRY_VERSION;
    int rc = entry_open_version("open", value, &cur, &version, diag);
    rc = rc != 0 ? rc : take_open(&cur, scratch, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}
