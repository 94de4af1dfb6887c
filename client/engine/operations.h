/* SPDX-License-Identifier: Apache-2.0
 *
 * operations: what an operation (save, restore, call) sees of the engine that it belongs to: the
 * engine's state, its link, its credit, the arena at the daemon, and how the operation hears of
 * changes. An operation is alive from its start until its last callback was delivered. Callbacks
 * are delivered from a post, never from inside a call. Loop's thread. */
#ifndef CAIRN_ENGINE_OPERATIONS_H
#define CAIRN_ENGINE_OPERATIONS_H

#include "engine/engine.h"
#include "engine/link.h"
#include "pack/base_part.h"
#include "pipeline/encode_pool.h"
#include "share/agreement.h"
#include "share/layout.h"

enum {
    ENGINE_MAGIC = 0x43454e47,
    ENGINE_BASES = 2,
    ENGINE_WINDOW = 16 /* payload buffers that this client holds grants for or asks for, at most */
};

/* An operation as the engine sees it. Operations stay in the order of their start. A callback that
 * is NULL is not called. */
struct engine_op;
struct engine_op_ops {
    void (*on_up)(struct engine_op *op); /* the connection is up */
    /* The connection is gone; its requests have already heard of it. */
    void (*on_down)(struct engine_op *op);
    /* Ends the operation; its callbacks come from a post. Only the first failure counts. */
    void (*fail)(struct engine_op *op, int status, const struct diag *diag);
    /* The rest is for saves. pump sends as much as credit allows. */
    void (*pump)(struct engine_op *op);
    uint64_t (*unsent)(const struct engine_op *op); /* how many payloads could use credit now */
    /* Called when arena space or the head of the queue becomes free. Returns true if this operation
     * is still waiting; the operations behind it must then wait as well. */
    bool (*go_on)(struct engine_op *op);
    /* Returns whether little is lost if the connection is given up now. */
    bool (*may_move)(const struct engine_op *op);
};

struct engine_op {
    struct list link; /* in the engine's list of its kind */
    const struct engine_op_ops *ops;
};

/* A step that this rank has declined, and of which it still has to tell the other ranks
 * (save_untold.c). */
struct untold {
    struct list link; /* of engine->untold */
    uint64_t step, end_ms;
    struct diag why;
};

struct prepare { /* making the arena ahead of the first save */
    struct work work;
    struct registered *set; /* holds a reference; NULL if there is nothing to prepare */
    struct arena *arena;
    struct gpu *gpu; /* NULL if no tensor of the set is on a device */
    uint64_t bytes;
    struct timer delay; /* a restore may follow at once, and it wants the processors for itself */
    bool running;
};

struct hand { /* the arena at the daemon (prepare.c) */
    struct request request;
    uint64_t asked, held; /* generations of the arena; 0 if none on this connection */
    bool refused;         /* the daemon refused the arena on this connection */
    bool told;            /* the refusal has been logged */
    struct diag why;      /* the reason of the refusal */
};

/* An engine. It owns the link, its operations and what later saves learn from earlier ones. It is
 * freed when it is closed and its lists are empty. */
struct engine {
    uint32_t magic;
    struct engine_options options; /* label is a copy */
    struct link link;
    struct list saves, restores, calls; /* of struct engine_op */
    struct list untold;                 /* of struct untold, oldest first */
    uint32_t telling;                   /* saves that tell of such steps now */
    bool outage;       /* a save was skipped for want of a server, and none is durable since */
    uint64_t op_count; /* numbers the operations in the order of their starts */
    void (*ready)(void *user, int status, const struct diag *diag);
    void *ready_user;
    bool ready_told, closing;
    struct post ready_post, closed_post;
    struct diag ready_diag;
    void (*closed)(void *user);
    void *closed_user;
    /* The attempt that this engine is part of. */
    uint32_t restores_begun; /* the ordinal of the newest restore */
    uint32_t restores_done;  /* the ordinal of the newest one that ended well; goes into OPEN */
    uint64_t newest_seen;    /* newest term at the first JOIN, or at the last restore */
    struct ckpt_id parent;
    uint32_t next_sequence; /* of this writer's objects; it never restarts */
    struct {
        uint64_t step, open_id;
    } dead; /* the last opening that is known to be aborted */
    struct {
        uint64_t blocked_ms, staged_ms, persist_ms;
    } told; /* durations of the last committed save; rank 0's next OPEN tells them, once */
    struct prepare prepare;
    struct encode_pool encode_pool;
    struct hand hand;
    uint32_t calm_saves; /* committed in a row with lists that needed no verdict */
    /* How many times in a row this rank went to the first server to hear about lists, and no list
     * was new. */
    uint32_t failed_meetings;
    struct agreement agreement;
    /* Parts that later saves may refer to, newest first. Each entry is a reference, or NULL. */
    struct base_part *bases[ENGINE_BASES];
    struct {
        bool known;
        /* The share of bytes that the last save which compared with a base found unchanged. */
        uint32_t percent;
        uint32_t skipped; /* saves since then that did not compare */
    } gain;
    bool pumping; /* engine_pump is running */
};

void engine_pump(struct engine *engine); /* sends what credit allows, and asks for more */
/* Arena space or the head of the queue became free. */
void engine_wake_stagers(struct engine *engine);
/* Returns whether nothing is under way over the connection that would have to begin anew
 * elsewhere. */
bool engine_may_move(const struct engine *engine);
/* Returns whether no more than one operation is under way, so that it may choose the server. */
bool engine_has_one_op(const struct engine *engine);
void engine_op_gone(struct engine *engine); /* called after an operation has left its list */
/* Returns 0, or the reason why new operations are refused at once: the engine is closing, or the
 * link has failed for good. */
int engine_refuses(const struct engine *engine, struct diag *diag);
/* Forgets the bases, because they are not what the server has. The next save fetches its base. */
void engine_drop_bases(struct engine *engine);
/* Puts the rank in front of the text of a failure, and the step if the text does not name it. */
void engine_name_failure(const struct engine *engine, uint64_t step, struct diag *diag);
/* Returns the deadline, or one year if it is longer, so that sums of times cannot overflow. */
uint64_t engine_cut_deadline(uint64_t deadline_ms);
uint64_t engine_ms_left(const struct engine *engine, uint64_t end_ms);

/* Writes what an ERROR says, and returns its code, which is negative in any case. */
int engine_read_error(const struct msg_error *error, struct diag *diag);

/* prepare.c */
void engine_pin_arena(struct arena *arena, struct gpu *gpu); /* runs on a worker; gpu may be NULL */
/* Called after the arena was made or enlarged. */
void engine_log_arena(const struct engine *engine);
struct layout_options engine_layout_options(const struct engine *engine);
/* Returns whether the daemon has the arena as it is now. If it does not, offers the arena to the
 * daemon and returns HAND_WAIT; engine_pump is called when the answer comes. */
enum hand_answer { HAND_NO, HAND_WAIT, HAND_YES };
enum hand_answer hand_over(struct engine *engine);

#endif
