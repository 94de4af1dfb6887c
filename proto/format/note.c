/* SPDX-License-Identifier: Apache-2.0
 *
 * Tags and metrics beside a manifest; note.h has the rules. The lists are small (32 tags, 64
 * metrics), so they are searched from end to end. Pure; any thread.
 */
#include "note.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "doc.h"

enum { NOTE_VERSION = 1, NOTE_HEADER_BYTES = 1 + 8 + 8 + 4 + 4 };

void entry_note_encode(const struct entry_note *entry, struct buf *buf)
{
    if (entry->tag_count > LIMIT_TAGS || entry->metric_count > LIMIT_METRICS) {
        buf->status = buf->status != 0 ? buf->status : CAIRN_E_TOO_LARGE;
        return;
    }
    buf_put_u8(buf, NOTE_VERSION);
    buf_put_u64(buf, entry->version);
    buf_put_u64(buf, (uint64_t)entry->wall_ns);
    buf_put_u32(buf, entry->tag_count);
    buf_put_u32(buf, entry->metric_count);
    for (uint32_t i = 0; i < entry->tag_count; i++) {
        doc_put_text(buf, entry->tags[i]);
    }
    for (uint32_t i = 0; i < entry->metric_count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &entry->metrics[i].value, sizeof bits);
        doc_put_text(buf, entry->metrics[i].name);
        buf_put_u64(buf, bits);
    }
}

/* Reads the lists, after their counts were found to be within the limits. */
static int take_lists(struct cur *cur, struct scratch *scratch, struct entry_note *entry)
{
    int status = 0;
    entry->tags = scratch_array(scratch, entry->tag_count + 1u, sizeof *entry->tags);
    entry->metrics = scratch_array(scratch, entry->metric_count + 1u, sizeof *entry->metrics);
    if (entry->tags == NULL || entry->metrics == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < entry->tag_count && status == 0; i++) {
        entry->tags[i] = doc_text(cur, LABEL_BYTES_MAX, false, scratch, &status);
        if (status == 0 && i > 0 && strcmp(entry->tags[i - 1], entry->tags[i]) >= 0) {
            status = CAIRN_E_FORMAT;
        }
    }
    for (uint32_t i = 0; i < entry->metric_count && status == 0; i++) {
        struct metric *metric = &entry->metrics[i];
        metric->name = doc_text(cur, LABEL_BYTES_MAX, false, scratch, &status);
        uint64_t bits = cur_u64(cur);
        memcpy(&metric->value, &bits, sizeof bits);
        if (status == 0 && i > 0 && strcmp(metric[-1].name, metric->name) >= 0) {
            status = CAIRN_E_FORMAT;
        }
    }
    return status;
}

int entry_note_decode(struct record_value value, struct scratch *scratch, struct entry_note *ret,
                      struct diag *diag)
{
    struct entry_note entry = {0};
    struct cur cur;
    cur_init(&cur, value.bytes, value.data);
    uint8_t version = value.bytes > 0 ? cur_u8(&cur) : NOTE_VERSION;
    if (version != NOTE_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the note entry has version %u; this program reads %d", version,
                        NOTE_VERSION);
    }
    if (value.bytes < NOTE_HEADER_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "the note entry has only %zu bytes", value.bytes);
    }
    entry.version = cur_u64(&cur);
    entry.wall_ns = (int64_t)cur_u64(&cur);
    entry.tag_count = cur_u32(&cur);
    entry.metric_count = cur_u32(&cur);
    if (entry.tag_count > LIMIT_TAGS || entry.metric_count > LIMIT_METRICS) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "the note entry has %u tags and %u metrics",
                        entry.tag_count, entry.metric_count);
    }
    int status = take_lists(&cur, scratch, &entry);
    if (status == CAIRN_E_NO_MEMORY) {
        return doc_no_memory("note entry", diag);
    }
    if (status != 0 || cur_finish(&cur) != 0 || entry.version == 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the note entry is broken at offset %zu of %zu",
                        cur.at, cur.bytes);
    }
    *ret = entry;
    return 0;
}

int note_check_label(const char *what, const char *label, struct diag *diag)
{
    if (label != NULL && text_is_valid(strlen(label), label, LABEL_BYTES_MAX)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_INVALID,
                    "%s \"%.40s\" is not valid: it must be 1 to %d bytes of UTF-8", what,
                    label != NULL ? label : "", LABEL_BYTES_MAX);
}

/* --- a change ------------------------------------------------------------------------ */

struct merge {
    struct scratch *scratch;
    struct diag *diag;
    struct entry_note note; /* has room for the limits and one more */
    bool of_save, changed;
};

static int copy_label(struct merge *merge, const char *what, const char *text, const char **ret)
{
    int rc = note_check_label(what, text, merge->diag);
    if (rc != 0) {
        return rc;
    }
    *ret = scratch_string(merge->scratch, strlen(text), text);
    return *ret != NULL ? 0 : doc_no_memory("note", merge->diag);
}

/* Returns where `name` is, or would be, among `count` sorted names that are `stride` bytes
 * apart. */
static uint32_t place_of(const void *names, uint32_t count, size_t stride, const char *name)
{
    uint32_t at = 0;
    while (at < count) {
        const char *there = NULL;
        memcpy(&there, (const char *)names + at * stride, sizeof there);
        if (strcmp(there, name) >= 0) {
            break;
        }
        at++;
    }
    return at;
}

static bool has_tag(const struct entry_note *note, uint32_t at, const char *tag)
{
    return at < note->tag_count && strcmp(note->tags[at], tag) == 0;
}

