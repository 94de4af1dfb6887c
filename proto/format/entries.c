/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of a run's record (entry_keys.c has their keys): one encoder and one decoder for each
 * kind. A value begins with a version byte, has no checksum of its own (the update and the snapshot
 * that hold it have one), and is read to its last byte. Pure; any thread.
 */
#include "entries.h"

#include <string.h>

#include "base/check.h"
#include "box.h"
#include "doc.h"
#include "manifest.h"

enum {
    ENTRY_VERSION = 1,
    CHAIN_VERSION_BASE = 2,
    CHAIN_VERSION_MARK = 3,
    RESTORE_VERSION_CYCLE = 2,
    DAY_VERSION_TIMES = 2
};

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

static int64_t take_i64(struct cur *cur) { return (int64_t)cur_u64(cur); }

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

/* Reads a text that must be valid and, with its NUL, fit into ENTRY_REASON_BYTES. Returns "" after
 * a failure. */
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

static int entry_open_value(const char *what, struct record_value value, struct cur *ret,
                            struct diag *diag)
{
    uint8_t version = ENTRY_VERSION;
    return entry_open_version(what, value, ret, &version, diag);
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

void entry_info_encode(const struct entry_info *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put(buf, sizeof entry->run_uuid.bytes, entry->run_uuid.bytes);
    buf_put_u64(buf, entry->chunk_bytes);
    buf_put_u64(buf, (uint64_t)entry->created_wall_ns);
}

static int take_info(struct cur *cur, struct entry_info *entry, struct diag *diag)
{
    cur_copy(cur, sizeof entry->run_uuid.bytes, entry->run_uuid.bytes);
    entry->chunk_bytes = cur_u64(cur);
    entry->created_wall_ns = take_i64(cur);
    return entry_finish("info", cur, chunk_bytes_is_valid(entry->chunk_bytes), diag);
}

int entry_info_decode(struct record_value value, struct scratch *scratch, struct entry_info *ret,
                      struct diag *diag)
{
    struct entry_info entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("info", value, &cur, diag);
    rc = rc != 0 ? rc : take_info(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_head_encode(const struct entry_head *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u64(buf, entry->seq);
    buf_put(buf, sizeof entry->sha256.bytes, entry->sha256.bytes);
}

static int take_head(struct cur *cur, struct entry_head *entry, struct diag *diag)
{
    entry->seq = cur_u64(cur);
    cur_copy(cur, sizeof entry->sha256.bytes, entry->sha256.bytes);
    return entry_finish("head", cur, true, diag);
}

int entry_head_decode(struct record_value value, struct scratch *scratch, struct entry_head *ret,
                      struct diag *diag)
{
    struct entry_head entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("head", value, &cur, diag);
    rc = rc != 0 ? rc : take_head(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_term_encode(const struct entry_term *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put(buf, sizeof entry->token.bytes, entry->token.bytes);
    buf_put_u32(buf, entry->ordinal);
    buf_put_u32(buf, entry->world_size);
    put_id(buf, entry->parent);
    buf_put_u64(buf, entry->newest_seen);
}

static int take_term(struct cur *cur, struct entry_term *entry, struct diag *diag)
{
    cur_copy(cur, sizeof entry->token.bytes, entry->token.bytes);
    entry->ordinal = cur_u32(cur);
    entry->world_size = cur_u32(cur);
    entry->parent = take_id(cur);
    entry->newest_seen = cur_u64(cur);
    return entry_finish("term", cur, entry->world_size > 0 && entry->world_size <= LIMIT_WORLD_SIZE,
                        diag);
}

int entry_term_decode(struct record_value value, struct scratch *scratch, struct entry_term *ret,
                      struct diag *diag)
{
    struct entry_term entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("term", value, &cur, diag);
    rc = rc != 0 ? rc : take_term(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_past_encode(struct buf *buf) { buf_put_u8(buf, ENTRY_VERSION); }

void entry_seal_encode(const struct entry_seal *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u64(buf, entry->open_id);
    buf_put_u64(buf, entry->writer);
    buf_put_u64(buf, entry->part_bytes);
    buf_put(buf, sizeof entry->part_sha256.bytes, entry->part_sha256.bytes);
}

static int take_seal(struct cur *cur, struct entry_seal *entry, struct diag *diag)
{
    entry->open_id = cur_u64(cur);
    entry->writer = cur_u64(cur);
    entry->part_bytes = cur_u64(cur);
    cur_copy(cur, sizeof entry->part_sha256.bytes, entry->part_sha256.bytes);
    return entry_finish("seal", cur, entry->part_bytes > 0 && entry->part_bytes <= LIMIT_PART_BYTES,
                        diag);
}

int entry_seal_decode(struct record_value value, struct scratch *scratch, struct entry_seal *ret,
                      struct diag *diag)
{
    struct entry_seal entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("seal", value, &cur, diag);
    rc = rc != 0 ? rc : take_seal(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_dead_encode(const struct entry_dead *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u64(buf, entry->open_id);
    buf_put_u32(buf, (uint32_t)entry->code);
    put_reason(buf, entry->reason);
}

static int take_dead(struct cur *cur, struct entry_dead *entry, struct diag *diag)
{
    entry->open_id = cur_u64(cur);
    entry->code = (int32_t)cur_u32(cur);
    take_reason(cur, entry->reason);
    return entry_finish("dead", cur, true, diag);
}

int entry_dead_decode(struct record_value value, struct scratch *scratch, struct entry_dead *ret,
                      struct diag *diag)
{
    struct entry_dead entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("dead", value, &cur, diag);
    rc = rc != 0 ? rc : take_dead(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_health_encode(const struct entry_health *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u32(buf, entry->health);
    put_reason(buf, entry->reason);
}

static int take_health(struct cur *cur, struct entry_health *entry, struct diag *diag)
{
    entry->health = cur_u32(cur);
    take_reason(cur, entry->reason);
    return entry_finish("health", cur, entry->health <= HEALTH_DAMAGED, diag);
}

int entry_health_decode(struct record_value value, struct scratch *scratch,
                        struct entry_health *ret, struct diag *diag)
{
    struct entry_health entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("health", value, &cur, diag);
    rc = rc != 0 ? rc : take_health(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

uint64_t day_of(int64_t wall_ns)
{
    const int64_t day_ns = INT64_C(86400) * 1000 * 1000 * 1000;
    return wall_ns > 0 ? (uint64_t)(wall_ns / day_ns) : 0;
}

void entry_day_encode(const struct entry_day *entry, struct buf *buf)
{
    bool timed = entry->timed_saves > 0;
    buf_put_u8(buf, timed ? DAY_VERSION_TIMES : ENTRY_VERSION);
    buf_put_u64(buf, entry->restores);
    buf_put_u64(buf, entry->restores_failed);
    buf_put_u64(buf, entry->saves_aborted);
    if (timed) {
        buf_put_u64(buf, entry->timed_saves);
        buf_put_u64(buf, entry->blocked_ms);
        buf_put_u64(buf, entry->persist_ms);
    }
}

int entry_day_decode(struct record_value value, struct scratch *scratch, struct entry_day *ret,
                     struct diag *diag)
{
    struct entry_day entry = {0};
    struct cur cur;
    uint8_t version = DAY_VERSION_TIMES;
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_version("day", value, &cur, &version, diag);
    if (rc == 0) {
        entry.restores = cur_u64(&cur);
        entry.restores_failed = cur_u64(&cur);
        entry.saves_aborted = cur_u64(&cur);
        if (version >= DAY_VERSION_TIMES) {
            entry.timed_saves = cur_u64(&cur);
            entry.blocked_ms = cur_u64(&cur);
            entry.persist_ms = cur_u64(&cur);
        }
        bool good = version < DAY_VERSION_TIMES || entry.timed_saves > 0;
        rc = entry_finish("day", &cur, good, diag);
    }
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_restore_encode(const struct entry_restore *entry, struct buf *buf)
{
    buf_put_u8(buf, entry->cycle > 0 ? RESTORE_VERSION_CYCLE : ENTRY_VERSION);
    buf_put_u32(buf, entry->world_size);
    buf_put_u32(buf, entry->allow_older);
    buf_put_u64(buf, entry->newest_term);
    buf_put_u32(buf, entry->try_count);
    buf_put_u32(buf, entry->state);
    put_id(buf, entry->id);
    put_id(buf, entry->first);
    buf_put_u32(buf, (uint32_t)entry->code);
    put_reason(buf, entry->reason);
    if (entry->cycle > 0) {
        buf_put_u64(buf, entry->cycle);
    }
}

/* Reads the fields of a restore session. Version 1 has no cycle. */
static int take_restore(struct cur *cur, uint8_t version, struct entry_restore *entry,
                        struct diag *diag)
{
    entry->world_size = cur_u32(cur);
    entry->allow_older = cur_u32(cur);
    entry->newest_term = cur_u64(cur);
    entry->try_count = cur_u32(cur);
    entry->state = cur_u32(cur);
    entry->id = take_id(cur);
    entry->first = take_id(cur);
    entry->code = (int32_t)cur_u32(cur);
    take_reason(cur, entry->reason);
    bool cycle_good = true;
    if (version == RESTORE_VERSION_CYCLE) {
        entry->cycle = cur_u64(cur);
        cycle_good = entry->cycle > 0;
    }
    return entry_finish("restore", cur,
                        entry->state >= RESTORE_RUNNING && entry->state <= RESTORE_FAILED &&
                            entry->allow_older <= 1 && entry->world_size > 0 &&
                            entry->world_size <= LIMIT_WORLD_SIZE && cycle_good,
                        diag);
}

int entry_restore_decode(struct record_value value, struct scratch *scratch,
                         struct entry_restore *ret, struct diag *diag)
{
    struct entry_restore entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    uint8_t version = RESTORE_VERSION_CYCLE;
    int rc = entry_open_version("restore", value, &cur, &version, diag);
    rc = rc != 0 ? rc : take_restore(&cur, version, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_report_encode(const struct entry_report *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u32(buf, entry->try_count);
    buf_put_u32(buf, (uint32_t)entry->code);
    put_reason(buf, entry->reason);
}

static int take_report(struct cur *cur, struct entry_report *entry, struct diag *diag)
{
    entry->try_count = cur_u32(cur);
    entry->code = (int32_t)cur_u32(cur);
    take_reason(cur, entry->reason);
    return entry_finish("report", cur, true, diag);
}

int entry_report_decode(struct record_value value, struct scratch *scratch,
                        struct entry_report *ret, struct diag *diag)
{
    struct entry_report entry;
    struct cur cur;
    memset(&entry, 0, sizeof entry);
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("report", value, &cur, diag);
    rc = rc != 0 ? rc : take_report(&cur, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

void entry_gc_encode(const struct entry_gc *entry, struct buf *buf)
{
    buf_put_u8(buf, ENTRY_VERSION);
    buf_put_u64(buf, entry->cycle);
    buf_put_u64(buf, (uint64_t)entry->wall_ns);
}

int entry_gc_decode(struct record_value value, struct scratch *scratch, struct entry_gc *ret,
                    struct diag *diag)
{
    struct entry_gc entry = {0};
    struct cur cur;
    (void)scratch; /* nothing here has a length of its own */
    int rc = entry_open_value("gc", value, &cur, diag);
    if (rc != 0) {
        return rc;
    }
    entry.cycle = cur_u64(&cur);
    entry.wall_ns = take_i64(&cur);
    rc = entry_finish("gc", &cur, entry.cycle > 0, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}

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
    entry->wall_ns = take_i64(cur);
    if (cur->status == 0 && (entry->kind < CHAIN_COMMIT || entry->kind > CHAIN_REPAIR)) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a chain entry of kind %u is not known to this version", entry->kind);
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
    return entry_finish("chain", cur, good && entry->seq > 0 && entry->id.term > 0, diag);
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
    int rc = entry_open_value("open", value, &cur, diag);
    rc = rc != 0 ? rc : take_open(&cur, scratch, &entry, diag);
    if (rc == 0) {
        *ret = entry;
    }
    return rc;
}
