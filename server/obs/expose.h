/* SPDX-License-Identifier: Apache-2.0
 *
 * expose: writes metrics as text, in Prometheus' format or in OpenMetrics 1.0. One family follows
 * the other, each with its help, type and unit, and with all its samples together. Pure.
 */
#ifndef CAIRN_OBS_EXPOSE_H
#define CAIRN_OBS_EXPOSE_H

#include "base/buf.h"
#include "base/tally.h"

enum family_kind { FAMILY_GAUGE, FAMILY_COUNTER, FAMILY_HISTOGRAM, FAMILY_INFO };

struct family {
    const char *name; /* with its unit, without _total and _info */
    enum family_kind kind;
    const char *unit; /* "bytes", "seconds"; "" if it has none */
    const char *help; /* one sentence */
};

struct label {
    const char *name, *value; /* the value may hold any bytes; they are escaped */
};
enum { EXPOSE_LABELS_MAX = 3 };

struct expose {
    struct buf buf; /* keeps its first error */
    bool openmetrics;
    struct family family;                   /* the family that is being written */
    struct label labels[EXPOSE_LABELS_MAX]; /* of the next sample; borrowed until then */
    size_t label_count;
};

void expose_init(struct expose *expose, bool openmetrics);
void expose_fini(struct expose *expose);
const char *expose_content_type(bool openmetrics);
/* Begins a family. The samples that follow belong to it. */
void expose_family(struct expose *expose, const struct family *family);
/* Adds a label to the next sample, whose value is lent until that is written. It drops the labels.
 */
void expose_label(struct expose *expose, const char *name, const char *value);
void expose_u64(struct expose *expose, uint64_t value);
void expose_ms(struct expose *expose, uint64_t value_ms); /* written as seconds */
/* Written as seconds since 1970; 0 stays 0. */
void expose_wall(struct expose *expose, int64_t wall_ns);
void expose_histogram(struct expose *expose, const struct histogram *histogram);
/* Ends the text. Returns TOO_LARGE or NO_MEMORY if it could not be written. */
int MUST_USE expose_end(struct expose *expose);

#endif
