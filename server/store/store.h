/* SPDX-License-Identifier: Apache-2.0
 *
 * store: where objects, parts, pages, manifests and records live. One request struct for all
 * operations, submitted on the loop's thread, done later on the same thread, never inside submit:
 * so decorators (retry, limit, fault) see every operation alike, and a back end is one function.
 * Back ends: dir, memory; later rados. The contract is executable: tests/store/conformance.c.
 *
 * What every back end promises
 *  - SEAL, PUBLISH and RECORD_UPDATE answer 0 only when the thing is durable (data and name).
 *  - Deletions are done when they are answered, and not made durable: a crash may bring a thing
 *    back, whole, and gc comes by again.
 *  - Unsealed objects are never seen by READ, STAT or LIST, and go away with ABORT or a restart.
 *  - PUBLISH never replaces: EXISTS when the name is taken (by equal bytes of the same length too;
 * the caller compares what it finds). A sealed object is immutable; a second CREATE of its id is
 * EXISTS.
 *  - EXCHANGE is durable when it is answered, and one step: at any moment, and after a crash, the
 * name has the one thing or the other, whole.
 *  - A record outlives a single fault of the medium: every update is there twice, by the medium
 * (caps.redundant) or by the store, which makes the second soon after it has answered.
 *  - RECORD_UPDATE is atomic: all changes when all guards hold, else CONFLICT and nothing.
 *  - OUTCOME_UNKNOWN: the operation may have happened or may happen later; resolved only by a
 * guarded update that makes the late one impossible, or (publish, seal) by reading back.
 *  - READ gives exactly the bytes asked for or an error (DAMAGED when the file is shorter than it
 * should be); it does not check contents: whoever asked knows the crc.
 */
#ifndef CAIRN_STORE_STORE_H
#define CAIRN_STORE_STORE_H

#include "env/work.h"
#include "format/ids.h"
#include "format/record.h"

enum store_kind { STORE_MANIFEST = 1, STORE_PART = 2, STORE_PAGE = 3 }; /* small published things */

/* Names a small published thing of a checkpoint. Its bytes are known by hash from the record, so a
 * retry that finds other bytes under the name (an aborted opening of the same step) publishes under
 * another tag. */
struct store_name {
    struct run_name run;
    struct ckpt_id id;
    enum store_kind kind;
    uint32_t number; /* rank of a part, number of a page; 0 for the manifest */
    uint64_t tag;    /* the open_id of the save: keeps reopened saves of one step apart */
};

