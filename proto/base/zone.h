/* SPDX-License-Identifier: Apache-2.0
 *
 * zone: the local time of a time zone, from the system's zoneinfo (TZif, RFC 8536), with its
 * changes between standard and summer time. libc knows one zone for the whole process, so it
 * cannot be asked. Any thread.
 */
#ifndef CAIRN_BASE_ZONE_H
#define CAIRN_BASE_ZONE_H

#include "base/diag.h"
#include "base/scratch.h"

/* A day on which a rule begins: the week-th weekday of the month (week 5: the last), and the
 * seconds of that day. */
struct zone_change {
    int64_t month, week, weekday, seconds;
};

struct zone {
    size_t count;
    int64_t *at;              /* when the offsets change, ascending; unix time in seconds */
    int32_t *offsets;         /* in seconds east of Greenwich, from at[i] on */
    int64_t first;            /* the offset before the first change */
    bool has_rule;            /* holds after the last change */
    bool has_summer;          /* of the rule */
    int64_t standard, summer; /* offsets of the rule */
    struct zone_change begin, end;
};

/* Loads a zone by its name, such as "Europe/Berlin". Arrays are from scratch. Returns INVALID,
 * naming the zone, if the system does not have it, and NO_MEMORY. */
int MUST_USE zone_load(const char *name, struct scratch *scratch, struct zone *ret,
                       struct diag *diag);
/* Does the same from the bytes of a zoneinfo file. */
int MUST_USE zone_parse(size_t bytes, const uint8_t *data, struct scratch *scratch,
                        struct zone *ret, struct diag *diag);
/* Returns how many seconds the local time is ahead of UTC at that time. */
int64_t zone_offset(const struct zone *zone, int64_t unix_s);

#endif
