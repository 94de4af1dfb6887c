/* SPDX-License-Identifier: Apache-2.0
 *
 * Histograms and counts of errors; tally.h has the rules.
 */
#include "tally.h"

#include "check.h"

#include <string.h>

void histogram_init(struct histogram *histogram, size_t count, const uint64_t *bounds_us)
{
    CHECK(count > 0 && count <= HISTOGRAM_BOUNDS_MAX);
    memset(histogram, 0, sizeof(*histogram));
    histogram->bounds_us = bounds_us;
    histogram->bound_count = count;
}

void histogram_add(struct histogram *histogram, uint64_t us)
{
    size_t at = 0;
    CHECK(histogram->bounds_us);
    while (at < histogram->bound_count && us > histogram->bounds_us[at]) {
        at++;
    }
    histogram->counts[at]++;
    histogram->sum_us += us;
}

size_t err_slot(int code)
{
    return code < 0 && code >= -ERR_COUNT && err_is_known(code) ? (size_t)-code : 0;
}

void err_tally_add(struct err_tally *tally, int code)
{
    if (code != 0) {
        tally->counts[err_slot(code)]++;
    }
}
