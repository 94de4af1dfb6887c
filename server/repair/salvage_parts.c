/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles a checkpoint of which the parts of all ranks are left, and no manifest: decides what it
 * continues, and what is refused. Invariant: of two openings of one step neither is chosen, and the
 * parent of a term is guessed only on the operator's word. On the repair's thread.
 */
#include "salvage_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds token and parent of the checkpoint's term, which a part does not state: from the record, or
 * from another checkpoint of the term. If neither has them and there is no checkpoint of an older
 * term, the term continues none; otherwise the newest older checkpoint is guessed, and
 * *ret_is_guess is set. */
static int find_origin(struct salvaging *s, const struct lost_manifest *lost, struct origin *ret,
                       bool *ret_is_guess, struct diag *diag)
{
    struct commit_fact *facts = NULL;
    size_t count = 0;
    uint64_t random[2];
    *ret_is_guess = false;
    int status = facts_origin(s->repair, lost->id, lost->open_id, ret, diag);
    if (status != 0 || ret->is_known) {
        return status;
    }
    ret->parent = (struct ckpt_id){0, 0};
    for (size_t i = 0; i < s->count; i++) {
        const struct lost_manifest *other = &s->lost[i];
        if (other->readable && other->id.term == lost->id.term) {
            ret->token = other->token;
            ret->parent = other->parent;
            return 0;
        }
        bool is_older = other->id.term < lost->id.term && (other->readable || other->entered);
        ret->parent =
            is_older && ckpt_id_compare(other->id, ret->parent) > 0 ? other->id : ret->parent;
    }
    status = facts_commits(s->repair, &facts, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        bool is_older = facts[i].root.id.term < lost->id.term;
        ret->parent = is_older && ckpt_id_compare(facts[i].root.id, ret->parent) > 0
                          ? facts[i].root.id
                          : ret->parent;
    }
    free(facts);
    repair_random(s->repair, &random[0]);
    repair_random(s->repair, &random[1]);
    memcpy(&ret->token, random, sizeof(ret->token));
    *ret_is_guess = ret->parent.term != 0;
    return status;
}

/* Returns true if another opening of the same checkpoint is complete. */
static bool is_other_opening(const struct salvaging *s, const struct lost_manifest *lost)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct lost_manifest *other = &s->lost[i];
        if (other != lost && ckpt_id_equal(other->id, lost->id) && salvage_is_complete(other)) {
            return true;
        }
    }
    return false;
}

/* Returns true for an error that is about the store and not about the parts. */
static bool ends_salvage(int status)
{
    return err_retry(status) == ERR_RETRY_RETRY || status == CAIRN_E_NO_MEMORY ||
           status == CAIRN_E_CANCELLED || status == CAIRN_E_DENIED;
}

int salvage_parts(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    struct remade remade = {
        .id = lost->id, .open_id = lost->open_id, .world_size = lost->world_size};
    struct origin origin;
    struct diag why = DIAG_INIT;
    char text[480], more[160] = "";
    bool is_guess;
    if (is_other_opening(s, lost)) {
        return salvage_leave(
            s, lost,
            "its manifest is lost, and it was opened twice: parts of all ranks are "
            "here of both openings, and nothing says which one counts",
            diag);
    }
    int status = find_origin(s, lost, &origin, &is_guess, diag);
    if (status == 0 && is_guess && !s->how->accept_loss) {
        snprintf(text, sizeof(text),
                 "its manifest is lost, and nothing that is left says which checkpoint its term "
                 "continues; with --accept-loss %s is taken for it",
                 ckpt_id_text(origin.parent).at);
        return salvage_leave(s, lost, text, diag);
    }
    if (status != 0) {
        return status;
    }
    if (is_guess) {
        snprintf(more, sizeof(more),
                 "; which checkpoint its term continues is lost: taken to be %s",
                 ckpt_id_text(origin.parent).at);
    }
    status = remake_build(s->repair, &origin, &remade, &why);
    if (status == 0) {
        lost->sha256 = sha256(remade.build.bytes.bytes, remade.build.bytes.data);
        lost->bytes = remade.build.bytes.bytes;
        s->repair->remade = &remade;
        status = salvage_enter(s, lost, &remade, more, diag);
        s->repair->remade = NULL;
    } else if (ends_salvage(status)) {
        status = repair_fail(diag, status, &why);
    } else if (lost->has_manifest || status != CAIRN_E_NOT_FOUND) {
        snprintf(text, sizeof(text), "its manifest is lost, and cannot be made again: %.350s",
                 diag_text(&why, status));
        status = salvage_leave(s, lost, text, diag);
    } else {
        status = 0; /* these names were only listed: a fragment */
    }
    remake_fini(&remade);
    return status;
}