enum store_op {
    STORE_ENTER,  /* a hint, where caps.enters is set: `run` will soon write to checkpoint `id`, and
                   * these small things of it (`names`): what the store has to note down before that
                   * is noted down now, and not when CREATE and PUBLISH wait for it. They do what is
                   * left to do, so nothing depends on its outcome. Names only while the opening
                   * that their tag is of stands in the run's record: until it ends nobody removes
                   * anything of it. What is never made stays on LIST_CKPTS and LIST_SMALL until it
                   * is deleted */
    STORE_CREATE, /* object: start writing (bytes_max: preallocated; NO_SPACE before any byte) */
    STORE_WRITE,  /* object: aligned bytes at an aligned offset; several may be in flight */
    STORE_SEAL,   /* object: all writes are done; make it durable and visible */
    STORE_ABORT,  /* object: drop an unsealed one */
    STORE_READ,   /* object: a range */
    STORE_STAT,   /* object: its bytes */
    STORE_LIST_OBJECTS,  /* objects of one checkpoint (run, ckpt) */
    STORE_DELETE_OBJECT, /* for gc */
    STORE_PUBLISH,       /* small thing: whole, durable, no replace */
    STORE_FETCH, /* small thing: whole (bytes 0), or at most `bytes` of it from `offset` on */
    STORE_DELETE_SMALL, /* for gc */
    STORE_EXCHANGE,     /* for repair: a sealed object and `with_object` of the same checkpoint, or
                         * (name.kind is set) a small thing and the one that differs from it in
                         * `with_tag`, trade their names. Is there none under the first, the second
                         * gets its name. UNSUPPORTED where caps.exchanges is not set */
    STORE_LIST_SMALL,   /* small things of one checkpoint (run, ckpt), for gc */
    STORE_LIST_CKPTS,   /* checkpoints of a run of which anything is stored, for gc */
    STORE_LIST_RUNS,    /* names of all runs of which there is anything, sorted: a record, a copy
                         * of one, or objects and small things without either (`salvage` makes a
                         * record of those) */
    STORE_RECORD_GET, /* the record of a run: a fresh map (version 0 and empty when there is none),
                       * or none where it is still at known_version.
                       * A record whose end is lost in every place, so that it can be read up to
                       * some update only, is DAMAGED; with `take_prefix` it is 0 and the map as
                       * far as it goes, the diag says what is lost. Both with ret_lost_from.
                       * Of the run without a name: the store's own (FORMAT.md 9.2) */
    STORE_RECORD_UPDATE, /* the guarded update; ret_version on success. The same of the store's */
    STORE_RECORD_FILE, /* for repair, where caps.record_files is set: one of the files that a run's
                        * record is made of (`file`), whole, as ret_data. NOT_FOUND */
    STORE_RECORD_MEND, /* for repair, where caps.record_files is set: the file (`file`) of a run's
                        * record, which is damaged or missing, becomes `data`, in one step and
                        * durably; the damaged bytes go to quarantine. Only where its neighbours
                        * prove it to be the file that was there: CONFLICT where they speak against
                        * it, and for a file that is whole; NOT_FOUND where none of them is whole.
                        * A snapshot with file.is_last is a record as a whole, for one of which
                        * neither place has anything; CONFLICT where one has.
                        * Without data (`file` is not looked at): all that is damaged, missing or
                        * unreadable of the record, in either place, is made good from the other
                        * place or from the store's memory; 0 also where nothing was wrong, and
                        * NOT_FOUND where neither has all of it */
    STORE_RECORD_CUT,  /* by an operator's word: a record whose end
                        * is lost goes on from its intact prefix: what lies behind that goes to
                        * quarantine. file.version: the ret_lost_from that he was told; CONFLICT
                        * where the loss begins elsewhere, or nothing is lost. ret_version: of the
                        * record now. It is said nowhere afterwards what was lost: tell it before */
    STORE_USAGE,
    STORE_PROBE, /* what a save needs, tried: a small thing of the store's own is made durable and
                  * removed again. 0, or why saves are refused now; other requests are not told */
    STORE_SWEEP, /* for gc: what unfinished writes and deletions of one checkpoint (run, ckpt) left
                  * behind. Sealed objects stay. An object that is being written becomes void (its
                  * SEAL fails), so call it for checkpoints without an open entry; never unsafe.
                  * ret_count: how many were found. What a write may still do after it was reported
                  * timed out is found by the next sweep: call until one finds nothing.
                  * for_good: nobody will ever write to the checkpoint again: once nothing of it is
                  * left, LIST_CKPTS does not name it any more */
};
enum { STORE_OP_COUNT = STORE_SWEEP + 1 };
enum { STORE_ENTER_MAX = 8 };

static inline bool store_is_own_record(const struct run_name *run) { return run->project[0] == 0; }

struct store_usage {
    uint64_t total_bytes, free_bytes; /* free: for saves */
    uint64_t reserve_bytes;           /* kept beyond that, for records and deletion */
    bool read_only;
    char detail[DIAG_TEXT_MAX + 24];
};

/* One file of a record that is a chain of files: an update, or a snapshot. */
struct record_file {
    uint64_t version; /* 0: none */
    bool is_snapshot;
    bool is_copy; /* in the second place that a record has (ret_files, RECORD_FILE) */
    bool is_last; /* MEND: nothing whole is behind it, and the caller answers for what that leaves
                   * unproven */
};
enum { STORE_RECORD_FILES_MAX = 8 };

struct store_req;
struct store;

struct store_req {
    enum store_op op;
    uint64_t deadline_ms; /* from submit; 0: none. A back end that cannot cancel answers late */
    void (*done)(struct store_req *req); /* on the loop; req is the caller's again */
    int status;                          /* result: 0 or CAIRN_E_* */
    struct diag diag;

    struct run_name run;            /* all but LIST_RUNS and USAGE */
    struct object_id object;        /* object operations */
    struct ckpt_id id;              /* ENTER, LIST_OBJECTS, LIST_SMALL, SWEEP */
    struct store_name name;         /* small things (name.run is used, not run) */
    const struct store_name *names; /* ENTER: of checkpoint `id`, borrowed until done */
    size_t name_count;              /* ENTER: at most STORE_ENTER_MAX */
    struct object_id with_object;   /* EXCHANGE */
    uint64_t with_tag;              /* EXCHANGE */
    uint64_t offset;                /* WRITE, READ */
    struct record_file file;        /* RECORD_FILE, RECORD_MEND */
    uint64_t bytes; /* CREATE: bytes_max; WRITE, READ, PUBLISH, RECORD_MEND: length */
    void *data; /* WRITE, PUBLISH, RECORD_MEND: borrowed until done; READ: filled. WRITE's and an
                 * O_DIRECT READ's memory is aligned to LIMIT_ALIGN_BYTES. READ
                 * takes any offset and length; aligned ones avoid a copy */
    const struct record_update *update; /* RECORD_UPDATE: borrowed until done */
    uint64_t known_version; /* RECORD_GET: not 0: the caller has the record of this version. A store
                             * that finds no other may leave ret_record NULL; never from_medium */
    bool take_prefix; /* RECORD_GET: the caller looks at ret_lost_from, and neither writes to the
                       * record nor calls the run empty where that is set */
    bool for_good;    /* SWEEP */
    bool to_end;      /* READ: the object must end with the range; a longer one is DAMAGED */
    bool from_medium; /* FETCH, RECORD_GET: what the medium holds now, past every cache that the
                       * store can pass; every file of a record is checked, in both places,
                       * older ones too */

