/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares the parts of the rados store to each other. Locks: `lock` guards the tables (open
 * objects, piece tables, records in memory); a record's own lock is held over its calls, so that a
 * daemon's updates of one run go one after the other. Never both but in the order record, lock.
 *
 *   name of a RADOS object             what it holds
 * In a project's namespace of the metadata pool, where CKPT is <run>/<term>-<step>:
 *   run.<run>                          the record of a run (rados_record.c)
 *   small/CKPT/<kind>-<number>-<tag>   a part, page or manifest (rados_small.c)
 *   stored/<run>                       which checkpoints have anything (rados_list.c)
 *   smalls/CKPT                        its small things, also those half there (rados_list.c)
 *   index/CKPT/<shard>                 its objects, and their pieces (rados_index.c)
 * In that namespace of the data pool: piece/CKPT/<rank>-<writer>-<sequence>/<epoch>-<n>
 * In the base namespace:
 *   store, store.copy                  the store record, and what never changes of it
 *   runs, runs.copy                    omap: "project/run"; either has all of them
 * In both kinds of namespace:
 *   lost/<object>/<version>            the keys of a damaged record (rados_lost.c)
 */
#ifndef CAIRN_STORE_RADOS_PRIVATE_H
#define CAIRN_STORE_RADOS_PRIVATE_H

#include "store_rados.h"

#include "base/list.h"
#include "hash/hash.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    RADOS_PIECE_BYTES = 4 << 20, /* of one RADOS object: larger ones are written more slowly */
    RADOS_INDEX_SHARDS = 16,     /* index objects of a checkpoint, chosen by rank */
    RADOS_LOG_KEPT = 128,        /* updates that a record keeps for daemons that are behind */
    RADOS_TABLES_KEPT = 1024,    /* piece tables in memory */
    RADOS_NAMED_FIRST = 64,      /* piece numbers that an object may use before it asks for more */
    RADOS_AT_ONCE = 16,          /* calls of one thread that are under way */
    RADOS_RUN_BUCKETS = 256,
    RADOS_KNOWN_MAX = 256, /* list entries that this daemon knows to exist */
    /* How long it believes that; another daemon removes entries of things that nobody writes. */
    RADOS_KNOWN_MS = 60000,
    /* How long it believes that of a small thing; a save that takes longer does not notice one more
     * round trip. */
    RADOS_AHEAD_MS = 10000,
    RADOS_MARK_BYTES = 16,
    RADOS_RETRIES = 64, /* tries of a guarded update after conflicts */
    RADOS_FORMAT_VERSION = 1,
    RADOS_LOST_FROM = 1 /* of a lost record: all of it is lost (rados_lost.c) */
};
#define RADOS_INCOMPAT_KNOWN  UINT64_C(0)
#define RADOS_RO_COMPAT_KNOWN UINT64_C(0)

struct piece {
    uint64_t offset;
    uint32_t bytes, number;
};

struct piece_table { /* of a sealed object: its pieces by offset, without overlap */
    unsigned refs;
    struct run_name run;
    struct object_id id;
    uint64_t epoch, bytes;
    uint32_t count;
    struct piece pieces[];
};

enum { RADOS_GATHER_MAX = 64 };
struct gather_part {
    const uint8_t *data;
    uint64_t bytes;
};
struct gather { /* several writes that become one piece; owned by its leader (rados_gather.c) */
    uint64_t offset, bytes;
    uint32_t piece;        /* index and number in its object */
    size_t count, members; /* members: threads that wait for its end, without the leader */
    bool shut, done;       /* shut: no write joins any more, and the object may be gone */
    int status;            /* valid if done */
    struct diag diag;
    struct gather_part parts[RADOS_GATHER_MAX];
};

struct open_object { /* created and not sealed; only this daemon knows it */
    struct list link;
    struct run_name run;
    struct object_id id;
    uint64_t bytes_max;
    bool failed, busy; /* busy: it is being sealed or aborted */
    uint32_t piece_count, piece_cap;
    uint32_t named; /* the index allows it piece numbers below this, for the sweep */
    struct piece *pieces;
    struct gather *forming; /* the gathering that the next write may join, or NULL */
};

struct rados_record { /* a cache; the record in the cluster is authoritative */
    struct rados_record *next;
    struct run_name run;
    pthread_mutex_t lock;
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
    struct record *record; /* NULL until it was read */
    struct sha256 last;    /* hash of the newest update's bytes */
    uint64_t sum;          /* checksum of its entries */
    uint64_t tried;        /* the version that our last update was to make; 0 if none */
    uint8_t tried_by[16];  /* the maker of that update */
    bool tried_won;        /* the log says that it succeeded */
    bool listed;           /* the list of runs has the run as made */
    unsigned users; /* between rados_run_lock() and rados_run_unlock(); under the store's lock */
};

struct rados_known {        /* a list entry that exists or is being made (rados_known.c) */
    struct store_name name; /* of a small thing; without a kind it is the checkpoint itself */
    uint64_t entered_ms, turn;
    bool entered, busy, dropped;
};

