/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: what was found when a store, and what it stands on, was examined: each finding with its
 * level, and with the remedy where there is something to do. The examinations are dir_doctor.c and
 * rados_doctor.c; `cairn doctor` shows them. One thread.
 */
#ifndef CAIRN_STORE_DOCTOR_H
#define CAIRN_STORE_DOCTOR_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum doctor_level {
    DOCTOR_GOOD,
    DOCTOR_WARNING, /* works, and something should be done */
    DOCTOR_UNSAFE   /* saves fail, or what is saved may be lost */
};

enum { DOCTOR_FINDINGS_MAX = 96, DOCTOR_TEXT_BYTES = 768 };

struct doctor_finding {
    enum doctor_level level;
    char check[32]; /* "pool cairn", "clock": what was looked at */
    char text[DOCTOR_TEXT_BYTES];
    char remedy[DOCTOR_TEXT_BYTES]; /* "" when good */
};

struct doctor { /* zeroed by the caller */
    size_t count;
    size_t left_out; /* findings beyond the last */
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
};

/* Texts are cut to their room. */
void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check, const char *fmt,
                ...) PRINTF(4, 5);
/* Of the finding that was added last. */
void doctor_remedy(struct doctor *doctor, const char *fmt, ...) PRINTF(2, 3);
size_t doctor_count(const struct doctor *doctor, enum doctor_level level);
const char *doctor_level_name(enum doctor_level level); /* "good", "warning", "unsafe" */

/* What one does about an error of a store or of a run's record. url: of the store as it is typed,
 * NULL or "" where it is not known. */
void doctor_remedy_of(struct doctor *doctor, int code, const char *url);

/* What gives room back at once: for remedies. */
#define FREES_ROOM                                                                            \
    "`cairn gc --now` frees what is forgotten, `cairn forget RUN --keep-last N --now` older " \
    "checkpoints"

struct doctor_room {
    uint64_t free_bytes, total_bytes;
    uint64_t reserve_bytes; /* which saves may not take; 0: none, or not known */
    bool beyond;            /* free_bytes does not count the reserve */
};
void doctor_space(struct doctor *doctor, const char *check, const struct doctor_room *room);
/* Theirs: another clock, that was read between ours_before and ours_after (ns since 1970). */
struct doctor_clock {
    const char *whose; /* "the Ceph monitor's" */
    int64_t theirs_ns, before_ns, after_ns;
};
void doctor_clock(struct doctor *doctor, const struct doctor_clock *clock);

#endif
