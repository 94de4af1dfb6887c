/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn.h - save and restore the state of a distributed training job.
 *
 * One handle (cairn_t) is one rank of one attempt: one start of the job's group of ranks. A save
 * takes a snapshot of the registered tensors and blobs into the handle's staging memory (the
 * arena), streams it to the server in the background, and ends when the checkpoint of all ranks is
 * committed: complete, verified and on stable storage. A restore gives back exactly what was saved,
 * to all ranks the same step, or a named error. (client/examples/minimal.c is this, whole.)
 *
 *     struct cairn_options options = CAIRN_OPTIONS_INIT;
 *     options.rank = rank, options.world_size = n;
 *     options.attempt = token;                    // drawn by rank 0, the same on all ranks
 *     cairn_open("cairn+unix:///run/cairn/cairnd.sock?run=demo/run1", &options, &c, &err);
 *     cairn_set_tensors(c, tensors, count, &err);
 *     cairn_save(c, step, NULL, &op, &err);       // returns when copied: the tensors may change
 *     cairn_op_wait(op, CAIRN_DONE, 60000, &err); // or poll, or cairn_op_notify()
 *     cairn_op_free(op);
 *     cairn_close(c, 60000, &err);
 *
 * Rules
 *  - Every function that returns int gives 0 or one CAIRN_E_* code; *err (may be NULL) then says
 *    what was tried, on what, and what to do. Results are written only on success.
 *  - Any thread may make any call; cairn_close and the frees must be the last of their handle.
 *  - Structs that begin with `size` only grow: fill them with their CAIRN_*_INIT, then set what you
 *    need; 0 means default. In arrays of such structs, element [0].size is the distance between
 *    elements. A NULL pointer to options means all defaults.
 *  - Strings are UTF-8. Arguments are copied before the call returns, but for tensor data: borrowed
 *    until CAIRN_STAGED (save) or CAIRN_DONE (restore).
 *  - Deadlines are milliseconds from the call; 0 polls in waits and stands for the default
 *    elsewhere; CAIRN_FOREVER waits without end.
 *  - After fork() the child's handles and ops are dead (CAIRN_E_FORKED) and cost nothing; the
 *    parent's go on. A child may open handles of its own.
 *  - A bug in Cairn never ends your process: the handle goes dead, everything in flight ends with
 *    CAIRN_E_INTERNAL, and so does every later call. Close it; another one may be opened.
 *
 * C99 and C++. Link with `pkg-config --cflags --libs cairn`.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CAIRN_API      __attribute__((visibility("default")))
#define CAIRN_MUST_USE __attribute__((warn_unused_result))
#else
#define CAIRN_API
#define CAIRN_MUST_USE
#endif

#define CAIRN_VERSION "0.1.0"

/* --- errors ---------------------------------------------------------------------------------- */