struct rados_store {
    struct store base;
    struct loop *loop;
    struct work_pool *pool;
    struct cluster *cluster;
    char space[CLUSTER_NAMESPACE_MAX];
    bool read_only;
    uint64_t writer;         /* random: identifies our updates (rados_record.c) */
    _Atomic uint64_t next;   /* counts this daemon's updates */
    _Atomic uint64_t now_ms; /* time of the loop at the last submit */
    size_t pending;
    pthread_mutex_t lock;
    pthread_mutex_t name_lock; /* guards requests for piece numbers; held over a call */
    struct list open;          /* open_object.link */
    pthread_cond_t gathered;   /* a gathering has grown, was shut, or has ended */
    unsigned gather_calls;     /* pieces that gatherings are writing */
    struct piece_table *tables[RADOS_TABLES_KEPT];
    struct rados_record *runs[RADOS_RUN_BUCKETS];
    struct rados_record store_record;
    struct rados_known known[RADOS_KNOWN_MAX];
    size_t known_next;
    pthread_cond_t known_changed; /* an entry is not being made any more */
    struct work close_work;
    void (*close_done)(void *user);
    void *close_user;
};

static inline struct rados_store *rados_of(struct store *store)
{
    return (struct rados_store *)store;
}

/* --- rados_names.c --- */
void rados_space_of(const struct rados_store *store, const struct run_name *run,
                    char ret[CLUSTER_NAMESPACE_MAX]);
void rados_name_index(const struct run_name *run, const struct object_id *id, unsigned shard,
                      char ret[CLUSTER_OBJECT_NAME_MAX]);
void rados_name_piece(const struct run_name *run, const struct object_id *id, uint64_t epoch,
                      uint32_t number, char ret[CLUSTER_OBJECT_NAME_MAX]);
void rados_name_small(const struct store_name *name, char ret[CLUSTER_OBJECT_NAME_MAX]);
enum { RADOS_KEY_MAX = 128 };
/* Writes "s/<rank>-<writer>-<sequence>" for a sealed object, "d/..." for one that is being deleted.
 * The keys of other states end with an epoch. */
void rados_key_object(char state, const struct object_id *id, char ret[RADOS_KEY_MAX]);
/* Writes "u/<rank>-<writer>-<sequence>/<epoch>" for an object that was begun and not sealed,
 * "w/..." for one that was swept once. */
void rados_key_begun(char state, const struct object_id *id, uint64_t epoch,
                     char ret[RADOS_KEY_MAX]);
bool rados_key_parse(const char *key, struct ckpt_id ckpt, struct object_id *ret);
bool rados_key_parse_begun(const char *key, struct ckpt_id ckpt, struct object_id *ret,
                           uint64_t *ret_epoch);
/* Translates a negative errno to Cairn's error. `what` is, for example, "write piece ...". With
 * `change` a time-out means OUTCOME_UNKNOWN. */
int rados_error(int rc, bool change, const char *what, struct diag *diag);
#ifdef __clang_analyzer__ /* it never returns 0 */
#define rados_error(...) diag_is_failure(rados_error(__VA_ARGS__))
#endif

/* --- rados_index.c --- */
struct rados_shard { /* the object that holds keys of an index or of a list */
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
};
void rados_shard_of(const struct rados_store *store, const struct run_name *run,
                    const struct object_id *id, unsigned number, struct rados_shard *ret);
/* Runs a compound operation on it. Returns 0 or a negative errno. */
int MUST_USE rados_shard_call(struct rados_store *store, const struct rados_shard *shard,
                              size_t count, struct cluster_step *steps);
struct rados_pages {                     /* the keys of an object, page by page */
    const char *space, *object, *prefix; /* no prefix: all keys */
    char after[CLUSTER_OBJECT_NAME_MAX];
    struct cluster_map map; /* the present page; the caller frees the last one */
    bool begun;
    int failure; /* a negative errno: the next page could not be read */
};
bool rados_pages_next(struct rados_store *store, struct rados_pages *pages);

/* Enters an object, which may then use piece numbers below RADOS_NAMED_FIRST. Returns EXISTS. */
int MUST_USE rados_index_begin(struct rados_store *store, const struct run_name *run,
                               const struct object_id *id, struct diag *diag);
/* Raises the limit of its piece numbers from `was` to `will`. Returns IO if the object was
 * swept. */
int MUST_USE rados_index_name(struct rados_store *store, const struct open_object *object,
                              uint32_t was, uint32_t will, struct diag *diag);
/* Enters the object as sealed. Returns EXISTS, or IO if the object was swept. */
int MUST_USE rados_index_seal(struct rados_store *store, const struct piece_table *table,
                              uint32_t named, struct diag *diag);
/* Removes the entry of an object. After a negative errno the entry may still be there. */
int MUST_USE rados_index_forget(struct rados_store *store, const struct run_name *run,
                                const struct object_id *id);
/* Decodes the value of an entry of req's object. Returns DAMAGED for a bad one. */
int MUST_USE rados_table_decode(const struct store_req *req, const struct cluster_pair *pair,
                                struct piece_table **ret, struct diag *diag);
