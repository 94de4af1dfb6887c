/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk through one checkpoint, as the medium holds it: manifest, pages, then rank by rank the
 * part and its objects. The bytes of a range are checked on a worker. A range in which something is
 * wrong is read once more before it is reported, because a transfer may fail although the medium is
 * good. Then the record is updated and people are told, and the walk goes on: one damaged place
 * says nothing about the next.
 */
#include "scrub_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void get(struct scrub *scrub, enum store_kind kind, uint32_t number);
static void on_fetched(struct fetch_req *fetch);
static void next_page(struct scrub *scrub);
static void next_rank(struct scrub *scrub);
static void rank_done(struct scrub *scrub);
static void sort_run(struct work *work);
static void sort_done(struct work *work);
static void next_object(struct scrub *scrub);
static void object_done(struct scrub *scrub);
static void next_range(struct scrub *scrub);
static void read_range(struct scrub *scrub);
static void on_read(struct store_req *req);
static void check_run(struct work *work);
static void check_done(struct work *work);
static void range_done(struct scrub *scrub);
static void whole(struct scrub *scrub);

void walk_end(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    run_fetch_release(&walk->fetch);
    free(walk->pieces);
    free(walk->memory);
    walk->pieces = NULL;
    walk->memory = NULL;
    walk->memory_bytes = 0;
}

void walk_begin(struct scrub *scrub) { get(scrub, STORE_MANIFEST, 0); }

/* --- findings --------------------------------------------------------------------------------- */

static void add_found(struct walk *walk, enum health health, const char *text)
{
    if (walk->pending_count == WALK_FOUND_MAX) {
        walk->pending_more++;
        return;
    }
    struct found *found = &walk->pending[walk->pending_count++];
    found->health = health;
    snprintf(found->text, sizeof(found->text), "%s", text);
}

static void tell_people(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    for (uint32_t i = 0; i < walk->pending_count; i++) {
        scrub_tell(scrub, walk->id, &walk->pending[i]);
    }
    scrub->entry.found += walk->pending_count + walk->pending_more;
    scrub->entry.findings += walk->pending_count + walk->pending_more;
    scrub->counters.findings_total += walk->pending_more;
    walk->pending_count = walk->pending_more = 0;
    scrub_later(scrub, 0, walk->then);
}

/* Called when the record was told of damage. A checkpoint that is forgotten while we read it may
 * already have been collected, so a missing object is not reported as damage. */
static void on_told(struct run_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, event);
    struct walk *walk = &scrub->walk;
    if (req->status == CAIRN_E_NOT_FOUND) {
        walk->pending_count = walk->pending_more = 0;
        scrub->entry.rank = SCRUB_ALL;
        walk_end(scrub);
        scrub_later(scrub, 0, scrub_next_ckpt);
        return;
    }
    if (req->status != 0) {
        scrub
            ->counters
            /* People are told all the same; the next pass tells the record again. */
            .errors_total++;
    }
    tell_people(scrub);
}

/* Reports the pending findings: the record gets the worst of them, then people are told. */
static void tell(struct scrub *scrub, void (*then)(struct scrub *scrub))
{
    struct walk *walk = &scrub->walk;
    const struct found *worst = NULL;
    walk->then = then;
    for (uint32_t i = 0; i < walk->pending_count; i++) {
        if (!worst || walk->pending[i].health > worst->health) {
            worst = &walk->pending[i];
        }
    }
    if (!worst || worst->health <= walk->told) {
        tell_people(scrub);
        return;
    }
    walk->told = worst->health;
    scrub->event = (struct run_req){.done = on_told};
    scrub->event.event = (struct event){.kind = EVENT_HEALTH,
                                        .id = walk->id,
                                        .health = worst->health,
                                        .code = CAIRN_E_DAMAGED,
                                        .reason = worst->text};
    run_submit(scrub->run, &scrub->event);
}

