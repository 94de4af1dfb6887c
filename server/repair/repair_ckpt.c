/* SPDX-License-Identifier: Apache-2.0
 *
 * The repair of one checkpoint: examine, find copies, rebuild, examine again. Only if every byte is
 * good then does the record say so. On the repair's thread.
 */
#include "repair_private.h"

#include <stdio.h>

static bool has_all_sources(const struct broken *broken)
{
    for (size_t i = 0; i < broken->count; i++) {
        if (broken->damage.bad[i] && !broken->sources[i].store) {
            return false;
        }
    }
    return true;
}

static bool is_missing(struct repair *repair, const struct object_id *id)
{
    struct store_req req = {.op = STORE_STAT, .run = repair->name, .object = *id};
    return ask_store(&repair->ask, repair->store, &req, NULL) == CAIRN_E_NOT_FOUND;
}

/* Adds a line about an object that is missing and cannot be rebuilt. */
static void tell_missing(struct repair *repair, const struct broken *broken)
{
    char name[OBJECT_NAME_BYTES], also[MIRROR_PLACE_BYTES];
    size_t lost = 0;
    for (size_t i = 0; i < broken->count; i++) {
        lost += broken->damage.bad[i] && !broken->sources[i].store;
    }
    rebuild_object_name(&broken->id, name);
    mirror_place(repair, sizeof(also), also);
    repair_add_line(repair, false,
                    "object %s is missing, and %zu of its %zu chunks have no copy in another "
                    "object of the run%s",
                    name, lost, broken->count, also);
}

/* Reports each bad chunk of an object for which no copy was found. */
static void tell_lost(struct repair *repair, const struct broken *broken)
{
    char place[240], also[MIRROR_PLACE_BYTES];
    if (broken->missing) {
        tell_missing(repair, broken);
        return;
    }
    mirror_place(repair, sizeof(also), also);
    for (size_t i = 0; i < broken->count; i++) {
        if (broken->damage.bad[i] && !broken->sources[i].store) {
            scan_piece_text(&broken->pieces[i], sizeof(place), place);
            repair_add_line(repair, false, "%s: there is no copy in another object of the run%s",
                            place, also);
        }
    }
}

/* Rebuilds every broken object whose bad chunks all have sources, and reports the others. */
static int mend_objects(struct repair *repair, struct survey *survey, struct diag *diag)
{
    bool exchanges = repair->store->caps.exchanges;
    int status = survey->broken && exchanges ? copies_find(repair, survey, diag) : 0;
    for (struct broken *broken = survey->broken; status == 0 && broken; broken = broken->next) {
        status = repair_check(repair, diag);
        if (status != 0) {
            break;
        }
        broken->missing = is_missing(repair, &broken->id);
        if (!exchanges) {
            repair_add_line(repair, false,
                            "%s; a Ceph cluster repairs its own copies: `ceph health detail` names "
                            "the placement group, `ceph pg repair PG` mends it",
                            broken->damage.first);
        } else if (has_all_sources(broken)) {
            status = rebuild_object(repair, broken, diag);
        } else {
            tell_lost(repair, broken);
        }
    }
    return status;
}

/* Returns true if damage is left, and gives the first line about it. */
static bool is_left(struct repair *repair, char ret[REPAIR_TEXT_MAX])
{
    pthread_mutex_lock(&repair->lock);
    const struct repair_status *status = &repair->status;
    bool left = status->left > 0;
    snprintf(ret, REPAIR_TEXT_MAX, "damaged, and no copy was found");
    for (uint32_t i = 0; i < status->line_count; i++) {
        if (!status->lines[i].mended) {
            snprintf(ret, REPAIR_TEXT_MAX, "%s", status->lines[i].text);
            break;
        }
    }
    pthread_mutex_unlock(&repair->lock);
    return left;
}

/* Puts the health of the checkpoint into the record. */
static int set_health(struct repair *repair, enum health health, const char *reason,
                      struct diag *diag)
{
    struct event event = {
        .kind = EVENT_HEALTH, .id = repair->id, .u.health = {.health = health, .reason = reason}};
    int status = ask_event(&repair->ask, repair->run, &event, false, diag);
    if (status == 0 && health == HEALTH_VERIFIED) {
        pthread_mutex_lock(&repair->lock);
        repair->status.healed = true;
        pthread_mutex_unlock(&repair->lock);
    }
    return status;
}

/* Reads everything once more from the medium: what was repaired, and what was good before. */
static int survey_again(struct repair *repair, const struct commit_fact *fact, struct diag *diag)
{
    struct survey survey;
    int status = survey_ckpt(repair, fact, SURVEY_ALL, &survey, diag);
    if (status == 0 && survey.found > 0) {
        repair_add_line(repair, false, "%s", survey.first);
    }
    survey_fini(&survey);
    return status;
}

int repair_ckpt(struct repair *repair, struct diag *diag)
{
    struct survey survey;
    char reason[REPAIR_TEXT_MAX];
    int status = facts_commits(repair, &repair->facts, &repair->fact_count, diag);
    const struct commit_fact *fact = status == 0 ? repair_fact(repair, repair->id) : NULL;
    if (status != 0 || !fact) {
        return status != 0 ? status
                           : diag_set(diag, CAIRN_E_NOT_FOUND, "checkpoint %s is not in the run",
                                      ckpt_id_text(repair->id).at);
    }
    status = survey_ckpt(repair, fact, SURVEY_MEND, &survey, diag);
    status = status != 0 ? status : mend_objects(repair, &survey, diag);
    enum health left = survey_health(&survey);
    survey_fini(&survey);
    pthread_mutex_lock(&repair->lock);
    bool mended = repair->status.mended > 0;
    pthread_mutex_unlock(&repair->lock);
    if (status == 0 && mended && !is_left(repair, reason)) {
        status = survey_again(repair, fact, diag);
        left = HEALTH_DAMAGED;
    }
    if (status == 0 && is_left(repair, reason)) {
        reason[ENTRY_REASON_BYTES - 1] = '\0';
        status = set_health(repair, left, reason, diag);
    } else if (status == 0 && fact->health != HEALTH_VERIFIED) {
        status = set_health(repair, HEALTH_VERIFIED, "", diag);
    }
    return status;
}