enum cairn_err {
    CAIRN_OK = 0,
    CAIRN_E_INVALID = -1,
    CAIRN_E_NO_MEMORY = -2,
    CAIRN_E_INTERNAL = -3,
    CAIRN_E_AGAIN = -4, /* the deadline of a wait passed; the operation goes on */
    CAIRN_E_TIMED_OUT = -5,
    CAIRN_E_CANCELLED = -6,
    CAIRN_E_UNSUPPORTED = -7,
    CAIRN_E_BUSY = -8,
    CAIRN_E_CLOSED = -9,
    CAIRN_E_FORKED = -10,
    CAIRN_E_NOT_FOUND = -11,
    CAIRN_E_EXISTS = -12,
    CAIRN_E_CONFLICT = -13,
    CAIRN_E_FENCED = -14, /* a newer attempt has taken over this run: stop */
    CAIRN_E_ABORTED = -15,
    CAIRN_E_MISSING_RANKS = -16,
    CAIRN_E_DUPLICATE_RANK = -17,
    CAIRN_E_WORLD_MISMATCH = -18,
    CAIRN_E_TOKEN_MISMATCH = -19,
    CAIRN_E_COVERAGE = -20,
    CAIRN_E_SHAPE_MISMATCH = -21,
    CAIRN_E_DTYPE_MISMATCH = -22,
    CAIRN_E_MISSING_TENSOR = -23,
    CAIRN_E_DAMAGED = -24,
    CAIRN_E_DIGEST_MISMATCH = -25,
    CAIRN_E_FORMAT = -26,
    CAIRN_E_UNREACHABLE = -27,
    CAIRN_E_CONNECTION_LOST = -28,
    CAIRN_E_AUTH = -29,
    CAIRN_E_DENIED = -30,
    CAIRN_E_VERSION = -31,
    CAIRN_E_PROTOCOL = -32,
    CAIRN_E_TOO_LARGE = -33,
    CAIRN_E_NO_SPACE = -34,
    CAIRN_E_QUOTA = -35,
    CAIRN_E_IO = -36,
    CAIRN_E_READ_ONLY = -37,
    CAIRN_E_NO_STORE = -38,
    CAIRN_E_STORE_LOCKED = -39,
    CAIRN_E_STORE_FEATURES = -40,
    CAIRN_E_STORE_MISMATCH = -41,
    CAIRN_E_OUTCOME_UNKNOWN = -42,
    CAIRN_E_ARENA_TOO_SMALL = -43,
    CAIRN_E_CONFIG = -44,
    CAIRN_E_NOT_EMPTY = -45,
    CAIRN_E_ENDED = -46,
    CAIRN_E_SHUTTING_DOWN = -47,
    CAIRN_E_LIST_MISMATCH = -48,
    CAIRN_E_SKIPPED = -49, /* when_full says skip, and there was no room: no failure */
    CAIRN_E_REPLICAS_DIFFER = -50
};

struct cairn_error {
    int code;
    char text[508]; /* what was tried, on what, with which numbers, and the remedy */
};

/* "NO_SPACE", "no space left in the store" and whether to retry: 0 never, 1 the same call, 2 after
 * a change, 3 ask cairn_status() first. Static strings; unknown codes give "UNKNOWN". */
CAIRN_API const char *cairn_err_name(int code);
CAIRN_API const char *cairn_strerror(int code);
CAIRN_API int cairn_err_retry(int code);
CAIRN_API const char *cairn_version(void);

/* --- element types --------------------------------------------------------------------------- */

enum cairn_dtype {
    CAIRN_DTYPE_NONE = 0,
    CAIRN_BOOL = 1,
    CAIRN_U8 = 2,
    CAIRN_I8 = 3,
    CAIRN_U16 = 4,
    CAIRN_I16 = 5,
    CAIRN_U32 = 6,
    CAIRN_I32 = 7,
    CAIRN_U64 = 8,
    CAIRN_I64 = 9,
    CAIRN_F16 = 10,
    CAIRN_BF16 = 11,
    CAIRN_F32 = 12,
    CAIRN_F64 = 13,
    CAIRN_C32 = 14,
    CAIRN_C64 = 15,
    CAIRN_C128 = 16,
    CAIRN_F8_E4M3FN = 17,
    CAIRN_F8_E5M2 = 18,
    CAIRN_F8_E4M3FNUZ = 19,
    CAIRN_F8_E5M2FNUZ = 20,
    CAIRN_F8_E8M0FNU = 21,
    CAIRN_F4_E2M1FN_X2 = 22
};
CAIRN_API const char *cairn_dtype_name(int dtype); /* "bfloat16"; "unknown" */
CAIRN_API int cairn_dtype_bits(int dtype);         /* 0: unknown */

/* --- opening --------------------------------------------------------------------------------- */

#define CAIRN_LATEST  UINT64_MAX /* restore options' step */
#define CAIRN_FOREVER INT64_MAX

typedef struct cairn cairn_t;
typedef struct cairn_op cairn_op_t; /* one save or restore */
typedef struct cairn_list cairn_list_t;