/* Adds a tag at its place in the sorted list, unless it is there. */
static int add_tag(struct merge *merge, const char *text)
{
    struct entry_note *note = &merge->note;
    const char *tag = NULL;
    int status = copy_label(merge, "tag", text, &tag);
    if (status != 0) {
        return status;
    }
    uint32_t at = place_of(note->tags, note->tag_count, sizeof *note->tags, tag);
    if (has_tag(note, at, tag)) {
        return 0;
    }
    if (note->tag_count == LIMIT_TAGS) {
        return diag_set(merge->diag, CAIRN_E_TOO_LARGE,
                        "tag \"%s\" cannot be added, because the checkpoint has %d tags already; "
                        "remove one first",
                        tag, LIMIT_TAGS);
    }
    memmove(&note->tags[at + 1], &note->tags[at], (note->tag_count - at) * sizeof *note->tags);
    note->tags[at] = tag;
    note->tag_count++;
    merge->changed = true;
    return 0;
}

/* Removes a tag, if it is there. */
static int remove_tag(struct merge *merge, const char *text)
{
    struct entry_note *note = &merge->note;
    const char *tag = NULL;
    int status = copy_label(merge, "tag", text, &tag);
    if (status != 0) {
        return status;
    }
    uint32_t at = place_of(note->tags, note->tag_count, sizeof *note->tags, tag);
    if (has_tag(note, at, tag)) {
        note->tag_count--;
        memmove(&note->tags[at], &note->tags[at + 1], (note->tag_count - at) * sizeof *note->tags);
        merge->changed = true;
    }
    return 0;
}

/* Adds a metric at its place in the sorted list, or replaces its value. */
static int set_metric(struct merge *merge, const struct metric *from)
{
    struct entry_note *note = &merge->note;
    struct metric metric = {.value = from->value};
    int status = copy_label(merge, "the name of a metric,", from->name, &metric.name);
    if (status != 0) {
        return status;
    }
    if (isnan(metric.value) && !merge->of_save) {
        return diag_set(merge->diag, CAIRN_E_INVALID,
                        "the value of metric \"%s\" is not a number (NaN); leave the metric out",
                        metric.name);
    }
    uint32_t at = place_of(note->metrics, note->metric_count, sizeof *note->metrics, metric.name);
    bool there = at < note->metric_count && strcmp(note->metrics[at].name, metric.name) == 0;
    if (!there && note->metric_count == LIMIT_METRICS) {
        return diag_set(
            merge->diag, CAIRN_E_TOO_LARGE,
            "metric \"%s\" cannot be added, because the checkpoint has %d metrics already",
            metric.name, LIMIT_METRICS);
    }
    if (!there) {
        memmove(&note->metrics[at + 1], &note->metrics[at],
                (note->metric_count - at) * sizeof *note->metrics);
        note->metric_count++;
    }
    merge->changed = merge->changed || !there || note->metrics[at].value != metric.value;
    note->metrics[at] = metric;
    return 0;
}

/* Allocates the lists, and fills them from the note before. */
static int merge_start(struct merge *merge, const struct entry_note *before)
{
    struct entry_note *note = &merge->note;
    note->tags = scratch_array(merge->scratch, LIMIT_TAGS + 1, sizeof *note->tags);
    note->metrics = scratch_array(merge->scratch, LIMIT_METRICS + 1, sizeof *note->metrics);
    if (note->tags == NULL || note->metrics == NULL) {
        return doc_no_memory("note", merge->diag);
    }
    if (before == NULL) {
        return 0;
    }
    CHECK(before->tag_count <= LIMIT_TAGS && before->metric_count <= LIMIT_METRICS);
    note->version = before->version;
    note->wall_ns = before->wall_ns;
    note->tag_count = before->tag_count;
    note->metric_count = before->metric_count;
    for (uint32_t i = 0; i < before->tag_count; i++) {
        note->tags[i] = before->tags[i];
    }
    for (uint32_t i = 0; i < before->metric_count; i++) {
        note->metrics[i] = before->metrics[i];
    }
    return 0;
}

static int check_tags_apart(const struct note_change *change, struct diag *diag)
{
    for (uint32_t i = 0; i < change->tag_count; i++) {
        for (uint32_t k = 0; k < change->removed_count; k++) {
            if (change->tags[i] != NULL && change->removed[k] != NULL &&
                strcmp(change->tags[i], change->removed[k]) == 0) {
                return diag_set(diag, CAIRN_E_INVALID, "tag \"%.40s\" is both added and removed",
                                change->tags[i]);
            }
        }
    }
    return 0;
}

int note_apply(const struct entry_note *before, const struct note_change *change,
               struct scratch *scratch, struct entry_note *ret, struct diag *diag)
{
    struct merge merge = {.scratch = scratch, .diag = diag, .of_save = change->of_save};
    int status = merge_start(&merge, before);
    status = status != 0 ? status : check_tags_apart(change, diag);
    for (uint32_t i = 0; status == 0 && i < change->removed_count; i++) {
        status = remove_tag(&merge, change->removed[i]);
    }
    for (uint32_t i = 0; status == 0 && i < change->tag_count; i++) {
        status = add_tag(&merge, change->tags[i]);
    }
    for (uint32_t i = 0; status == 0 && i < change->metric_count; i++) {
        status = set_metric(&merge, &change->metrics[i]);
    }
    if (status != 0) {
        return status;
    }
    merge.note.version += merge.changed ? 1 : 0;
    *ret = merge.note;
    return 0;
}
