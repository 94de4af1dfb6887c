/* SPDX-License-Identifier: Apache-2.0
 *
 * facts: what a repair or a salvage has to know from the run's record: which checkpoints may still
 * be read, and whether the record accounts for an opening. On the repair's thread; the take_
 * functions are called on the loop, with the state of the run.
 */
#include "repair_private.h"

#include <stdlib.h>

struct commits {
    const struct run_name *run;
    struct commit_fact *facts; /* NULL if there is no memory */
    size_t count;
};

static void take_commits(void *user, const struct run_state *state)
{
    struct commits *commits = user;
    commits->facts = calloc(state->commit_count + 1, sizeof(*commits->facts));
    for (size_t i = 0; commits->facts && i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        if (!commit->reclaimed) {
            commits->facts[commits->count++] =
                (struct commit_fact){.root = {.run = *commits->run,
                                              .id = commit->entry.id,
                                              .open_id = commit->entry.open_id,
                                              .manifest_bytes = commit->entry.manifest_bytes,
                                              .manifest_sha256 = commit->entry.manifest_sha256},
                                     .health = commit->health};
        }
    }
}

int facts_commits(struct repair *repair, struct commit_fact **ret, size_t *ret_count,
                  struct diag *diag)
{
    struct commits commits = {.run = &repair->name};
    int status = ask_state(&repair->ask, repair->run, take_commits, &commits, diag);
    if (status == 0 && !commits.facts) {
        status = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the run's record");
    }
    if (status == 0) {
        *ret = commits.facts;
        *ret_count = commits.count;
    }
    return status;
}

/* Returns true if the record accounts for the opening: the checkpoint was committed, whatever
 * happened to it since, or the opening was aborted. If the committed manifest exists, other
 * manifests of the checkpoint are leftovers of aborted openings and repairs. An opening that is
 * still open and has its manifest does not count: it has to be committed, by the next server or
 * here. */
static bool is_explained(const struct run_state *state, struct ckpt_id id, uint64_t open_id)
{
    for (size_t i = 0; i < state->commit_count; i++) {
        if (ckpt_id_equal(state->commits[i].entry.id, id)) {
            return true;
        }
    }
    for (size_t i = 0; i < state->dead_count; i++) {
        if (ckpt_id_equal(state->deads[i].id, id) && state->deads[i].entry.open_id == open_id) {
            return true;
        }
    }
    for (size_t i = 0; i < state->past_count; i++) {
        if (ckpt_id_equal(state->pasts[i].id, id) && state->pasts[i].open_id == open_id) {
            return true;
        }
    }
    return false;
}

struct opening { /* a question about one opening */
    struct loop *loop;
    struct ckpt_id id;
    uint64_t open_id;
    struct origin *origin;
};

static void take_origin(void *user, const struct run_state *state)
{
    static const struct token nobody;
    const struct opening *opening = user;
    struct origin *origin = opening->origin;
    *origin = (struct origin){.is_explained = is_explained(state, opening->id, opening->open_id),
                              .is_open = state_open_find(state, opening->id) != NULL,
                              .wall_ns = loop_wall_ns(opening->loop),
                              .has_info = state->exists,
                              .info = state->info};
    if (opening->id.term != 0 && opening->id.term <= state->term_count) {
        const struct entry_term *term = &state->terms[opening->id.term - 1].entry;
        origin->is_known = !token_equal(&term->token, &nobody);
        origin->token = term->token;
        origin->parent = term->parent;
    }
}

int facts_origin(struct repair *repair, struct ckpt_id id, uint64_t open_id, struct origin *ret,
                 struct diag *diag)
{
    struct opening opening = {repair->options.loop, id, open_id, ret};
    *ret = (struct origin){.is_known = false};
    return ask_state(&repair->ask, repair->run, take_origin, &opening, diag);
}
