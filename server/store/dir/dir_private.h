/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and calls that the files of the directory store share. All functions but those of
 * store_dir.c run on threads of the work pool (or of the thread that opens the store) and block.
 * The numbers L1 to L28 are the rules of README.md.
 *
 * Locks, outermost first: dir_run.lock, dir_run.copying.lock, make_locks, admit_lock, then lock or
 * sync.lock (leaves).
 */
#ifndef CAIRN_STORE_DIR_PRIVATE_H
#define CAIRN_STORE_DIR_PRIVATE_H

#include "base/check.h"
#include "env/vfs.h"
#include "hash/hash.h"
#include "store/dir/store_dir.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    DIR_PATH_MAX = 256,
    DIR_NAME_MAX = 96,
    DIR_KNOWN_SLOTS = 512,
    DIR_MAKE_LOCKS = 16,
    DIR_OPEN_BUCKETS = 256,
    DIR_RUN_BUCKETS = 256,
    DIR_SYNC_FAILURES_MAX = 3, /* within DIR_SYNC_FAILURES_MS: the store becomes read-only (L5) */
    DIR_SYNC_FAILURES_MS = 10 * 60 * 1000,
    DIR_INODES_RESERVE = 64, /* kept free: a forget and a pass of gc need a few */
};

/* The feature bits that this version understands. */
#define DIR_RO_COMPAT_KNOWN UINT64_C(0)
#define DIR_INCOMPAT_KNOWN  UINT64_C(0)
#define DIR_FORMAT_VERSION  UINT64_C(1)
/* An open directory of the store. The path is relative to the store's root; the root is "". */
struct dir_at {
    vfs_fd fd;
    bool is_settling; /* an fsync may have failed; publishing settles it (dir_record.c) */
    char path[DIR_PATH_MAX];
};

/* What this incarnation of the store knows about a directory (L8, L11). */
enum dir_fact {
    DIR_IS_DURABLE = 1u << 0, /* its own name and those of all directories above it are durable */
    DIR_IS_SYNCED = 1u << 1,  /* it was fsynced since this store was opened */
};

struct dir_known {
    unsigned facts;
    char path[DIR_PATH_MAX];
};

struct dir_broken { /* an fsync of this directory failed: nothing is published in it any more */
    struct dir_broken *next;
    char path[DIR_PATH_MAX];
};

struct dir_sync {
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct dir_syncer *active;
    struct dir_broken *broken;
    struct dir_known known[DIR_KNOWN_SLOTS];
};

/* A record: a folder of numbered updates and snapshots, a second folder of snapshots alone, and the
 * decoded form. */
struct dir_record {
    char path[DIR_PATH_MAX], copy_path[DIR_PATH_MAX];
    struct record *record; /* NULL until it is loaded */
    struct sha256 last;    /* hash of the newest update; zero before the first one */
    uint64_t snapshots[2]; /* versions of the two newest valid ones; 0 if none */
    bool is_stuck;         /* the newest update may not be durable: none is accepted after it */
    uint64_t version_max;  /* if is_stuck: the newest version known to be durable */
    bool is_beside;        /* read beside a writer: files may vanish meanwhile; moves nothing */
    bool is_direct;        /* read from the disk, past the cache */
    bool is_unhealed; /* only the second place has all of it: it must be mended before an update */
    uint64_t lost_from; /* first update that neither place has, or 0; `record` ends before it */
    struct diag lost;   /* why it is lost */
    bool is_unreadable; /* because the folder above it cannot be listed */
    uint64_t newest;    /* version of its last file */
};

/* The copying of a run's record to its second place: dir_copy.c. */
struct dir_copying {
    struct dir_run *next;    /* next in the queue, under the store's lock */
    bool is_queued;          /* in the queue, under the store's lock */
    atomic_uint_fast64_t to; /* the newest version in the second place; 0 if none or not known */
    uint64_t due_ns;         /* loop's thread only: not copied before this time */
    pthread_mutex_t lock;    /* one thread at a time writes the copy */
    unsigned cuts; /* under that lock: counts cuts; bytes encoded before the last one are void */
};

struct dir_run {
    struct dir_run *next;
    struct run_name name;
    pthread_mutex_t lock; /* guards record */
    struct dir_record record;
    struct dir_copying copying;
};

struct dir_open; /* an unsealed object: dir_object.c */

struct dir_store {
    struct store base;
    struct loop *loop;
    struct work_pool *pool;
    struct vfs *vfs;
    char *path; /* for texts */
    vfs_fd root, lock_fd;
    uint64_t reserve_bytes;
    unsigned snapshot_every, copy_after_ms;
    bool read_only;            /* as opened, or because of an unknown ro-compat feature */
    bool is_shared;            /* opened read-only and without a lock: a daemon may be writing */
    atomic_bool is_degraded;   /* read-only because fsync failed too often */
    atomic_uint sync_failures; /* failures that the loop's thread has not counted yet */
    struct dir_run *own;       /* the store's own record */

