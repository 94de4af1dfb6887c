/* SPDX-License-Identifier: Apache-2.0
 *
 * unrecorded: compares what is stored of a run with its record. Decides which stored checkpoints
 * the record does not know, whether the run is marked because of them, and which term is the
 * highest that was ever granted. Part of the decoded state (commit.h). Pure.
 */
#ifndef CAIRN_CORE_UNRECORDED_H
#define CAIRN_CORE_UNRECORDED_H

#include "base/diag.h"
#include "format/ids.h"

struct run_state;

/* The checkpoints that are stored beside the record; server/run/run_unrecorded.c lists them before
 * it reads the record. A manifest is unknown if the record tells nothing of it: its checkpoint may
 * have been acknowledged, and a damaged or older record has lost it. All fields are zero if nothing
 * is stored. */
struct state_unknown {
    struct ckpt_id id;
    uint64_t open_id;
};
struct state_unrecorded {
    int code; /* why the store could not be listed; 0 if it was */
    const char *code_text;
    const char *run;        /* "project/run", for remedies; NULL is printed as "RUN" */
    const char *store;      /* the store's URL, for remedies; NULL is printed as "URL" */
    size_t ckpt_count;      /* checkpoints of which anything is stored */
    struct ckpt_id highest; /* the stored checkpoint with the greatest term */
    size_t unknown_count;
    const struct state_unknown *unknown; /* sorted by id */
    uint64_t lost_from;    /* first version of the record that is lost for good; 0 if none is */
    const char *lost_text; /* what the store says of that loss, and the remedy; NULL if nothing */
};

/* Returns true if the record accounts for the opening that this manifest belongs to: that opening
 * was committed, whatever happened to the checkpoint since, or it was aborted. An opening that
 * still lacks seals does not account for a manifest. The manifest is written after the last seal,
 * so in that case the record has lost the later entries. */
bool state_explains(const struct run_state *state, struct ckpt_id id, uint64_t open_id);
/* Returns true if the record accounts for every manifest of the checkpoint: it was committed, or
 * its opening has every seal. */
bool state_explains_all(const struct run_state *state, struct ckpt_id id);
/* Returns true if a stored checkpoint is unknown to the record or the record has lost its end. For
 * such a run nobody may be told "no checkpoint", and nothing of it may be removed. */
bool state_is_marked(const struct run_state *state);
/* Returns true if checkpoints newer than `id` may be missing from the record: one is stored beside
 * it, or the record has lost its end. */
bool state_may_lack_newer(const struct run_state *state, struct ckpt_id id);
/* Writes what is wrong with a marked run, and the remedy, to ret; "" if the run is not marked. */
void state_mark_text(const struct run_state *state, size_t bytes, char *ret);
/* Returns DAMAGED with the text of the mark for a marked run, the reason if the store could not be
 * listed, and 0 if every stored checkpoint is in the record. */
int MUST_USE state_unrecorded_check(const struct run_state *state, struct diag *diag);

#endif
