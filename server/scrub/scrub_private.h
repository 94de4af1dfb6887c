/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share. One thing is in flight at a time: a store operation, a piece
 * of work, a question to the run, or a timer; its completion calls the next step. So there are no
 * races inside, and stopping is a flag that each completion looks at.
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
    SCRUB_LOOK_MS = 5000,  /* without a duty, or after a failure: look again */
    SCRUB_SAVE_MS = 10000, /* between two saves of the position */
    SCRUB_STORE_DEADLINE_MS = 60000,
    SCRUB_RETRY_MS = 2000, /* a read that failed without being damage */
    SCRUB_TRIES_MAX = 5,
    WALK_FOUND_MAX = 32, /* findings of one checkpoint that are told one by one */
    SCRUB_ENTRY_MAX = 256,
};

struct found {
    enum health health;
    char text[SCRUB_TEXT_MAX];
};

/* One checkpoint. */
struct walk {
    struct ckpt_id id;
    uint64_t seq;
    enum health health; /* as it was when the walk began */
    bool with_base;     /* its references are read here: its base was not, or is not good */
    uint32_t world_size, page_count, page, skip_objects;
    struct fetch_req fetch;
    struct scan_piece *pieces; /* of the part at hand */
    size_t piece_count, next;
    struct object_scan scan, before; /* before: as it was when the range was read first */
    struct scan_sink sink;
    bool again; /* the range is being read a second time: what is found now is so */
    unsigned tries;
    uint8_t *memory;
    uint64_t memory_bytes;
    uint32_t pending_count; /* found, not told yet */
    struct found pending[WALK_FOUND_MAX];
    uint32_t pending_more;
    enum health told;                  /* the lowest that the record was told in this walk */
    void (*then)(struct scrub *scrub); /* after the record was told */
};

struct scrub {
    struct scrub_options options;
    struct timer timer;
    struct post post;
    void (*step)(struct scrub *scrub); /* what timer and post call */
    struct store_req req;
    struct work work;
    struct run_req event;
    bool busy; /* store or worker have something */
    bool running, asked, closing;
    bool moved; /* the position, since it was saved last */
    struct pace pace;
    struct entry_scrub entry;
    uint8_t raw[SCRUB_ENTRY_MAX]; /* the entry as stored: the guard */
    size_t raw_bytes;
    uint8_t will[SCRUB_ENTRY_MAX];
    size_t will_bytes;
    struct record_guard guard;
    struct record_change change;
    struct record_update update;
    uint64_t saved_ms;
    struct run *run;
    bool record_told; /* the run's record is damaged, and its finding names the remedy */
    struct run_snapshot_req snapshot;
    struct walk walk;
    struct scrub_status counters;
    struct scrub_finding recent[SCRUB_RECENT]; /* the newest first */
    uint32_t recent_count;
    void (*closed)(void *user);
    void *closed_user;
};

/* scrub.c */
bool scrub_must_stop(struct scrub *scrub); /* then the pass was left; nothing more is to be done */
void scrub_later(struct scrub *scrub, uint64_t ms, void (*step)(struct scrub *scrub));
void scrub_next_ckpt(struct scrub *scrub); /* the walk has ended */
void scrub_leave(struct scrub *scrub);     /* the pass is left where it is; looked at again later */
void scrub_tell(struct scrub *scrub, struct ckpt_id id, const struct found *found);
uint64_t scrub_load(struct scrub *scrub);
uint64_t scrub_now_ns(struct scrub *scrub);

/* place.c: the entry of the store's record. */
void place_load(struct scrub *scrub, void (*then)(struct scrub *scrub));
/* An entry that somebody else has moved: the pass is left, and looked at anew. */
void place_save(struct scrub *scrub, void (*then)(struct scrub *scrub));
/* Saves when it is time to. */
void place_save_sometimes(struct scrub *scrub, void (*then)(struct scrub *scrub));

/* walk.c: from entry.rank and entry.objects on. */
void walk_begin(struct scrub *scrub);
void walk_end(struct scrub *scrub); /* lets go of everything; safe when idle */

#endif