static bool is_damage(int status)
{
    return status == CAIRN_E_DAMAGED || status == CAIRN_E_FORMAT || status == CAIRN_E_NOT_FOUND ||
           status == CAIRN_E_DIGEST_MISMATCH || status == CAIRN_E_IO;
}

/* --- documents -------------------------------------------------------------------------------- */

static void get(struct scrub *scrub, enum store_kind kind, uint32_t number)
{
    struct walk *walk = &scrub->walk;
    if (scrub_must_stop(scrub)) {
        return;
    }
    walk->fetch = (struct fetch_req){
        .id = walk->id, .kind = kind, .number = number, .fresh = true, .done = on_fetched};
    run_fetch(scrub->run, &walk->fetch);
}

static void get_again(struct scrub *scrub)
{
    get(scrub, scrub->walk.fetch.kind, scrub->walk.fetch.number);
}

static void charge(struct scrub *scrub, uint64_t bytes)
{
    pace_charge(&scrub->pace, scrub_now_ns(scrub), bytes);
    scrub->entry.bytes += bytes;
    scrub->counters.bytes_total += bytes;
}

/* Handles a document that could not be read. If it is damaged, that is a finding, and the walk goes
 * on behind it: behind a manifest nothing is known, behind a page only what other pages say, behind
 * a part comes the next rank. */
static void document_failed(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    int status = walk->fetch.status;
    enum store_kind kind = walk->fetch.kind;
    char text[SCRUB_TEXT_MAX];
    bool transient = !is_damage(status) && err_retry(status) != ERR_RETRY_NEVER;
    bool last = ++walk->tries >= SCRUB_TRIES_MAX;
    scrub->counters.errors_total += transient;
    if (transient && last) {
        scrub_leave(scrub); /* the store is not well: tries again later */
        return;
    }
    if (!last && (transient || status == CAIRN_E_IO)) {
        scrub_later(scrub, SCRUB_RETRY_MS, get_again);
        return;
    }
    walk->tries = 0;
    snprintf(text, sizeof(text), "%.500s", diag_text(&walk->fetch.diag, status));
    run_fetch_release(&walk->fetch);
    add_found(walk, HEALTH_DAMAGED, text);
    tell(scrub, kind == STORE_MANIFEST ? whole : kind == STORE_PAGE ? next_page : rank_done);
}

/* Called when a document was read and verified. The chunks of a part are then sorted, so that the
 * objects are read from front to back. */
static void on_fetched(struct fetch_req *fetch)
{
    struct scrub *scrub = container_of(fetch, struct scrub, walk.fetch);
    struct walk *walk = &scrub->walk;
    if (fetch->status != 0) {
        document_failed(scrub);
        return;
    }
    walk->tries = 0;
    charge(scrub, fetch->bytes);
    if (fetch->kind == STORE_PART) {
        scrub->busy = true;
        scrub->work = (struct work){.run = sort_run, .done = sort_done};
        work_submit(scrub->options.pool, &scrub->work);
        return;
    }
    if (fetch->kind == STORE_MANIFEST) {
        walk->page_count = fetch->manifest->page_count;
    }
    run_fetch_release(fetch);
    scrub_later(scrub, pace_wait_ms(&scrub->pace, scrub_now_ns(scrub), scrub_load(scrub)),
                next_page);
}

static void next_page(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    if (walk->page < walk->page_count) {
        get(scrub, STORE_PAGE, walk->page++);
    } else {
        next_rank(scrub);
    }
}

static void next_rank(struct scrub *scrub)
{
    if (scrub->entry.rank < scrub->walk.world_size) {
        get(scrub, STORE_PART, scrub->entry.rank);
    } else {
        whole(scrub);
    }
}

static void rank_done(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    walk_end(scrub);
    walk->skip_objects = 0;
    scrub->entry.rank++;
    scrub->entry.objects = 0;
    place_save_sometimes(scrub, next_rank);
}

/* --- objects ---------------------------------------------------------------------------------- */

