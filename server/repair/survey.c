/* SPDX-License-Identifier: Apache-2.0
 *
 * survey: reads a whole checkpoint from the medium and finds what is broken. The checkpoint's own
 * objects are read from end to end. Of an older checkpoint's objects only the chunks that this one
 * refers to are read; if one of these is broken, the object is read as a whole too, because it is
 * repaired as a whole. What is wrong is read once more before it counts.
 */
#include "repair_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void survey_fini(struct survey *survey)
{
    reader_fini(&survey->reader);
    scratch_fini(&survey->scratch);
}

enum health survey_health(const struct survey *survey)
{
    bool damaged = survey->hopeless > 0;
    for (const struct broken *broken = survey->broken; broken; broken = broken->next) {
        damaged = damaged || (!broken->mended && broken->damage.bad_count > 0);
    }
    return damaged ? HEALTH_DAMAGED : survey->found == 0 ? HEALTH_VERIFIED : HEALTH_SUSPECT;
}

/* --- one object ------------------------------------------------------------------------------- */

struct examining {
    struct reader_visitor visitor;
    const struct reader_object *object; /* NULL once it was given */
    const struct scan_piece *pieces;
    struct damage *damage;
};

static bool next(struct reader_visitor *visitor, struct reader_object *ret)
{
    struct examining *examining = container_of(visitor, struct examining, visitor);
    bool is_new = examining->object != NULL;
    if (is_new) {
        *ret = *examining->object;
        examining->object = NULL;
    }
    return is_new;
}

static void found(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                  const char *why)
{
    struct examining *examining = container_of(sink, struct examining, visitor.sink);
    struct damage *damage = examining->damage;
    char place[240];
    if (damage->bad_count == 0 && !damage->around) {
        scan_piece_text(piece, sizeof(place), place);
        snprintf(damage->first, sizeof(damage->first), "%s: %.150s", place, why);
    }
    if (where == SCAN_AROUND) {
        damage->around = true;
    } else if (!damage->bad[piece - examining->pieces]) {
        damage->bad[piece - examining->pieces] = true;
        damage->bad_count++;
    }
}

/* Makes both pieces of a chunk that is referred to twice bad if one of them is. */
static void spread(size_t count, const struct scan_piece *pieces, struct damage *damage)
{
    for (size_t i = 1; i < count; i++) {
        bool same = pieces[i].envelope.offset == pieces[i - 1].envelope.offset;
        if (same && damage->bad[i - 1] && !damage->bad[i]) {
            damage->bad[i] = true;
            damage->bad_count++;
        }
    }
}

int survey_object(struct repair *repair, const struct reader_object *object, struct damage *ret,
                  struct diag *diag)
{
    struct examining examining = {.visitor = {.next = next, .sink.found = found},
                                  .object = object,
                                  .pieces = object->pieces,
                                  .damage = ret};
    CHECK(object->count > 0);
    memset(ret->bad, 0, object->count * sizeof(*ret->bad));
    ret->bad_count = 0;
    ret->around = false;
    int status = reader_objects(&repair->plain.store.reader, &examining.visitor, diag);
    spread(object->count, object->pieces, ret);
    CHECK(ret->bad_count <= object->count);
    return status;
}

/* --- what is broken --------------------------------------------------------------------------- */

static bool is_known(const struct survey *survey, const struct object_id *id)
{
    for (const struct broken *at = survey->broken; at; at = at->next) {
        if (object_id_equal(&at->id, id)) {
            return true;
        }
    }
    return false;
}

static void count_found(struct survey *survey, bool is_hopeless, const char *text)
{
    survey->hopeless += is_hopeless ? 1 : 0;
    if (survey->found++ == 0) {
        snprintf(survey->first, sizeof(survey->first), "%s", text);
    }
}

/* Reads an object whose layout is known, and keeps it in the survey if something is wrong. */
static int examine(struct repair *repair, struct survey *survey, struct broken *broken,
                   struct diag *diag)
{
    struct reader_object object = {&broken->id, broken->count, broken->pieces, false};
    int status = survey_object(repair, &object, &broken->damage, diag);
    if (status == 0 && (broken->damage.bad_count > 0 || broken->damage.around)) {
        broken->next = survey->broken;
        survey->broken = broken;
        count_found(survey, false, broken->damage.first);
    }
    return status;
}

static int examine_own(struct repair *repair, struct survey *survey, size_t count,
                       const struct scan_piece *pieces, struct diag *diag)
{
    struct broken *broken = scratch_alloc(&survey->scratch, sizeof(*broken));
    if (!broken || layout_copy(count, pieces, &survey->scratch, broken) != 0) {
        return diag_no_memory(diag, "an object's layout");
    }
    return examine(repair, survey, broken, diag);
}

/* Reads an object of an older checkpoint: first the chunks that are referred to, and if one of
 * these is broken all of it. */
