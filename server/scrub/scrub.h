/* SPDX-License-Identifier: Apache-2.0
 *
 * scrub: on a schedule, reads everything that committed checkpoints consist of from the medium and
 * checks it: records, manifests, pages and parts against the hash above them, and every byte of
 * each object. A pass goes run by run, checkpoint by checkpoint. Its position is stored in the
 * store's record (entry_scrub.h), so that it goes on after a restart. Damage lowers the health of
 * the checkpoints that it touches, with a reason that names tensor and object; nothing is deleted
 * or rewritten.
 *
 * A scrub yields to sessions: see pace.h. The functions here are called on the loop's thread; a
 * pass is straight-line code on a thread of its own.
 */
#ifndef CAIRN_SCRUB_SCRUB_H
#define CAIRN_SCRUB_SCRUB_H

#include "run/run.h"

struct scrub;

enum { SCRUB_TEXT_MAX = 512, SCRUB_RECENT = 16 };

struct scrub_finding {
    struct run_name run;
    struct ckpt_id id;  /* term 0 if it is about the run's record */
    enum health health; /* the health now; SUSPECT if no restore reads the damaged bytes */
    int64_t wall_ns;
    char text[SCRUB_TEXT_MAX];
};

struct scrub_status {
    bool running, yielding, waiting; /* waiting: another daemon has the duty */
    uint64_t rate, every_ms;
    uint64_t pass; /* the pass that is running, or the last one; 0 if there was none */
    int64_t begun_wall_ns, ended_wall_ns; /* ended: of the last pass that ended; 0 if none has */
    struct run_name run;                  /* the position of the pass */
    struct ckpt_id id;
    uint64_t bytes, ckpts, findings; /* of the pass */
    /* Counters of this daemon since its start: */
    uint64_t bytes_total, chunks_total, ckpts_total, findings_total, errors_total;
    uint64_t healed_total; /* checkpoints that were found whole again */
    /* Findings, the newest first, each once, whatever number of passes made it. One about a run's
     * record stays until a later pass finds that record whole; it is the last to make room for
     * other findings. */
    uint32_t recent_count;
    const struct scrub_finding *recent[SCRUB_RECENT];
    uint32_t damaged_records; /* number of such findings */
};

struct scrub_options {
    struct loop *loop;
    struct catalog *catalog;
    struct work_pool *thread; /* of one thread, which may wait, and which nobody else uses */
    uint64_t every_ms;        /* from the end of a pass to the next one; 0 means only when asked */
    uint64_t rate;            /* bytes a second; 0 means as fast as possible */
    uint64_t save_ms;         /* how often the position is saved; 0 means 10 s */
    /* Bytes that sessions have moved so far; NULL if there are no sessions. */
    uint64_t (*load)(void *user);
    bool (*may_run)(void *user); /* asked between any two steps; NULL means always */
    /* Name of the daemon that may run if this one may not; "" or NULL if not known. */
    const char *(*holder)(void *user);
    void (*found)(void *user, const struct scrub_finding *finding);
    void (*healed)(void *user, const struct run_name *run, struct ckpt_id id);
    void (*damaged)(void *user, const struct run_name *run,
                    struct ckpt_id id);     /* the whole checkpoint was read and is damaged */
    void (*turned)(void *user, bool began); /* a pass has begun or gone on (true), or has ended */
    void *user;
};

/* Starts the schedule. The options are copied. Returns NO_MEMORY. */
int MUST_USE scrub_new(const struct scrub_options *options, struct scrub **ret);
/* Returns false if another daemon has the duty; nothing that is asked for here begins before this
 * daemon has it. *ret_holder names that daemon, or is "" if it is not known. */
bool scrub_is_ours(const struct scrub *scrub, const char **ret_holder);
/* Begins a pass now, unless one is running. */
void scrub_now(struct scrub *scrub);
/* Sets the rate from now on and drops the delay that the old rate asks for. 0 means as fast as
 * possible. */
void scrub_set_rate(struct scrub *scrub, uint64_t rate);
/* Sets the interval from now on; 0 means only when asked. A pass that is running goes on. */
void scrub_set_every(struct scrub *scrub, uint64_t every_ms);
/* For others that read the store as a scrub does (repairs) and keep to its rate: the milliseconds
 * until they may go on, and the bytes that they have moved. */
uint64_t scrub_wait_ms(struct scrub *scrub);
void scrub_moved(struct scrub *scrub, uint64_t bytes);
/* May be called at any time. Pointers in the status are valid until the next turn of the loop. */
void scrub_status(const struct scrub *scrub, struct scrub_status *ret);
/* Ends after the read in flight, saves the position if possible, frees, then calls done. */
void scrub_close(struct scrub *scrub, void (*done)(void *user), void *user);

#endif
