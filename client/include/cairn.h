/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn.h - save and restore the state of a distributed training job.
 *
 * One handle (cairn_t) is one rank of one attempt, and an attempt is one start of the job's group
 * of ranks. A save copies the registered tensors and blobs into the handle's staging memory (the
 * arena), streams them to the server in the background, and ends when the checkpoint of all ranks
 * is committed: complete, verified and on stable storage. A restore gives all ranks exactly what
 * was saved, or a named error. client/examples/minimal.c is a whole program.
 *
 *     struct cairn_options options = CAIRN_OPTIONS_INIT;
 *     options.rank = rank, options.world_size = n;
 *     options.attempt = token;                    // drawn by rank 0, the same on all ranks
 *     cairn_open("cairn+unix:///run/cairn/cairnd.sock?run=demo/run1", &options, &c, &err);
 *     cairn_set_tensors(c, tensors, count, &err);
 *     cairn_save(c, step, NULL, &op, &err);       // returns when copied: the tensors may change
 *     cairn_op_wait(op, CAIRN_DURABLE, 60000, &err); // or poll, or cairn_op_notify()
 *     cairn_op_free(op);
 *     cairn_close(c, 60000, &err);
 *
 * Rules
 *  - A function that returns int gives 0 or a CAIRN_E_* code, or what its comment says. *err (may
 *    be NULL) says what was tried, on what, and what to do. Results are written only on success.
 *  - Any thread may make any call; cairn_close and the frees must be the last of their object.
 *  - A struct whose first field is `size` only grows. Fill it with its CAIRN_*_INIT, then set what
 *    you need; 0 selects the default. In an array of such structs, element [0].size is the
 *    distance between elements. A NULL pointer to options selects all defaults.
 *  - Strings are UTF-8. Arguments are copied before the call returns, except tensor data, which is
 *    borrowed until CAIRN_RELEASED (save) or CAIRN_DONE (restore).
 *  - A deadline is in milliseconds from the call. 0 makes a wait return at once and selects the
 *    default elsewhere; CAIRN_FOREVER waits without end.
 *  - After fork(), the child's handles and ops are dead (CAIRN_E_FORKED) and cost nothing; the
 *    parent's go on. The child may open handles of its own.
 *  - A bug in Cairn never ends your process. The handle dies: everything in flight ends with
 *    CAIRN_E_INTERNAL, and so does every later call. Close it, and open another one if you like.
 *  - It is C99 and C++. Link with `pkg-config --cflags --libs cairn`.
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
    CAIRN_E_SKIPPED = -49, /* as when_full or when_down says; this is no failure */
    CAIRN_E_REPLICAS_DIFFER = -50
};

struct cairn_error {
    int code;
    char text[508]; /* says what was tried, on what, with which numbers, and what to do */
};

/* Return a code's name ("NO_SPACE"), its text, and whether to retry: 0 never, 1 the same call, 2
 * after a change, 3 after cairn_status(). Static strings; an unknown code is "UNKNOWN". */
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
CAIRN_API const char *cairn_dtype_name(int dtype); /* "bfloat16", or "unknown" */
CAIRN_API int cairn_dtype_bits(int dtype);         /* 0 if the type is unknown */

/* --- opening --------------------------------------------------------------------------------- */

#define CAIRN_LATEST  UINT64_MAX /* a step: that of the latest checkpoint */
#define CAIRN_FOREVER INT64_MAX
#define CAIRN_CUT     (-1) /* of cairn_close */

typedef struct cairn cairn_t;
typedef struct cairn_op cairn_op_t; /* one save or restore */
typedef struct cairn_list cairn_list_t;

