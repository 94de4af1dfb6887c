/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share. All but repair.c and the callbacks of ask.c run on the
 * repair's thread.
 *
 *   survey.c: documents -> objects, range by range -> what is broken
 *   copies.c: where each broken chunk lies unbroken
 *   rebuild.c: the new object -> read back -> chain -> exchange
 *   survey.c once more: nothing is broken -> the record says so
 */
#ifndef CAIRN_REPAIR_REPAIR_PRIVATE_H
#define CAIRN_REPAIR_REPAIR_PRIVATE_H

#include "repair/repair.h"
#include "repair/salvage.h"

#include "format/manifest.h"
#include "pipeline/object_scan.h"
#include "run/build.h"

#include <pthread.h>
#include <stdatomic.h>

enum { REPAIR_DEADLINE_MS = 60000, REPAIR_WAIT_MS = 100 /* at most, before it looks again */ };
#define REPAIR_SCRATCH_MAX ((size_t)8 << 30)

/* --- ask.c: questions to the loop, waited for ------------------------------------------------- */

/* What the record says of a checkpoint that lies there as parts alone, and the wall time. */
struct origin {
    bool is_explained; /* committed, open, or aborted under this open_id */
    bool is_known;     /* the term was granted: token and parent are its own */
    struct token token;
    struct ckpt_id parent;
    int64_t wall_ns;
};

struct ask {
    struct post post;
    struct timer timer; /* until the pace lets it go on */
    pthread_mutex_t lock;
    pthread_cond_t answered;
    bool done;
    void (*start)(struct repair *repair); /* on the loop */
    struct store *store;
    struct store_req req;
    struct run_req event;
    struct run_snapshot_req snapshot;
    struct commit_fact *facts;
    size_t fact_count;
    struct ckpt_id id; /* of ask_explained() */
    uint64_t open_id;
    bool explained, has_info;
    struct origin origin;
    struct entry_info info;
    int status;
    struct diag diag;
};

/* What the record says of a checkpoint. */
struct commit_fact {
    struct ckpt_id id;
    uint64_t open_id, manifest_bytes;
    struct sha256 manifest_sha256;
    uint32_t world_size;
    enum health health;
};

int MUST_USE ask_init(struct repair *repair);
void ask_fini(struct repair *repair);
/* done, store and deadline are set here; the answer is in io. Its status is returned. What moves
 * bytes of checkpoints waits for the pace. */
int MUST_USE ask_store(struct repair *repair, struct store *store, struct store_req *io);
/* Its status; of a batch: DONE or an error. */
int MUST_USE ask_event(struct repair *repair, const struct event *event, struct diag *diag);
/* The same; dry: it is decided, and nothing is written. */
int MUST_USE ask_try_event(struct repair *repair, const struct event *event, bool dry,
                           struct diag *diag);
/* Does the record tell of the opening that made a manifest? */
int MUST_USE ask_explained(struct repair *repair, struct ckpt_id id, uint64_t open_id, bool *ret,
                           struct diag *diag);
/* NOT_FOUND: the run has none. */
int MUST_USE ask_info(struct repair *repair, struct entry_info *ret, struct diag *diag);
int MUST_USE ask_origin(struct repair *repair, struct ckpt_id id, uint64_t open_id,
                        struct origin *ret, struct diag *diag);
/* What is stored of the run is looked at again before anything else is answered: its record was
 * replaced. */
void ask_look_again(struct repair *repair);
/* All that may still be read: committed and not reclaimed. *ret is malloc'ed. */
int MUST_USE ask_commits(struct repair *repair, struct commit_fact **ret, size_t *ret_count,
                         struct diag *diag);

/* --- the repair ------------------------------------------------------------------------------- */

struct repair {
    struct repair_options options;
    struct work_pool *thread, *mirror_pool;
    struct work work;
    struct post post;
    struct ask ask;
    atomic_bool closing;
    void (*closed)(void *user);
    void *closed_user;
    /* of the checkpoint at work: */
    struct store *store, *mirror; /* mirror: NULL: none */
    struct run *run;
    struct run_name name;
    struct ckpt_id id;
    char actor[REPAIR_ACTOR_MAX];
    uint64_t tail_from; /* of the record's updates that nothing proves, the first; 0: none */
    struct commit_fact *facts;
    size_t fact_count;
    bool salvages; /* instead */
    struct salvage_options salvage;
    struct salvage_item *items;
    size_t item_count;
    bool items_untold;           /* for want of memory */
    const struct remade *remade; /* documents that are not on the medium yet; NULL: none */
    uint8_t *memory;             /* a range, or a footer */
    size_t memory_bytes;
    pthread_mutex_t lock; /* guards status */
    struct repair_status status;
};