    uint8_t *ret_data;         /* FETCH, RECORD_FILE: malloc'ed, the caller frees */
    uint64_t ret_bytes;        /* FETCH, RECORD_FILE, STAT */
    struct record *ret_record; /* RECORD_GET: the caller frees */
    /* RECORD_GET: 0, or the number of the first update that is lost: the record goes as far as the
     * one before. Nothing is added to it (RECORD_UPDATE: DAMAGED) before RECORD_CUT. */
    uint64_t ret_lost_from;
    /* RECORD_GET from_medium: files that are damaged, missing or cannot be read; version 0 ends the
     * list. With ret_lost_from: with any of the first place's (not is_copy) whole it could be read
     * on. Without: the record is whole, and the diag names the first file although the status is 0;
     * RECORD_MEND without data makes them good. */
    struct record_file ret_files[STORE_RECORD_FILES_MAX];
    size_t ret_file_count; /* of all there are; the first are in ret_files */
    uint64_t ret_version;  /* RECORD_UPDATE, RECORD_CUT; GET from_medium: of the last file there */
    struct run_name *ret_runs; /* LIST_RUNS: malloc'ed array */
    struct object_id
        *ret_objects; /* LIST_OBJECTS: malloc'ed array, sorted by (rank, writer, sequence) */
    struct ckpt_id *ret_ckpts;     /* LIST_CKPTS: malloc'ed array, sorted by (term, step) */
    struct store_name *ret_smalls; /* LIST_SMALL: malloc'ed, sorted by (kind, number, tag) */
    size_t ret_count;
    struct store_usage ret_usage;

    struct work work; /* the back end's */
    struct store *store;
    void *wrap; /* the decorator's */
};

struct store_caps {
    uint64_t object_bytes_preferred; /* how large an object should become */
    uint32_t align_bytes;            /* of WRITE's offset, length and memory */
    bool redundant;                  /* survives one media fault by itself */
    bool exchanges;                  /* EXCHANGE: what is damaged can be replaced */
    bool record_files;               /* RECORD_FILE, RECORD_MEND, RECORD_CUT: so can a
                                      * file of a record */
    bool enters;                     /* ENTER is of use */
    bool shared;                     /* other daemons may write to it at the same time */
    char name[16];                   /* "dir", "memory" */
    struct uuid uuid;                /* of the store record */
    uint64_t epoch;                  /* raised at every start of a daemon on it */
    bool read_only;
    char read_only_why[64]; /* "its file system is mounted read-only"; "" where it was asked for */
    char url[176];          /* as a shell takes it in a remedy; "" where it is not known */
};

struct store_ops {
    void (*submit)(struct store *store, struct store_req *req);
    void (*close)(struct store *store, void (*done)(void *user),
                  void *user); /* all requests must be done; frees */
};

struct store {
    const struct store_ops *ops;
    struct store_caps caps;
};

/* Of RECORD_GET from_medium: is any file of the record damaged, missing or unreadable, also one
 * that is not needed at present? The diag says which. */
static inline bool store_record_is_damaged(const struct store_req *req)
{
    return req->status == CAIRN_E_DAMAGED || req->status == CAIRN_E_FORMAT ||
           req->status == CAIRN_E_IO ||
           (req->status == 0 && (req->ret_file_count > 0 || req->ret_lost_from != 0));
}

/* What stands behind `--store` in the text of a remedy. */
static inline const char *store_caps_url(const struct store_caps *caps)
{
    return caps->url[0] != '\0' ? caps->url : "URL";
}

static inline void store_submit(struct store *store, struct store_req *req)
{
    req->store = store;
    req->status = 0;
    diag_clear(&req->diag);
    store->ops->submit(store, req);
}
static inline void store_close(struct store *store, void (*done)(void *user), void *user)
{
    store->ops->close(store, done, user);
}

#endif
