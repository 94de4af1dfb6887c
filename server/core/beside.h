/* SPDX-License-Identifier: Apache-2.0
 *
 * beside: what lies on the medium beside a run's record, and what follows from it: unknown
 * checkpoints, the mark of a run, the greatest term. Part of the decoded state (commit.h). Pure.
 */
#ifndef CAIRN_CORE_BESIDE_H
#define CAIRN_CORE_BESIDE_H

#include "base/diag.h"
#include "format/ids.h"

struct run_state;

/* What lies on the medium beside the record, looked at before the record was read (the driver's:
 * server/run/run_beside.c). Unknown is a manifest of which the record tells nothing: it may be of
 * an acknowledged checkpoint that a damaged or older record has lost. All zero: nothing is there.
 */
struct state_unknown {
    struct ckpt_id id;
    uint64_t open_id;
};
struct state_beside {
    int code; /* why the medium could not be looked at; 0: it was */
    const char *code_text;
    const char *run;        /* "project/run", for remedies; NULL: "RUN" */
    size_t ckpt_count;      /* checkpoints of which anything is stored */
    struct ckpt_id highest; /* of them the one of the greatest term */
    size_t unknown_count;
    const struct state_unknown *unknown; /* sorted by id */
    uint64_t lost_from;    /* the first version of the record that is lost for good; 0: none is */
    const char *lost_text; /* what the store says of that, and what can be done; NULL: nothing */
};

/* Does the record tell of the opening whose manifest lies there? Of a commit, whatever came of it,
 * and of an aborted opening, that is for good. Not of an opening whose seals are not all there: a
 * manifest is made when they are, so the record has lost what came after. */
bool state_explains(const struct run_state *state, struct ckpt_id id, uint64_t open_id);
/* Of any opening of it: it was committed, or every seal of the one that stands is there. */
bool state_explains_all(const struct run_state *state, struct ckpt_id id);
/* Something beside the record is not told of by it, or its end is lost: "no checkpoint" is not to
 * be said of the run, and nothing of it is to be removed. */
bool state_is_marked(const struct run_state *state);
/* What is wrong with a marked run, and the remedy. "" where nothing is. */
void state_mark_text(const struct run_state *state, size_t bytes, char *ret);
/* DAMAGED with that text for a marked run; why the medium could not be looked at; 0: what the
 * record does not tell of is not there. */
int MUST_USE state_beside_check(const struct run_state *state, struct diag *diag);

#endif