struct cairn_options {
    size_t size;
    int32_t rank, world_size; /* 0 <= rank < world_size; a world_size of 0 means 1 */
    /* The attempt token, 32 hex digits. Rank 0 draws it once a start (cairn_new_attempt) for all
     * ranks. NULL takes the variable CAIRN_ATTEMPT; in a world of one, a fresh token. */
    const char *attempt;
    int read_only; /* the handle can list, ask for status and restore; it has no rank or group */
    /* The most staging memory; 0 means as much as the rank writes. A larger save goes in waves: it
     * reuses memory as bytes become durable, and is released when its last byte is copied. */
    uint64_t arena_bytes;
    int32_t threads;          /* for copies and digests; 0 means one a core, at most 4 */
    int64_t io_deadline_ms;   /* for opening and small requests; 0 means 30,000 */
    int64_t save_deadline_ms; /* default deadline of a save; 0 means 600,000 */
    const char *cert_file, *key_file, *ca_file; /* PEM files; TLS is used when ca_file is set */
    const char *label; /* shown in logs (host, job id); it is not an identity */
    void (*log)(void *user, int level, const char *line); /* NULL logs warnings and up to stderr */
    void *log_user;
    /* The number of saves in flight that the arena has room for, within arena_bytes. 0 means 1, or
     * 2 where arena_bytes is set and large enough. */
    int32_t snapshots;
    int when_full; /* enum cairn_when_full: what a save without room does; 0 is CAIRN_FULL_WAIT */
    int encoding;  /* enum cairn_encoding; 0 takes CAIRN_ENCODING (auto, raw, dense), or auto */
    int64_t when_down; /* enum cairn_when_down; 0 is CAIRN_DOWN_WAIT */
};
#define CAIRN_OPTIONS_INIT                                                                 \
    {                                                                                      \
        sizeof(struct cairn_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* How a chunk is stored, always without loss: as it is, or as fewer bytes that decode to it (zstd,
 * byte planes). A chunk that a save shares with an older checkpoint is not stored again at all. */
enum cairn_encoding {
    CAIRN_ENCODE_AUTO = 1, /* the densest that is measured to keep up with the way to the disk */
    CAIRN_ENCODE_RAW = 2,
    CAIRN_ENCODE_DENSE = 3 /* the densest, whatever time it takes */
};

/* What happens to a save that cannot begin to copy because saves in flight fill the arena. */
enum cairn_when_full {
    CAIRN_FULL_WAIT = 1, /* the save waits for room, within its deadline */
    CAIRN_FULL_SKIP = 2, /* cairn_save returns CAIRN_E_SKIPPED at once: no failure, no checkpoint */
    CAIRN_FULL_FAIL = 3  /* cairn_save returns CAIRN_E_BUSY at once, naming what is in flight */
};

/* What happens to a save that would make its caller wait for a server that cannot be reached. */
enum cairn_when_down {
    CAIRN_DOWN_WAIT = 1, /* the save waits, within its deadline */
    CAIRN_DOWN_SKIP = 2, /* it is CAIRN_E_SKIPPED on all ranks, in the call or later */
    CAIRN_DOWN_TRAIN = 3 /* the same, and cairn_open succeeds while no server answers */
};

/* Draws a token: 32 hex digits and a NUL. */
CAIRN_API int CAIRN_MUST_USE cairn_new_attempt(char ret_token[33]);

/* Opens a handle. url is cairn://h1:port,h2:port/project/run (without hosts, CAIRN_SERVER names
 * them: host:port[,...] or unix:/path) or cairn+unix:///path?run=project/run. Tries for
 * io_deadline_ms, later reconnects by itself; an error names the first and last cause. UNREACHABLE,
 * AUTH, VERSION, DUPLICATE_RANK, WORLD_MISMATCH, INVALID, NO_MEMORY. */
CAIRN_API int CAIRN_MUST_USE cairn_open(const char *url, const struct cairn_options *options,
                                        cairn_t **ret, struct cairn_error *err);
/* Waits for what is in flight until the deadline, and 10 s at most for refused saves; then aborts
 * the rest, which takes 2 s more at most and which the ops report. Always frees the handle; returns
 * 0 if every save in flight became durable, else the first failure. Ops must still be freed. In a
 * callback it is INVALID. NULL is allowed. CAIRN_CUT says that the job failed: no waiting. */
CAIRN_API int cairn_close(cairn_t *cairn, int64_t deadline_ms, struct cairn_error *err);

/* --- what is saved --------------------------------------------------------------------------- */

enum cairn_placement {
    CAIRN_REPLICATED = 1, /* the same on every rank of the group, which shares the writing */
    CAIRN_SHARDED = 2,    /* boxes that belong to this rank (and to its group, where it has one) */
    CAIRN_LOCAL = 3       /* owned by a coordinate ("dp=3"), never merged: RNG, data loader */
};

/* A rectangle of a tensor and where it lies in memory. The arrays have one entry a dimension;
 * stride counts elements, and NULL means row-major and contiguous. */
struct cairn_box {
    const int64_t *offset, *length, *stride;
    void *data;
};

struct cairn_tensor {
    size_t size;
    const char *name;
    int dtype;            /* enum cairn_dtype */
    uint32_t ndim;        /* at most 8; 0 means a scalar */
    const int64_t *shape; /* of the whole tensor */
    const struct cairn_box *boxes;
    size_t box_count; /* boxes of this rank; 0 means the whole tensor, row-major, at `data` */
    void *data;       /* used when box_count is 0 */
    /* The ranks that hold the same boxes, ascending, this rank among them. NULL means all ranks for
     * REPLICATED, otherwise only this one. */
    const int32_t *group;
    uint32_t group_count;
    int placement;          /* enum cairn_placement; 0 means REPLICATED */
    const char *coordinate; /* LOCAL: part of its identity beside name; NULL means "rank=<rank>" */
    int eager; /* if 1, a lazy save copies it before the call returns, so that it may change */
    /* 0 means that data is host memory; 1 + N means memory of CUDA device N, row-major without
     * holes, copied through the driver. The work that makes its contents must have ended before
     * cairn_save (or see cairn_save_options.cuda_event) or cairn_restore is called. UNSUPPORTED
     * without a driver, INVALID for other memory. */
    int device;
};
#define CAIRN_TENSOR_INIT                                                  \
    {                                                                      \
        sizeof(struct cairn_tensor), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

enum cairn_blob_kind { CAIRN_BYTES = 1, CAIRN_TREE = 2 };

/* Named bytes, or a typed tree (FORMAT.md 10; checked). If REPLICATED, rank 0's are stored. */
struct cairn_blob {
    size_t size;
    const char *name;
    int kind, placement; /* 0 means CAIRN_BYTES and CAIRN_REPLICATED */
    const char *coordinate;
    const void *data; /* copied by cairn_set_blobs */
    size_t data_bytes;
};
#define CAIRN_BLOB_INIT                             \
    {                                               \
        sizeof(struct cairn_blob), 0, 0, 0, 0, 0, 0 \
    }

/* Registers the whole set, in place of the one before. Names, shapes and pointers are copied; the
 * data is not touched until a save or restore, but the arena for it is made in the background from
 * now on. BUSY while an operation borrows the present set. INVALID names the tensor. */
CAIRN_API int CAIRN_MUST_USE cairn_set_tensors(cairn_t *cairn, const struct cairn_tensor *tensors,
                                               size_t count, struct cairn_error *err);
CAIRN_API int CAIRN_MUST_USE cairn_set_blobs(cairn_t *cairn, const struct cairn_blob *blobs,
                                             size_t count, struct cairn_error *err);

/* --- flat partitions (ZeRO) ------------------------------------------------------------------- */

/* One box of a flat range. It begins `at` elements behind the range's first, and is row-major and
 * contiguous in memory. */
struct cairn_flat_box {
    int64_t offset[8], length[8];
    uint64_t at;
};
#define CAIRN_FLAT_BOXES 15 /* the most for 8 dimensions; 2 * ndim - 1 in general */

/* Writes elements [first, end) of a row-major tensor as boxes to register, so that a partition that
 * cuts across rows has the parameter's own name and shape. Returns their number, or INVALID. */
CAIRN_API int CAIRN_MUST_USE cairn_flat_boxes(uint32_t ndim, const int64_t *shape, uint64_t first,
                                              uint64_t end,
                                              struct cairn_flat_box ret[CAIRN_FLAT_BOXES]);
/* Returns 1 and the range of a parameter's elements that a rank holds, or 0 if it holds none. A
 * flat buffer has `count` of its elements from buffer element `start` on; the rank has buffer
 * elements [first, end), in which start + ret_range[0] is the first that is the parameter's. */
CAIRN_API int CAIRN_MUST_USE cairn_flat_part(uint64_t start, uint64_t count, uint64_t first,
                                             uint64_t end, uint64_t ret_range[2]);

/* --- save and restore ------------------------------------------------------------------------ */

enum cairn_stage {
    CAIRN_RELEASED = 1,    /* everything is copied: the tensors may change */
    CAIRN_HANDED_OVER = 3, /* the server finishes this rank's part alone: the process may die */
    CAIRN_DURABLE = 2,     /* the checkpoint is committed by all ranks and on stable storage */
    CAIRN_DONE = 2,        /* the end of any operation; a restore is verified by all ranks */
    CAIRN_STAGED = 1       /* the old name of CAIRN_RELEASED, which says no more than that one */
};

enum cairn_mode {
    CAIRN_COPY = 1, /* cairn_save returns when all is copied: the saved state may change */
    CAIRN_LAZY = 2  /* cairn_save returns at once; until RELEASED only eager tensors may change */
};

/* How a lazy save detects a tensor that changes before RELEASED, which fails it by name with
 * CAIRN_E_DIGEST_MISMATCH: by digests of the memory at the call and of the copy. SAMPLED reads 64
 * bytes of every 64 KiB (tensors of up to 4 KiB whole), for a few per cent of a copy: it sees an
 * optimizer's step, and may miss single elements. FULL reads everything and sees every change; the
 * call takes about half as long as a copy. */
enum cairn_verify { CAIRN_VERIFY_SAMPLED = 1, CAIRN_VERIFY_FULL = 2 };

struct cairn_metric {
    const char *name;
    double value;
};

/* How a save checks that the ranks of a group hold the same bytes of what they replicate: by
 * digest, which reads everything replicated once more; NaNs are compared bit for bit. */
enum cairn_check {
    CAIRN_CHECK_WARN = 1, /* the save goes on; cairn_op_warning names the tensor and the ranks */
    CAIRN_CHECK_FAIL = 2  /* the save fails with REPLICAS_DIFFER before it can be committed */
};

struct cairn_save_options {
    size_t size;
    /* Time until durable, then it is aborted and names missing ranks; 0 means the handle's. */
    int64_t deadline_ms;
    const char *const *tags; /* only rank 0's tags, metrics and metadata are stored */
    size_t tag_count;
    const struct cairn_metric *metrics;
    size_t metric_count;
    const void *metadata; /* opaque, at most 16 KiB */
    size_t metadata_bytes;
    int mode;          /* enum cairn_mode; 0 means CAIRN_COPY */
    int verify_staged; /* enum cairn_verify, lazy saves only; 0 detects nothing */
    int when_full;     /* enum cairn_when_full; 0 means the handle's */
    int full;          /* 1 on rank 0 makes a save that shares nothing with older checkpoints */
    /* enum cairn_check, copy mode only, the same on all ranks; 0 compares no replicas. */
    int check_replicas;
    /* A CUevent behind the work that makes device tensors, on the training's stream; only copies
     * wait for it, on the device. Borrowed until RELEASED. NULL means that the work has ended. */
    void *cuda_event;
    const char *refusal; /* if this rank cannot save: the reason, with which the step ends on all */
    int refusal_code;    /* CAIRN_E_*, 0 means ABORTED */
};
#define CAIRN_SAVE_OPTIONS_INIT                                                        \
    {                                                                                  \
        sizeof(struct cairn_save_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Starts a save; every rank calls it with the same step. In copy mode it returns when the state is
 * copied into the arena, which may then change; the rest goes on in the background. In lazy mode it
 * returns when the eager tensors are copied (at once where there are none), and the others are
 * borrowed until RELEASED. Saves may be in flight as far as the arena reaches; when_full decides
 * beyond that. A rank that skips, fails or refuses ends the step on all ranks with its code and
 * reason. A step that this attempt has committed already, with no restore in between, is not
 * written again: the save ends well at once, with the contents of the first. ARENA_TOO_SMALL (not
 * even two chunks fit), TIMED_OUT, SKIPPED, BUSY (no room, or a restore or a save of this step
 * runs), FENCED. */
CAIRN_API int CAIRN_MUST_USE cairn_save(cairn_t *cairn, uint64_t step,
                                        const struct cairn_save_options *options, cairn_op_t **ret,
                                        struct cairn_error *err);

struct cairn_restore_options {
    size_t size;
    uint64_t step; /* CAIRN_LATEST (the INIT's value) or a step */
    uint64_t term; /* 0 means the newest on the lineage that has the step */
    /* If damaged, all ranks take the next older good one. -1 does so for CAIRN_LATEST only. */
    int allow_older;
    /* If 1 (default), a registered tensor that the checkpoint lacks is MISSING_TENSOR. If 0, it is
     * left as it is, and cairn_op_missing names it. */
    int strict;
    int64_t deadline_ms; /* 0 means 600,000 */
    /* Patterns of names. Only the registered tensors and stored blobs that match one are restored;
     * all others stay as they are, and are neither missing nor unexpected. `*` matches any
     * characters, `?` one, `[a-z]` one of a set, `[!a-z]` one not in it, `[[]` a bracket; a pattern
     * that equals a name matches it. With strict 1, a pattern that matches nothing stored or
     * registered is MISSING_TENSOR. A count of 0 restores all. */
    const char *const *only;
    size_t only_count;
    /* 1 gives LOCAL blobs of all coordinates and not only of this rank's own, so that a rank of
     * another mesh can see what all had and decide. */
    int all_local;
};
#define CAIRN_RESTORE_OPTIONS_INIT                                               \
    {                                                                            \
        sizeof(struct cairn_restore_options), CAIRN_LATEST, 0, -1, 1, 0, 0, 0, 0 \
    }

/* Fills the registered tensors; every rank calls it. DONE with 0 means that every rank verified the
 * same checkpoint; NOT_FOUND, that there is none, and cairn_op_run_is_empty says whether training
 * may begin at step 0. After any other failure the tensors are unusable, as the error says. */
CAIRN_API int CAIRN_MUST_USE cairn_restore(cairn_t *cairn,
                                           const struct cairn_restore_options *options,
                                           cairn_op_t **ret, struct cairn_error *err);

/* Returns 0 if the stage is reached, CAIRN_E_AGAIN if the deadline passes first (the operation goes
 * on), or the operation's final error. May be repeated, on any thread. */
CAIRN_API int CAIRN_MUST_USE cairn_op_wait(cairn_op_t *op, enum cairn_stage stage,
                                           int64_t deadline_ms, struct cairn_error *err);
/* Calls cb once when the stage is reached or the op has failed (code): on Cairn's thread or, where
 * that is so already, at once on this one. cb may only poll and free. drop (may be NULL) is called
 * exactly once, after cb, also when this call fails. */
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
    int fell_back;         /* restore: took an older one; newer ones are damaged or lost */
    int new_lineage;       /* save: began beside existing checkpoints that were not restored */
    uint64_t plain_bytes;  /* of this rank */
    uint64_t stored_bytes; /* save: what was sent; encoded, and without what older ones have */
    uint64_t blocked_ns;   /* duration of the call itself */
};
#define CAIRN_RESULT_INIT                                \
    {                                                    \
        sizeof(struct cairn_result), 0, 0, 0, 0, 0, 0, 0 \
    }
/* Returns 0 and the result of a finished op, or the op's error. AGAIN before. */
CAIRN_API int CAIRN_MUST_USE cairn_op_result(cairn_op_t *op, struct cairn_result *io,
                                             struct cairn_error *err);
/* Returns 1 after a restore that ended with NOT_FOUND if the server has proven that the run never
 * had a checkpoint; else 0, also while it runs: training must not begin at step 0 then. */
CAIRN_API int cairn_op_run_is_empty(cairn_op_t *op);
/* Returns what a finished save noticed without failing (replicas that differ), or NULL. */
CAIRN_API const char *cairn_op_warning(cairn_op_t *op);
/* Gives a restored blob, or NOT_FOUND. A NULL coordinate means "" (this rank's own for LOCAL). */
CAIRN_API int CAIRN_MUST_USE cairn_op_blob(cairn_op_t *op, const char *name, const char *coordinate,
                                           const void **ret, size_t *ret_bytes);
/* Give metadata (DAMAGED: lost, see `cairn salvage`), and names that are not stored (missing) or
 * not registered (unexpected); NULL past the end. The op owns all. */
CAIRN_API int CAIRN_MUST_USE cairn_op_metadata(cairn_op_t *op, const void **ret, size_t *ret_bytes);
CAIRN_API const char *cairn_op_missing(cairn_op_t *op, size_t idx);
CAIRN_API const char *cairn_op_unexpected(cairn_op_t *op, size_t idx);

/* One tensor or blob of a checkpoint, as cairn_op_local and cairn_op_entry tell of it. */
struct cairn_local {
    size_t size;
    const char *name, *coordinate; /* valid until the op is freed */
    int kind;                      /* 0 means a tensor; else enum cairn_blob_kind */
    int dtype;                     /* of a tensor, as are ndim and shape */
    uint32_t ndim;
    int64_t shape[8];
    uint64_t plain_bytes;
};
#define CAIRN_LOCAL_INIT                                           \
    {                                                              \
        sizeof(struct cairn_local), NULL, NULL, 0, 0, 0, {0, 0}, 0 \
    }
/* Gives the idx-th LOCAL tensor or blob, of any coordinate, by name and then coordinate; NOT_FOUND
 * past the end. A rank whose coordinates have changed finds the old ones' here. */
CAIRN_API int CAIRN_MUST_USE cairn_op_local(cairn_op_t *op, size_t idx, struct cairn_local *io);
/* Gives the idx-th of all tensors and blobs, registered or not, alike; "" is no coordinate. */
CAIRN_API int CAIRN_MUST_USE cairn_op_entry(cairn_op_t *op, size_t idx, struct cairn_local *io);
CAIRN_API void cairn_op_abort(cairn_op_t *op); /* only asks; DONE still fires, truthfully */
CAIRN_API void cairn_op_free(cairn_op_t *op);  /* the work goes on; NULL is allowed */

/* --- what is there --------------------------------------------------------------------------- */

enum cairn_state { CAIRN_NONE, CAIRN_OPEN, CAIRN_COMMITTED, CAIRN_ABORTED, CAIRN_FORGOTTEN };
enum cairn_health { CAIRN_VERIFIED = 0, CAIRN_SUSPECT = 1, CAIRN_DAMAGED = 2 };

struct cairn_checkpoint {
    size_t size;
    uint64_t term, step, sequence, plain_bytes, stored_bytes;
    uint64_t parent_term, parent_step; /* term 0 means none */
    int64_t commit_time_ns;            /* since 1970 UTC; for display only */
    int32_t world_size;
    int state, health;               /* enum cairn_state, enum cairn_health */
    int superseded, latest, planned; /* off the lineage; is CAIRN_LATEST; after an orderly close */
};
#define CAIRN_CHECKPOINT_INIT                                                     \
    {                                                                             \
        sizeof(struct cairn_checkpoint), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Lists the committed checkpoints of the run, newest first; a run that does not exist has none. */
CAIRN_API int CAIRN_MUST_USE cairn_list(cairn_t *cairn, int64_t deadline_ms, cairn_list_t **ret,
                                        struct cairn_error *err);
CAIRN_API size_t cairn_list_count(const cairn_list_t *list);
CAIRN_API void cairn_list_get(const cairn_list_t *list, size_t idx, struct cairn_checkpoint *io);
CAIRN_API void cairn_list_free(cairn_list_t *list);
/* Return a tag or metric of the idx-th checkpoint, from its save or annotated since, in sorted
 * order; NULL past the end. Valid until the list is freed. */
CAIRN_API const char *cairn_list_tag(const cairn_list_t *list, size_t idx, size_t tag_idx);
CAIRN_API const char *cairn_list_metric(const cairn_list_t *list, size_t idx, size_t metric_idx,
                                        double *ret_value);
/* Writes the truth about checkpoint (io->term, io->step) to *io, also after a lost answer. */
CAIRN_API int CAIRN_MUST_USE cairn_status(cairn_t *cairn, int64_t deadline_ms,
                                          struct cairn_checkpoint *io, struct cairn_error *err);

struct cairn_annotation {
    size_t size;
    uint64_t term;                      /* 0 means the newest on the lineage that has the step */
    int64_t deadline_ms;                /* 0 means the handle's io_deadline_ms */
    const struct cairn_metric *metrics; /* added, or replaced by name */
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
/* Changes metrics and tags of a committed checkpoint, or of CAIRN_LATEST; one rank calls it, at any
 * time. NOT_FOUND, INVALID (NaN, by name), TOO_LARGE (over 32 tags or 64 metrics), READ_ONLY. */
CAIRN_API int CAIRN_MUST_USE cairn_annotate(cairn_t *cairn, uint64_t step,
                                            const struct cairn_annotation *annotation,
                                            struct cairn_error *err);
/* Forgets a checkpoint (term 0: the newest); a read_only handle may. DENIED: retention keeps it. */
CAIRN_API int CAIRN_MUST_USE cairn_forget(cairn_t *cairn, uint64_t step, uint64_t term,
                                          const char *reason, struct cairn_error *err);

/* --- how often ------------------------------------------------------------------------------- */

struct cairn_interval { /* seconds; an input of 0 means its default */
    size_t size;
    double blocked_s, persist_s; /* of one save: training stands still; until it is durable */
    double restart_s;            /* from a failure until training goes on */
    double observed_s;           /* training that was watched for failures */
    uint64_t failures;           /* failures that were seen in it */
    double prior_mtbf_s;         /* expected before any is seen; 0 means 50,700 h / world_size */
    double overhead_max;         /* share of the time that saves may take; 0 means 0.05 */
    int32_t world_size, in_flight;
    /* The answer: the time between failures; the training between two saves by Young and Daly, and
     * the same but no faster than saves become durable (use that); the share of the time for saves;
     * the training that one failure loses; an explanation in three lines. */
    double mtbf_s, staged_s, durable_s, overhead, lost_s;
    char text[640];
};
#define CAIRN_INTERVAL_INIT                                                            \
    {                                                                                  \
        sizeof(struct cairn_interval), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
    }
/* Fills in the answer; needs no handle. INVALID names what is negative or not a number. */
CAIRN_API int CAIRN_MUST_USE cairn_interval(struct cairn_interval *io, struct cairn_error *err);

#ifdef __cplusplus
}
#endif
#endif
