/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: the findings about a store, and about the system under it: each with its level, and with
 * a remedy if there is something to do. dir_doctor.c and rados_doctor.c examine; `cairn doctor`
 * prints. One thread.
 */
#ifndef CAIRN_STORE_DOCTOR_H
#define CAIRN_STORE_DOCTOR_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum doctor_level {
    DOCTOR_GOOD,
    DOCTOR_WARNING, /* it works, but something should be done */
    DOCTOR_UNSAFE   /* saves fail, or saved data may be lost */
};

enum { DOCTOR_FINDINGS_MAX = 96, DOCTOR_TEXT_BYTES = 768 };

struct doctor_finding {
    enum doctor_level level;
    char check[32]; /* the thing that was examined: "pool cairn", "clock" */
    char text[DOCTOR_TEXT_BYTES];
    char remedy[DOCTOR_TEXT_BYTES]; /* "" if the level is good */
};

struct doctor { /* zeroed by the caller */
    size_t count;
    size_t left_out; /* findings for which there was no room */
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
};

/* Adds a finding. Texts are cut to their room. */
void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check, const char *fmt,
                ...) PRINTF(4, 5);
/* Sets the remedy of the finding that was added last. */
void doctor_remedy(struct doctor *doctor, const char *fmt, ...) PRINTF(2, 3);
size_t doctor_count(const struct doctor *doctor, enum doctor_level level);
const char *doctor_level_name(enum doctor_level level); /* "good", "warning" or "unsafe" */

/* Sets the remedy for an error of a store or of a run's record. `url` is the store's URL as it is
 * typed; NULL or "" if it is not known. */
void doctor_remedy_of(struct doctor *doctor, int code, const char *url);

/* The commands that free room at once, for remedies. */
#define FREES_ROOM                                                                            \
    "`cairn gc --now` frees what is forgotten, `cairn forget RUN --keep-last N --now` older " \
    "checkpoints"

struct doctor_room {
    uint64_t free_bytes, total_bytes;
    uint64_t reserve_bytes;      /* space that saves may not use; 0 if none, or not known */
    bool beyond;                 /* free_bytes does not include the reserve */
    uint64_t records_free_bytes; /* for records and deletion, at least 1; 0 if it is not known */
};
void doctor_space(struct doctor *doctor, const char *check, const struct doctor_room *room);
/* Another clock, which was read between before_ns and after_ns of ours (ns since 1970). */
struct doctor_clock {
    const char *whose; /* "the Ceph monitor's" */
    int64_t theirs_ns, before_ns, after_ns;
};
void doctor_clock(struct doctor *doctor, const struct doctor_clock *clock);

#endif
