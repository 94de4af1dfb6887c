/* SPDX-License-Identifier: Apache-2.0
 *
 * operations: what operations (saves, restores, calls) see of the engine that they belong to: its
 * state, its link, credit, the arena at the daemon, and how they hear of all that. An operation is
 * alive from its start until its last callback was delivered; callbacks are delivered from a post,
 * never from inside. Loop's thread.
 */
#ifndef CAIRN_ENGINE_OPERATIONS_H
#define CAIRN_ENGINE_OPERATIONS_H

#include "engine/engine.h"
#include "engine/link.h"
#include "pack/base_part.h"
#include "pipeline/encode_kit.h"
#include "share/agreement.h"
#include "share/layout.h"

enum {
    ENGINE_MAGIC = 0x43454e47,
    ENGINE_BASES = 2,
    ENGINE_WINDOW = 16 /* granted payload buffers that we hold or ask for */
};

/* An operation as the engine sees it: first come, first in its list. What is NULL is not told. */
struct engine_op;
struct engine_op_ops {
    void (*on_up)(struct engine_op *op);   /* the connection is there */
    void (*on_down)(struct engine_op *op); /* it is gone; its requests heard of it before */
    /* Ends it; callbacks come from a post. The first failure counts. */
    void (*fail)(struct engine_op *op, int status, const struct diag *diag);
    /* Of saves. Sends what credit allows. */
    void (*pump)(struct engine_op *op);
    uint64_t (*unsent)(const struct engine_op *op); /* payloads that it could use credit for */
    /* The arena or the turn came free. True: it still waits, and so does who is behind it. */
    bool (*go_on)(struct engine_op *op);
};

struct engine_op {
    struct list link; /* of the engine's list */
    const struct engine_op_ops *ops;
};

struct prepare { /* the arena ahead of the first save */
    struct work work;
    struct registered *set; /* a reference; NULL: nothing to prepare */
    struct arena *arena;
    struct gpu *gpu; /* NULL: the set has nothing on a device */
    uint64_t bytes;
    struct timer delay; /* a restore may follow, which wants the processors for itself */
    bool running;
};

struct hand { /* the arena at the daemon (prepare.c) */
    struct request request;
    uint64_t asked, held; /* generations of the arena; 0: none on this connection */
    bool refused;         /* on this connection */
    bool told;
    struct diag why; /* it was refused */
};

struct engine {
    uint32_t magic;
    struct engine_options options; /* label copied */
    struct link link;
    struct list saves, restores, calls; /* of struct engine_op */
    uint64_t op_count;                  /* for traces */
    void (*ready)(void *user, int status, const struct diag *diag);
    void *ready_user;
    bool ready_told, closing;
    struct post ready_post, closed_post;
    struct diag ready_diag;
    void (*closed)(void *user);
    void *closed_user;
    /* what this attempt is */
    uint32_t restores_begun; /* the ordinal of the newest restore */
    uint32_t restores_done;  /* the ordinal of the newest one that ended well: goes into OPEN */
    uint64_t newest_seen;    /* newest term at the first JOIN, or at the last restore */
    struct ckpt_id parent;
    uint32_t next_sequence; /* of this writer's objects: never restarts */
    struct {
        uint64_t step, open_id;
    } dead; /* the last opening that is known to be aborted */
    struct {
        uint64_t blocked_ms, persist_ms;
    } told; /* of the last committed save; goes into the next OPEN of rank 0, once */
    struct prepare prepare;
    struct encode_kit kit;
    struct hand hand;
    uint32_t calm_saves;  /* committed one after the other with lists that needed no verdict */
    uint32_t met_in_vain; /* times in a row that it went to hear of lists, and none was new */
    struct agreement agreement;
    struct base_part
        *bases[ENGINE_BASES]; /* parts that later saves may refer through, newest first */
    struct {
        bool known;
        uint32_t percent; /* of the bytes that the last save which looked found unchanged */
        uint32_t skipped; /* saves since, which did not look */
    } gain;
    bool pumping;
};

void engine_pump(struct engine *engine);         /* sends what credit allows, asks for more */
void engine_wake_stagers(struct engine *engine); /* the arena or the turn came free */
void engine_op_gone(struct engine *engine);      /* after an operation left its list */
/* The reason that ops are refused at once: closing, or a final failure of the link. 0: none. */
int engine_refuses(const struct engine *engine, struct diag *diag);
/* The parts that saves may refer to are not what the server has: the next save fetches. */
void engine_drop_bases(struct engine *engine);
/* Puts this rank, and the step where the text has none, in front of the text of a failure. */
void engine_name_failure(const struct engine *engine, uint64_t step, struct diag *diag);
/* Deadlines beyond a year are a year, so that sums of times cannot overflow. */
uint64_t engine_cut_deadline(uint64_t deadline_ms);
uint64_t engine_ms_left(const struct engine *engine, uint64_t end_ms);

/* prepare.c */
void engine_pin_arena(struct arena *arena, struct gpu *gpu); /* on a worker; gpu may be NULL */
void engine_log_arena(const struct engine *engine);          /* it was made, or made larger */
struct layout_options engine_layout_options(const struct engine *engine);
/* Has the daemon the arena as it is now? Asks it to take it, and engine_pump is called when the
 * answer comes. */
enum hand_answer { HAND_NO, HAND_WAIT, HAND_YES };
enum hand_answer hand_over(struct engine *engine);

#endif
