/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds copies of broken chunks. Full saves store unchanged data anew, and much of a state is
 * alike, so the same bytes may lie in another object of the run: equal digest and length mean equal
 * bytes. In a mirror they lie in the same place. Every copy is read and checked before it counts,
 * and again when it is used.
 */
#include "repair_private.h"

#include "pipeline/chunk.h"

#include <stdlib.h>
#include <string.h>

struct want {
    struct broken *broken;
    size_t piece;
};

struct wants {
    size_t count, left;
    struct want *wants; /* sorted by digest */
    uint8_t *room;      /* room for one copy */
};

static const struct envelope *envelope_of(const struct want *want)
{
    return &want->broken->pieces[want->piece].envelope;
}

static bool is_had(const struct want *want)
{
    return want->broken->sources[want->piece].store != NULL;
}

/* --- one copy --------------------------------------------------------------------------------- */

static bool is_same_form(const struct envelope *a, const struct envelope *b)
{
    return a->encoding == b->encoding && a->stored_bytes == b->stored_bytes &&
           a->stored_crc == b->stored_crc;
}

int copies_get(struct repair *repair, const struct source *source, const struct envelope *wanted,
               uint8_t *ret, struct diag *diag)
{
    const struct envelope *envelope = &source->envelope;
    bool same = is_same_form(envelope, wanted);
    uint8_t *stored = same ? ret : malloc(envelope->stored_bytes);
    if (!stored) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a chunk");
    }
    struct store_req req = {.op = STORE_READ,
                            .run = repair->name,
                            .object = source->object,
                            .offset = envelope->offset,
                            .bytes = envelope->stored_bytes,
                            .data = stored,
                            .from_medium = true};
    int status = ask_store(&repair->ask, source->store, &req, diag);
    repair_count_read(repair, status == 0 ? envelope->stored_bytes : 0);
    if (status == 0 && !same) { /* the wanted chunk is raw: takes the plain bytes of the copy */
        status = chunk_open(envelope, stored, LIMIT_CHUNK_BYTES, ret, diag);
    }
    if (status == 0) {
        status = chunk_verify(wanted, ret, diag);
    }
    if (stored != ret) {
        free(stored);
    }
    return status;
}

/* Tries one source of a chunk. Returns 0 even if it is no copy. An error means that the store is
 * not well. */
static int try_source(struct repair *repair, struct wants *wants, const struct want *want,
                      const struct source *source, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int status = repair_check(repair, diag);
    if (status != 0) {
        return status;
    }
    status = copies_get(repair, source, envelope_of(want), wants->room, &why);
    if (status == 0) {
        want->broken->sources[want->piece] = *source;
        wants->left--;
    } else if (source->store == repair->mirror) {
        mirror_failed(repair, status, &why);
    } else if (!reader_is_damage(status)) {
        return diag_set(diag, status, "%s", diag_text(&why, status));
    }
    return 0;
}

/* --- the mirror ------------------------------------------------------------------------------- */

/* Looks for the broken chunks in the mirror, where they have the same names. */
static int ask_mirror(struct repair *repair, struct wants *wants, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < wants->count && mirror_open(repair, NULL) == 0; i++) {
        const struct want *want = &wants->wants[i];
        struct source source = {repair->mirror, want->broken->id, *envelope_of(want)};
        status = try_source(repair, wants, want, &source, diag);
    }
    return status;
}

/* --- the run ---------------------------------------------------------------------------------- */

static int compare_content(const struct envelope *a, const struct envelope *b)
{
    int order = memcmp(&a->digest, &b->digest, sizeof(a->digest));
    order = order != 0 ? order : compare_u64(a->digest_alg, b->digest_alg);
    return order != 0 ? order : compare_u64(a->plain_bytes, b->plain_bytes);
}

static int compare_wants(const void *a, const void *b)
{
    return compare_content(envelope_of(a), envelope_of(b));
}