/* Sorts the chunks of the part by their places. Called on a thread of the pool. */
static void sort_run(struct work *work)
{
    struct scrub *scrub = container_of(work, struct scrub, work);
    struct walk *walk = &scrub->walk;
    const struct part *part = walk->fetch.part;
    walk->pieces = calloc((size_t)part->chunk_count + 1, sizeof(*walk->pieces));
    if (walk->pieces) {
        scan_pieces_of(part, walk->pieces);
        scan_sort(part->chunk_count, walk->pieces);
    }
}

/* Called when the chunks of the part are sorted. */
static void sort_done(struct work *work)
{
    struct scrub *scrub = container_of(work, struct scrub, work);
    struct walk *walk = &scrub->walk;
    scrub->busy = false;
    if (!walk->pieces) {
        scrub->counters.errors_total++;
        scrub_leave(scrub); /* no memory at present */
        return;
    }
    walk->piece_count = walk->fetch.part->chunk_count;
    walk->next = 0;
    next_object(scrub);
}

/* Begins the next object. The checkpoint's own objects are read as a whole; of older objects the
 * chunks that it refers to, if no other walk has read them. */
static void next_object(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    while (walk->next < walk->piece_count) {
        const struct scan_piece *first = &walk->pieces[walk->next];
        bool older = first->id->term != walk->id.term || first->id->step != walk->id.step;
        walk->next += object_scan_begin(&walk->scan, walk->piece_count - walk->next, first, older);
        if (walk->skip_objects > 0) {
            walk->skip_objects--;
        } else if (older && !walk->with_base) {
            scrub->entry.objects++;
        } else {
            next_range(scrub);
            return;
        }
    }
    rank_done(scrub);
}

static void object_done(struct scrub *scrub)
{
    scrub->counters.chunks_total += scrub->walk.scan.chunks;
    scrub->entry.objects++;
    place_save_sometimes(scrub, next_object);
}

static void found(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                  const char *why)
{
    struct walk *walk = container_of(sink, struct walk, sink);
    char place[240], text[SCRUB_TEXT_MAX];
    scan_piece_text(piece, sizeof(place), place);
    snprintf(text, sizeof(text), "%s: %.150s", place, why);
    add_found(walk, where == SCAN_CHUNK ? HEALTH_DAMAGED : HEALTH_SUSPECT, text);
}

/* Makes room for the longest range: one chunk, or the footer. Returns false if there is no memory.
 */
static bool make_room(struct walk *walk)
{
    uint64_t bytes = round_up_u64(
        max_u64(LIMIT_CHUNK_BYTES + LIMIT_ALIGN_BYTES, walk->scan.footer_bytes), LIMIT_ALIGN_BYTES);
    if (walk->memory_bytes < bytes) {
        free(walk->memory);
        walk->memory = aligned_alloc(LIMIT_ALIGN_BYTES, bytes);
        walk->memory_bytes = walk->memory ? bytes : 0;
    }
    return walk->memory != NULL;
}

/* Plans the next range of the object and reads it. After the last one the object is done. */
static void next_range(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    walk->sink.found = found;
    walk->again = false;
    walk->tries = 0;
    if (!object_scan_next(&walk->scan, &walk->sink)) {
        tell(scrub, object_done); /* reports nothing if the object is done */
        return;
    }
    walk->before = walk->scan;
    read_range(scrub);
}

/* Reads the next range of an object, as soon as the pace allows it. */
static void read_range(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    if (scrub_must_stop(scrub)) {
        return;
    }
    uint64_t wait_ms = pace_wait_ms(&scrub->pace, scrub_now_ns(scrub), scrub_load(scrub));
    if (wait_ms > 0) {
        scrub_later(scrub, wait_ms, read_range);
        return;
    }
    if (!make_room(walk)) {
        scrub->counters.errors_total++;
        scrub_leave(scrub); /* no memory at present */
        return;
    }
    scrub->busy = true;
    scrub->req = (struct store_req){.op = STORE_READ,
                                    .run = scrub->entry.run,
                                    .object = *walk->scan.pieces[0].id,
                                    .offset = walk->scan.from,
                                    .bytes = walk->scan.bytes,
                                    .data = walk->memory,
                                    .to_end = walk->scan.in_footer,
                                    .from_medium = true,
                                    .deadline_ms = SCRUB_STORE_DEADLINE_MS,
                                    .done = on_read};
    store_submit(catalog_store(scrub->options.catalog), &scrub->req);
}

