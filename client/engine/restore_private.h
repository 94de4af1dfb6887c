/* SPDX-License-Identifier: Apache-2.0
 *
 * A restore under way, as its files share it: restore.c decides (the state machine),
 * restore_check.c compares what is registered with what is stored, restore_plan.c makes wants and
 * checks the plan, restore_read.c reads, verifies and scatters. Loop's thread; works touch only
 * their slot and the memory that their records name.
 */
#ifndef CAIRN_ENGINE_RESTORE_PRIVATE_H
#define CAIRN_ENGINE_RESTORE_PRIVATE_H

#include "engine/operations.h"

enum {
    RESTORE_SLOTS = 16,           /* READs under way or being verified */
    RESTORE_LANDING_SLOTS = 8,    /* the same where they land in memory of ours */
    RESTORE_BUFFERS = 32,         /* stored and plain bytes of each */
    RESTORE_GAP_BYTES = 64 << 10, /* read along rather than ask twice */
    RESTORE_TRIES = 3,            /* of a READ whose bytes do not match */
    RESTORE_RECORDS_MAX = 1 << 22,
    RESTORE_BLOB_BYTES_MAX = 1 << 30,
};

struct restore;

struct want {                               /* one box of a registered tensor, or one stored blob */
    const struct registered_tensor *tensor; /* NULL: a blob */
    const struct registered_box *box;
    struct restored_blob *blob;
    uint64_t bytes, planned_bytes;
};

struct read_group {        /* one READ: records that lie side by side in an object */
    uint32_t first, count; /* records */
    uint64_t offset;
    uint32_t bytes;
    uint8_t *place; /* straight to where it belongs; NULL: through a buffer */
    uint8_t tries;
};

struct read_slot {
    struct restore *restore;
    struct request request;
    struct work work;
    uint32_t group;
    bool busy, working;
    bool lands;                   /* what it reads comes into its place in the landing */
    uint32_t skip, landing_bytes; /* of what lands: in front of what is wanted; all of it */
    unsigned promised;            /* buffers of the restore that this READ may take */
    uint8_t *buffer,
        *plain; /* taken from the restore when the reply comes, given back at the end */
    struct diag diag;
    int status;
};

/* Memory that a daemon of this host reads into (restore_land.c), instead of sending. */
enum landing_state {
    LANDING_NONE, /* not to be had, or not any more: READs go by the socket */
    LANDING_MAKING,
    LANDING_OFFERED,
    LANDING_HELD
};

struct landing {
    enum landing_state state;
    struct arena *arena;
    uint8_t *data; /* RESTORE_LANDING_SLOTS places */
    uint32_t place_bytes;
    uint64_t id;
    struct request request;
    struct work work; /* writes arena, data, status */
    int status;
    struct diag diag;
};

/* What the index says about one registered name, and which blobs this rank takes. */
struct index {
    size_t count, cap;
    struct index_entry *entries; /* sorted by (name, coordinate, kind) */
};

struct restore {
    struct engine_op op; /* of engine->restores */
    struct sm sm;
    struct engine *engine;
    struct engine_restore *user;
    struct registered *set;
    struct engine_call call;
    bool asked, come; /* call: of the present state */
    int call_status;
    struct timer timer;
    struct post post;
    uint64_t end_ms;
    uint32_t ordinal, try_count;
    bool tell_done;
    int status;      /* what it ends with */
    int report_code; /* what REPORT will say; 0: verified */
    struct diag report_diag;
    struct index index;
    uint32_t page_at;
    /* plan */
    size_t want_count, want_at, want_batch; /* batch: first want of the PLAN under way */
    struct want *wants;                     /* scratch */
    struct plan_want *plan_wants;
    struct plan_read *records; /* malloc'ed, grows by replies */
    size_t record_count, record_cap;
    /* read */
    struct read_group *groups; /* malloc'ed */
    size_t group_count, group_at;
    uint32_t redo[RESTORE_SLOTS];
    size_t redo_count, slots_busy;
    struct read_slot slots[RESTORE_SLOTS];
    struct landing landing;
    /* Of LIMIT_CHUNK_BYTES each. There is one for each that a slot may need, but the last one given
     * back is the first one taken, so that only as many are ever touched as are in use at once:
     * fresh memory costs more than what is done with it. */
    uint8_t *buffers[RESTORE_BUFFERS]; /* those that nobody has */
    unsigned buffers_free, buffers_made, buffers_promised;
};

/* restore_check.c: pure */
/* Compares; fills user->missing and unexpected. MISSING_TENSOR (strict), SHAPE_MISMATCH,
 * DTYPE_MISMATCH. */
int MUST_USE restore_check(struct restore *restore, struct diag *diag);
const struct index_entry *restore_index_find(const struct index *index, const char *name,
                                             const char *coordinate, uint32_t kind);
bool restore_takes_blob(const struct restore *restore, const struct index_entry *entry);
/* Is a tensor or blob of this name to be restored at all (user->only)? */
bool restore_is_chosen(const struct restore *restore, const char *name);

/* restore_plan.c */
/* One want for each registered box and each blob taken; memory for the blobs. */
int MUST_USE restore_make_wants(struct restore *restore, struct diag *diag);
/* The next PLAN: wants up to the size of a message. False: all were asked for. */
bool restore_next_plan(struct restore *restore, struct msg_plan *ret);
/* Takes a reply's records; checks that each belongs to its want. */
int MUST_USE restore_take_plan(struct restore *restore, size_t bytes, const uint8_t *data,
                               struct diag *diag);
/* Do the records cover every want exactly? Then groups them into READs. */
int MUST_USE restore_end_plan(struct restore *restore, struct diag *diag);
/* The part of a record's cell that its want needs. */
bool restore_part_of(const struct want *want, const struct plan_read *read, struct box *ret);

/* restore_read.c */
void restore_read_start(struct restore *restore);
void restore_read_pump(struct restore *restore);
bool restore_read_is_done(const struct restore *restore);
/* No further READ; those under way are given up. Workers must still end: slots_busy. */
void restore_read_stop(struct restore *restore);
void restore_read_fini(struct restore *restore);

/* restore_land.c */
/* Makes the memory and hands it over, where that can be done. Once in a restore. */
void restore_land_begin(struct restore *restore);
/* It has been decided: READs may begin. */
bool restore_land_is_settled(const struct restore *restore);
/* A worker has it, or a request is out. */
bool restore_land_is_busy(const struct restore *restore);
/* A READ that was to land is given up: somebody may write there for as long as he likes, so that
 * nothing is to land any more. What has landed may still be used. */
void restore_land_stop(struct restore *restore);
/* The place of a slot; NULL: what it is to read does not land. *ret: what to ask for. */
uint8_t *restore_land_place(const struct restore *restore, const struct read_slot *slot);
bool restore_land_range(const struct restore *restore, const struct read_slot *slot,
                        const struct read_group *group, struct msg_read *ret);
void restore_land_fini(struct restore *restore);

/* restore.c */
void restore_wake(struct restore *restore);
void restore_fail(struct restore *restore, int status, const struct diag *diag);
bool restore_is_reading(const struct restore *restore);
/* This rank cannot take this checkpoint: it will be reported. */
void restore_cannot(struct restore *restore, int code, const struct diag *diag);

/* What the store says about something that the record promises: damage of this checkpoint. An I/O
 * error may be the disk's or the host's fault: the restore falls back, but the checkpoint counts as
 * suspect only. */
int restore_damage_code(int status);

#endif