/* Returns the index of the first want with that content, or of the place where it would be. */
static size_t find_want(const struct wants *wants, const struct envelope *envelope)
{
    size_t low = 0, high = wants->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_content(envelope_of(&wants->wants[middle]), envelope) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Tries a good chunk of the run as the source of each wanted chunk with the same contents. */
static int offer(struct repair *repair, struct wants *wants, const struct scan_piece *piece,
                 struct diag *diag)
{
    int status = 0;
    for (size_t i = find_want(wants, &piece->envelope);
         status == 0 && i < wants->count &&
         compare_content(envelope_of(&wants->wants[i]), &piece->envelope) == 0;
         i++) {
        const struct want *want = &wants->wants[i];
        const struct envelope *wanted = envelope_of(want);
        bool itself = object_id_equal(piece->id, &want->broken->id) &&
                      piece->envelope.offset == wanted->offset;
        bool usable = is_same_form(&piece->envelope, wanted) || wanted->encoding == ENCODING_RAW;
        if (!itself && usable && !is_had(want)) {
            struct source source = {repair->store, *piece->id, piece->envelope};
            status = try_source(repair, wants, want, &source, diag);
        }
    }
    return status;
}

/* Offers each chunk of a part as the source of those that are broken. */
static int offer_part(struct repair *repair, struct wants *wants, const struct part *part,
                      struct diag *diag)
{
    struct scan_piece *pieces = reader_pieces(part);
    int status = pieces ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a part's chunks");
    for (uint32_t i = 0; status == 0 && i < part->chunk_count && wants->left > 0; i++) {
        status = offer(repair, wants, &pieces[i], diag);
    }
    free(pieces);
    return status;
}

/* Offers the chunks of all parts of a checkpoint. A document that cannot be read has nothing to
 * offer. */
static int offer_ckpt(struct repair *repair, struct wants *wants, const struct commit_fact *fact,
                      struct diag *diag)
{
    struct reader reader;
    struct diag why = DIAG_INIT;
    int status = reader_open(&reader, &repair->plain.store.reader, &fact->root, false, &why);
    for (size_t i = 0; status == 0 && i < reader.part_count && wants->left > 0; i++) {
        struct scratch scratch;
        struct part part;
        scratch_init(&scratch, READER_SCRATCH_MAX);
        status = reader_part(&reader, i, &scratch, &part, &why);
        if (status == 0) {
            status = offer_part(repair, wants, &part, &why);
        } else if (reader_is_damage(status)) {
            status = 0;
            diag_clear(&why);
        }
        scratch_fini(&scratch);
    }
    reader_fini(&reader);
    return status == 0 || reader_is_damage(status)
               ? 0
               : diag_set(diag, status, "%s", diag_text(&why, status));
}

/* Makes the list of all broken chunks. */
static void list_wants(struct survey *survey, struct wants *wants)
{
    for (struct broken *broken = survey->broken; broken; broken = broken->next) {
        for (size_t i = 0; i < broken->count; i++) {
            if (broken->damage.bad[i]) {
                wants->wants[wants->count++] = (struct want){broken, i};
            }
        }
    }
    wants->left = wants->count;
    if (wants->count > 0) {
        qsort(wants->wants, wants->count, sizeof(*wants->wants), compare_wants);
    }
}

int copies_find(struct repair *repair, struct survey *survey, struct diag *diag)
{
    struct wants wants = {.count = 0};
    size_t count = 0;
    for (const struct broken *broken = survey->broken; broken; broken = broken->next) {
        count += broken->damage.bad_count;
    }
    wants.wants = scratch_array(&survey->scratch, count + 1, sizeof(*wants.wants));
    wants.room = scratch_alloc(&survey->scratch, LIMIT_CHUNK_BYTES + LIMIT_ALIGN_BYTES);
    if (!wants.wants || !wants.room) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %zu damaged chunks", count);
    }
    list_wants(survey, &wants);
    int status = ask_mirror(repair, &wants, diag);
    for (size_t i = repair->fact_count; status == 0 && i-- > 0 && wants.left > 0;) {
        status = offer_ckpt(repair, &wants, &repair->facts[i], diag);
    }
    return status;
}
