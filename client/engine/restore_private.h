/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a restore that is under way, shared by its files. restore.c decides (the state
 * machine), restore_index.c takes the manifest and the index pages, restore_check.c compares what
 * is registered with what is stored, restore_plan.c makes wants and checks the plan, restore_read.c
 * reads, verifies and scatters, restore_land.c provides memory that the daemon reads into. Loop's
 * thread; a work touches only its slot and the memory that its records name.
 */
#ifndef CAIRN_ENGINE_RESTORE_PRIVATE_H
#define CAIRN_ENGINE_RESTORE_PRIVATE_H

#include "engine/operations.h"

enum {
    RESTORE_SLOTS = 16,           /* READs that are under way or being verified, at most */
    RESTORE_LANDING_SLOTS = 8,    /* the same where the daemon reads into our memory */
    RESTORE_BUFFERS = 32,         /* two for each slot: stored bytes and plain bytes */
    RESTORE_GAP_BYTES = 64 << 10, /* a smaller gap between two records is read along */
    RESTORE_TRIES = 3,            /* of one READ whose bytes do not match */
    RESTORE_RECORDS_MAX = 1 << 22,
    RESTORE_BLOB_BYTES_MAX = 1 << 30,
};

struct restore;

struct want {                               /* one box of a registered tensor, or one stored blob */
    const struct registered_tensor *tensor; /* NULL if this is a blob */
    const struct registered_box *box;
    struct restored_blob *blob;
    /* bytes: how many plain bytes are wanted. planned_bytes: how many the plan has given so far;
     * the two are equal at the end of the plan. */
    uint64_t bytes, planned_bytes;
};

struct read_group {        /* one READ: records that lie side by side in an object */
    uint32_t first, count; /* a range of restore->records */
    uint64_t offset;
    uint32_t bytes;
    uint8_t *place; /* where the bytes belong, if they can be received there; else NULL */
    uint8_t tries;
};

/* One READ on its way: asked, received, verified by a worker. `busy` is set from the request to the
 * end, `working` while the worker runs. */
struct read_slot {
    struct restore *restore;
    struct request request;
    struct work work;
    uint32_t group;
    bool busy, working;
    bool lands; /* the daemon reads into this slot's place in the landing */
    /* For a READ that lands: how many bytes lie in front of the wanted ones, and how many land in
     * all. */
    uint32_t skip, landing_bytes;
    unsigned promised; /* buffers of the restore that this READ may still take */
    /* Taken from the restore when the reply comes, and given back at the end of the READ. */
    uint8_t *buffer, *plain;
    struct diag diag;
    int status;
};

/* Memory that a daemon of this host reads into instead of sending (restore_land.c). */
enum landing_state {
    LANDING_NONE, /* there is none, or no more: READs go through the socket */
    LANDING_MAKING,
    LANDING_OFFERED,
    LANDING_HELD
};

/* One landing for each restore. `data` is NULL until the memory is made; `id` is 0 until it was
 * offered. */
struct landing {
    enum landing_state state;
    struct arena *arena;
    uint8_t *data; /* RESTORE_LANDING_SLOTS places of place_bytes each */
    uint32_t place_bytes;
    uint64_t id;
    struct request request;
    struct work work; /* writes arena, data and status */
    int status;
    struct diag diag;
};

/* The index of the checkpoint: what it says about each stored name. */
struct index {
    size_t count, cap;
    struct index_entry *entries; /* sorted by (name, coordinate, kind) */
};

/* One restore, from its start to on_done. Invariant: the registered memory is written only while a
 * slot of it is working or receiving, and slots_busy counts the slots that are not free. */
struct restore {
    struct engine_op op; /* in engine->restores */
    struct sm sm;
    struct engine *engine;
    struct engine_restore *user;
    struct registered *set;
    struct engine_call call;
    /* asked: `call` is in use by the present state. come: it has ended, with call_status. */
    bool asked, come;
    bool has_moved; /* reads into the registered memory have begun, in this try or before */
    int call_status;
    struct timer timer;
    struct post post;
    uint64_t end_ms;
    uint32_t ordinal, try_count;
    int status;      /* the result of the restore; 0 so far means that it goes well */
    int report_code; /* what REPORT will say; 0 means verified */
    struct diag report_diag;
    struct index index;
    uint32_t page_at;
    /* plan */
    /* want_batch: first want of the PLAN that is under way */
    size_t want_count, want_at, want_batch;
    struct want *wants; /* from the user's scratch */
    struct plan_want *plan_wants;
    struct plan_read *records; /* allocated with malloc; grows with the replies */
    size_t record_count, record_cap;
    /* read */
    struct read_group *groups; /* allocated with malloc */
    size_t group_count, group_at;
    /* Groups that must be read again. */
    uint32_t redo[RESTORE_SLOTS];
    size_t redo_count, slots_busy;
    struct read_slot slots[RESTORE_SLOTS];
    struct landing landing;
    /* Buffers of LIMIT_CHUNK_BYTES each. There is one for each that a slot may need, but the last
     * one given back is taken first. So only as many buffers are ever touched as are in use at
     * once, because the first touch of fresh memory costs more than the work that is done in it. */
    uint8_t *buffers[RESTORE_BUFFERS]; /* those that no slot has */
    unsigned buffers_free, buffers_made, buffers_promised;
};

