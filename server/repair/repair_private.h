/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a repair, and its parts. All but repair.c runs on the repair's thread. Each file
 * calls only files that stand below it:
 *
 *   file               what it does
 *   copy.c             copies checkpoints from another store (copy_private.h)
 *   salvage.c          enters manifests that the record does not explain (salvage_private.h)
 *   repair.c           begins a work and ends it, on the loop
 *   repair_ckpt.c      repairs one checkpoint
 *   repair_record.c    mends the record of a run
 *   rebuild.c          writes a new object, reads it back, enters the chain, exchanges the two
 *   copies.c           finds where each broken chunk lies unbroken
 *   survey.c           finds what is broken
 *   object_layout.c    says what an object of an older checkpoint must hold
 *   reading.c          reads for the reader; takes a lost document from the mirror
 *   remake.c           makes a manifest again from the parts
 *   mirror.c           opens the other store when it is needed
 *   facts.c            says what the record knows of a checkpoint
 *   repair_work.c      keeps the lines that are told, and makes entries in the chain
 */
#ifndef CAIRN_REPAIR_REPAIR_PRIVATE_H
#define CAIRN_REPAIR_REPAIR_PRIVATE_H

#include "repair/repair.h"
#include "repair/salvage.h"

#include "reader/store_source.h"
#include "run/build.h"

#include <stdatomic.h>

struct repair_source {
    struct store_source store;
    struct repair *repair;
};

struct repair {
    struct repair_options options;
    struct work_pool *thread, *mirror_pool;
    struct work work;
    struct post post;
    struct ask ask;
    /* Both read the store; `mending` also takes a lost document from the mirror, and tells. */
    struct repair_source plain, mending;
    atomic_bool closing;
    void (*closed)(void *user);
    void *closed_user;
    /* Of the work at hand: */
    int (*task)(struct repair *repair, struct diag *diag);
    struct store *store, *mirror; /* mirror is NULL until it was opened */
    bool mirror_asked;            /* it was opened, or could not be */
    int mirror_status;            /* why it is asked nothing more; 0 if it is */
    struct diag mirror_why;
    struct run *run; /* NULL if nothing is at work */
    struct run_name name;
    struct ckpt_id id;
    char actor[REPAIR_ACTOR_MAX];
    uint64_t tail_from; /* first update of the record that nothing proves; 0 if none */
    struct commit_fact *facts;
    size_t fact_count;
    struct salvage_options salvage;
    struct salvage_item *items;
    size_t item_count;
    bool items_untold;           /* not all items are listed, because memory was short */
    const struct remade *remade; /* documents that are not stored yet; NULL if none */
    /* The same of a copy, one document; `data` is NULL if there is none. */
    const struct store_name *held_name;
    struct record_value held;
    pthread_mutex_t lock; /* guards status and mirror_text */
    struct repair_status status;
    char mirror_text[DIAG_TEXT_MAX]; /* what repair_mirror_fails() tells */
};

/* --- repair.c --------------------------------------------------------------------------------- */

struct repair_task {
    struct run_name run;
    struct ckpt_id id;
    const char *actor;
    int (*work)(struct repair *repair, struct diag *diag); /* called on the repair's thread */
    bool only_reads;                                       /* the store may be read-only */
};
/* Begins a work, with the errors of repair_begin(). */
int MUST_USE repair_start(struct repair *repair, const struct repair_task *task, struct diag *diag);

/* --- repair_ckpt.c ---------------------------------------------------------------------------- */

/* Repairs repair->id: examine, mend, examine again, and put the result into the record. */
int MUST_USE repair_ckpt(struct repair *repair, struct diag *diag);

/* --- facts.c: what the record says ------------------------------------------------------------ */

struct commit_fact {
    struct reader_root root;
    enum health health;
};

/* What the record says about an opening, and the wall time. */
struct origin {
    bool is_explained; /* the record accounts for it: the checkpoint was committed, or it was
                          aborted */
    bool is_open;      /* the checkpoint is being saved, perhaps by another opening */
    bool is_known;     /* the term was granted; token and parent are the term's */
    struct token token;
    struct ckpt_id parent;
    int64_t wall_ns;
    bool has_info;
    struct entry_info info; /* the run's */
};

