/* SPDX-License-Identifier: Apache-2.0
 *
 * scrub: reads everything that committed checkpoints consist of, from the medium, on a schedule,
 * and checks it: records, manifests, pages and parts against the hash above them, of each object
 * every byte. A pass goes run by run, checkpoint by checkpoint; how far it is stands in the store's
 * record (entry_scrub.h), so that a restart goes on. Damage lowers the health of the
 * checkpoints that it touches, with a reason that names tensor and object; nothing is deleted or
 * rewritten.
 *
 * It yields: see pace.h. One loop's thread; the checks run in the catalogue's pool.
 */
#ifndef CAIRN_SCRUB_SCRUB_H
#define CAIRN_SCRUB_SCRUB_H

#include "run/run.h"

struct scrub;

enum { SCRUB_TEXT_MAX = 512, SCRUB_RECENT = 16 };

struct scrub_finding {
    struct run_name run;
    struct ckpt_id id;  /* term 0: the run's record */
    enum health health; /* as it is now: SUSPECT where no restore reads what is wrong */
    int64_t wall_ns;
    char text[SCRUB_TEXT_MAX];
};

struct scrub_status {
    bool running, yielding, waiting; /* waiting: it is another daemon's duty */
    uint64_t rate, every_ms;
    uint64_t pass;                        /* the one that runs, or the last one; 0: none yet */
    int64_t begun_wall_ns, ended_wall_ns; /* ended: of the last one that ended; 0: none */
    struct run_name run;                  /* where it is */
    struct ckpt_id id;
    uint64_t bytes, ckpts, findings; /* of the pass */
    /* counters of this daemon since its start: */
    uint64_t bytes_total, chunks_total, ckpts_total, findings_total, errors_total;
    uint64_t healed_total; /* checkpoints found whole again */
    /* Findings, the newest first. One of a run's record stays, whichever pass found it, until a
     * look at that record finds it whole; it is the last to make room for others. */
    uint32_t recent_count;
    const struct scrub_finding *recent[SCRUB_RECENT];
    uint32_t damaged_records; /* of them */
};

struct scrub_options {
    struct loop *loop;
    struct catalog *catalog;
    struct work_pool *pool;
    uint64_t every_ms;            /* from the end of a pass to the next; 0: only when asked */
    uint64_t rate;                /* bytes a second; 0: as fast as it goes */
    uint64_t save_ms;             /* how often the position is saved; 0: 10 s */
    uint64_t (*load)(void *user); /* bytes that sessions have moved so far; NULL: nobody else */
    bool (*may_run)(void *user);  /* between any two steps; NULL: always */
    const char *(*holder)(void *user); /* who may, where we may not; "" or NULL: not known */
    void (*found)(void *user, const struct scrub_finding *finding);
    void (*healed)(void *user, const struct run_name *run, struct ckpt_id id);
    void (*damaged)(void *user, const struct run_name *run,
                    struct ckpt_id id);     /* all of one was read, and something is wrong */
    void (*turned)(void *user, bool began); /* a pass began or went on, or ended */
    void *user;
};

int MUST_USE scrub_new(const struct scrub_options *options, struct scrub **ret);
/* False: it is another daemon's duty, and nothing that is asked for here begins before it is ours.
 * *ret_holder: whose; "" where that is not known. */
bool scrub_is_ours(const struct scrub *scrub, const char **ret_holder);
/* A pass begins now, unless one is running. */
void scrub_now(struct scrub *scrub);
/* From now on, without what the old rate still asks for. 0: as fast as it goes. */
void scrub_set_rate(struct scrub *scrub, uint64_t rate);
/* From now on; 0: only when asked. A pass that runs goes on. */
void scrub_set_every(struct scrub *scrub, uint64_t every_ms);
/* Others that read the store as a scrub does (repairs) keep to its rate: milliseconds until they
 * may go on, and what they moved. */
uint64_t scrub_wait_ms(struct scrub *scrub);
void scrub_moved(struct scrub *scrub, uint64_t bytes);
/* May be called at any time; pointers in it are valid until the next turn of the loop. */
void scrub_status(const struct scrub *scrub, struct scrub_status *ret);
/* Ends after the read in flight; the position is saved if it can be. Frees. */
void scrub_close(struct scrub *scrub, void (*done)(void *user), void *user);

#endif
