/* SPDX-License-Identifier: Apache-2.0
 *
 * store: keeps objects, parts, pages, manifests and records. There is one request struct for all
 * operations. It is submitted on the loop's thread and completes later on the same thread, never
 * inside submit. So decorators (wrap/) see every operation alike, and a back end is one function.
 * Back ends: dir and rados; the tests have one in memory. The contract can be run:
 * tests/store/test_store_conformance.c.
 *
 * What every back end promises:
 *
 *  - SEAL, PUBLISH and RECORD_UPDATE answer 0 only when the thing is durable (data and name).
 *  - A deletion is done when it is answered, but it is not made durable: a crash may bring a thing
 *    back, whole, and gc deletes it again.
 *  - Unsealed objects are never seen by READ, STAT or LIST. ABORT or a restart removes them.
 *  - PUBLISH never replaces. It answers EXISTS if the name is taken, even by equal bytes; the
 *    caller compares what it finds.
 *  - A sealed object is immutable; a second CREATE of its id answers EXISTS.
 *  - EXCHANGE is durable when it is answered, and is one step: at any moment, and after a crash,
 *    the name has the one thing or the other, whole.
 *  - A record survives a single fault of the medium. Every update is stored twice, by the medium
 *    (caps.redundant) or by the store, which makes the second copy soon after it has answered.
 *  - RECORD_UPDATE is atomic: it makes all changes if all guards hold, else it answers CONFLICT and
 *    changes nothing.
 *  - OUTCOME_UNKNOWN means that the operation may have happened or may still happen. Only a
 *    guarded update that makes the late one impossible resolves it, or (publish, seal) reading
 *    back.
 *  - READ gives exactly the bytes asked for, or an error (DAMAGED if the file is shorter than it
 *    should be). It does not check the contents; the caller knows the crc.
 */
#ifndef CAIRN_STORE_STORE_H
#define CAIRN_STORE_STORE_H

#include "env/work.h"
#include "format/ids.h"
#include "format/record.h"

enum store_kind { STORE_MANIFEST = 1, STORE_PART = 2, STORE_PAGE = 3 }; /* small published things */

/* Names a small published thing of a checkpoint. The record knows the hash of its bytes, so a retry
 * that finds other bytes under the name (from an aborted opening of the same step) publishes under
 * another tag. */
struct store_name {
    struct run_name run;
    struct ckpt_id id;
    enum store_kind kind;
    uint32_t number; /* rank of a part, number of a page; 0 for the manifest */
    uint64_t tag;    /* the open_id of the save; tells several openings of a step apart */
};

