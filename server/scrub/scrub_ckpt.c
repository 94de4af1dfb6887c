/* SPDX-License-Identifier: Apache-2.0
 *
 * One checkpoint, as the medium holds it, through the reader: manifest, pages, then rank by rank
 * the part and its objects. What is wrong is told as it is found, and the walk goes on: one damaged
 * place says nothing about the next. What passes blames nobody: it is tried a few times, and then
 * the pass is left. On the pass's thread.
 */
#include "scrub_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RETRY_MS = 2000, /* pause after a read that failed for another reason than damage */
    TRIES_MAX = 5,
    FOUND_MAX = 32, /* findings of one object or document that are told one by one */
};

struct walk {
    struct scrub *scrub;
    const struct scrub_ckpt *ckpt;
    struct store_source source;
    struct reader_visitor visitor;
    struct reader reader;
    struct scan_piece *pieces; /* of the present part, sorted */
    size_t count, next;
    uint32_t skip;     /* objects of it that are done */
    unsigned found;    /* in the present object or document */
    enum health told;  /* the lowest health that this walk has put into the record */
    bool is_forgotten; /* somebody forgot it while it was read */
    bool is_told;      /* what is wrong with the document at hand */
};

/* --- findings --------------------------------------------------------------------------------- */

/* Puts the health into the record. A checkpoint that is forgotten while we read it may already have
 * been collected, so a missing object is not told as damage. */
static void lower_health(struct walk *walk, enum health health, const char *text)
{
    struct event event = {.kind = EVENT_HEALTH,
                          .id = walk->ckpt->root.id,
                          .u.health = {.health = health, .reason = text}};
    int status = ask_event(&walk->scrub->ask, walk->scrub->run, &event, false, NULL);
    walk->told = health;
    walk->is_forgotten = status == CAIRN_E_NOT_FOUND;
    /* People are told all the same; the next pass tells the record again. */
    walk->scrub->now.counters.errors_total += status != 0 && !walk->is_forgotten;
}

static void tell(struct walk *walk, enum health health, const char *text)
{
    struct scrub *scrub = walk->scrub;
    if (!walk->is_forgotten && health > walk->told) {
        lower_health(walk, health, text);
    }
    if (walk->is_forgotten) {
        return;
    }
    scrub->now.entry.found++;
    scrub->now.entry.findings++;
    if (walk->found++ < FOUND_MAX) {
        scrub_tell(scrub, &(struct scrub_news){SCRUB_FOUND, walk->ckpt->root.id, health, text});
    } else {
        scrub->now.counters.findings_total++;
    }
}

static void found(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                  const char *why)
{
    struct walk *walk = container_of(sink, struct walk, visitor.sink);
    char place[240], text[SCRUB_TEXT_MAX];
    scan_piece_text(piece, sizeof(place), place);
    snprintf(text, sizeof(text), "%s: %.150s", place, why);
    tell(walk, where == SCAN_CHUNK ? HEALTH_DAMAGED : HEALTH_SUSPECT, text);
}

/* --- reading ---------------------------------------------------------------------------------- */

static int check(struct store_source *source, struct diag *diag)
{
    const struct walk *walk = container_of(source, struct walk, source);
    return walk->is_forgotten ? diag_set(diag, CAIRN_E_CANCELLED, "it was forgotten") : 0;
}

static void tried(struct store_source *source, int status, uint64_t bytes)
{
    struct scrub *scrub = container_of(source, struct walk, source)->scrub;
    bool is_failure = reader_finding_of(status) == READER_NOT_GIVEN && status != CAIRN_E_CANCELLED;
    scrub->now.entry.bytes += bytes;
    scrub->now.counters.bytes_total += bytes;
    scrub->now.counters.errors_total += is_failure;
    scrub_show(scrub);
}

static int on_lost(struct reader_source *base, const struct doc_key *document, int status,
                   struct reader_bytes *ret, struct diag *why)
{
    struct walk *walk = container_of(base, struct walk, source.reader);
    char text[SCRUB_TEXT_MAX];
    (void)document;
    (void)ret;
    snprintf(text, sizeof(text), "%.500s", diag_text(why, status));
    walk->is_told = true;
    walk->found = 0;
    tell(walk, HEALTH_DAMAGED, text);
    return status;
}

/* Tells of documents that match their hash and still cannot be read. Returns 0 if the walk may go
 * on. */
static int document_read(struct walk *walk, int status, const struct diag *why)
{
    char text[SCRUB_TEXT_MAX];
    if (reader_is_damage(status) && !walk->is_told) {
        snprintf(text, sizeof(text), "%.500s", diag_text(why, status));
        walk->found = 0;
        tell(walk, HEALTH_DAMAGED, text);
    }
    walk->is_told = false;
    return reader_is_damage(status) ? 0 : status;
}

/* --- objects ---------------------------------------------------------------------------------- */

/* The checkpoint's own objects are read as a whole; of older objects the chunks that it refers to,
 * if no other walk has read them. */
