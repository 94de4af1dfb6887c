/* SPDX-License-Identifier: Apache-2.0
 *
 * The invariants, each where what it speaks of becomes known. One thread.
 */
#include "sim_oracle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "sim_operator.h"
#include "sim_scene.h"

#define ID     "%" PRIu64 "@%" PRIu64
#define IDS(x) (x).step, (x).term

static void *grow(void *items, size_t count, size_t *cap, size_t item_bytes)
{
    if (count < *cap) {
        return items;
    }
    *cap = *cap ? *cap * 2 : 16;
    items = realloc(items, *cap * item_bytes);
    CHECK(items);
    return items;
}

void oracle_fini(struct oracle *oracle)
{
    for (size_t i = 0; i < oracle->save_count; i++) {
        free(oracle->saves[i]);
    }
    free(oracle->saves);
    free(oracle->facts);
}

struct oracle_save *oracle_begin(struct scene *scene, unsigned job, uint64_t step, uint64_t history)
{
    struct oracle *oracle = &scene->oracle;
    struct oracle_save *save = calloc(1, sizeof *save);
    CHECK(save);
    *save =
        (struct oracle_save){.job = job, .step = step, .history = history, .wanted = scene->healed};
    for (size_t i = 0; i < oracle->save_count; i++) {
        const struct oracle_save *other = oracle->saves[i];
        save->again = save->again || (other->step == step && other->history == history);
    }
    oracle->saves =
        grow(oracle->saves, oracle->save_count, &oracle->save_cap, sizeof(struct oracle_save *));
    oracle->saves[oracle->save_count++] = save;
    return save;
}

/* --- facts ------------------------------------------------------------------------ */

static struct oracle_fact *fact_find(struct oracle *oracle, struct ckpt_id id)
{
    for (size_t i = 0; i < oracle->fact_count; i++) {
        if (ckpt_id_equal(oracle->facts[i].id, id)) {
            return &oracle->facts[i];
        }
    }
    return NULL;
}

/* I3: what a checkpoint was once, it stays. */
static struct oracle_fact *fact_note(struct scene *scene, struct ckpt_id id, uint64_t history)
{
    struct oracle *oracle = &scene->oracle;
    struct oracle_fact *fact = fact_find(oracle, id);
    if (fact) {
        if (fact->history != history) {
            scene_fail(scene,
                       "I3: checkpoint " ID " has history %016" PRIx64
                       ", before it was %016" PRIx64,
                       IDS(id), history, fact->history);
        }
        return fact;
    }
    oracle->facts =
        grow(oracle->facts, oracle->fact_count, &oracle->fact_cap, sizeof(struct oracle_fact));
    fact = &oracle->facts[oracle->fact_count++];
    *fact = (struct oracle_fact){.id = id, .history = history};
    return fact;
}

/* --- saves ------------------------------------------------------------------------ */

/* What a save may be told in a world with these faults. Anything else is a bug. */
static bool is_honest(const struct scene *scene, int status)
{
    switch (status) {
    case CAIRN_E_MISSING_RANKS:
    case CAIRN_E_ABORTED:
    case CAIRN_E_TIMED_OUT:
    case CAIRN_E_OUTCOME_UNKNOWN:
    case CAIRN_E_FENCED:
    case CAIRN_E_TOKEN_MISMATCH: /* a zombie took the next term first */
    case CAIRN_E_CONNECTION_LOST:
    case CAIRN_E_UNREACHABLE:
    case CAIRN_E_CLOSED:
    case CAIRN_E_CANCELLED:
        return true;
    case CAIRN_E_NO_SPACE:
    case CAIRN_E_QUOTA:
    case CAIRN_E_IO:
    case CAIRN_E_READ_ONLY: /* after several failed syncs, until a restart */
        return scene->disk_was_harmed;
    case CAIRN_E_INVALID: /* a part that refers to what is not so in its base */
        return scene->lied;
    case CAIRN_E_UNSUPPORTED: /* handed over in waves, and then the rank had to go to another host
                               */
        return scene->shared && scene->local;
    case CAIRN_E_COVERAGE: /* lists differ, and a fault kept the verdict from a rank until its bound
                            */
        return scene->fault_count > 0 || scene->shared;
    default:
        return false;
    }
}

static void told_committed(struct scene *scene, struct oracle_save *save, struct ckpt_id id)
{
    if (id.term == 0 || id.step != save->step) {
        scene_fail(scene, "I4: a save of step %" PRIu64 " was acknowledged as " ID, save->step,
                   IDS(id));
    }
    struct oracle_fact *fact = fact_note(scene, id, save->history);
    if (!fact->acked) {
        operator_on_commit(scene->op);
    }
    fact->acked = true;
    save->acked = true;
    scene->oracle.acks++;
    if (ckpt_id_compare(id, scene->oracle.newest_acked) > 0) {
        scene->oracle.newest_acked = id;
    }
}

