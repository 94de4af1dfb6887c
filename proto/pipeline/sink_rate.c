/* SPDX-License-Identifier: Apache-2.0
 *
 * A window begins when bytes go out and none were on their way. It is cut every few seconds, so
 * that the rate follows a disk that others use too. Short windows and few bytes are ignored,
 * because they measure caches and the time of one flush.
 */
#include "pipeline/sink_rate.h"

enum { RATE_MS_MIN = 50, RATE_MS_MAX = 2000, RATE_STARVED_PERCENT_MAX = 25, RATE_WEIGHT = 4 };
#define RATE_BYTES_MIN (UINT64_C(8) << 20)

void sink_rate_begin(struct sink_rate *rate, uint64_t now_ms)
{
    if (!rate->running) {
        *rate = (struct sink_rate){
            .bytes_per_s = rate->bytes_per_s, .begun_ms = now_ms, .running = true};
    }
}

void sink_rate_starved(struct sink_rate *rate, bool starved, uint64_t now_ms)
{
    if (rate->running && rate->starved) {
        rate->starved_ms += now_ms - rate->starved_from_ms;
    }
    rate->starved = starved && rate->running;
    rate->starved_from_ms = now_ms;
}

void sink_rate_durable(struct sink_rate *rate, uint64_t bytes, uint64_t now_ms)
{
    if (!rate->running) {
        return;
    }
    sink_rate_starved(rate, rate->starved, now_ms); /* brings starved_ms up to now */
    rate->bytes += bytes;
    uint64_t ms = now_ms - rate->begun_ms;
    if (ms < RATE_MS_MIN || rate->bytes < RATE_BYTES_MIN) {
        return;
    }
    uint64_t seen = rate->bytes / ms * 1000;
    if (rate->bytes_per_s == 0 || seen > rate->bytes_per_s) {
        rate->bytes_per_s = seen;
    } else if (rate->starved_ms * 100 < ms * RATE_STARVED_PERCENT_MAX) {
        rate->bytes_per_s = (rate->bytes_per_s * (RATE_WEIGHT - 1) + seen) / RATE_WEIGHT;
    }
    if (ms >= RATE_MS_MAX) {
        rate->begun_ms = now_ms;
        rate->bytes = 0;
        rate->starved_ms = 0;
    }
}

void sink_rate_end(struct sink_rate *rate)
{
    rate->running = false;
    rate->starved = false;
}