enum store_op {
    /* A hint, if caps.enters is set: `run` will soon write to checkpoint `id`, and publish the
     * small things `names` of it. The store notes down now what CREATE and PUBLISH would otherwise
     * have to wait for. They note down what is missing, so nothing depends on the outcome of this
     * hint. `names` may be given only while the opening that their tag belongs to is in the run's
     * record, because until that ends nobody removes anything of it. A thing that is entered and
     * never made stays on LIST_CKPTS and LIST_SMALL until it is deleted. */
    STORE_ENTER,
    STORE_CREATE, /* object: start to write (bytes_max is preallocated; NO_SPACE before any byte) */
    STORE_WRITE,  /* object: aligned bytes at an aligned offset; several may be in flight */
    STORE_SEAL,   /* object: all writes have ended; make it durable and visible */
    STORE_ABORT,  /* object: drop an unsealed one */
    STORE_READ,   /* object: read a range */
    STORE_STAT,   /* object: its size */
    STORE_LIST_OBJECTS,  /* objects of one checkpoint (run, ckpt) */
    STORE_DELETE_OBJECT, /* for gc */
    STORE_PUBLISH,       /* small thing: whole and durable; never replaces */
    STORE_FETCH, /* small thing: whole (bytes 0), or at most `bytes` of it from `offset` on */
    STORE_DELETE_SMALL, /* for gc */
    /* For repair: two things of the same checkpoint trade their names. They are a sealed object and
     * `with_object`, or, if name.kind is set, a small thing and the one that differs from it in
     * `with_tag`. If there is none under the first name, the second gets that name. UNSUPPORTED
     * unless caps.exchanges is set. */
    STORE_EXCHANGE,
    STORE_LIST_SMALL, /* small things of one checkpoint (run, ckpt), for gc */
    /* Checkpoints of a run of which anything is stored, for gc. With `lasting`, a crash after the
     * answer brings nothing back of a checkpoint that is not on the list. */
    STORE_LIST_CKPTS,
    /* Names of all runs of which anything is stored, sorted: a record, a copy of one, or objects
     * and small things without either (`salvage` makes a record for those). */
    STORE_LIST_RUNS,
    /* The record of a run: a fresh map, with version 0 and empty if there is none; no map if the
     * record is still at known_version. If the end of a record is lost in every place, so that only
     * its first updates can be read, the answer is DAMAGED. With `take_prefix` it is 0 then, with
     * the map up to there, and diag says what is lost. Both set ret_lost_from. A run without a name
     * means the store's own record (FORMAT.md 9.2). */
    STORE_RECORD_GET,
    /* The guarded update; ret_version on success. A run without a name means the store's own. */
    STORE_RECORD_UPDATE,
    /* For repair, if caps.record_files is set: reads one whole file (`file`) of a run's record into
     * ret_data. NOT_FOUND if there is none. */
    STORE_RECORD_FILE,
    /* For repair, if caps.record_files is set. With data: the damaged or missing file (`file`) of a
     * run's record is replaced by `data`, durably and in one step; the damaged bytes go to
     * quarantine. The neighbours of the file must prove that `data` is what was there. CONFLICT if
     * they contradict it, or if the file is whole; NOT_FOUND if no neighbour is whole. A snapshot
     * with file.is_last is a whole record, for a run of which neither place has anything; CONFLICT
     * if one has.
     *
     * Without data (`file` is ignored): everything in either place of the record that is damaged,
     * missing or unreadable is mended from the other place or from the store's memory. 0 also if
     * nothing was wrong; NOT_FOUND if neither place has all of it. */
    STORE_RECORD_MEND,
    /* For an operator who accepts the loss: a record whose end is lost goes on from its intact
     * start, and what lies behind that goes to quarantine. file.version is the ret_lost_from that
     * the operator was told; CONFLICT if the loss begins elsewhere, or nothing is lost.
     * ret_version is the new version. The loss is reported nowhere afterwards, so the caller
     * reports it first. */
    STORE_RECORD_CUT,
    STORE_USAGE,
    /* Tries what a save needs: makes a small thing of the store's own durable and removes it again.
     * Answers 0, or why saves are refused now. Other requests do not notice it. */
    STORE_PROBE,
    /* For gc: removes what unfinished writes and deletions of one checkpoint (run, ckpt) have left.
     * Sealed objects stay. An object that is being written becomes void (its SEAL fails), so gc
     * calls it for checkpoints without an open entry; it is never unsafe. ret_count says how many
     * things were found. A write that was reported as timed out may still do something; the next
     * sweep finds that, so the caller repeats until one finds nothing. for_good means that nobody
     * will ever write to the checkpoint again: once nothing of it is left, LIST_CKPTS does not name
     * it any more. */
    STORE_SWEEP,
};
enum { STORE_OP_COUNT = STORE_SWEEP + 1 };
enum { STORE_ENTER_MAX = 8 };

static inline bool store_is_own_record(const struct run_name *run) { return run->project[0] == 0; }

/* A record update and what forgetting removes need about as many bytes to be free. The remedy is
 * for a store that has fewer. */
enum { STORE_RECORDS_NEED_BYTES = 16 << 10 };
#define STORE_STARVED_REMEDY                                                                    \
    "forgetting needs room as well: first remove other files from the store's file system, or " \
    "grow it, until a few MiB are free; then "

struct store_usage {
    uint64_t total_bytes, free_bytes; /* free_bytes: for saves */
    uint64_t reserve_bytes;           /* kept in addition, for records and deletion */
    uint64_t records_free_bytes;      /* free_bytes, and what is left of the reserve */
    bool read_only;
    char detail[DIAG_TEXT_MAX + 24];
};

/* One file of a record that is a chain of files: an update or a snapshot. */
struct record_file {
    uint64_t version; /* 0 if there is none */
    bool is_snapshot;
    bool is_copy; /* it is in the second place of the record (ret_files, RECORD_FILE) */
    /* MEND: no file behind it is whole, and the caller answers for what stays unproven. */
    bool is_last;
};
enum { STORE_RECORD_FILES_MAX = 8 };

struct store_req;
struct store;

/* A request. The fields above ret_data are inputs; each names the operations that use it. */
struct store_req {
    enum store_op op;
    uint64_t deadline_ms; /* from submit, 0 for none; a back end that cannot cancel answers late */
    void (*done)(struct store_req *req); /* called on the loop; req belongs to the caller again */
    int status;                          /* result: 0 or CAIRN_E_* */
    struct diag diag;

