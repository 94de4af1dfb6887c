/* SPDX-License-Identifier: Apache-2.0
 *
 * known: see known.h. Passes go in the order of ids, so most additions are at the end.
 */
#include "known.h"

#include "base/array.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static struct known_run *find_run(const struct known *known, const struct run_name *name)
{
    struct known_run *run = known->runs;
    while (run && !run_name_equal(&run->name, name)) {
        run = run->next;
    }
    return run;
}

/* Returns the index of the id, or the index at which to insert it. */
static size_t place_of(const struct known_run *run, struct ckpt_id id)
{
    return ckpt_id_bound(run->ckpts, run->count, sizeof(*run->ckpts),
                         offsetof(struct known_ckpt, id), id);
}

static bool is_at(const struct known_run *run, size_t at, struct ckpt_id id)
{
    return at < run->count && ckpt_id_equal(run->ckpts[at].id, id);
}

const struct known_ckpt *known_find(const struct known *known, const struct run_name *name,
                                    struct ckpt_id id)
{
    const struct known_run *run = find_run(known, name);
    size_t at = run ? place_of(run, id) : 0;
    return run && is_at(run, at, id) ? &run->ckpts[at] : NULL;
}

void known_put(struct known *known, const struct run_name *name, const struct known_ckpt *ckpt)
{
    struct known_run *run = find_run(known, name);
    if (!run) {
        run = calloc(1, sizeof(*run));
        if (!run) {
            return;
        }
        run->name = *name;
        run->next = known->runs;
        known->runs = run;
    }
    size_t at = place_of(run, ckpt->id);
    if (is_at(run, at, ckpt->id)) {
        run->ckpts[at] = *ckpt;
        return;
    }
    struct known_ckpt *grown = array_room(run->ckpts, run->count, &run->cap, sizeof(*grown));
    if (!grown) {
        return;
    }
    run->ckpts = grown;
    CHECK(at <= run->count);
    CHECK(run->count < run->cap);
    CHECK(at == 0 || ckpt_id_compare(run->ckpts[at - 1].id, ckpt->id) < 0);
    CHECK(at == run->count || ckpt_id_compare(ckpt->id, run->ckpts[at].id) < 0);
    memmove(&run->ckpts[at + 1], &run->ckpts[at], (run->count - at) * sizeof(*run->ckpts));
    run->ckpts[at] = *ckpt;
    run->count++;
}

void known_unstick(struct known *known)
{
    for (struct known_run *run = known->runs; run; run = run->next) {
        for (size_t i = 0; i < run->count; i++) {
            run->ckpts[i].stuck = false;
        }
    }
}

void known_fini(struct known *known)
{
    while (known->runs) {
        struct known_run *run = known->runs;
        known->runs = run->next;
        free(run->ckpts);
        free(run);
    }
}
