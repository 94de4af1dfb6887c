/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the engine share: the engine itself, and how its operations hear of the link.
 * An operation is alive from its start until its last callback was delivered; callbacks are
 * delivered from a post, never from inside.
 */
#ifndef CAIRN_ENGINE_PRIVATE_H
#define CAIRN_ENGINE_PRIVATE_H

#include "engine/engine.h"
#include "engine/link.h"
#include "pack/base_part.h"
#include "pack/encode_kit.h"
#include "share/agreement.h"
#include "share/layout.h"

enum {
    ENGINE_MAGIC = 0x43454e47,
    ENGINE_BASES = 2,
    ENGINE_WINDOW = 16 /* granted payload buffers that we hold or ask for */
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
    struct list saves, restores, calls;
    uint64_t op_count; /* for traces */
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
    struct prepare prepare;
    struct encode_kit kit;
    struct hand hand;
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

/* engine.c: called by the link */
void engine_on_up(struct engine *engine);
void engine_on_down(struct engine *engine);
void engine_on_final(struct engine *engine, int status, const struct diag *diag);
void engine_on_granted(struct engine *engine);
/* engine.c: called by operations */
void engine_pump(struct engine *engine);         /* sends what credit allows, asks for more */
void engine_wake_stagers(struct engine *engine); /* the arena or the turn came free */
void engine_op_gone(struct engine *engine);      /* after an operation left its list */
/* The reason that ops are refused at once: closing, or a final failure of the link. 0: none. */
int engine_refuses(const struct engine *engine, struct diag *diag);
/* prepare.c. wake: the connection is there, or the last save or restore went. */
void engine_prepare_init(struct engine *engine);
void engine_prepare_wake(struct engine *engine);
void engine_prepare_drop(struct engine *engine);
void engine_pin_arena(struct arena *arena, struct gpu *gpu); /* on a worker; gpu may be NULL */
void engine_log_arena(const struct engine *engine);          /* it was made, or made larger */
struct layout_options engine_layout_options(const struct engine *engine);
/* Puts this rank, and the step where the text has none, in front of the text of a failure. */
void engine_name_failure(const struct engine *engine, uint64_t step, struct diag *diag);
/* Deadlines beyond a year are a year, so that sums of times cannot overflow. */
uint64_t engine_cut_deadline(uint64_t deadline_ms);
uint64_t engine_ms_left(const struct engine *engine, uint64_t end_ms);

/* prepare.c: has the daemon the arena as it is now? Asks it to take it, and engine_pump is called
 * when the answer comes. */
enum hand_answer { HAND_NO, HAND_WAIT, HAND_YES };
enum hand_answer hand_over(struct engine *engine);
void hand_reset(struct engine *engine); /* a connection comes or goes */

/* save.c */
struct save;
void save_on_up(struct save *save);
void save_on_down(struct save *save);
void save_fail(struct save *save, int status, const struct diag *diag);
void save_wake(struct save *save);
bool save_is_staging(const struct save *save); /* has not left the queue for the arena */
void save_check_released(struct save *save);   /* lazy: may its caller go on? */
/* Somebody gave room back: what rests in a save in waves goes on. */
void save_room_more(struct save *save);
struct save *save_of_link(struct list *node);
/* save_base.c */
void engine_drop_bases(struct engine *engine);
/* save_stream.c */
void save_pump(struct save *save);
uint64_t save_unsent(const struct save *save); /* payloads that it could use credit for */

/* restore.c */
struct restore;
struct restore *restore_of_link(struct list *node);
void restore_on_up(struct restore *restore);
void restore_fail(struct restore *restore, int status, const struct diag *diag);

/* call.c */
struct call;
struct call *call_of_link(struct list *node);
void call_on_up(struct call *call);
void call_fail(struct call *call, int status, const struct diag *diag);

#endif