/* restore_index.c; pure */
/* Checks the payload of restore->call against the SHA-256 of the level above, decodes it, and keeps
 * what it says. Returns DAMAGED if the hash or the structure is another. The page is page_at. */
int MUST_USE restore_take_manifest(struct restore *restore, struct diag *diag);
int MUST_USE restore_take_page(struct restore *restore, struct diag *diag);
/* Returns the entry of a registered tensor, or NULL if the checkpoint has none. */
const struct index_entry *restore_entry_of(const struct restore *restore,
                                           const struct registered_tensor *tensor);

/* restore_check.c; pure */
/* Compares the registered tensors with the index, and fills user->missing and user->unexpected.
 * Returns MISSING_TENSOR (only if strict), SHAPE_MISMATCH or DTYPE_MISMATCH. */
int MUST_USE restore_check(struct restore *restore, struct diag *diag);
bool restore_takes_blob(const struct restore *restore, const struct index_entry *entry);
/* Returns whether a tensor or blob of this name is to be restored at all (user->only). */
bool restore_is_chosen(const struct restore *restore, const char *name);

/* restore_plan.c */
/* Makes one want for each registered box and each blob that this rank takes, and allocates the
 * blobs. */
int MUST_USE restore_make_wants(struct restore *restore, struct diag *diag);
/* Makes the next PLAN, with as many wants as fit into a message. Returns false when all wants were
 * asked for. */
bool restore_next_plan(struct restore *restore, struct msg_plan *ret);
/* Takes the records of a reply, and checks that each belongs to its want. */
int MUST_USE restore_take_plan(struct restore *restore, size_t bytes, const uint8_t *data,
                               struct diag *diag);
/* Checks that the records cover every want exactly once, and then groups them into READs. */
int MUST_USE restore_end_plan(struct restore *restore, struct diag *diag);
/* Gives the part of a record's cell that its want needs; returns false if there is none. */
bool restore_part_of(const struct want *want, const struct plan_read *read, struct box *ret);

/* restore_read.c */
void restore_read_start(struct restore *restore);
void restore_read_pump(struct restore *restore);
bool restore_read_is_done(const struct restore *restore);
/* Begins no further READ and gives up those under way. Workers may still run until slots_busy is
 * 0. */
void restore_read_stop(struct restore *restore);
void restore_read_fini(struct restore *restore);

/* restore_land.c */
/* Makes the memory and hands it to the daemon, if that is possible. Called once in a restore. */
void restore_land_begin(struct restore *restore);
/* Returns whether it is decided if reads land, so that READs may begin. */
bool restore_land_is_settled(const struct restore *restore);
/* Returns whether a worker is making the memory; it must not be freed yet. */
bool restore_land_is_busy(const struct restore *restore);
/* Called when a READ that was to land is given up. The daemon may go on writing to its place for an
 * unknown time, so nothing may land any more. Bytes that have landed before may still be used. */
void restore_land_stop(struct restore *restore);
/* restore_land_place returns the place of a slot in the landing. restore_land_range fills *ret with
 * the range to ask for, and returns false if the group's bytes cannot land. */
uint8_t *restore_land_place(const struct restore *restore, const struct read_slot *slot);
bool restore_land_range(const struct restore *restore, const struct read_slot *slot,
                        const struct read_group *group, struct msg_read *ret);
void restore_land_fini(struct restore *restore);

/* restore.c */
void restore_wake(struct restore *restore);
bool restore_is_reading(const struct restore *restore);
/* Called when this rank cannot take this checkpoint: the code and text go into its REPORT. */
void restore_cannot(struct restore *restore, int code, const struct diag *diag);

/* Translates an error of the server about something that the record promises into the code to
 * report, that is, damage of this checkpoint. An I/O error may be the fault of the disk or the
 * host, so it is reported as DIGEST_MISMATCH: the restore falls back, but the checkpoint counts
 * only as suspect. */
int restore_damage_code(int status);

#endif
