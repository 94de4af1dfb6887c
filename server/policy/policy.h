/* SPDX-License-Identifier: Apache-2.0
 *
 * policy: retention policies as rows of options for a pattern of runs. A row comes from the store,
 * where an operator has set it, or from a section of the configuration. This file has the rows, the
 * bytes of a stored one (FORMAT.md 9.2), and the choice of the row that holds for a run. Pure.
 */
#ifndef CAIRN_POLICY_POLICY_H
#define CAIRN_POLICY_POLICY_H

#include "core/retention.h"
#include "format/entries.h"

enum {
    POLICY_PATTERN_MAX = 100, /* bytes; with the rest of its key it fits into a record's key */
    POLICY_OPTIONS_MAX = 24,
    POLICY_VALUE_BYTES = 160,
    POLICY_ROWS_MAX = 32,    /* sections of a configuration */
    POLICY_STORED_MAX = 100, /* patterns with a stored policy */
    POLICY_PAST_MAX = 60     /* earlier changes that are kept for `cairn log` */
};

struct policy_row {
    /* Matches project/run. "" is the section without a pattern, for all other runs. */
    char pattern[POLICY_PATTERN_MAX + 1];
    unsigned option_count;
    struct policy_option {
        char name[32], value[POLICY_VALUE_BYTES];
    } options[POLICY_OPTIONS_MAX];
};
struct policy_table { /* of the configuration, in the order of the file */
    size_t count;
    struct policy_row rows[POLICY_ROWS_MAX];
};

/* Returns the first row whose pattern the run matches, else the row without a pattern, or NULL if
 * there is none. A row is complete in itself: it inherits nothing from another row. */
const struct policy_row *policy_row_of(const struct policy_table *table,
                                       const struct run_name *run);
/* Sets the pattern of a stored row: "*", or one of project/run. Returns INVALID. */
int MUST_USE policy_row_name(struct policy_row *row, const char *pattern, struct diag *diag);
/* Adds an option. Returns INVALID for one that no policy has, that has a bad value, or that is
 * there already ("keep-tag" may be repeated), and TOO_LARGE if there are too many. */
int MUST_USE policy_row_add(struct policy_row *row, const char *name, const char *value,
                            struct diag *diag);
/* Makes a policy from the row; its texts are from scratch. Returns INVALID for a bad option, or if
 * the options are no policy. */
int MUST_USE policy_make(const struct policy_row *row, struct scratch *scratch,
                         struct retention_policy *ret, struct diag *diag);

enum policy_change { POLICY_SET = 1, POLICY_REMOVE = 2 };

/* `policy/<number>/<pattern>` of the store's record: a pattern's policy was set, or removed. The
 * last change of a pattern holds; the others are kept for a while, to tell of them. */
struct policy_entry {
    uint64_t number; /* of the change, from 1 */
    uint32_t change; /* enum policy_change */
    int64_t wall_ns;
    char actor[ENTRY_ACTOR_BYTES];
    struct policy_row row;
};

void policy_entry_key(const struct policy_entry *entry, char ret[ENTRY_KEY_MAX]);
void policy_entry_encode(const struct policy_entry *entry, struct buf *buf);
/* Sets the number and the pattern also where it returns an error: FORMAT, UNSUPPORTED, or DAMAGED
 * if the bytes contradict their crc. Returns FORMAT, with pattern "", for a key that is none. */
int MUST_USE policy_entry_decode(const char *key, struct record_value value,
                                 struct policy_entry *ret, struct diag *diag);

/* Returns whether it is certain that the record has all changes of policies. Returns DAMAGED if the
 * record was made again or lost its end, or if its last change is missing: then a newer policy may
 * be lost, and nothing may be forgotten before the next change, by which an operator confirms what
 * is there. */
int MUST_USE policy_check_whole(const struct record *record, struct diag *diag);
/* Steps through the changes in the store's record, from the oldest on. Returns the key of the next
 * one, or NULL at the end. *io_at is 0 before the first one. */
const char *policy_next(const struct record *record, size_t *io_at, struct record_value *ret);
/* Returns whether the key is that of the last change of its pattern. A key that names no pattern is
 * not. */
bool policy_is_last(const struct record *record, const char *key);

enum policy_source { POLICY_NONE, POLICY_STORED, POLICY_CONFIGURED };
/* Returns "stored" and so on; any number is allowed. */
const char *policy_source_name(uint32_t source);
struct policy_choice {
    enum policy_source source;
    struct policy_entry entry; /* of a configured one only the row */
};
/* Gives the policy that holds for a run. A stored one goes before the configuration. Of several
 * stored ones it is the one that is the run's name, else the pattern with the most characters
 * before its first wildcard, then the longest one, then the one that strcmp() puts first. Returns
 * the error of a stored policy that cannot be read, or may be lost, and might be the one; then
 * nothing may be forgotten. Its text says how to go on. */
int MUST_USE policy_choose(const struct record *record, const struct policy_table *table,
                           const struct run_name *run, struct policy_choice *ret,
                           struct diag *diag);

enum { POLICY_CHANGES_MAX = 2 * (POLICY_STORED_MAX + POLICY_PAST_MAX) };
/* An update of the store's record together with the memory that it points to; not to be copied. */
struct policy_update {
    struct record_update update;
    struct record_guard guards[2];
    struct record_change changes[POLICY_CHANGES_MAX];
    char key[ENTRY_KEY_MAX];
    uint8_t count[8];
    struct buf buf;
};
/* Makes the update that enters `io` as the next change, and gives it its number. It also removes
 * the oldest of more than POLICY_PAST_MAX changes that hold no more, and entries whose keys name no
 * pattern. The end frees it: buf_fini(&ret->buf), also after an error. Returns NOT_FOUND for a
 * removal of what is not there, unless it may be lost; TOO_LARGE, or NO_MEMORY. */
int MUST_USE policy_update_make(const struct record *record, struct policy_entry *io,
                                struct policy_update *ret, struct diag *diag);

#endif