static int examine_older(struct repair *repair, struct survey *survey, size_t count,
                         const struct scan_piece *pieces, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    struct broken *broken = scratch_alloc(&survey->scratch, sizeof(*broken));
    struct damage damage = {.bad = scratch_array(&survey->scratch, count, sizeof(bool))};
    if (!broken || !damage.bad) {
        return diag_no_memory(diag, "an object's layout");
    }
    struct reader_object object = {pieces[0].id, count, pieces, true};
    int status = survey_object(repair, &object, &damage, diag);
    if (status != 0 || damage.bad_count == 0) {
        return status;
    }
    status = layout_of(repair, pieces[0].id, &survey->scratch, broken, &why);
    if (status != 0 && !reader_is_damage(status)) {
        return diag_set(diag, status, "%s", diag_text(&why, status));
    }
    if (status != 0) {
        count_found(survey, true, damage.first);
        if (survey->how == SURVEY_MEND) {
            repair_add_line(repair, false,
                            "%.240s; the rest of this object cannot be checked: %.100s",
                            damage.first, diag_text(&why, status));
        }
        return 0;
    }
    return examine(repair, survey, broken, diag);
}

/* Examines the objects that a part refers to, each once in a survey. */
static int examine_part(struct repair *repair, struct survey *survey, const struct part *part,
                        struct diag *diag)
{
    struct scan_piece *pieces = reader_pieces(part);
    int status = pieces ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a part's chunks");
    size_t next = 0, count;
    for (; status == 0 && next < part->chunk_count; next += count) {
        const struct object_id *id = pieces[next].id;
        count = reader_object_pieces(part->chunk_count - next, &pieces[next]);
        if (is_known(survey, id)) {
            continue;
        }
        bool older = id->term != part->id.term || id->step != part->id.step;
        status = older ? examine_older(repair, survey, count, pieces + next, diag)
                       : examine_own(repair, survey, count, pieces + next, diag);
    }
    free(pieces);
    return status;
}

/* Whatever this checkpoint refers to, its base refers to or holds. */
static void take_base(const struct part *part, struct ckpt_id *io_base)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        struct ckpt_id of = {part->objects[i].id.term, part->objects[i].id.step};
        if (!ckpt_id_equal(of, part->id) && ckpt_id_compare(of, *io_base) > 0) {
            *io_base = of;
        }
    }
}

/* Notes that the index says otherwise than the parts: no copy of either could be right. */
static int index_read(struct repair *repair, struct survey *survey, int status, struct diag *diag)
{
    if (status == CAIRN_E_DAMAGED) {
        if (survey->how == SURVEY_MEND) {
            repair_add_line(repair, false, "%.400s; no copy can mend it, so forget it by its name",
                            diag_text(diag, status));
        }
        count_found(survey, true, diag_text(diag, status));
        diag_clear(diag);
        status = 0;
    }
    return status;
}

/* Returns 0 for a document that is lost, which is noted. */
static int document_read(struct survey *survey, int status, struct diag *diag)
{
    if (!reader_is_damage(status)) {
        return status;
    }
    count_found(survey, true, diag_text(diag, status));
    diag_clear(diag);
    return 0;
}

static int part_read(struct repair *repair, struct survey *survey, size_t number,
                     const struct part *part, struct diag *diag)
{
    int status = reader_agrees(&survey->reader, number, part, diag);
    take_base(part, &survey->base);
    status = index_read(repair, survey, status, diag);
    return status != 0 || survey->how == SURVEY_DOCUMENTS
               ? status
               : examine_part(repair, survey, part, diag);
}

static int read_part(struct repair *repair, struct survey *survey, size_t number, struct diag *diag)
{
    struct scratch scratch;
    struct part part;
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = reader_part(&survey->reader, number, &scratch, &part, diag);
    status = status != 0 ? document_read(survey, status, diag)
                         : part_read(repair, survey, number, &part, diag);
    scratch_fini(&scratch);
    return status;
}

int survey_ckpt(struct repair *repair, const struct commit_fact *fact, enum survey_how how,
                struct survey *ret, struct diag *diag)
{
    struct repair_source *source = how == SURVEY_MEND ? &repair->mending : &repair->plain;
    struct diag why = DIAG_INIT;
    *ret = (struct survey){.how = how};
    scratch_init(&ret->scratch, READER_SCRATCH_MAX);
    int status = reader_open(&ret->reader, &source->store.reader, &fact->root, true, &why);
    status = document_read(ret, status, &why);
    for (size_t i = 0; status == 0 && i < ret->reader.part_count; i++) {
        status = read_part(repair, ret, i, &why);
    }
    if (status == 0 && ret->found == 0) { /* every part was read */
        status = index_read(repair, ret, reader_agrees_all(&ret->reader, &why), &why);
    }
    CHECK(status != 0 || ret->found >= ret->hopeless);
    return status == 0 ? 0 : repair_fail(diag, status, &why);
}