struct cairn_options {
    size_t size;
    int32_t rank, world_size; /* 0 <= rank < world_size; world_size 0: 1 */
    /* Attempt token, 32 hex digits: drawn once by rank 0 (cairn_new_attempt) and given to all
     * ranks; NULL: CAIRN_ATTEMPT, or, for a world of one, a fresh one. */
    const char *attempt;
    int read_only; /* list, status, restore; has no rank and is in no group */
    /* Staging memory at most; 0: what the rank writes. A save that is larger goes in waves: it is
     * staged when the last of its bytes is copied, for which others must have become durable. */
    uint64_t arena_bytes;
    int32_t threads;                            /* copy and digest; 0: cores, at most 4 */
    int64_t io_deadline_ms;                     /* of opening and of small requests; 0: 30,000 */
    int64_t save_deadline_ms;                   /* default deadline of a save; 0: 600,000 */
    const char *cert_file, *key_file, *ca_file; /* PEM; TLS is used when ca_file is set */
    const char *label;                          /* shown in logs: host, job id; no identity */
    void (*log)(void *user, int level, const char *line); /* NULL: warnings and errors to stderr */
    void *log_user;
    /* Saves in flight that the arena has room for, within arena_bytes; 0: 1, or, where arena_bytes
     * is set and allows it, 2. */
    int32_t snapshots;
    int when_full; /* enum cairn_when_full: saves that find no room there; 0: CAIRN_FULL_WAIT */
    int encoding;  /* enum cairn_encoding; 0: CAIRN_ENCODING (auto, raw or dense), or else auto */
};
#define CAIRN_OPTIONS_INIT                                                              \
    {                                                                                   \
        sizeof(struct cairn_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* What is stored of a chunk, always without loss: its bytes, or fewer that stand for them (zstd,
 * byte planes). Chunks that a save shares with an older checkpoint are not stored again at all. */
enum cairn_encoding {
    CAIRN_ENCODE_AUTO = 1, /* where that is no slower than the way to the disk, by measurement */
    CAIRN_ENCODE_RAW = 2,
    CAIRN_ENCODE_DENSE = 3 /* the densest, whatever time it takes */
};

/* What becomes of a save whose copy cannot begin, because saves in flight fill the arena. */
enum cairn_when_full {
    CAIRN_FULL_WAIT = 1, /* it waits for room, within its deadline */
    CAIRN_FULL_SKIP = 2, /* cairn_save gives CAIRN_E_SKIPPED at once: no failure, no checkpoint */
    CAIRN_FULL_FAIL = 3  /* cairn_save gives CAIRN_E_BUSY at once, naming what is in flight */
};

/* Draws a token: 32 hex digits and NUL. */
CAIRN_API int CAIRN_MUST_USE cairn_new_attempt(char ret_token[33]);

/* url: cairn://h1:port,h2:port/project/run (no host: CAIRN_SERVER, itself host:port[,...] or
 * unix:/path) or cairn+unix:///path?run=project/run. Tries for io_deadline_ms until the server has
 * answered, afterwards reconnects by itself; an error names the first cause and the last.
 * UNREACHABLE, AUTH, VERSION, DUPLICATE_RANK, WORLD_MISMATCH, INVALID, NO_MEMORY. */
CAIRN_API int CAIRN_MUST_USE cairn_open(const char *url, const struct cairn_options *options,
                                        cairn_t **ret, struct cairn_error *err);
/* Waits for what is in flight until the deadline, then aborts it (the futures say so; 2 s more at
 * most). Always frees the handle; the result tells whether every save in flight became durable. Ops
 * must still be freed, before or after. From a callback: INVALID, and nothing is closed. NULL is
 * fine. */
CAIRN_API int cairn_close(cairn_t *cairn, int64_t deadline_ms, struct cairn_error *err);

/* --- what is saved --------------------------------------------------------------------------- */

enum cairn_placement {
    CAIRN_REPLICATED = 1, /* the same on every rank of the group, which splits the writing */
    CAIRN_SHARDED = 2,    /* boxes that belong to this rank (and to its group, where it has one) */
    CAIRN_LOCAL = 3       /* of a logical coordinate ("dp=3"), never merged: RNG, data loader */
};

/* A rectangle of a tensor and where it lies in memory. stride in elements per dimension, NULL:
 * row-major and contiguous. */
struct cairn_box {
    const int64_t *offset, *length, *stride;
    void *data;
};

struct cairn_tensor {
    size_t size;
    const char *name;
    int dtype;            /* enum cairn_dtype */
    uint32_t ndim;        /* at most 8; 0: a scalar */
    const int64_t *shape; /* global */
    const struct cairn_box *boxes;
    size_t box_count; /* what this rank holds; 0: the whole tensor, row-major, at `data` */
    void *data;       /* used when box_count is 0 */
    /* Ranks that hold the same boxes, ascending, this one among them; NULL: for REPLICATED all
     * ranks, otherwise only this one. */
    const int32_t *group;
    uint32_t group_count;
    int placement;          /* enum cairn_placement; 0: REPLICATED */
    const char *coordinate; /* LOCAL: known by (name, coordinate); NULL: "rank=<rank>" */
    int eager; /* 1: a lazy save copies it before the call returns, so that it may change */
    /* 0: data is host memory; 1 + N: memory of CUDA device N, row-major without holes, copied
     * through the driver. The work that makes its contents must have ended before cairn_save (or
     * see cairn_save_options.cuda_event) or cairn_restore is called. UNSUPPORTED without a driver,
     * INVALID for other memory. */
    int device;
};
#define CAIRN_TENSOR_INIT                                                  \
    {                                                                      \
        sizeof(struct cairn_tensor), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

enum cairn_blob_kind { CAIRN_BYTES = 1, CAIRN_TREE = 2 };

/* Named opaque bytes, or a typed tree (FORMAT.md 10; checked). REPLICATED: rank 0's is stored. */
struct cairn_blob {
    size_t size;
    const char *name;
    int kind, placement; /* 0: CAIRN_BYTES, CAIRN_REPLICATED */
    const char *coordinate;
    const void *data; /* copied by cairn_set_blobs */
    size_t data_bytes;
};
#define CAIRN_BLOB_INIT                             \
    {                                               \
        sizeof(struct cairn_blob), 0, 0, 0, 0, 0, 0 \
    }

/* The whole set; replaces the one before. Names, shapes, pointers are copied; the data is not
 * touched until a save or restore, but the arena for it is made in the background from now on.
 * BUSY while an operation borrows the present set. INVALID names the tensor. */
CAIRN_API int CAIRN_MUST_USE cairn_set_tensors(cairn_t *cairn, const struct cairn_tensor *tensors,
                                               size_t count, struct cairn_error *err);
CAIRN_API int CAIRN_MUST_USE cairn_set_blobs(cairn_t *cairn, const struct cairn_blob *blobs,
                                             size_t count, struct cairn_error *err);

/* --- flat partitions (ZeRO) ------------------------------------------------------------------- */

/* One box of a flat range: `at` says how many elements behind the range's first it begins; in
 * memory it is row-major and contiguous. */
struct cairn_flat_box {
    int64_t offset[8], length[8];
    uint64_t at;
};
#define CAIRN_FLAT_BOXES 15 /* at most, for 8 dimensions; 2 * ndim - 1 in general */

/* Elements [first, end) of a row-major tensor as boxes to register: a partition that cuts across
 * rows is stored under the parameter's own name and shape, so that it can be restored at any world
 * size. Returns their number (0: an empty range), or INVALID. */
CAIRN_API int CAIRN_MUST_USE cairn_flat_boxes(uint32_t ndim, const int64_t *shape, uint64_t first,
                                              uint64_t end,
                                              struct cairn_flat_box ret[CAIRN_FLAT_BOXES]);
/* A flat buffer holds `count` elements of a parameter from `start` on (what no parameter has is
 * padding); a rank holds elements [first, end) of the buffer. Returns 1 and the range of the
 * parameter's elements that this is, beginning at buffer element start + ret_range[0]; or 0. */
CAIRN_API int CAIRN_MUST_USE cairn_flat_part(uint64_t start, uint64_t count, uint64_t first,
                                             uint64_t end, uint64_t ret_range[2]);

/* --- save and restore ------------------------------------------------------------------------ */

enum cairn_stage {
    CAIRN_STAGED = 1, /* save: copied, and in the hands of its daemon if that takes the arena */
    CAIRN_DONE = 2    /* save: committed by all ranks, durable; restore: verified by all ranks */
};

enum cairn_mode {
    CAIRN_COPY = 1, /* cairn_save returns when all is copied: what was saved may change */
    CAIRN_LAZY = 2  /* it returns at once; until STAGED only eager tensors may change */
};

/* Lazy: a tensor that changes between the call and STAGED fails the save with
 * CAIRN_E_DIGEST_MISMATCH and its name. A digest of the memory is taken before cairn_save returns,
 * one of the copy after it is made, so a change is seen if and only if the copy has other bytes
 * than the memory had at the call. SAMPLED looks at 64 bytes of every 64 KiB (tensors of up to 4
 * KiB: all) and makes the call a few per cent of a copy longer: an optimizer's step, which changes
 * a tensor all over, is seen, single elements may not be. FULL reads everything: every change is
 * seen, and the call takes about half as long as a copy. */
enum cairn_verify { CAIRN_VERIFY_SAMPLED = 1, CAIRN_VERIFY_FULL = 2 };

struct cairn_metric {
    const char *name;
    double value;
};

/* Do the ranks of a group hold the same bytes of what they replicate? Compared by digest while the
 * save is made, which reads everything replicated once more; NaNs are compared bit for bit. */
enum cairn_check {
    CAIRN_CHECK_WARN = 1, /* the save goes on; cairn_op_warning names tensor and ranks */
    CAIRN_CHECK_FAIL = 2  /* the save fails with REPLICAS_DIFFER before it can be committed */
};

struct cairn_save_options {
    size_t size;
    /* Until durable; 0: the handle's. After it the save is aborted and names who is missing. */
    int64_t deadline_ms;
    const char *const *tags; /* rank 0's count, as do metrics and metadata */
    size_t tag_count;
    const struct cairn_metric *metrics;
    size_t metric_count;
    const void *metadata; /* opaque, <= 16 KiB */
    size_t metadata_bytes;
    int mode;          /* enum cairn_mode; 0: CAIRN_COPY */
    int verify_staged; /* enum cairn_verify, lazy only; 0: nothing is detected */
    int when_full;     /* enum cairn_when_full; 0: the handle's */
    int full;          /* rank 0's count: 1: shares nothing with older checkpoints */
    /* enum cairn_check, copy mode only, the same on all ranks; 0: replicas are not compared. */
    int check_replicas;
    /* A CUevent behind the work that makes the contents of tensors on devices (recorded on the
     * training's stream): copies wait for it on the device, and nobody else does. Borrowed until
     * STAGED. NULL: that work has ended. */
    void *cuda_event;
};
#define CAIRN_SAVE_OPTIONS_INIT                                                  \
    {                                                                            \
        sizeof(struct cairn_save_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Every rank calls it with the same step. Returns when the state is copied into the arena: it
 * may change. The rest goes on in the background. In lazy mode it returns when the eager tensors
 * are copied (at once where none are), and the others are borrowed until STAGED: wait for that
 * before they change. Several saves may be in flight as far as the arena reaches; what happens
 * beyond that is when_full. A rank that skips or fails ends the step on all ranks with its code and
 * reason: on the others, cairn_op_wait tells. A step that this attempt has committed already, with
 * no restore in between, is not written again: the save ends well at once, the contents are those
 * of the first. ARENA_TOO_SMALL (not even two chunks fit), TIMED_OUT, SKIPPED, BUSY (no room; a
 * restore, or a save of this step, runs), FENCED. */
CAIRN_API int CAIRN_MUST_USE cairn_save(cairn_t *cairn, uint64_t step,
                                        const struct cairn_save_options *options, cairn_op_t **ret,
                                        struct cairn_error *err);

struct cairn_restore_options {
    size_t size;
    uint64_t step; /* CAIRN_LATEST (the INIT's value) or a step */
    uint64_t term; /* 0: the newest on the lineage that has the step */
    /* When it is damaged, all ranks fall back to the next older good one. -1: for latest only. */
    int allow_older;
    /* 1 (default): a registered tensor that the checkpoint lacks is MISSING_TENSOR; 0: it is left
     * as it is and named by cairn_op_missing. */
    int strict;
    int64_t deadline_ms; /* 0: 600,000 */
    /* Patterns of names: only the registered tensors and stored blobs that match one are restored,
     * all else stays as it is (and is neither missing nor unexpected). `*` any characters, `?` one,
     * `[a-z]` one of, `[!a-z]` one not of, `[[]` a bracket; a pattern that equals a name means that
     * name. strict 1: a pattern to which nothing stored or registered answers is MISSING_TENSOR.
     * Count 0: all. */
    const char *const *only;
    size_t only_count;
    /* 1: LOCAL blobs come from all coordinates and not from this rank's own only, so that a rank of
     * another mesh can see what all had and decide. */
    int all_local;
};
#define CAIRN_RESTORE_OPTIONS_INIT                                               \
    {                                                                            \
        sizeof(struct cairn_restore_options), CAIRN_LATEST, 0, -1, 1, 0, 0, 0, 0 \
    }

/* Fills the registered tensors. Every rank calls it. DONE with 0: every rank verified the same
 * checkpoint. NOT_FOUND: there is none to restore; cairn_op_run_is_empty says whether training may
 * begin at step 0. After any other failure the tensors are unusable, and the error says so. */
CAIRN_API int CAIRN_MUST_USE cairn_restore(cairn_t *cairn,
                                           const struct cairn_restore_options *options,
                                           cairn_op_t **ret, struct cairn_error *err);

/* 0 (reached), CAIRN_E_AGAIN (deadline; the operation goes on), or the operation's final error.
 * Repeatable, any thread. */
CAIRN_API int CAIRN_MUST_USE cairn_op_wait(cairn_op_t *op, enum cairn_stage stage,
                                           int64_t deadline_ms, struct cairn_error *err);
/* cb once when the stage is reached or the op failed (code): on Cairn's thread, or, where that is
 * so already, at once on this one. It may only poll and free. drop (may be NULL) exactly once,
 * after cb, also when this call fails. */
CAIRN_API int CAIRN_MUST_USE cairn_op_notify(cairn_op_t *op, enum cairn_stage stage,
                                             void (*cb)(void *user, int code), void *user,
                                             void (*drop)(void *user));

struct cairn_progress {
    size_t size;
    uint64_t total_bytes, staged_bytes, sent_bytes, durable_bytes;
};
#define CAIRN_PROGRESS_INIT                       \
    {                                             \
        sizeof(struct cairn_progress), 0, 0, 0, 0 \
    }
CAIRN_API void cairn_op_progress(const cairn_op_t *op, struct cairn_progress *io);

struct cairn_result {
    size_t size;
    uint64_t term, step;
    int fell_back;         /* restore: an older one; newer ones are damaged or lost */
    int new_lineage;       /* save: began beside existing checkpoints that were not restored */
    uint64_t plain_bytes;  /* this rank's */
    uint64_t stored_bytes; /* save: what it sent; encoded, and without what older ones have */
    uint64_t blocked_ns;   /* how long the call itself took */
};
#define CAIRN_RESULT_INIT                                \
    {                                                    \
        sizeof(struct cairn_result), 0, 0, 0, 0, 0, 0, 0 \
    }
/* Of a finished op: 0 and *io, or its error. AGAIN before. */
CAIRN_API int CAIRN_MUST_USE cairn_op_result(cairn_op_t *op, struct cairn_result *io,
                                             struct cairn_error *err);
/* Of a restore that has ended with NOT_FOUND: 1 where the server has proven that the run has no
 * checkpoint and never had one. 0 for everything else, also while it runs: training must not begin
 * at step 0 then, because NOT_FOUND is an error like any other. Any thread. */
CAIRN_API int cairn_op_run_is_empty(cairn_op_t *op);
/* A finished save's remark that is no failure (replicas differ), or NULL; until op is freed. */
CAIRN_API const char *cairn_op_warning(cairn_op_t *op);
/* Restored blobs, until op is freed. coordinate NULL: "" (this rank's for LOCAL). NOT_FOUND. */
CAIRN_API int CAIRN_MUST_USE cairn_op_blob(cairn_op_t *op, const char *name, const char *coordinate,
                                           const void **ret, size_t *ret_bytes);
/* Restore: the checkpoint's metadata (DAMAGED: lost, see `cairn salvage`); names that
 * are not stored (missing) or not registered (unexpected); NULL past the end. Until op is freed. */
CAIRN_API int CAIRN_MUST_USE cairn_op_metadata(cairn_op_t *op, const void **ret, size_t *ret_bytes);
CAIRN_API const char *cairn_op_missing(cairn_op_t *op, size_t idx);
CAIRN_API const char *cairn_op_unexpected(cairn_op_t *op, size_t idx);

/* One tensor or blob of a checkpoint, as cairn_op_local and cairn_op_entry tell of it. */
struct cairn_local {
    size_t size;
    const char *name, *coordinate; /* valid until the op is freed */
    int kind;                      /* 0: a tensor; else enum cairn_blob_kind */
    int dtype;                     /* tensors, as are ndim and shape */
    uint32_t ndim;
    int64_t shape[8];
    uint64_t plain_bytes;
};
#define CAIRN_LOCAL_INIT                                           \
    {                                                              \
        sizeof(struct cairn_local), NULL, NULL, 0, 0, 0, {0, 0}, 0 \
    }
/* Restore: the idx-th LOCAL tensor or blob of the checkpoint, of any coordinate, by name and then
 * coordinate. A rank is given what its own coordinate has, no rule does more: when the coordinates
 * have changed it reads the old ones' blobs here (all_local, cairn_op_blob) or registers their
 * tensors and restores once more, then starts anew, merges or refuses. NOT_FOUND past the end. */
CAIRN_API int CAIRN_MUST_USE cairn_op_local(cairn_op_t *op, size_t idx, struct cairn_local *io);
/* The same of every tensor and blob of the checkpoint, registered or not; "" is no coordinate. */
CAIRN_API int CAIRN_MUST_USE cairn_op_entry(cairn_op_t *op, size_t idx, struct cairn_local *io);
CAIRN_API void cairn_op_abort(cairn_op_t *op); /* asks; DONE still fires, with the truth */
CAIRN_API void cairn_op_free(cairn_op_t *op);  /* drops the handle, never the work; NULL is fine */

/* --- what is there --------------------------------------------------------------------------- */

enum cairn_state {
    CAIRN_NONE = 0,
    CAIRN_OPEN = 1,
    CAIRN_COMMITTED = 2,
    CAIRN_ABORTED = 3,
    CAIRN_FORGOTTEN = 4
};
enum cairn_health { CAIRN_VERIFIED = 0, CAIRN_SUSPECT = 1, CAIRN_DAMAGED = 2 };

struct cairn_checkpoint {
    size_t size;
    uint64_t term, step, sequence, plain_bytes, stored_bytes;
    uint64_t parent_term, parent_step; /* term 0: none */
    int64_t commit_time_ns;            /* since 1970 UTC; display only */
    int32_t world_size;
    int state, health;      /* enum cairn_state, enum cairn_health */
    int superseded, latest; /* off the lineage; what restore(latest) would take */
};
#define CAIRN_CHECKPOINT_INIT                                                  \
    {                                                                          \
        sizeof(struct cairn_checkpoint), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Committed checkpoints of the run, newest first; none for a run that does not exist yet. */
CAIRN_API int CAIRN_MUST_USE cairn_list(cairn_t *cairn, int64_t deadline_ms, cairn_list_t **ret,
                                        struct cairn_error *err);
CAIRN_API size_t cairn_list_count(const cairn_list_t *list);
CAIRN_API void cairn_list_get(const cairn_list_t *list, size_t idx, struct cairn_checkpoint *io);
CAIRN_API void cairn_list_free(cairn_list_t *list);
/* Tags and metrics of the idx-th: those of its save, and what was annotated since; sorted. NULL
 * past the end. Valid until the list is freed. */
CAIRN_API const char *cairn_list_tag(const cairn_list_t *list, size_t idx, size_t tag_idx);
CAIRN_API const char *cairn_list_metric(const cairn_list_t *list, size_t idx, size_t metric_idx,
                                        double *ret_value);
/* io->term and io->step say which; the truth about it, also after a lost answer. */
CAIRN_API int CAIRN_MUST_USE cairn_status(cairn_t *cairn, int64_t deadline_ms,
                                          struct cairn_checkpoint *io, struct cairn_error *err);

struct cairn_annotation {
    size_t size;
    uint64_t term;                      /* 0: the newest on the lineage that has the step */
    int64_t deadline_ms;                /* 0: the handle's io_deadline_ms */
    const struct cairn_metric *metrics; /* set, or replaced by name */
    size_t metric_count;
    const char *const *tags; /* added */
    size_t tag_count;
    const char *const *removed_tags;
    size_t removed_tag_count;
};
#define CAIRN_ANNOTATION_INIT                                   \
    {                                                           \
        sizeof(struct cairn_annotation), 0, 0, 0, 0, 0, 0, 0, 0 \
    }
/* What is known only after a save: metrics and tags of a committed checkpoint, kept beside its
 * manifest, which never changes. step CAIRN_LATEST: the latest. One rank calls it, at any time; the
 * same again changes nothing. NOT_FOUND (never committed, forgotten), INVALID (NaN, by name),
 * TOO_LARGE (more than 32 tags or 64 metrics), READ_ONLY. */
CAIRN_API int CAIRN_MUST_USE cairn_annotate(cairn_t *cairn, uint64_t step,
                                            const struct cairn_annotation *annotation,
                                            struct cairn_error *err);

/* --- how often ------------------------------------------------------------------------------- */

struct cairn_interval { /* seconds; 0 in what is given means the default */
    size_t size;
    double blocked_s, persist_s; /* of one save: training stands still, and until durable */
    double restart_s;            /* from a failure until training goes on */
    double observed_s;           /* training that was watched for failures ... */
    uint64_t failures;           /* ... and how many were seen in it */
    double prior_mtbf_s;         /* expected before anything is seen; 0: 50,700 h / world_size */
    double overhead_max;         /* share of the time that saves may take; 0: 0.05 */
    int32_t world_size, in_flight;
    /* The answer: time between failures; training between two saves by Young and Daly, and not
     * faster than they become durable (use that); share of the time for saves; training lost by a
     * failure; three lines that explain it. */
    double mtbf_s, staged_s, durable_s, overhead, lost_s;
    char text[640];
};
#define CAIRN_INTERVAL_INIT                                                            \
    {                                                                                  \
        sizeof(struct cairn_interval), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
    }
/* INVALID names what is negative or not a number. Needs no handle. */
CAIRN_API int CAIRN_MUST_USE cairn_interval(struct cairn_interval *io, struct cairn_error *err);

#ifdef __cplusplus
}
#endif

#endif
