/* SPDX-License-Identifier: Apache-2.0
 *
 * note: what people and evaluations say about a committed checkpoint after the save: tags and
 * metrics, beside the immutable manifest, as the value of `note/<seq>` in the run's record. The
 * commit puts the tags and metrics of the save into it, so that a list needs no manifest. Both
 * lists are sorted by name without duplicates; the version counts the changes. Bytes: FORMAT.md 9.
 * Pure.
 */
#ifndef CAIRN_FORMAT_NOTE_H
#define CAIRN_FORMAT_NOTE_H

#include "manifest.h"
#include "record.h"

/* The labels of one checkpoint, both lists sorted by name. */
struct entry_note {
    uint64_t version; /* from 1; each change raises it */
    int64_t wall_ns;  /* of the last change; for display only */
    uint32_t tag_count, metric_count;
    const char **tags;
    struct metric *metrics;
};

/* Encodes a note. Tags and metrics that an entry cannot hold set TOO_LARGE in buf. */
void entry_note_encode(const struct entry_note *entry, struct buf *buf);
/* Decodes a note; all pointers are from scratch. Returns FORMAT, UNSUPPORTED,
 * TOO_LARGE or NO_MEMORY. */
int MUST_USE entry_note_decode(struct record_value value, struct scratch *scratch,
                               struct entry_note *ret, struct diag *diag);

/* How a tag begins that `cairn run --watch` writes: "notice on NODE, SOURCE: WHY". */
#define NOTICE_TAG "notice on "
enum { NOTICE_NODE_BYTES = 65 }; /* of NODE with its NUL: as long as a host's name may be */

/* A change of labels; all pointers are borrowed. */
struct note_change {
    uint32_t tag_count, removed_count, metric_count;
    const char *const *tags;      /* added; a tag that is already there stays */
    const char *const *removed;   /* a tag that is not there is no error */
    const struct metric *metrics; /* added, or replaced by name; the last one of a name counts */
    bool of_save; /* the labels that a save was given: NaN is kept, as in the manifest */
};

/* Checks a tag or the name of a metric; `what` is how the error names it. Returns 0 or INVALID. */
int MUST_USE note_check_label(const char *what, const char *label, struct diag *diag);
/* Applies the change to `before`, which may be NULL. Texts and arrays are from scratch. The version
 * is one higher if anything differs and the same if nothing does, so that the same change twice
 * counts once. The caller sets wall_ns. INVALID (a text or NaN, by name; a tag added and removed at
 * once), TOO_LARGE (more than LIMIT_TAGS or LIMIT_METRICS), NO_MEMORY. */
int MUST_USE note_apply(const struct entry_note *before, const struct note_change *change,
                        struct scratch *scratch, struct entry_note *ret, struct diag *diag);

#endif
