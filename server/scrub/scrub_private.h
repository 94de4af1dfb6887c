/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the scrubber, and its parts. A pass is straight-line code on a thread of its own,
 * which asks the loop for everything (reader/ask.h); the schedule, the pace and what others are
 * told live on the loop. Each file calls only files that stand below it:
 *
 *   file            what it does
 *   scrub.c         decides on the loop when a pass is due, ends it, and gives the status
 *   scrub_runs.c    goes from run to run: its record, then its checkpoints by sequence
 *   scrub_ckpt.c    reads one checkpoint, through the reader
 *   position.c      keeps in the store's record how far the pass is
 *   tell.c          tells the loop what was found, and asks it
 */
#ifndef CAIRN_SCRUB_SCRUB_PRIVATE_H
#define CAIRN_SCRUB_SCRUB_PRIVATE_H

#include "scrub/entry_scrub.h"
#include "scrub/pace.h"
#include "scrub/scrub.h"

#include "reader/store_source.h"

enum { SCRUB_SAVE_MS = 10000 /* between two saves of the position */, SCRUB_ENTRY_MAX = 256 };

/* What scrub_status() shows of a pass. */
struct scrub_shown {
    struct entry_scrub entry;
    struct ckpt_id id;
    struct scrub_status counters;
};

struct scrub {
    struct scrub_options options;
    struct ask ask;
    /* The loop's: */
    struct timer timer;
    struct post post;
    struct work work;
    struct pace pace;
    bool busy; /* the thread is at work */
    bool running, asked, closing;
    struct scrub_finding recent[SCRUB_RECENT]; /* newest first */
    uint32_t recent_count;
    void (*closed)(void *user);
    void *closed_user;
    /* The thread's while it is at work: */
    struct scrub_shown now;
    bool moved; /* the position has changed since it was saved */
    bool left;  /* the pass was not ended, or it is not known whether one is due */
    uint64_t saved_ms;
    uint8_t raw[SCRUB_ENTRY_MAX]; /* the entry as stored; the guard compares with it */
    size_t raw_bytes;
    struct run *run;      /* at which the pass is; NULL if there is none */
    pthread_mutex_t lock; /* guards shown */
    struct scrub_shown shown;
};

/* --- scrub_runs.c --------------------------------------------------------------------------- */

/* Looks whether a pass is under way or due, and goes on with it. An error leaves it where it is. */
int MUST_USE pass_run(struct scrub *scrub);

/* --- scrub_ckpt.c ----------------------------------------------------------------------------- */

struct scrub_ckpt {
    struct reader_root root;
    enum health health; /* by the record, before it is read */
    /* Reads the chunks of the base that it refers to, because the base was not read or is not good.
     */
    bool with_base;
};
/* Reads a checkpoint from the position on, and tells what is wrong with it. An error says that it
 * was not read to the end: CANCELLED, or the store is not well. */
int MUST_USE scrub_ckpt(struct scrub *scrub, const struct scrub_ckpt *ckpt);

/* --- position.c ------------------------------------------------------------------------------- */

/* Reads the position from the store's record. An error says that it cannot be read now. */
int MUST_USE position_load(struct scrub *scrub);
/* Saves the position. An error says that another daemon has moved the entry, and is at work. */
int MUST_USE position_save(struct scrub *scrub);
/* Notes that the position has moved, and saves it if it was not for a while. Returns
 * CANCELLED if the pass is to be left. */
int MUST_USE position_moved(struct scrub *scrub);

/* --- tell.c ----------------------------------------------------------------------------------- */

struct scrub_moment {
    uint64_t now_ms;
    int64_t wall_ns;
};
/* Returns CANCELLED if the pass is to be left: the daemon ends, or another one has the duty. */
int MUST_USE scrub_ask(struct scrub *scrub, struct scrub_moment *ret);
/* These three are called on the loop: whether this daemon has the duty; the milliseconds until a
 * pass is due, by the position that was read last; that a pass has begun or gone on, or has ended.
 */
bool scrub_may_run(const struct scrub *scrub);
uint64_t scrub_due_in_ms(const struct scrub *scrub);
void scrub_turn(struct scrub *scrub, bool running);
/* Makes what the thread has counted visible in the status. */
void scrub_show(struct scrub *scrub);
enum scrub_news_kind {
    SCRUB_FOUND,            /* people are told */
    SCRUB_LOOKED_AT_RECORD, /* what was found wrong with the run's record before is out of date */
    SCRUB_IS_DAMAGED,       /* all of it was read; term 0 means the run's record */
    SCRUB_HEALED,
};
struct scrub_news { /* about the run at hand */
    enum scrub_news_kind kind;
    struct ckpt_id id;
    enum health health; /* FOUND */
    const char *text;   /* FOUND */
};
void scrub_tell(struct scrub *scrub, const struct scrub_news *news);

#endif
