/* SPDX-License-Identifier: Apache-2.0
 *
 * Seal: the parts of some ranks are durable. There is one seal for each rank and opening. To repeat
 * a seal gives the same answer; another content is CONFLICT (I3). The driver goes on to the commit
 * when all ranks have sealed. Pure.
 */
#include <string.h>

#include "core_private.h"

#include "base/check.h"

static bool seal_equal(const struct entry_seal *a, const struct entry_seal *b)
{
    return a->writer == b->writer && a->part_bytes == b->part_bytes &&
           memcmp(&a->part_sha256, &b->part_sha256, sizeof(a->part_sha256)) == 0;
}

const struct state_seal *seal_find(const struct run_state *state, struct ckpt_id id, uint32_t rank)
{
    size_t count;
    const struct state_seal *seals = seals_of(state, id, &count);
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (seals[mid].rank < rank) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < count && seals[low].rank == rank ? &seals[low] : NULL;
}

static void refuse(struct step *step, int code, uint32_t rank, const char *why)
{
    step->ret->u.save.rank = rank;
    step_fail(step, code, "rank %" PRIu32 " cannot seal step %" PRIu64 " of term %" PRIu64 ": %s",
              rank, step->event->id.step, step->event->id.term, why);
}

/* Returns an array with room for the batch's seal of each rank, in which repeated ones are found.
 * NULL if there is no memory. */
static const struct event_seal **batch_map(struct step *step, uint32_t world_size)
{
    const struct event_seal **map = scratch_array(step->scratch, world_size, sizeof(*map));
    if (map == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY, "there is not enough memory for a batch of %zu seals",
                  step->event->u.seal.count);
    }
    return map;
}

/* Adds a seal to the update, in place of an orphan of the same rank. */
static void seal_put(struct step *step, const struct event_seal *seal,
                     const struct state_seal *orphan)
{
    CHECK(orphan == NULL || orphan->orphan);
    struct entry_seal entry = seal->entry;
    entry.open_id = step->event->u.seal.open_id;
    entry_seal_encode(&entry, step_value(step));
    step_put_over(step, key_seal(step->event->id, seal->rank).at,
                  orphan != NULL ? orphan->raw : (struct record_value){0});
}

void on_seal(struct step *step)
{
    const struct event_seals *seals = &step->event->u.seal;
    const struct state_open *open = state_open_find(step->state, step->event->id);
    if (open == NULL || open->entry.open_id != seals->open_id ||
        open->id.term != step->state->newest_term) {
        step_answer_not_open(step, seals->open_id);
        return;
    }
    step_answer_open(step, open);
    const struct event_seal **map = batch_map(step, open->world_size);
    uint32_t sealed_count = open->sealed_count;
    for (size_t i = 0; step->ret->code == 0 && i < seals->count; i++) {
        const struct event_seal *seal = &seals->items[i];
        if (seal->rank >= open->world_size) {
            refuse(step, CAIRN_E_INVALID, seal->rank, "the rank must be below the world size");
            return;
        }
        if (seal->entry.part_bytes == 0 || seal->entry.part_bytes > LIMIT_PART_BYTES) {
            refuse(step, CAIRN_E_INVALID, seal->rank, "its part is empty or larger than the limit");
            return;
        }
        const struct state_seal *old = seal_find(step->state, open->id, seal->rank);
        const struct entry_seal *same = map[seal->rank] != NULL       ? &map[seal->rank]->entry
                                        : old != NULL && !old->orphan ? &old->entry
                                                                      : NULL;
        if (same != NULL && !seal_equal(same, &seal->entry)) {
            refuse(step, CAIRN_E_CONFLICT, seal->rank,
                   "it has already sealed a part with other content");
            return;
        }
        map[seal->rank] = seal;
        if (same == NULL) {
            seal_put(step, seal, old);
            sealed_count++;
        }
    }
    if (step->ret->code == 0 && step->ret->update.change_count > 0) {
        step_guard_as_read(step, key_open(open->id).at, open->raw);
        step_guard_newest(step);
    }
    CHECK(sealed_count <= open->world_size);
    step->ret->u.save.all_sealed = sealed_count == open->world_size;
}