void oracle_end(struct scene *scene, struct oracle_save *save, const struct oracle_answer *answer)
{
    const uint32_t rank = answer->rank;
    const int status = answer->status;
    const struct ckpt_id id = answer->id;
    const char *text = answer->text;
    scene_tell(scene, "job %u rank %u: step %" PRIu64 " (" ID "): %s %s", save->job, rank,
               save->step, IDS(id), status ? err_name(status) : "committed", status ? text : "");
    /* A busy server sends ranks to others: then they do not hear of a list that grows just then,
     * and an arena that was handed over in waves cannot be sent. */
    bool apart = scene->shared && (status == CAIRN_E_COVERAGE || status == CAIRN_E_UNSUPPORTED);
    /* A part that lies is refused, and the other ranks hear that its rank did not come. */
    bool refused = scene->lied && (status == CAIRN_E_INVALID || status == CAIRN_E_MISSING_RANKS);
    if (status != 0 && scene->fault_count == 0 && !scene->over && !apart && !refused) {
        scene_fail(scene, "I7: nothing was disturbed, but step %" PRIu64 " ended with %s: %s",
                   save->step, err_name(status), text);
    }
    if (status == CAIRN_E_MISSING_RANKS && !strstr(text, "rank")) {
        scene_fail(scene, "I7: the error does not name the missing rank: %s", text);
    }
    if (status == 0) {
        told_committed(scene, save, id);
    } else if (!is_honest(scene, status)) {
        scene_fail(scene, "job %u rank %u: the save of step %" PRIu64 " ended with %s: %s",
                   save->job, rank, save->step, err_name(status), text);
    } else if (status != CAIRN_E_OUTCOME_UNKNOWN) {
        save->dead = true;
        scene->oracle.failures++;
    }
    /* A second try may have met the first one's commit; then only that one's outcome counts. */
    if (save->dead && save->acked && !save->again) {
        scene_fail(scene,
                   "I4: one rank was told that step %" PRIu64 " is committed, another that it is "
                   "not (rank %u: %s %s)",
                   save->step, rank, err_name(status), status ? text : "");
    }
}

/* --- restores --------------------------------------------------------------------- */

void oracle_restored(struct scene *scene, struct ckpt_id id, uint64_t history)
{
    const struct oracle *oracle = &scene->oracle;
    bool known = false, possible = false;
    for (size_t i = 0; i < oracle->save_count; i++) {
        const struct oracle_save *save = oracle->saves[i];
        bool same = save->step == id.step && save->history == history;
        known = known || same;
        possible = possible || (same && !save->dead);
    }
    if (!known) {
        scene_fail(scene, "I4: " ID " holds a history that nobody saved at that step", IDS(id));
    }
    if (!possible) {
        scene_fail(scene, "I2: " ID " can be restored, but its save was said to have failed",
                   IDS(id));
    }
    (void)fact_note(scene, id, history);
    scene->oracle.restores++;
}

void oracle_latest(struct scene *scene, struct ckpt_id id, struct ckpt_id floor)
{
    if (ckpt_id_compare(id, floor) < 0) {
        scene_fail(scene, "I1: latest is " ID " although " ID " was acknowledged before", IDS(id),
                   IDS(floor));
    }
}

/* I2, I5, I9: the chain has no gap, its terms never go back, and all that was promised is there. */
void oracle_listed(struct scene *scene, size_t count, const struct ckpt_info *entries)
{
    struct oracle *oracle = &scene->oracle;
    uint64_t seq = 0, term = UINT64_MAX;
    size_t acked = 0, found = 0;
    for (size_t i = 0; i < oracle->fact_count; i++) {
        acked += oracle->facts[i].acked && !operator_may_miss(scene->op, oracle->facts[i].id);
    }
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_info *info = &entries[i];
        if (info->state != CKPT_COMMITTED) {
            continue;
        }
        if (info->health != 0) {
            scene_fail(scene, "I1: " ID " is listed with health %u: %s", IDS(info->id),
                       info->health, info->text ? info->text : "");
        }
        if (operator_knows_gone(scene->op, info->id)) {
            scene_fail(scene, "I9: " ID " was forgotten, and is listed", IDS(info->id));
        }
        if (seq != 0 && (scene->tended ? info->seq >= seq : info->seq != seq - 1)) {
            scene_fail(scene, "the list has %" PRIu64 " after %" PRIu64, info->seq, seq);
        }
        if (info->id.term > term) {
            scene_fail(scene,
                       "I5: " ID " was committed before an entry of term %" PRIu64
                       ", which it fences",
                       IDS(info->id), term);
        }
        seq = info->seq;
        term = info->id.term;
        const struct oracle_fact *fact = fact_find(oracle, info->id);
        found += fact && fact->acked && !operator_may_miss(scene->op, info->id);
    }
    if (found != acked || (!scene->tended && seq != 0 && seq != 1)) {
        scene_fail(scene,
                   "I9: %zu checkpoints were acknowledged and stay, %zu of them are listed; the "
                   "oldest entry listed is number %" PRIu64,
                   acked, found, seq);
    }
}

bool oracle_pick(struct scene *scene, struct ckpt_id *ret)
{
    const struct oracle *oracle = &scene->oracle;
    size_t first = oracle->fact_count ? sim_below(scene->sim, oracle->fact_count) : 0;
    for (size_t i = 0; i < oracle->fact_count; i++) {
        const struct oracle_fact *fact = &oracle->facts[(first + i) % oracle->fact_count];
        if (fact->acked) {
            *ret = fact->id;
            return true;
        }
    }
    return false;
}
