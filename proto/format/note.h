/* SPDX-License-Identifier: Apache-2.0
 *
 * note: what people and evaluations say about a committed checkpoint after the fact: tags and
 * metrics, beside the immutable manifest, as the value of `note/<seq>` in the run's record. The
 * commit puts the tags and metrics of the save into it, so that a list needs no manifest. Both
 * lists are sorted by name without duplicates; the version counts the changes. Bytes: FORMAT.md 9.
 * Pure.
 */
#ifndef CAIRN_FORMAT_NOTE_H
#define CAIRN_FORMAT_NOTE_H

#include "manifest.h"
#include "record.h"

struct entry_note {
    uint64_t version; /* from 1, raised by each change */
    int64_t wall_ns;  /* of the last change, display only */
    uint32_t tag_count, metric_count;
    const char **tags;
    struct metric *metrics;
};

/* Tags and metrics that an entry cannot hold set TOO_LARGE in buf. */
void entry_note_encode(const struct entry_note *entry, struct buf *buf);
/* All pointers are from scratch. FORMAT, UNSUPPORTED, TOO_LARGE, NO_MEMORY. */
int MUST_USE entry_note_decode(struct record_value value, struct scratch *scratch,
                               struct entry_note *ret, struct diag *diag);

struct note_change {
    uint32_t tag_count, removed_count, metric_count;
    const char *const *tags;      /* added; one that is there stays */
    const char *const *removed;   /* one that is not there is no error */
    const struct metric *metrics; /* set, or replaced by name; of one name twice the last counts */
    bool of_save;                 /* what a save was given: NaN is kept, as in the manifest */
};

/* `before` (NULL: none) with the change; texts and arrays are from scratch. The version is one
 * higher when anything differs, and the same when nothing does: the same change twice is one.
 * wall_ns is the caller's to set. INVALID (a text or NaN, by name; a tag added and removed at
 * once), TOO_LARGE (more than LIMIT_TAGS, LIMIT_METRICS), NO_MEMORY. */
int MUST_USE note_apply(const struct entry_note *before, const struct note_change *change,
                        struct scratch *scratch, struct entry_note *ret, struct diag *diag);

#endif