/* Handles a range that could not be read. It is tried again a few times; after that, damage is a
 * finding. */
static void read_failed(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    int status = scrub->req.status;
    bool last = ++walk->tries >= SCRUB_TRIES_MAX;
    if (!is_damage(status)) {
        scrub->counters.errors_total++;
    }
    if (!last && (!is_damage(status) || status == CAIRN_E_IO)) {
        scrub_later(scrub, SCRUB_RETRY_MS, read_range);
        return;
    }
    if (!is_damage(status) && err_retry(status) != ERR_RETRY_NEVER) {
        scrub_leave(scrub); /* the store is not well: tries again later */
        return;
    }
    object_scan_unreadable(&walk->scan, diag_text(&scrub->req.diag, status), &walk->sink);
    tell(scrub, range_done);
}

/* Called when the range was read. The pool verifies it. */
static void on_read(struct store_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, req);
    scrub->busy = false;
    if (scrub_must_stop(scrub)) {
        return;
    }
    if (req->status != 0) {
        read_failed(scrub);
        return;
    }
    charge(scrub, req->bytes);
    scrub->busy = true;
    scrub->work = (struct work){.run = check_run, .done = check_done};
    work_submit(scrub->options.pool, &scrub->work);
}

static void check_run(struct work *work)
{
    struct walk *walk = &container_of(work, struct scrub, work)->walk;
    object_scan_check(&walk->scan, walk->memory, &walk->sink);
}

/* Called when the range was verified. A range with damage is read once more before it is told. */
static void check_done(struct work *work)
{
    struct scrub *scrub = container_of(work, struct scrub, work);
    struct walk *walk = &scrub->walk;
    scrub->busy = false;
    if (scrub_must_stop(scrub)) {
        return;
    }
    if (walk->pending_count > 0 && !walk->again) {
        walk->again = true;
        walk->pending_count = walk->pending_more = 0;
        walk->scan = walk->before;
        read_range(scrub);
        return;
    }
    tell(scrub, range_done);
}

static void range_done(struct scrub *scrub)
{
    if (!scrub_must_stop(scrub)) {
        next_range(scrub);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

static void leave(struct scrub *scrub)
{
    walk_end(scrub);
    scrub->entry.rank = SCRUB_ALL;
    scrub->entry.objects = 0;
    scrub->entry.ckpts++;
    scrub->counters.ckpts_total++;
    place_save_sometimes(scrub, scrub_next_ckpt);
}

/* Called when the record says that the checkpoint is whole again. */
static void on_healed(struct run_req *req)
{
    struct scrub *scrub = container_of(req, struct scrub, event);
    if (req->status == 0) {
        scrub->counters.healed_total++;
        if (scrub->options.healed) {
            scrub->options.healed(scrub->options.user, &scrub->entry.run, scrub->walk.id);
        }
    }
    leave(scrub);
}

/* Called when all of the checkpoint was read. If it was suspect or damaged and every byte is right,
 * it is good again: it was repaired from a copy, or a reader with bad memory had reported it. */
static void whole(struct scrub *scrub)
{
    struct walk *walk = &scrub->walk;
    if (scrub->entry.found > 0 && scrub->options.damaged) {
        scrub->options.damaged(scrub->options.user, &scrub->entry.run, walk->id);
    }
    if (scrub->entry.found > 0 || walk->health == HEALTH_VERIFIED) {
        leave(scrub);
        return;
    }
    scrub->event = (struct run_req){.done = on_healed};
    scrub->event.event =
        (struct event){.kind = EVENT_HEALTH, .id = walk->id, .health = HEALTH_VERIFIED};
    run_submit(scrub->run, &scrub->event);
}
