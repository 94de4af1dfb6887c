/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of an encoding by measured cost. Whole chunks tell more than samples, which are small
 * and lie in the cache, so they count instead as soon as there are any. Pure; one thread.
 */
#include "adapt.h"

#include "base/check.h"
#include "base/limits.h"
#include "encode.h"

#include <string.h>

const enum encoding encode_candidates[ENCODE_CANDIDATES] = {ENCODING_PLANES_ZSTD, ENCODING_ZSTD};

enum { FADE_BYTES = 64 << 20, NS_PER_S = 1000000000 };

void encode_state_init(struct encode_state *state, const struct encode_policy *policy)
{
    memset(state, 0, sizeof *state);
    state->policy = *policy;
}

bool encode_state_next(struct encode_state *state)
{
    uint64_t idx = state->chunk_count++;
    uint32_t every = state->policy.sample_every;
    if (state->policy.mode == ENCODE_NEVER) {
        return false;
    }
    return idx == 0 || (every != 0 && idx % every == 0);
}

/* Returns the index of the encoding, or ENCODE_CANDIDATES if it is no candidate. */
static unsigned candidate_of(enum encoding encoding)
{
    unsigned i = 0;
    while (i < ENCODE_CANDIDATES && encode_candidates[i] != encoding) {
        i++;
    }
    return i;
}

static void check_cost(const struct encode_cost *cost)
{
    CHECK(cost->plain_bytes > 0);
    CHECK(cost->plain_bytes <= LIMIT_CHUNK_BYTES);
    CHECK(cost->stored_bytes <= cost->plain_bytes);
}

void encode_state_sample(struct encode_state *state, enum encoding encoding,
                         const struct encode_cost *cost)
{
    unsigned i = candidate_of(encoding);
    CHECK(i < ENCODE_CANDIDATES);
    check_cost(cost);
    state->candidates[i].sample = *cost;
    memset(&state->candidates[i].chunks, 0, sizeof state->candidates[i].chunks);
}

void encode_state_chunk(struct encode_state *state, enum encoding encoding,
                        const struct encode_cost *cost)
{
    unsigned i = candidate_of(encoding);
    if (i == ENCODE_CANDIDATES) {
        return;
    }
    check_cost(cost);
    struct encode_cost *sum = &state->candidates[i].chunks;
    if (sum->plain_bytes >= FADE_BYTES) {
        sum->plain_bytes /= 2;
        sum->stored_bytes /= 2;
        sum->ns /= 2;
    }
    sum->plain_bytes += cost->plain_bytes;
    sum->stored_bytes += cost->stored_bytes;
    sum->ns += cost->ns;
}

static bool keeps_up(const struct encode_cost *cost, const struct encode_sink *sink)
{
    uint64_t ns = max_u64(cost->ns, 1), all;
    if (sink->bytes_per_s == 0) {
        return false;
    }
    uint64_t each = cost->plain_bytes * NS_PER_S / ns; /* below 2^57: see FADE_BYTES */
    return !mul_u64(each, sink->workers, &all) || all >= sink->bytes_per_s;
}

static bool saves_enough(const struct encode_cost *cost)
{
    return (cost->plain_bytes - cost->stored_bytes) * 100 >=
           cost->plain_bytes * ENCODE_GAIN_MIN_PERCENT;
}

/* Returns whether a stores fewer bytes than b for each plain byte. */
static bool is_denser(const struct encode_cost *a, const struct encode_cost *b)
{
    return a->stored_bytes * b->plain_bytes < b->stored_bytes * a->plain_bytes;
}

enum encoding encode_state_choose(const struct encode_state *state, const struct encode_sink *sink)
{
    enum encoding encoding = ENCODING_RAW;
    const struct encode_cost *best = NULL;
    CHECK(sink->workers > 0);
    for (unsigned i = 0; i < ENCODE_CANDIDATES && state->policy.mode != ENCODE_NEVER; i++) {
        const struct encode_cost *cost = state->candidates[i].chunks.plain_bytes > 0
                                             ? &state->candidates[i].chunks
                                             : &state->candidates[i].sample;
        if (cost->plain_bytes == 0 || !saves_enough(cost) ||
            (state->policy.mode == ENCODE_ADAPTIVE && !keeps_up(cost, sink))) {
            continue;
        }
        if (!best || is_denser(cost, best)) {
            best = cost;
            encoding = encode_candidates[i];
        }
    }
    return encoding;
}
