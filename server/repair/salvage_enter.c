/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles one checkpoint that the record does not explain. Everything below its manifest is
 * verified; then it enters the record with the health that was found, or it is left, and named.
 * Invariant: a manifest that was made again is verified before it is published. On the repair's
 * thread.
 */
#include "salvage_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void salvage_add_item(struct repair *repair, struct ckpt_id id, enum salvage_outcome outcome,
                      const char *fmt, ...)
{
    struct salvage_item item = {.id = id, .outcome = outcome};
    va_list args;
    va_start(args, fmt);
    vsnprintf(item.text, sizeof(item.text), fmt, args);
    va_end(args);
    struct salvage_item *grown =
        realloc(repair->items, (repair->item_count + 1) * sizeof(*repair->items));
    if (!grown) {
        repair->items_untold = true;
        return;
    }
    repair->items = grown;
    repair->items[repair->item_count++] = item;
}

/* Makes the event that enters the checkpoint, from its manifest and its judged health. */
static void fill_event(const struct salvaging *s, const struct lost_manifest *lost,
                       const struct survey *survey, struct event *ret)
{
    const struct manifest *manifest = &survey->reader.manifest;
    *ret =
        (struct event){.kind = EVENT_ADOPT, .id = lost->id, .wall_ns = manifest->created_wall_ns};
    ret->u.adopt = (struct event_adopt){.open_id = lost->open_id,
                                        .token = manifest->token,
                                        .parent = manifest->parent,
                                        .world_size = manifest->world_size,
                                        .info = {.run_uuid = manifest->run_uuid,
                                                 .chunk_bytes = manifest->chunk_bytes,
                                                 .created_wall_ns = manifest->created_wall_ns},
                                        .entry = {.manifest_sha256 = lost->sha256,
                                                  .manifest_bytes = lost->bytes,
                                                  .plain_bytes = manifest->plain_bytes,
                                                  .stored_bytes = manifest->stored_bytes,
                                                  .base = survey->base},
                                        .note = {.tag_count = manifest->tag_count,
                                                 .tags = manifest->tags,
                                                 .metric_count = manifest->metric_count,
                                                 .metrics = manifest->metrics,
                                                 .of_save = true},
                                        .health = survey_health(survey),
                                        .reason = survey->first,
                                        .actor = s->repair->actor};
}

/* Leaves a checkpoint that cannot be entered, or gives it up. */
int salvage_leave(struct salvaging *s, const struct lost_manifest *lost, const char *why,
                  struct diag *diag)
{
    struct event event = {
        .kind = EVENT_ADOPT,
        .id = lost->id,
        .u.adopt = {.open_id = lost->open_id,
                    .code = CAIRN_E_DAMAGED,
                    .reason = "given up: its manifest could not be entered again"}};
    if (!s->how->discard) {
        salvage_add_item(s->repair, lost->id, SALVAGE_LEFT, "%.390s", why);
        return 0;
    }
    struct origin origin;
    int status = facts_origin(s->repair, lost->id, lost->open_id, &origin, diag);
    event.u.adopt.info = origin.info;
    if (status == 0 && !origin.has_info) {
        salvage_find_info(s, &event.u.adopt.info);
    }
    if (status == 0) {
        status = ask_event(&s->repair->ask, s->repair->run, &event, !s->how->yes, diag);
    }
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
    struct reader reader;
    int status = remake_publish(s->repair, remade, diag);
    s->repair->remade = NULL;
    if (status != 0) {
        return status;
    }
    status = reader_open(&reader, &s->repair->plain.store.reader, &fact->root, false, diag);
    reader_fini(&reader);
    return status;
}

/* Adds the item of a checkpoint that was entered, or would be. */
static void add_entered(struct salvaging *s, const struct lost_manifest *lost,
                        const struct survey *survey, bool is_quick, const char *more)
{
    const char *good =
        is_quick ? "manifest, pages and parts are whole" : "every byte of it is good";
    if (survey->found > 0) {
        salvage_add_item(s->repair, lost->id, SALVAGE_DAMAGED, "%.390s", survey->first);
    } else if (!manifest_is_remade(&survey->reader.manifest)) {
        salvage_add_item(s->repair, lost->id, SALVAGE_WHOLE, "%s", good);
    } else {
        salvage_add_item(
            s->repair, lost->id, SALVAGE_WHOLE,
            "its manifest %s made again from %zu parts, without metadata, tags and metrics of "
            "the save, which are lost; %s%s",
            s->how->yes || lost->readable ? "was" : "would be", survey->reader.part_count, good,
            more);
    }
}

/* Enters a checkpoint whose manifest is stored, or has been made again in memory (remade). */
int salvage_enter(struct salvaging *s, struct lost_manifest *lost, const struct remade *remade,
                  const char *more, struct diag *diag)
{
    struct survey survey;
    bool is_quick = s->how->quick && !remade; /* parts alone have no hash above them */
    struct commit_fact fact = {.root = {.run = s->repair->name,
                                        .id = lost->id,
                                        .open_id = lost->open_id,
                                        .manifest_bytes = lost->bytes,
                                        .manifest_sha256 = lost->sha256}};
    struct event event;
    struct diag why = DIAG_INIT;
    int status =
        survey_ckpt(s->repair, &fact, is_quick ? SURVEY_DOCUMENTS : SURVEY_ALL, &survey, &why);
    if (status == 0 && remade && survey.found > 0) {
        status = diag_set(&why, CAIRN_E_DAMAGED,
                          "its manifest is lost, and is not made again: %.300s", survey.first);
    } else if (status == 0) {
        fill_event(s, lost, &survey, &event);
        status = ask_event(&s->repair->ask, s->repair->run, &event, !s->how->yes || remade, &why);
        if (status == 0 && remade && s->how->yes) {
            status = publish(s, remade, &fact, &why);
            if (status == 0) {
                status = ask_event(&s->repair->ask, s->repair->run, &event, false, &why);
            }
        }
    }
    if (is_refusal(status)) {
        status = salvage_leave(s, lost, diag_text(&why, status), diag);
    } else if (status != 0) {
        status = repair_fail(diag, status, &why);
    } else {
        lost->entered = true;
        add_entered(s, lost, &survey, is_quick, more);
    }
    survey_fini(&survey);
    return status;
}