    pthread_mutex_t lock; /* guards opens, runs, health, copies_wanted */
    struct dir_open *opens[DIR_OPEN_BUCKETS];
    struct dir_run *runs[DIR_RUN_BUCKETS];
    char health[DIAG_TEXT_MAX];
    unsigned health_count;
    pthread_mutex_t make_locks[DIR_MAKE_LOCKS]; /* by run: no directory goes while being filled */
    pthread_mutex_t admit_lock; /* held from the look at free space until the space is taken */
    struct dir_sync sync;

    struct dir_run *copies_wanted;

    /* Of the loop's thread only: */
    struct timer copy_timer;
    struct work copy_work;
    struct dir_run *copies;   /* runs that will be due for a copy */
    struct dir_run *copy_now; /* NULL while no copy is being written */
    uint64_t copy_begin_ns;
    unsigned pending;
    bool is_closing;
    uint64_t failure_ms[DIR_SYNC_FAILURES_MAX];
    unsigned failure_count;
    struct work close_work;
    void (*close_done)(void *user);
    void *close_user;
};

static inline struct dir_store *dir_of(struct store *store)
{
    return container_of(store, struct dir_store, base);
}

/* --- dir_layout.c: names ---------------------------------------------------------------------- */
void dir_path_record(const struct run_name *run, char ret[DIR_PATH_MAX]);
bool dir_parse_record(const char *path, struct run_name *ret);   /* false for the store's own */
void dir_path_copy_of(const char *path, char ret[DIR_PATH_MAX]); /* of a record's path */
void dir_path_objects(const struct run_name *run, struct ckpt_id id, char ret[DIR_PATH_MAX]);
void dir_path_checkpoint(const struct run_name *run, struct ckpt_id id, char ret[DIR_PATH_MAX]);
void dir_name_object(const struct object_id *id, char ret[DIR_NAME_MAX]);
/* Returns false for a name that dir_name_object() would not make. Leaves term and step alone. */
bool dir_parse_object(const char *name, struct object_id *ret);
void dir_name_small(const struct store_name *name, char ret[DIR_NAME_MAX]);
struct dir_name { /* lives in the expression that asks for it */
    char at[DIR_NAME_MAX];
};
struct dir_name dir_name_version(uint64_t version, bool is_snapshot);
/* Returns false for a name that dir_name_small() would not make. Leaves run and id alone. */
bool dir_parse_small(const char *name, struct store_name *ret);
bool dir_parse_ckpt(const char *name, struct ckpt_id *ret);
bool dir_parse_version(const char *name, uint64_t *ret_version, bool *ret_is_snapshot);
bool dir_name_is_temp(const char *name, uint64_t *ret_epoch);
void dir_path_copy(const char *path, char ret[DIR_PATH_MAX]); /* it is known to fit */
uint64_t dir_hash(const char *text);
uint64_t dir_hash_run(const struct run_name *run);

/* --- dir_sync.c: durability of directories ---------------------------------------------------- */
int MUST_USE dir_sync_init(struct dir_sync *sync);
void dir_sync_fini(struct dir_sync *sync);
bool dir_knows(struct dir_store *store, const char *path, enum dir_fact fact);
void dir_learn(struct dir_store *store, const char *path, enum dir_fact fact);
void dir_forget(struct dir_store *store, const char *path);
/* Makes the directory durable. One fsync serves all callers that wait for the same directory (L9).
 * After a failure the directory is broken for this incarnation (L5). */
int MUST_USE dir_sync_now(struct dir_store *store, const struct dir_at *at, struct diag *diag);
/* Makes durable, once, what an earlier incarnation left in the directory (L11). */
int MUST_USE dir_sync_once(struct dir_store *store, const struct dir_at *at, struct diag *diag);
/* Returns READ_ONLY if an fsync of the directory has failed. */
int MUST_USE dir_check_broken(struct dir_store *store, const char *path, struct diag *diag);
/* L5, loop's thread: makes the store read-only after too many failed fsyncs within minutes. */
void dir_count_failures(struct dir_store *store);

/* --- dir_file.c: directories and whole files -------------------------------------------------- */
int MUST_USE dir_at_open(struct dir_store *store, const char *path, struct dir_at *ret,
                         struct diag *diag);
void dir_at_close(struct dir_store *store, struct dir_at *at);
/* Makes the directory and its missing parents, durably (L8). The run's make lock must be held. */
int MUST_USE dir_make(struct dir_store *store, const char *path, struct diag *diag);
/* Makes the directory without making its own name durable. That is enough for temporaries, which
 * nobody was promised, and needs no disk access if the directories above are known. */
int MUST_USE dir_make_for_temps(struct dir_store *store, const char *path, struct diag *diag);
/* Makes the name of such a directory durable; called before the first name in it that must not be
 * lost. Something has to be in the directory until this returns, so that it is not removed. */
int MUST_USE dir_make_last(struct dir_store *store, const char *path, struct diag *diag);
void dir_temp_name(struct dir_store *store, char ret[DIR_NAME_MAX]);
/* Returns NOT_FOUND, or DAMAGED if the name is not a regular file (D23). */
int MUST_USE dir_stat_file(struct dir_store *store, const struct dir_at *at, const char *name,
                           struct vfs_stat *ret, struct diag *diag);