static bool next_object(struct reader_visitor *visitor, struct reader_object *ret)
{
    struct walk *walk = container_of(visitor, struct walk, visitor);
    const struct ckpt_id of = walk->ckpt->root.id;
    while (walk->next < walk->count) {
        const struct scan_piece *first = &walk->pieces[walk->next];
        size_t count = reader_object_pieces(walk->count - walk->next, first);
        bool older = first->id->term != of.term || first->id->step != of.step;
        walk->next += count;
        if (walk->skip > 0) {
            walk->skip--;
        } else if (older && !walk->ckpt->with_base) {
            walk->scrub->now.entry.objects++;
        } else {
            walk->found = 0;
            *ret = (struct reader_object){first->id, count, first, older};
            return true;
        }
    }
    return false;
}

static int object_done(struct reader_visitor *visitor, const struct object_scan *scan)
{
    struct walk *walk = container_of(visitor, struct walk, visitor);
    walk->scrub->now.counters.chunks_total += scan->chunks;
    walk->scrub->now.entry.objects++;
    return position_moved(walk->scrub);
}

/* Compares a part with the index, and reads its objects. */
static int part_read(struct walk *walk, size_t number, const struct part *part)
{
    struct diag why = DIAG_INIT;
    int status = reader_agrees(&walk->reader, number, part, &why);
    status = document_read(walk, status, &why);
    if (status != 0) {
        return status;
    }
    walk->pieces = reader_pieces(part);
    walk->count = part->chunk_count;
    walk->next = 0;
    walk->skip = walk->scrub->now.entry.objects;
    diag_clear(&why);
    status = walk->pieces ? reader_objects(&walk->source.reader, &walk->visitor, &why)
                          : CAIRN_E_NO_MEMORY;
    free(walk->pieces);
    walk->pieces = NULL;
    return status;
}

static int read_part(struct walk *walk, size_t number)
{
    struct entry_scrub *entry = &walk->scrub->now.entry;
    struct scratch scratch;
    struct part part;
    struct diag why = DIAG_INIT;
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = reader_part(&walk->reader, number, &scratch, &part, &why);
    status = status != 0 ? document_read(walk, status, &why) : part_read(walk, number, &part);
    scratch_fini(&scratch);
    if (status != 0) {
        return status;
    }
    entry->rank = walk->reader.parts[number].rank + 1;
    entry->objects = 0;
    return position_moved(walk->scrub);
}

/* Reads all that is not done. */
static int read_ckpt(struct walk *walk)
{
    struct diag why = DIAG_INIT;
    struct scrub *scrub = walk->scrub;
    bool is_new = scrub->now.entry.rank == 0;
    int status = reader_open(&walk->reader, &walk->source.reader, &walk->ckpt->root, true, &why);
    status = document_read(walk, status, &why);
    for (size_t i = 0; status == 0 && i < walk->reader.part_count; i++) {
        if (walk->reader.parts[i].rank >= scrub->now.entry.rank) {
            status = read_part(walk, i);
        }
    }
    if (status == 0 && is_new && scrub->now.entry.found == 0) { /* every part was read */
        diag_clear(&why);
        status = document_read(walk, reader_agrees_all(&walk->reader, &why), &why);
    }
    reader_fini(&walk->reader);
    reader_source_fini(&walk->source.reader);
    return status;
}

/* Called when all of it was read. If it was suspect or damaged and every byte is right, it is good
 * again: it was repaired from a copy, or a reader with bad memory had reported it. */
static void judge(struct walk *walk)
{
    struct scrub *scrub = walk->scrub;
    struct ckpt_id id = walk->ckpt->root.id;
    if (scrub->now.entry.found > 0) {
        scrub_tell(scrub, &(struct scrub_news){.kind = SCRUB_IS_DAMAGED, .id = id});
    } else if (walk->ckpt->health != HEALTH_VERIFIED) {
        struct event event = {
            .kind = EVENT_HEALTH, .id = id, .u.health = {.health = HEALTH_VERIFIED}};
        if (ask_event(&scrub->ask, scrub->run, &event, false, NULL) == 0) {
            scrub_tell(scrub, &(struct scrub_news){.kind = SCRUB_HEALED, .id = id});
        }
    }
    scrub->now.entry.ckpts++;
    scrub->now.counters.ckpts_total++;
}

int scrub_ckpt(struct scrub *scrub, const struct scrub_ckpt *ckpt)
{
    struct walk walk = {.scrub = scrub,
                        .ckpt = ckpt,
                        .source = {.reader.lost = on_lost,
                                   .ask = &scrub->ask,
                                   .store = catalog_store(scrub->options.catalog),
                                   .run = ckpt->root.run,
                                   .tries = TRIES_MAX,
                                   .pause_ms = RETRY_MS,
                                   .blames = true,
                                   .check = check,
                                   .tried = tried},
                        .visitor = {.next = next_object, .sink.found = found, .done = object_done}};
    struct entry_scrub *entry = &scrub->now.entry;
    CHECK(scrub->run);
    CHECK(entry->rank != SCRUB_ALL);
    store_source_init(&walk.source);
    scrub->now.id = ckpt->root.id;
    scrub_show(scrub);
    int status = read_ckpt(&walk);
    if (status != 0 && !walk.is_forgotten) {
        scrub->now.counters.errors_total += status == CAIRN_E_NO_MEMORY;
        return status;
    }
    if (!walk.is_forgotten) {
        judge(&walk);
    }
    entry->rank = SCRUB_ALL;
    entry->objects = 0;
    return position_moved(scrub);
}
