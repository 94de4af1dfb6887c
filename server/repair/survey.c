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

void survey_init(struct survey *survey)
{
    memset(survey, 0, sizeof(*survey));
    scratch_init(&survey->scratch, REPAIR_SCRATCH_MAX);
}

void survey_fini(struct survey *survey) { scratch_fini(&survey->scratch); }

enum health survey_health(const struct survey *survey)
{
    bool damaged = survey->hopeless > 0;
    for (const struct broken *broken = survey->broken; broken; broken = broken->next) {
        damaged = damaged || (!broken->mended && broken->bad_count > 0);
    }
    return damaged ? HEALTH_DAMAGED : HEALTH_SUSPECT;
}

/* --- one object ------------------------------------------------------------------------------- */

struct looking {
    struct scan_sink sink;
    struct object_scan scan;
    const struct scan_piece *pieces;
    struct damage *damage;
    size_t found; /* in the present range */
    bool quiet;   /* in the first look: only counts */
};

/* Called for each thing that the scan finds wrong. The first look only counts; the second one notes
 * the damage. */
static void found(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                  const char *why)
{
    struct looking *looking = container_of(sink, struct looking, sink);
    struct damage *damage = looking->damage;
    char place[240];
    looking->found++;
    if (looking->quiet) {
        return;
    }
    if (damage->bad_count == 0 && !damage->around) {
        scan_piece_text(piece, sizeof(place), place);
        snprintf(damage->first, sizeof(damage->first), "%s: %.150s", place, why);
    }
    if (where == SCAN_AROUND) {
        damage->around = true;
    } else if (!damage->bad[piece - looking->pieces]) {
        damage->bad[piece - looking->pieces] = true;
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

static int read_range(struct repair *repair, const struct object_id *at,
                      const struct object_scan *scan, uint8_t *memory, struct diag *diag)
{
    struct store_req req = {.op = STORE_READ,
                            .run = repair->name,
                            .object = *at,
                            .offset = scan->from,
                            .bytes = scan->bytes,
                            .data = memory,
                            .to_end = scan->in_footer,
                            .from_medium = true};
    int status = ask_store(repair, repair->store, &req);
    repair_count_read(repair, status == 0 ? scan->bytes : 0);
    return status == 0 ? 0 : repair_fail(diag, status, &req.diag);
}

/* Reads and checks the present range of the scan; reads it a second time if the first look finds
 * damage. */
static int look_at_range(struct repair *repair, struct looking *looking, const struct object_id *at,
                         struct diag *diag)
{
    struct object_scan before = looking->scan;
    uint8_t *memory = repair_memory(repair, looking->scan.bytes + LIMIT_ALIGN_BYTES);
    if (!memory) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to read an object");
    }
    for (unsigned look = 0; look < 2; look++) {
        struct diag why = DIAG_INIT;
        looking->scan = before;
        looking->quiet = look == 0;
        looking->found = 0;
        int status = read_range(repair, at, &looking->scan, memory, &why);
        if (status == 0) {
            object_scan_check(&looking->scan, memory, &looking->sink);
        } else if (repair_is_damage(status)) {
            object_scan_unreadable(&looking->scan, diag_text(&why, status), &looking->sink);
        } else {
            return diag_set(diag, status, "%s", diag_text(&why, status));
        }
        if (looking->found == 0) {
            return 0;
        }
    }
    return 0;
}

int survey_object(struct repair *repair, const struct extent *extent, struct damage *ret,
                  struct diag *diag)
{
    struct looking looking = {.sink.found = found, .pieces = extent->pieces, .damage = ret};
    memset(ret->bad, 0, extent->count * sizeof(*ret->bad));
    ret->bad_count = 0;
    ret->around = false;
    size_t taken =
        object_scan_begin(&looking.scan, extent->count, extent->pieces, extent->chunks_only);
    CHECK(taken == extent->count);
    int status = 0;
    while (status == 0 && object_scan_next(&looking.scan, &looking.sink)) {
        status = repair_check(repair, diag);
        status = status != 0 ? status : look_at_range(repair, &looking, extent->at, diag);
    }
    spread(extent->count, extent->pieces, ret);
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

/* Reads an object whose layout is known, and keeps it in the survey if something is wrong. */
static int examine(struct repair *repair, struct survey *survey, struct broken *broken,
                   struct diag *diag)
{
    struct damage damage = {.bad = broken->bad};
    struct extent extent = {&broken->id, broken->count, broken->pieces, false};
    int status = survey_object(repair, &extent, &damage, diag);
    if (status == 0 && (damage.bad_count > 0 || damage.around)) {
        broken->bad_count = damage.bad_count;
        broken->around = damage.around;
        memcpy(broken->first, damage.first, sizeof(broken->first));
        broken->next = survey->broken;
        survey->broken = broken;
        survey->found++;
    }
    return status;
}

static struct broken *new_broken(struct survey *survey, struct diag *diag)
{
    struct broken *broken = scratch_alloc(&survey->scratch, sizeof(*broken));
    if (!broken) {
        /* The caller returns this error. */
        err_ignore(diag_set(diag, CAIRN_E_NO_MEMORY, "no memory"));
    }
    return broken;
}

static int examine_own(struct repair *repair, struct survey *survey, size_t count,
                       const struct scan_piece *pieces, struct diag *diag)
{
    struct broken *broken = new_broken(survey, diag);
    int status = broken ? layout_copy(count, pieces, &survey->scratch, broken) : CAIRN_E_NO_MEMORY;
    return status != 0 ? status : examine(repair, survey, broken, diag);
}

/* Reads an object of an older checkpoint: first the chunks that are referred to, and if one of
 * these is broken all of it. */
static int examine_older(struct repair *repair, struct survey *survey, size_t count,
                         const struct scan_piece *pieces, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    struct broken *broken = new_broken(survey, diag);
    struct damage damage = {.bad = scratch_array(&survey->scratch, count, sizeof(bool))};
    if (!broken || !damage.bad) {
        return CAIRN_E_NO_MEMORY;
    }
    struct extent extent = {pieces[0].id, count, pieces, true};
    int status = survey_object(repair, &extent, &damage, diag);
    if (status != 0 || damage.bad_count == 0) {
        return status;
    }
    status = layout_of(repair, pieces[0].id, &survey->scratch, broken, &why);
    if (status != 0 && !repair_is_damage(status)) {
        return diag_set(diag, status, "%s", diag_text(&why, status));
    }
    if (status != 0) {
        survey->hopeless++;
        survey->found++;
        if (survey->tell) {
            repair_add_line(repair, false,
                            "%.240s; what else is in the object nobody knows: %.100s", damage.first,
                            diag_text(&why, status));
        }
        return 0;
    }
    return examine(repair, survey, broken, diag);
}

/* Examines the objects that a part refers to, each once in a survey. */
static int examine_part(struct repair *repair, struct survey *survey, const struct part *part,
                        struct diag *diag)
{
    struct scan_piece *pieces = calloc((size_t)part->chunk_count + 1, sizeof(*pieces));
    int status = pieces ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a part's chunks");
    size_t next = 0, end;
    if (status == 0) {
        scan_pieces_of(part, pieces);
        scan_sort(part->chunk_count, pieces);
    }
    for (; status == 0 && next < part->chunk_count; next = end) {
        const struct object_id *id = pieces[next].id;
        for (end = next + 1; end < part->chunk_count && object_id_equal(pieces[end].id, id);) {
            end++;
        }
        if (is_known(survey, id)) {
            continue;
        }
        bool older = id->term != part->id.term || id->step != part->id.step;
        status = older ? examine_older(repair, survey, end - next, pieces + next, diag)
                       : examine_own(repair, survey, end - next, pieces + next, diag);
    }
    free(pieces);
    return status;
}

int survey_ckpt(struct repair *repair, const struct commit_fact *fact, bool tell,
                struct survey *ret, struct diag *diag)
{
    struct papers papers;
    ret->tell = tell;
    int status = papers_open(repair, fact, tell, &papers, diag);
    /* A lost page says nothing about the parts behind the other pages. */
    bool lost = status != 0 && repair_is_damage(status);
    ret->hopeless += lost ? 1 : 0;
    ret->found += lost ? 1 : 0;
    status = lost ? 0 : status;
    for (size_t i = 0; status == 0 && i < papers.part_count; i++) {
        struct paper_part part;
        status = papers_part(repair, &papers, i, &part, diag);
        if (status == 0) {
            status = examine_part(repair, ret, &part.part, diag);
        } else if (repair_is_damage(status)) {
            ret->hopeless++;
            ret->found++;
            status = 0;
        }
        paper_part_fini(&part);
    }
    papers_fini(&papers);
    return status;
}
