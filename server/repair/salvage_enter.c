/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles one checkpoint that the record does not explain. Everything below its manifest is
 * verified; then it enters the record with the health that was found, or it is left, and named.
 * Invariant: a manifest that was made again is verified before it is published. On the repair's
 * thread.
 */
#include "salvage_private.h"

#include <stdio.h>
#include <string.h>

/* Raises io_base to the newest older checkpoint in whose objects the part has chunks: whatever this
 * one refers to, that one refers to or holds. */
static void take_base(const struct part *part, struct ckpt_id *io_base)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        struct ckpt_id of = {part->objects[i].id.term, part->objects[i].id.step};
        if (!ckpt_id_equal(of, part->id) && ckpt_id_compare(of, *io_base) > 0) {
            *io_base = of;
        }
    }
}

struct judgement {
    struct papers papers;
    struct ckpt_id base;
    enum health health;
    char why[400];
};

static void judge_damaged(struct judgement *ret, enum health health, const char *why)
{
    if (ret->health == HEALTH_VERIFIED) {
        snprintf(ret->why, sizeof(ret->why), "%.390s", why);
    }
    ret->health = max_u64(ret->health, health) == HEALTH_DAMAGED ? HEALTH_DAMAGED : HEALTH_SUSPECT;
}

/* Reads all parts of the checkpoint, judges them, and finds its base. */
static int judge_parts(struct salvaging *s, struct judgement *ret, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < ret->papers.part_count; i++) {
        struct paper_part part;
        struct diag why = DIAG_INIT;
        status = papers_part(s->repair, &ret->papers, i, &part, &why);
        if (status == 0) {
            take_base(&part.part, &ret->base);
        } else if (repair_is_damage(status)) {
            judge_damaged(ret, HEALTH_DAMAGED, diag_text(&why, status));
            status = 0;
        } else {
            status = repair_fail(diag, status, &why);
        }
        paper_part_fini(&part);
    }
    return status;
}

/* Judges the health of the checkpoint. The caller ends ret->papers in any case. */
static int judge(struct salvaging *s, const struct commit_fact *fact, struct judgement *ret,
                 struct diag *diag)
{
    struct diag why = DIAG_INIT;
    struct survey survey;
    int status = papers_open(s->repair, fact, false, &ret->papers, &why);
    if (status != 0 && repair_is_damage(status)) {
        judge_damaged(ret, HEALTH_DAMAGED, diag_text(&why, status));
    } else if (status != 0) {
        return repair_fail(diag, status, &why);
    }
    status = judge_parts(s, ret, diag);
    bool is_quick = s->how->quick && !s->repair->remade; /* parts alone have no hash above them */
    if (status != 0 || is_quick || ret->health == HEALTH_DAMAGED) {
        return status;
    }
    survey_init(&survey);
    status = survey_ckpt(s->repair, fact, false, &survey, diag);
    if (status == 0 && survey.found > 0) {
        judge_damaged(ret, survey_health(&survey),
                      survey.broken ? survey.broken->first : "a document cannot be read");
    }
    survey_fini(&survey);
    return status;
}

/* Makes the event that enters the checkpoint, from its manifest and its judged health. */
static void fill_event(const struct salvaging *s, const struct lost_manifest *lost,
                       const struct judgement *judgement, struct event *ret)
{
    const struct manifest *manifest = &judgement->papers.manifest;
    *ret = (struct event){.kind = EVENT_ADOPT,
                          .id = lost->id,
                          .open_id = lost->open_id,
                          .token = manifest->token,
                          .parent = manifest->parent,
                          .world_size = manifest->world_size,
                          .wall_ns = manifest->created_wall_ns,
                          .info = {.run_uuid = manifest->run_uuid,
                                   .chunk_bytes = manifest->chunk_bytes,
                                   .created_wall_ns = manifest->created_wall_ns},
                          .commit = {.manifest_sha256 = lost->sha256,
                                     .manifest_bytes = lost->bytes,
                                     .plain_bytes = manifest->plain_bytes,
                                     .stored_bytes = manifest->stored_bytes,
                                     .base = judgement->base},
                          .note = {.tag_count = manifest->tag_count,
                                   .tags = manifest->tags,
                                   .metric_count = manifest->metric_count,
                                   .metrics = manifest->metrics,
                                   .of_save = true},
                          .health = judgement->health,
                          .reason = judgement->why,
                          .actor = s->repair->actor};
}