/* status (not 0), with why's words where it has some. */
int MUST_USE repair_fail(struct diag *diag, int status, const struct diag *why);
/* CANCELLED when the repair is to end. */
int MUST_USE repair_check(struct repair *repair, struct diag *diag);
void repair_add_line(struct repair *repair, bool mended, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void repair_count_read(struct repair *repair, uint64_t bytes);
/* At least so many bytes, aligned. NULL: no memory. */
uint8_t *repair_memory(struct repair *repair, size_t bytes);
bool repair_is_damage(int status); /* what a store says of damage, not of itself */
void repair_random(struct repair *repair, uint64_t *ret);
const struct commit_fact *repair_fact(const struct repair *repair, struct ckpt_id id);
/* Into the chain, before anything is replaced. */
int MUST_USE repair_audit(struct repair *repair, struct ckpt_id id, struct diag *diag,
                          const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* --- papers.c: manifest, pages, parts, each against the hash above it ------------------------- */

struct papers {
    const struct commit_fact *fact;
    bool mends;
    struct scratch scratch;
    struct manifest manifest;
    size_t part_count;
    struct part_ref *parts;
};

/* mends: what is damaged is taken from the mirror and put in place; what cannot be is told with
 * repair_add_line(). DAMAGED then, and without mends. papers_fini() also after a failure. */
int MUST_USE papers_open(struct repair *repair, const struct commit_fact *fact, bool mends,
                         struct papers *ret, struct diag *diag);
void papers_fini(struct papers *papers);
struct paper_part {
    struct scratch scratch;
    struct part part;
};
/* paper_part_fini() also after a failure. */
int MUST_USE papers_part(struct repair *repair, struct papers *papers, size_t number,
                         struct paper_part *ret, struct diag *diag);
void paper_part_fini(struct paper_part *part);

/* --- remake.c: a manifest made again from the parts of its checkpoint ------------------------- */

struct remade { /* id, open_id and world_size are the caller's */
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t world_size;
    struct scratch scratch;
    struct part *parts;
    struct entry_seal *seals;
    struct entry_open open;
    bool is_built;
    struct build build;
};

/* Sets io->world_size: what the first of the parts 0 to part_count - 1 says that can be read; 0:
 * none can. */
int MUST_USE remake_world(struct repair *repair, struct remade *io, uint32_t part_count,
                          struct diag *diag);
/* Reads the parts of all ranks, and makes pages and manifest, in memory. NOT_FOUND: a part is
 * missing. DAMAGED: one is damaged, or a page that is here was made from other parts. Else as
 * build_checkpoint(). remake_fini() also after a failure. */
int MUST_USE remake_build(struct repair *repair, const struct origin *origin, struct remade *io,
                          struct diag *diag);
void remake_fini(struct remade *remade);
/* FETCH: a copy of what repair->remade has, everything else from the store. */
int MUST_USE remake_fetch(struct repair *repair, struct store_req *io);
/* Pages first. What is there already stays; what is damaged is replaced. May be repeated. */
int MUST_USE remake_publish(struct repair *repair, const struct remade *remade, struct diag *diag);

/* --- survey.c --------------------------------------------------------------------------------- */

struct source { /* of a broken chunk */
    struct store *store;
    struct object_id object;
    struct envelope envelope;
};

/* An object of which something is wrong, with all that it must hold. */
struct broken {
    struct broken *next;
    struct object_id id;
    size_t count;
    struct scan_piece *pieces; /* sorted; their ids are &id */
    bool *bad;                 /* by piece */
    struct source *sources;    /* by piece; store NULL: none */
    size_t bad_count;
    bool around;  /* padding or footer are wrong */
    bool missing; /* there is no such object: none of its bytes are wrong, all are gone */
    bool mended;
    char first[REPAIR_TEXT_MAX];
};

struct survey {
    struct scratch scratch;
    bool tell;
    struct broken *broken; /* owned by the scratch */
    uint32_t hopeless;     /* what cannot even be taken apart, and was told */
    uint32_t found;        /* broken objects and hopeless ones */
};

void survey_init(struct survey *survey);
void survey_fini(struct survey *survey);
/* Reads all of the checkpoint. tell: mend documents, and say what is hopeless. */
int MUST_USE survey_ckpt(struct repair *repair, const struct commit_fact *fact, bool tell,
                         struct survey *ret, struct diag *diag);
/* Of what is broken and not mended. No restore reads what is around the chunks: that alone is no
 * damage to it. */
enum health survey_health(const struct survey *survey);
/* What of an object is read: pieces of one, sorted; at: its name, which a new one has not yet. */
struct extent {
    const struct object_id *at;
    size_t count;
    const struct scan_piece *pieces;
    bool chunks_only;
};
struct damage {
    bool *bad; /* by piece */
    size_t bad_count;
    bool around;
    char first[REPAIR_TEXT_MAX];
};
int MUST_USE survey_object(struct repair *repair, const struct extent *extent, struct damage *ret,
                           struct diag *diag);

/* --- object_layout.c: what an object of an older checkpoint must hold
 * -------------------------------- */

/* From that checkpoint's part, or from the object's own footer, here or in the mirror. NOT_FOUND:
 * nobody knows. */
int MUST_USE layout_of(struct repair *repair, const struct object_id *id, struct scratch *scratch,
                       struct broken *ret, struct diag *diag);
/* A copy of the pieces, which are of one object. */
int MUST_USE layout_copy(size_t count, const struct scan_piece *pieces, struct scratch *scratch,
                         struct broken *ret);

/* --- copies.c --------------------------------------------------------------------------------- */

/* Sets the sources of what is bad, where there are any. */
int MUST_USE copies_find(struct repair *repair, struct survey *survey, struct diag *diag);
/* The stored bytes of `wanted` from a source, checked. room: LIMIT_CHUNK_BYTES * 2.
 * DAMAGED: that is no copy (any more). */
int MUST_USE copies_get(struct repair *repair, const struct source *source,
                        const struct envelope *wanted, uint8_t *ret, struct diag *diag);

/* --- repair_record.c -------------------------------------------------------------------------- */

/* The run's record. What is left of the damage is told; an error: it could not be looked at. */
int MUST_USE repair_record(struct repair *repair, struct diag *diag);

/* --- salvage.c -------------------------------------------------------------------------------- */

int MUST_USE salvage_run(struct repair *repair, struct diag *diag);

/* --- rebuild.c -------------------------------------------------------------------------------- */

/* All of its bad chunks have sources. What went wrong is told; an error is what ends the repair. */
int MUST_USE rebuild_object(struct repair *repair, struct broken *broken, struct diag *diag);
enum { OBJECT_NAME_BYTES = 80 };
void rebuild_object_name(const struct object_id *id, char ret[OBJECT_NAME_BYTES]); /* 2@1/0-...-1 */

#endif
