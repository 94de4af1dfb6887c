/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the scrubber, and its parts. One thing is in flight at a time: a store operation, a
 * piece of work, a question to the run, or a timer; its completion calls the next step. So there
 * are no races inside, and stopping is a flag that each completion looks at.
 *
 *   place.c: load the entry -> (begin) -> scrub.c: next run -> its record -> next checkpoint
 *        walk.c: manifest -> pages -> parts, rank by rank -> objects, range by range -> the end
 *   -> next checkpoint ... -> next run ... -> the pass has ended: save, sleep
 */
#ifndef CAIRN_SCRUB_SCRUB_PRIVATE_H
#define CAIRN_SCRUB_SCRUB_PRIVATE_H

#include "scrub/entry_scrub.h"
#include "scrub/pace.h"
#include "scrub/scrub.h"

#include "pipeline/object_scan.h"
#include "run/run_fetch.h"

enum {
    SCRUB_LOOK_MS = 5000,  /* how often to look again, without the duty or after a failure */
    SCRUB_SAVE_MS = 10000, /* between two saves of the position */
    SCRUB_STORE_DEADLINE_MS = 60000,
    SCRUB_RETRY_MS = 2000, /* pause after a read that failed for another reason than damage */
    SCRUB_TRIES_MAX = 5,
    WALK_FOUND_MAX = 32, /* findings of one checkpoint that are reported one by one */
    SCRUB_ENTRY_MAX = 256,
};

struct found {
    enum health health;
    char text[SCRUB_TEXT_MAX];
};

/* The walk through one checkpoint. */
struct walk {
    struct ckpt_id id;
    uint64_t seq;
    enum health health; /* the health when the walk began */
    /* Reads the chunks of the base that it refers to, because the base was not read or is not good.
     */
    bool with_base;
    uint32_t world_size, page_count, page, skip_objects;
    struct fetch_req fetch;
    struct scan_piece *pieces; /* of the present part, sorted */
    size_t piece_count, next;
    /* before: the scan before the first read of the present range. */
    struct object_scan scan, before;
    struct scan_sink sink;
    bool again; /* the range is being read a second time, and its findings are final */
    unsigned tries;
    uint8_t *memory;
    uint64_t memory_bytes;
    uint32_t pending_count; /* findings that are not reported yet */
    struct found pending[WALK_FOUND_MAX];
    uint32_t pending_more;
    enum health told; /* the lowest health that this walk has put into the record */
    void (*then)(struct scrub *scrub); /* the next step after the record was updated */
};

struct scrub {
    struct scrub_options options;
    struct timer timer;
    struct post post;
    void (*step)(struct scrub *scrub); /* the function that timer and post call */
    struct store_req req;
    struct work work;
    struct run_req event;
    bool busy; /* a store operation or a worker is under way */
    bool running, asked, closing;
    bool moved; /* the position has changed since it was saved */
    struct pace pace;
    struct entry_scrub entry;
    uint8_t raw[SCRUB_ENTRY_MAX]; /* the entry as stored; the guard compares with it */
    size_t raw_bytes;
    uint8_t will[SCRUB_ENTRY_MAX];
    size_t will_bytes;
    struct record_guard guard;
    struct record_change change;
    struct record_update update;
    uint64_t saved_ms;
    struct run *run;
    bool record_told; /* the run's record is damaged, and the finding names the remedy */
    struct run_snapshot_req snapshot;
    struct walk walk;
    struct scrub_status counters;
    struct scrub_finding recent[SCRUB_RECENT]; /* newest first */
    uint32_t recent_count;
    void (*closed)(void *user);
    void *closed_user;
};

/* scrub.c */

/* True if the pass was left; the caller does nothing more. */
bool scrub_must_stop(struct scrub *scrub);
void scrub_later(struct scrub *scrub, uint64_t ms, void (*step)(struct scrub *scrub));
void scrub_next_ckpt(struct scrub *scrub); /* called when the walk has ended */
void scrub_leave(struct scrub *scrub);     /* leaves the pass at its position; looks again later */
void scrub_tell(struct scrub *scrub, struct ckpt_id id, const struct found *found);
uint64_t scrub_load(struct scrub *scrub);
uint64_t scrub_now_ns(struct scrub *scrub);

/* place.c: the position entry in the store's record. */
void place_load(struct scrub *scrub, void (*then)(struct scrub *scrub));
/* Saves the position. If another daemon has moved the entry, the pass is left, and the entry is
 * read again. */
void place_save(struct scrub *scrub, void (*then)(struct scrub *scrub));
/* Saves the position if SCRUB_SAVE_MS have passed. */
void place_save_sometimes(struct scrub *scrub, void (*then)(struct scrub *scrub));

/* walk.c: starts at entry.rank and entry.objects. */
void walk_begin(struct scrub *scrub);
void walk_end(struct scrub *scrub); /* releases everything; safe when idle */

#endif