/* Leaves a checkpoint that cannot be entered, or gives it up. */
int salvage_leave(struct salvaging *s, const struct lost_manifest *lost, const char *why,
                  struct diag *diag)
{
    struct event event = {.kind = EVENT_ADOPT,
                          .id = lost->id,
                          .open_id = lost->open_id,
                          .code = CAIRN_E_DAMAGED,
                          .reason = "given up: its manifest could not be entered again"};
    if (!s->how->discard) {
        salvage_add_item(s->repair, lost->id, SALVAGE_LEFT, "%.390s", why);
        return 0;
    }
    int status = ask_info(s->repair, &event.info, diag);
    if (status == CAIRN_E_NOT_FOUND) {
        diag_clear(diag);
        salvage_find_info(s, &event.info);
        status = 0;
    }
    status = status != 0 ? status : ask_try_event(s->repair, &event, !s->how->yes, diag);
    if (status == 0) {
        salvage_add_item(s->repair, lost->id, SALVAGE_GIVEN_UP, "%.390s", why);
    }
    return status;
}

static bool is_refusal(int status)
{
    return status == CAIRN_E_EXISTS || status == CAIRN_E_CONFLICT || status == CAIRN_E_INVALID ||
           status == CAIRN_E_DAMAGED;
}

/* Publishes the new documents and reads them back from the medium. */
static int publish(struct salvaging *s, const struct remade *remade, const struct commit_fact *fact,
                   struct diag *diag)
{
    struct papers papers;
    int status = remake_publish(s->repair, remade, diag);
    s->repair->remade = NULL;
    if (status != 0) {
        return status;
    }
    status = papers_open(s->repair, fact, false, &papers, diag);
    papers_fini(&papers);
    return status;
}

/* Adds the item of a checkpoint that was entered, or would be. */
static void add_entered(struct salvaging *s, const struct lost_manifest *lost,
                        const struct judgement *judgement, bool is_quick, const char *more)
{
    const char *good =
        is_quick ? "manifest, pages and parts are whole" : "every byte of it is good";
    if (judgement->health != HEALTH_VERIFIED) {
        salvage_add_item(s->repair, lost->id, SALVAGE_DAMAGED, "%s", judgement->why);
    } else if (!manifest_is_remade(&judgement->papers.manifest)) {
        salvage_add_item(s->repair, lost->id, SALVAGE_WHOLE, "%s", good);
    } else {
        salvage_add_item(
            s->repair, lost->id, SALVAGE_WHOLE,
            "its manifest %s made again from %zu parts, without metadata, tags and metrics of "
            "the save, which are lost; %s%s",
            s->how->yes || lost->readable ? "was" : "would be", judgement->papers.part_count, good,
            more);
    }
}

/* Enters a checkpoint whose manifest is stored, or has been made again in memory (remade). */
int salvage_enter(struct salvaging *s, struct lost_manifest *lost, const struct remade *remade,
                  const char *more, struct diag *diag)
{
    struct judgement judgement = {.health = HEALTH_VERIFIED};
    struct commit_fact fact = {.id = lost->id,
                               .open_id = lost->open_id,
                               .manifest_bytes = lost->bytes,
                               .manifest_sha256 = lost->sha256};
    struct event event;
    struct diag why = DIAG_INIT;
    int status = judge(s, &fact, &judgement, diag);
    if (status == 0 && remade && judgement.health != HEALTH_VERIFIED) {
        status = diag_set(&why, CAIRN_E_DAMAGED,
                          "its manifest is lost, and is not made again: %.300s", judgement.why);
    } else if (status == 0) {
        fill_event(s, lost, &judgement, &event);
        status = ask_try_event(s->repair, &event, !s->how->yes || remade, &why);
        if (status == 0 && remade && s->how->yes) {
            status = publish(s, remade, &fact, &why);
            status = status != 0 ? status : ask_event(s->repair, &event, &why);
        }
    }
    if (is_refusal(status)) {
        status = salvage_leave(s, lost, diag_text(&why, status), diag);
    } else if (status != 0) {
        status = repair_fail(diag, status, &why);
    } else {
        lost->entered = true;
        add_entered(s, lost, &judgement, s->how->quick && !remade, more);
    }
    papers_fini(&judgement.papers);
    return status;
}
