/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a repair, and its parts. All but repair.c and the callbacks of ask.c run on the
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

enum { REPAIR_DEADLINE_MS = 60000, REPAIR_WAIT_MS = 100 /* longest wait */ };
#define REPAIR_SCRATCH_MAX ((size_t)8 << 30)

/* --- ask.c: questions to the loop; each call waits for the answer ----------------------------- */

/* What the record says about a checkpoint of which only parts are stored, and the wall time. */
struct origin {
    bool is_explained; /* committed, open or aborted under this open_id */
    bool is_known;     /* the term was granted; token and parent are the term's */
    struct token token;
    struct ckpt_id parent;
    int64_t wall_ns;
};

struct ask {
    struct post post;
    struct timer timer; /* runs until the pace allows the next operation */
    pthread_mutex_t lock;
    pthread_cond_t answered;
    bool done;
    void (*start)(struct repair *repair); /* called on the loop */
    struct store *store;
    struct store_req req;
    struct run_req event;
    struct run_snapshot_req snapshot;
    struct commit_fact *facts;
    size_t fact_count;
    struct ckpt_id id; /* argument of ask_explained() */
    uint64_t open_id;
    bool explained, has_info;
    struct origin origin;
    struct entry_info info;
    int status;
    struct diag diag;
};

/* What the record says about a checkpoint. */
struct commit_fact {
    struct ckpt_id id;
    uint64_t open_id, manifest_bytes;
    struct sha256 manifest_sha256;
    uint32_t world_size;
    enum health health;
};

int MUST_USE ask_init(struct repair *repair);
void ask_fini(struct repair *repair);
/* Runs a store operation and returns its status. The call sets done, store and deadline; the answer
 * is in io. Operations that move bytes of checkpoints wait for the pace. */
int MUST_USE ask_store(struct repair *repair, struct store *store, struct store_req *io);
/* Runs an event and returns its status. For a batch of one id the status is 0 only if its outcome
 * is MARK_DONE. */
int MUST_USE ask_event(struct repair *repair, const struct event *event, struct diag *diag);
/* Runs an event as ask_event() does. With `dry` it is only decided, and nothing is written. */
int MUST_USE ask_try_event(struct repair *repair, const struct event *event, bool dry,
                           struct diag *diag);
/* Asks whether the record accounts for the opening that made a manifest (state_explains). */
int MUST_USE ask_explained(struct repair *repair, struct ckpt_id id, uint64_t open_id, bool *ret,
                           struct diag *diag);
/* Returns NOT_FOUND if the run has no info entry. */
int MUST_USE ask_info(struct repair *repair, struct entry_info *ret, struct diag *diag);
int MUST_USE ask_origin(struct repair *repair, struct ckpt_id id, uint64_t open_id,
                        struct origin *ret, struct diag *diag);
/* Called when the run's record was replaced: the loop lists what is stored of the run again before
 * it answers anything else. */
void ask_look_again(struct repair *repair);
/* Gives all checkpoints that may still be read: committed and not reclaimed. *ret is malloc'ed. */
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
    /* Of the checkpoint at work: */
    struct store *store, *mirror; /* mirror is NULL if there is none */
    struct run *run;
    struct run_name name;
    struct ckpt_id id;
    char actor[REPAIR_ACTOR_MAX];
    uint64_t tail_from; /* first update of the record that nothing proves; 0 if none */
    struct commit_fact *facts;
    size_t fact_count;
    bool salvages; /* a salvage runs instead of a repair */
    struct salvage_options salvage;
    struct salvage_item *items;
    size_t item_count;
    bool items_untold;           /* not all items are listed, because memory was short */
    const struct remade *remade; /* documents that are not stored yet; NULL if none */
    uint8_t *memory;             /* holds a range, or a footer */
    size_t memory_bytes;
    pthread_mutex_t lock; /* guards status */
    struct repair_status status;
};

