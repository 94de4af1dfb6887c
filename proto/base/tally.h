/* SPDX-License-Identifier: Apache-2.0
 *
 * tally: counts for the metrics of a daemon: durations in buckets, and errors by code. They only
 * grow, from the start of the process. Plain data of one thread. Pure.
 */
#ifndef CAIRN_BASE_TALLY_H
#define CAIRN_BASE_TALLY_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    HISTOGRAM_BOUNDS_MAX = 16,
    ERR_COUNT = 0
#define CAIRN_ERR(name, value, text, retry, status) +1
#include "err.def"
#undef CAIRN_ERR
};

/* Durations in microseconds, counted by bucket. Bucket i counts values up to bounds_us[i]. */
struct histogram {
    const uint64_t *bounds_us; /* static, ascending */
    size_t bound_count;
    uint64_t counts[HISTOGRAM_BOUNDS_MAX + 1]; /* each bucket alone; the last: above every bound */
    uint64_t sum_us;
};

/* Makes an empty histogram. It borrows the bounds for as long as it is used. */
void histogram_init(struct histogram *histogram, size_t count, const uint64_t *bounds_us);
/* Counts a value. A value that equals a bound counts below it. */
void histogram_add(struct histogram *histogram, uint64_t us);

/* How often each error has occurred. */
struct err_tally {
    /* By err_slot(); slot 0 counts codes that are not in the table. */
    uint64_t counts[ERR_COUNT + 1];
};

/* Returns -code of a known error, and 0 for every other number. */
size_t err_slot(int code);
void err_tally_add(struct err_tally *tally, int code); /* code 0 is no error and is not counted */

#endif