/* Calls fsync on a file and counts a failure (L5). */
int MUST_USE dir_fsync_file(struct dir_store *store, vfs_fd fd, struct diag *diag);
/* Renames temp to name durably, without replacing. Returns EXISTS, or OUTCOME_UNKNOWN if the name
 * is there but may not be durable, or if the outcome of the rename is unknown; temp is gone
 * otherwise. */
int MUST_USE dir_rename_durably(struct dir_store *store, const struct dir_at *at, const char *temp,
                                const char *name, struct diag *diag);
/* Called after OUTCOME_UNKNOWN by a failed fsync: removes the name, which nobody was told of.
 * Returns IO if it could, else OUTCOME_UNKNOWN. Not for records, whose numbers are guards. */
int MUST_USE dir_take_back(struct dir_store *store, const struct dir_at *at, const char *name,
                           struct diag *diag);
/* Writes a whole small file: temporary, fsync, rename, fsync of the directory. Errors as above. */
int MUST_USE dir_publish(struct dir_store *store, const struct dir_at *at, const char *name,
                         struct record_value value, struct diag *diag);
struct dir_bytes {
    uint64_t bytes, bytes_max; /* bytes_max: input, TOO_LARGE above it */
    bool direct;               /* input: read from the disk, past the cache if possible */
    uint64_t offset, range;    /* input: only so many bytes from there on; range 0 is all */
    uint8_t *data;             /* malloc'ed */
};
int MUST_USE dir_read_file(struct dir_store *store, const struct dir_at *at, const char *name,
                           struct dir_bytes *ret, struct diag *diag);
/* Removes a file, and also the directory if that was its last file. */
int MUST_USE dir_remove_file(struct dir_store *store, const struct run_name *run, const char *path,
                             const char *name, struct diag *diag);
struct dir_entry {
    enum vfs_kind kind;
    char name[256];
};
struct dir_entries {
    size_t count, cap;
    struct dir_entry *entries;
};
int MUST_USE dir_entries_list(struct dir_store *store, const struct dir_at *at,
                              struct dir_entries *ret, struct diag *diag);
void dir_entries_fini(struct dir_entries *entries);
pthread_mutex_t *dir_make_lock(struct dir_store *store, const struct run_name *run);
/* Adds a line to the store's health, which USAGE shows. */
void dir_note(struct dir_store *store, const char *fmt, ...) PRINTF(2, 3);
/* Moves a file that nothing needs, but that should not be as it is, to quarantine/ (L21). */
void dir_quarantine(struct dir_store *store, const struct dir_at *at, const char *name);

/* --- the operations --------------------------------------------------------------------------- */
int MUST_USE dir_op_create(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_write(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_seal(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_abort(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_read(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_stat(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_list_objects(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_delete_object(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_publish(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_fetch(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_exchange(struct dir_store *store, struct store_req *req); /* dir_exchange.c */
int MUST_USE dir_op_delete_small(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_list_small(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_list_ckpts(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_list_runs(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_record_get(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_record_update(struct dir_store *store, struct store_req *req);
/* dir_record_mend.c */
int MUST_USE dir_op_record_file(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_record_mend(struct dir_store *store, struct store_req *req);
int MUST_USE dir_op_record_cut(struct dir_store *store, struct store_req *req);
/* Returns the run's entry in the table, which the first call makes; NULL if there is no memory. */
struct dir_run *dir_run_find(struct dir_store *store, const struct run_name *name);
int MUST_USE dir_op_usage(struct dir_store *store, struct store_req *req);

/* --- dir_probe.c ------------------------------------------------------------------------------ */
const char *dir_room_remedy(const struct vfs_space *space); /* what helps if a save has no room */
int MUST_USE dir_op_probe(struct dir_store *store, struct store_req *req);
/* Returns NO_SPACE if no more inodes are free than are kept in reserve. */
int MUST_USE dir_check_inodes(const struct dir_store *store, const struct vfs_space *space,
                              struct diag *diag);
int MUST_USE dir_op_sweep(struct dir_store *store, struct store_req *req);
/* Returns true if this object is being written. Its file, if any, must not be seen then. */
bool dir_object_is_open(struct dir_store *store, const struct run_name *run,
                        const struct object_id *id);
void dir_abort_all(struct dir_store *store);
void dir_free_runs(struct dir_store *store);

/* --- dir_start.c, dir_sweep.c ----------------------------------------------------------------- */
int MUST_USE dir_start(struct dir_store *store, const struct store_dir_options *options,
                       struct diag *diag);
/* Removes temporaries of this epoch and older ones. The lock is held, so nobody is writing them. */
int MUST_USE dir_sweep(struct dir_store *store, struct diag *diag);

struct dir_names { /* dir_list.c: of all runs that have a folder in either tree, sorted */
    size_t count, cap;
    struct run_name *names;
};
int MUST_USE dir_names_list(struct dir_store *store, struct dir_names *ret, struct diag *diag);

#endif