/* Returns status, which is not 0, and puts the text of `why`, if it has one, into diag. */
int MUST_USE repair_fail(struct diag *diag, int status, const struct diag *why);
/* Returns CANCELLED if the repair is to end. */
int MUST_USE repair_check(struct repair *repair, struct diag *diag);
void repair_add_line(struct repair *repair, bool mended, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void repair_count_read(struct repair *repair, uint64_t bytes);
/* Returns aligned memory of at least `bytes` bytes, or NULL if there is none. The next call may
 * free it. */
uint8_t *repair_memory(struct repair *repair, size_t bytes);
/* True if a store reports damage with it, not a failure of its own. */
bool repair_is_damage(int status);
void repair_random(struct repair *repair, uint64_t *ret);
const struct commit_fact *repair_fact(const struct repair *repair, struct ckpt_id id);
/* Adds a repair entry to the chain. Called before anything is replaced. */
int MUST_USE repair_audit(struct repair *repair, struct ckpt_id id, struct diag *diag,
                          const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* --- papers.c: manifest, pages and parts, each checked against the hash above it ------------ */

struct papers {
    const struct commit_fact *fact;
    bool mends;
    struct scratch scratch;
    struct manifest manifest;
    size_t part_count;
    struct part_ref *parts;
};

/* Reads manifest and pages. With `mends`, damaged ones are replaced from the mirror, and those that
 * cannot be are reported with repair_add_line(). Returns DAMAGED for these, and for any damaged one
 * without `mends`. The caller calls papers_fini() even after a failure. */
int MUST_USE papers_open(struct repair *repair, const struct commit_fact *fact, bool mends,
                         struct papers *ret, struct diag *diag);
void papers_fini(struct papers *papers);
struct paper_part {
    struct scratch scratch;
    struct part part;
};
/* Reads one part. The caller calls paper_part_fini() even after a failure. */
int MUST_USE papers_part(struct repair *repair, struct papers *papers, size_t number,
                         struct paper_part *ret, struct diag *diag);
void paper_part_fini(struct paper_part *part);

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
/* Does a FETCH: copies the document from repair->remade if it is there, and asks the store
 * otherwise. */
int MUST_USE remake_fetch(struct repair *repair, struct store_req *io);
/* Publishes the pages, then the manifest. Existing documents stay, damaged ones are replaced. May
 * be repeated. */
int MUST_USE remake_publish(struct repair *repair, const struct remade *remade, struct diag *diag);

/* --- survey.c --------------------------------------------------------------------------------- */

struct source { /* a whole copy of a broken chunk */
    struct store *store;
    struct object_id object;
    struct envelope envelope;
};

/* A broken object, with all the pieces that it must hold. */
struct broken {
    struct broken *next;
    struct object_id id;
    size_t count;
    struct scan_piece *pieces; /* sorted; their ids point to `id` */
    bool *bad;                 /* for each piece */
    struct source *sources;    /* for each piece; its store is NULL if there is no source */
    size_t bad_count;
    bool around;  /* padding or footer are damaged */
    bool missing; /* the object does not exist, so all its bytes are missing */
    bool mended;
    char first[REPAIR_TEXT_MAX];
};

struct survey {
    struct scratch scratch;
    bool tell;
    struct broken *broken; /* owned by the scratch */
    uint32_t hopeless; /* documents and objects that cannot even be decoded, and were reported */
    uint32_t found;    /* broken objects and hopeless ones */
};

void survey_init(struct survey *survey);
void survey_fini(struct survey *survey);
/* Reads the whole checkpoint. With `tell` it mends documents and reports the hopeless ones. */
int MUST_USE survey_ckpt(struct repair *repair, const struct commit_fact *fact, bool tell,
                         struct survey *ret, struct diag *diag);
/* Returns the health that follows from the things that are broken and not mended. Damage outside
 * the chunks alone does not count as damage, because no restore reads there. */
enum health survey_health(const struct survey *survey);
/* The pieces of one object that are to be read, sorted. `at` is the name to read; it differs from
 * the pieces' id for a new object that does not have its final name yet. */
struct extent {
    const struct object_id *at;
    size_t count;
    const struct scan_piece *pieces;
    bool chunks_only;
};
struct damage {
    bool *bad; /* for each piece */
    size_t bad_count;
    bool around;
    char first[REPAIR_TEXT_MAX];
};
int MUST_USE survey_object(struct repair *repair, const struct extent *extent, struct damage *ret,
                           struct diag *diag);

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

/* --- salvage.c -------------------------------------------------------------------------------- */

int MUST_USE salvage_run(struct repair *repair, struct diag *diag);

/* --- rebuild.c -------------------------------------------------------------------------------- */

/* Builds the object anew; all its bad chunks have sources. A failure is reported as a line; an
 * error ends the repair. */
int MUST_USE rebuild_object(struct repair *repair, struct broken *broken, struct diag *diag);
enum { OBJECT_NAME_BYTES = 80 };
/* Such as 2@1/0-...-1. */
void rebuild_object_name(const struct object_id *id, char ret[OBJECT_NAME_BYTES]);

#endif