/* Gives a reference to the table of req's object; rados_table_unref() ends it. Returns NOT_FOUND.
 * With `fresh` the table is not taken from memory. */
int MUST_USE rados_index_find(struct rados_store *store, const struct store_req *req, bool fresh,
                              struct piece_table **ret, struct diag *diag);
void rados_table_unref(struct rados_store *store, struct piece_table *table);
void rados_tables_free(struct rados_store *store);
int rados_op_stat(struct rados_store *store, struct store_req *req);
int rados_op_list_objects(struct rados_store *store, struct store_req *req);
int rados_op_delete_object(struct rados_store *store, struct store_req *req);

/* --- rados_object.c --- */
int rados_op_create(struct rados_store *store, struct store_req *req);
int rados_op_write(struct rados_store *store, struct store_req *req);
int rados_op_seal(struct rados_store *store, struct store_req *req);
int rados_op_abort(struct rados_store *store, struct store_req *req);
int rados_op_read(struct rados_store *store, struct store_req *req);
void rados_abort_all(struct rados_store *store);
/* Removes pieces. Pieces that cannot be removed now are garbage that the index still names. */
int MUST_USE rados_remove_pieces(struct rados_store *store, const struct piece_table *table,
                                 struct diag *diag);

/* --- rados_gather.c: all with the store's lock held --- */
/* Joins the write to a gathering that is forming, waits until that is written, and gives its status
 * in *ret. Returns false if there was none to join. */
bool rados_gather_join(struct rados_store *store, struct open_object *object,
                       const struct store_req *req, int *ret, struct diag *diag);
/* Begins a gathering with this write, as this piece, and returns when its turn has come. It is shut
 * then, the object may be gone, and rados_gather_end() must follow. */
void rados_gather_lead(struct rados_store *store, struct open_object *object, uint32_t piece,
                       const struct store_req *req, struct gather *ret);
void rados_gather_end(struct rados_store *store, struct gather *gather, int status,
                      const struct diag *diag);
/* Shuts the gathering that is forming, so that no write joins; called before the object is
 * freed. */
void rados_gather_shut(struct rados_store *store, struct open_object *object);
/* Gives its bytes in one place; the caller frees *ret_copy. Called without the lock. Returns
 * -ENOMEM. */
int MUST_USE rados_gather_bytes(const struct gather *gather, const void **ret, void **ret_copy);

/* --- rados_sweep.c --- */
int rados_op_sweep(struct rados_store *store, struct store_req *req);

/* --- rados_record.c --- */
void rados_record_init(struct rados_record *rec, const char *space, const char *object);
void rados_record_fini(struct rados_record *rec);
/* Brings the cache up to date with the cluster. The record's lock is held. */
int MUST_USE rados_record_refresh(struct rados_store *store, struct rados_record *rec,
                                  struct diag *diag);
int MUST_USE rados_record_update(struct rados_store *store, struct rados_record *rec,
                                 const struct record_update *update, uint64_t *ret_version,
                                 struct diag *diag);

void rados_record_drop(struct rados_record *rec); /* drops the cached record */
/* Makes an empty record of this version if there is no object, and caches it. */
int MUST_USE rados_record_begin(struct rados_store *store, struct rados_record *rec,
                                uint64_t version, struct diag *diag);

/* --- rados_lost.c: with the record's lock held --- */
/* Returns true for a failure to read a record that stays until somebody acts. */
bool rados_is_loss(int code);
/* Called after a refresh. Returns DAMAGED if there is no record and there has been one. The other
 * refreshes first. */
int MUST_USE rados_lost_check(struct rados_store *store, struct rados_record *rec,
                              struct diag *diag);
int MUST_USE rados_lost_refresh(struct rados_store *store, struct rados_record *rec,
                                struct diag *diag);
/* Sets the present record aside, as far as it can be read, and puts an empty one in its place. */
int MUST_USE rados_lost_renew(struct rados_store *store, struct rados_record *rec,
                              struct diag *diag);
int rados_op_record_cut(struct rados_store *store, struct store_req *req);

/* --- rados_runs.c --- */
/* Returns the run's entry, locked; the first call makes it. Returns NULL if there is no memory. */
void rados_run_unlock(struct rados_store *store, struct rados_record *run);
struct rados_record *rados_run_lock(struct rados_store *store, const struct run_name *name);
/* Tells whether a list of runs says that the run's record was made. For the run without a name it
 * tells whether there is any run. */
int MUST_USE rados_list_has_run(struct rados_store *store, const struct run_name *run, bool *ret,
                                struct diag *diag);
int rados_op_list_runs(struct rados_store *store, struct store_req *req);
int rados_op_record_get(struct rados_store *store, struct store_req *req);
int rados_op_record_update(struct rados_store *store, struct store_req *req);
int rados_op_usage(struct rados_store *store, struct store_req *req);
void rados_runs_free(struct rados_store *store);

/* --- rados_probe.c --- */
int rados_op_probe(struct rados_store *store, struct store_req *req);

/* --- rados_start.c --- */
int MUST_USE rados_start(struct rados_store *store, const struct store_rados_options *options,
                         struct diag *diag);

#endif
