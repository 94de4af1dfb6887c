/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for encoding is taken when the first payload needs it, so a run that stays raw uses none.
 * If it cannot be had, payloads stay raw.
 */
#include "pipeline/encode_kit.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { KIT_SAMPLE_EVERY = 64 };

void encode_kit_init(struct encode_kit *kit, enum encode_mode mode)
{
    memset(kit, 0, sizeof *kit);
    kit->mode = mode;
    kit->encoders_max = KIT_ENCODERS;
    kit->sides_max = KIT_SIDES;
}

uint64_t encode_kit_lane_bytes(void)
{
    return encoder_bytes() + (uint64_t)KIT_SIDES / KIT_ENCODERS * LIMIT_CHUNK_BYTES;
}

void encode_kit_limit(struct encode_kit *kit, unsigned lanes)
{
    kit->encoders_max = lanes < KIT_ENCODERS ? lanes : KIT_ENCODERS;
    kit->sides_max = kit->encoders_max * (KIT_SIDES / KIT_ENCODERS);
}

void encode_kit_fini(struct encode_kit *kit)
{
    for (unsigned i = 0; i < KIT_SIDES; i++) {
        CHECK(!kit->sides[i].busy);
        free(kit->sides[i].memory);
    }
    for (unsigned i = 0; i < KIT_ENCODERS; i++) {
        CHECK(!kit->encoders[i].busy);
        encoder_free(kit->encoders[i].encoder);
    }
    free(kit->states);
    memset(kit, 0, sizeof *kit);
}

struct side *encode_kit_take_side(struct encode_kit *kit)
{
    for (unsigned i = 0; i < kit->sides_max; i++) {
        struct side *side = &kit->sides[i];
        if (side->busy) {
            continue;
        }
        side->memory =
            side->memory ? side->memory : aligned_alloc(LIMIT_ALIGN_BYTES, LIMIT_CHUNK_BYTES);
        side->busy = side->memory != NULL;
        return side->busy ? side : NULL;
    }
    return NULL;
}

void encode_kit_give_side(struct side *side)
{
    if (side) {
        CHECK(side->busy);
        side->busy = false;
    }
}

struct kit_encoder *encode_kit_take_encoder(struct encode_kit *kit)
{
    for (unsigned i = 0; i < kit->encoders_max; i++) {
        if (!kit->encoders[i].busy) {
            kit->encoders[i].busy = true;
            return &kit->encoders[i];
        }
    }
    return NULL;
}

void encode_kit_give_encoder(struct kit_encoder *encoder)
{
    if (encoder) {
        CHECK(encoder->busy);
        encoder->busy = false;
    }
}

struct encoder *kit_encoder_get(struct kit_encoder *encoder, size_t chunk_bytes)
{
    if (!encoder->encoder || encoder->chunk_bytes < chunk_bytes) {
        encoder_free(encoder->encoder);
        encoder->encoder = encoder_new(chunk_bytes);
        encoder->chunk_bytes = chunk_bytes;
    }
    return encoder->encoder;
}

static bool knows(const struct encode_kit *kit, const struct xxh128 *list_hash, size_t count)
{
    return kit->states && kit->state_count == count &&
           memcmp(&kit->states_of, list_hash, sizeof kit->states_of) == 0;
}

void encode_kit_load(const struct encode_kit *kit, const struct xxh128 *list_hash, size_t count,
                     struct encode_state *ret)
{
    struct encode_policy policy = {.mode = kit->mode, .sample_every = KIT_SAMPLE_EVERY};
    bool known = knows(kit, list_hash, count);
    for (size_t i = 0; i < count; i++) {
        if (known) {
            ret[i] = kit->states[i];
        } else {
            encode_state_init(&ret[i], &policy);
        }
    }
}

void encode_kit_keep(struct encode_kit *kit, const struct xxh128 *list_hash, size_t count,
                     const struct encode_state *states)
{
    if (!knows(kit, list_hash, count)) {
        free(kit->states);
        kit->states = calloc(count, sizeof *kit->states);
        kit->state_count = count;
        kit->states_of = *list_hash;
    }
    if (kit->states) { /* without memory the next save learns anew */
        memcpy(kit->states, states, count * sizeof *kit->states);
    }
}