    struct run_name run;            /* all operations but LIST_RUNS and USAGE */
    struct object_id object;        /* object operations */
    struct ckpt_id id;              /* ENTER, LIST_OBJECTS, LIST_SMALL, SWEEP */
    struct store_name name;         /* small things (name.run is used instead of run) */
    const struct store_name *names; /* ENTER: of checkpoint `id`; borrowed until done */
    size_t name_count;              /* ENTER: at most STORE_ENTER_MAX */
    struct object_id with_object;   /* EXCHANGE */
    uint64_t with_tag;              /* EXCHANGE */
    uint64_t offset;                /* WRITE, READ */
    struct record_file file;        /* RECORD_FILE, RECORD_MEND */
    uint64_t bytes; /* CREATE: bytes_max. WRITE, READ, PUBLISH, RECORD_MEND: the length */
    /* WRITE, PUBLISH, RECORD_MEND: borrowed until done. READ: is filled. The memory of WRITE and of
     * an O_DIRECT READ is aligned to LIMIT_ALIGN_BYTES. READ takes any offset and length; aligned
     * ones avoid a copy. */
    void *data;
    const struct record_update *update; /* RECORD_UPDATE: borrowed until done */
    /* RECORD_GET: if not 0, the caller has the record of this version. A store that finds the same
     * version may leave ret_record NULL, but not with from_medium. */
    uint64_t known_version;
    /* RECORD_GET: the caller promises to look at ret_lost_from and, if that is set, neither to
     * write to the record nor to call the run empty. */
    bool take_prefix;
    bool for_good; /* SWEEP */
    bool lasting;  /* LIST_CKPTS */
    bool to_end;   /* READ: the object must end with the range; DAMAGED if it is longer */
    /* FETCH, RECORD_GET: read what the medium holds now, past every cache that the store can pass.
     * Every file of a record is checked, in both places, older ones included. */
    bool from_medium;

    uint8_t *ret_data;         /* FETCH, RECORD_FILE: malloc'ed, freed by the caller */
    uint64_t ret_bytes;        /* FETCH, RECORD_FILE, STAT */
    struct record *ret_record; /* RECORD_GET: freed by the caller */
    /* RECORD_GET: number of the first lost update, or 0. The record ends before that update, and
     * nothing can be added to it (RECORD_UPDATE answers DAMAGED) before RECORD_CUT. */
    uint64_t ret_lost_from;
    /* RECORD_GET, with ret_lost_from: the folder of the run cannot be listed, so that no command
     * reaches the record before its medium is repaired. */
    bool ret_is_unreadable;
    /* RECORD_GET from_medium: the files that are damaged, missing or unreadable; version 0 ends the
     * list. If ret_lost_from is set, the record could be read on if any listed file of the first
     * place (not is_copy) were whole. Otherwise the record is whole, the diag names the first file
     * although the status is 0, and RECORD_MEND without data mends the files. */
    struct record_file ret_files[STORE_RECORD_FILES_MAX];
    size_t ret_file_count;     /* number of such files; the first ones are in ret_files */
    uint64_t ret_version;      /* RECORD_UPDATE, RECORD_CUT; GET from_medium: of the last file */
    struct run_name *ret_runs; /* LIST_RUNS: malloc'ed array */
    /* LIST_OBJECTS: malloc'ed array, sorted by (rank, writer, sequence). */
    struct object_id *ret_objects;
    struct ckpt_id *ret_ckpts;     /* LIST_CKPTS: malloc'ed array, sorted by (term, step) */
    struct store_name *ret_smalls; /* LIST_SMALL: malloc'ed, sorted by (kind, number, tag) */
    size_t ret_count;
    struct store_usage ret_usage;

    struct work work; /* for the back end */
    struct store *store;
    void *wrap; /* for the decorators */
};

struct store_caps {
    uint64_t object_bytes_preferred; /* the size that an object should have */
    uint32_t align_bytes;            /* of the offset, length and memory of WRITE */
    bool redundant;                  /* survives one media fault by itself */
    bool exchanges;                  /* has EXCHANGE, so damaged things can be replaced */
    /* Has RECORD_FILE, RECORD_MEND and RECORD_CUT, so files of a record can be replaced. */
    bool record_files;
    bool enters;      /* ENTER is useful */
    bool shared;      /* other daemons may write to the store at the same time */
    char name[16];    /* "dir", "memory" */
    struct uuid uuid; /* from the store record */
    uint64_t epoch;   /* raised at every start of a daemon, unless a directory's disk is full */
    bool read_only;
    /* "its file system is mounted read-only"; "" if the caller asked for it. */
    char read_only_why[64];
    char url[176]; /* as a shell takes it, for remedies; "" if not known */
};

struct store_ops {
    void (*submit)(struct store *store, struct store_req *req);
    void (*close)(struct store *store, void (*done)(void *user),
                  /* Called when all requests are done. Frees. */
                  void *user);
};

struct store {
    const struct store_ops *ops;
    struct store_caps caps;
};

/* Returns true if RECORD_GET with from_medium found any file of the record damaged, missing or
 * unreadable, even one that is not needed at present. The diag says which. */
static inline bool store_record_is_damaged(const struct store_req *req)
{
    return req->status == CAIRN_E_DAMAGED || req->status == CAIRN_E_FORMAT ||
           req->status == CAIRN_E_IO ||
           (req->status == 0 && (req->ret_file_count > 0 || req->ret_lost_from != 0));
}

/* Returns the text after `--store` in a remedy. */
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