/* Gives all checkpoints that may still be read: committed and not reclaimed. *ret is malloc'ed. */
int MUST_USE facts_commits(struct repair *repair, struct commit_fact **ret, size_t *ret_count,
                           struct diag *diag);
int MUST_USE facts_origin(struct repair *repair, struct ckpt_id id, uint64_t open_id,
                          struct origin *ret, struct diag *diag);

/* --- repair_work.c ---------------------------------------------------------------------------- */

/* Returns status, which is not 0, and puts the text of `why`, if it has one, into diag. */
int MUST_USE repair_fail(struct diag *diag, int status, const struct diag *why);
/* Returns CANCELLED if the repair is to end. */
int MUST_USE repair_check(struct repair *repair, struct diag *diag);
void repair_add_line(struct repair *repair, bool mended, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void repair_count_read(struct repair *repair, uint64_t bytes);
/* Reads a document that no hash stands above, from this store or another. The caller frees it. */
int MUST_USE repair_fetch_from(struct repair *repair, struct store *store,
                               const struct store_name *name, struct record_value *ret,
                               struct diag *diag);
/* The same from the repair's store. The bytes are the scratch's. */
int MUST_USE repair_fetch(struct repair *repair, const struct store_name *name,
                          struct scratch *scratch, struct record_value *ret, struct diag *diag);
void repair_random(struct repair *repair, uint64_t *ret);
const struct commit_fact *repair_fact(const struct repair *repair, struct ckpt_id id);
/* Adds a repair entry to the chain. Called before anything is replaced. */
int MUST_USE repair_audit(struct repair *repair, struct ckpt_id id, struct diag *diag,
                          const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* --- mirror.c --------------------------------------------------------------------------------- */

/* Called on the loop's thread when a work begins. */
int MUST_USE mirror_begin(struct repair *repair, struct diag *diag);
/* Returns 0 if repair->mirror may be asked: it is opened when this is called first. Otherwise the
 * reason: it was not named (NOT_FOUND), could not be opened, or has failed since. */
int MUST_USE mirror_open(struct repair *repair, struct diag *diag);
/* Notes the error of a question to the mirror. If it says nothing about what was asked, the mirror
 * itself has failed, and is asked nothing more. */
void mirror_failed(struct repair *repair, int status, const struct diag *why);
/* Writes what follows "there is no copy here": that there is none in the mirror either, or that the
 * mirror could not be asked. */
void mirror_place(const struct repair *repair, size_t bytes, char *ret);
enum { MIRROR_PLACE_BYTES = 360 };

/* --- reading.c -------------------------------------------------------------------------------- */

/* Sets up repair->plain and repair->mending for the work at hand. For each lost document `mending`
 * adds a line with repair_add_line(), which says whether it was replaced from the mirror. */
void reading_begin(struct repair *repair);
void reading_end(struct repair *repair); /* frees the memory for ranges */

/* --- remake.c: makes a manifest again from the parts of its checkpoint ---------------------- */

struct remade { /* id, open_id and world_size are set by the caller */
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

/* Sets io->world_size to the number that the first readable part of 0 to part_count - 1 states, or
 * to 0 if none can be read. */
int MUST_USE remake_world(struct repair *repair, struct remade *io, uint32_t part_count,
                          struct diag *diag);
/* Reads the parts of all ranks and builds pages and manifest in memory. Returns NOT_FOUND if a part
 * is missing. Returns DAMAGED if a part is damaged, or if an existing page was made from other
 * parts. Other errors are those of build_checkpoint(). The caller calls remake_fini() even after a
 * failure. */
int MUST_USE remake_build(struct repair *repair, const struct origin *origin, struct remade *io,
                          struct diag *diag);
void remake_fini(struct remade *remade);
/* Lends the bytes of a document if it is one of the new ones. */
bool remake_find(const struct remade *remade, const struct store_name *name,
                 struct record_value *ret);
/* Publishes the pages, then the manifest. Existing documents stay, damaged ones are replaced. May
 * be repeated. */
int MUST_USE remake_publish(struct repair *repair, const struct remade *remade, struct diag *diag);

/* --- survey.c --------------------------------------------------------------------------------- */

struct source { /* a whole copy of a broken chunk */
    struct store *store;
    struct object_id object;
    struct envelope envelope;
};

struct damage {
    bool *bad; /* for each piece */
    size_t bad_count;
    bool around;                 /* padding or footer are damaged */
    char first[REPAIR_TEXT_MAX]; /* the first of it, in words */
};

/* A broken object, with all the pieces that it must hold. */
struct broken {
    struct broken *next;
    struct object_id id;
    size_t count;
    struct scan_piece *pieces; /* sorted; their ids point to `id` */
    struct damage damage;
    struct source *sources; /* for each piece; its store is NULL if there is no source */
    bool missing;           /* the object does not exist, so all its bytes are missing */
    bool mended;
};

enum survey_how {
    SURVEY_DOCUMENTS, /* manifest, pages, parts; no objects */
    SURVEY_ALL,
    SURVEY_MEND /* all; documents are mended, and the hopeless ones reported */
};

struct survey {
    enum survey_how how;
    struct reader reader; /* manifest, and what the pages say */
    struct ckpt_id base;  /* the newest older checkpoint in whose objects chunks lie */
    struct scratch scratch;
    struct broken *broken; /* owned by the scratch */
    uint32_t hopeless; /* documents and objects that cannot even be decoded, and were reported */
    uint32_t found;    /* broken objects and hopeless ones */
    char first[REPAIR_TEXT_MAX]; /* the first of them, in words */
};

/* Reads a checkpoint. survey_fini() also after a failure. */
int MUST_USE survey_ckpt(struct repair *repair, const struct commit_fact *fact, enum survey_how how,
                         struct survey *ret, struct diag *diag);
void survey_fini(struct survey *survey);
/* Returns the health that follows from everything that is still broken. Damage
 * that hits no chunk makes the checkpoint suspect, not damaged, because no restore reads there. */
enum health survey_health(const struct survey *survey);
/* Reads one object. The name under which it is read differs from the one in its pieces while a new
 * object does not have its final name yet. */
int MUST_USE survey_object(struct repair *repair, const struct reader_object *object,
                           struct damage *ret, struct diag *diag);

/* --- object_layout.c: the pieces that an object of an older checkpoint must hold -------------- */

/* Finds the pieces from that checkpoint's part, or from the object's own footer, in the store or in
 * the mirror. Returns NOT_FOUND if there is no source. */
int MUST_USE layout_of(struct repair *repair, const struct object_id *id, struct scratch *scratch,
                       struct broken *ret, struct diag *diag);
/* Copies the pieces, which belong to one object. */
int MUST_USE layout_copy(size_t count, const struct scan_piece *pieces, struct scratch *scratch,
                         struct broken *ret);

/* --- copies.c --------------------------------------------------------------------------------- */

/* Sets the sources of the bad pieces, where there are any. */
int MUST_USE copies_find(struct repair *repair, struct survey *survey, struct diag *diag);
/* Reads the stored bytes of `wanted` from a source and checks them. `ret` has room for
 * LIMIT_CHUNK_BYTES * 2. Returns DAMAGED if the source is no copy, or is not one any more. */
int MUST_USE copies_get(struct repair *repair, const struct source *source,
                        const struct envelope *wanted, uint8_t *ret, struct diag *diag);

/* --- repair_record.c -------------------------------------------------------------------------- */

/* Mends the run's record. Damage that stays is reported as a line; an error means that the record
 * could not be examined. */
int MUST_USE repair_record(struct repair *repair, struct diag *diag);

/* --- rebuild.c -------------------------------------------------------------------------------- */

/* Builds the object anew; all its bad chunks have sources. A failure is reported as a line; an
 * error ends the repair. */
int MUST_USE rebuild_object(struct repair *repair, struct broken *broken, struct diag *diag);
enum { OBJECT_NAME_BYTES = 80 };
/* Such as 2@1/0-...-1. */
void rebuild_object_name(const struct object_id *id, char ret[OBJECT_NAME_BYTES]);

#endif
