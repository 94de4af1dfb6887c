/* SPDX-License-Identifier: Apache-2.0
 *
 * Small things on a cluster, the list of them, and the list of checkpoints of which anything is
 * stored.
 */
#ifndef CAIRN_STORE_RADOS_SMALL_H
#define CAIRN_STORE_RADOS_SMALL_H

#include "rados_private.h"

struct rados_tails { /* the rest of a small thing, which its head does not hold */
    uint64_t name;   /* drawn anew for each try to publish */
    uint32_t count;  /* 0 if the head holds everything */
};

/* --- rados_names.c --- */
/* Keys in a list of small things. "<kind>-<number>-<tag>" names the thing. With "/<tails>" at its
 * end, "t/..." means that these tails are being made, "x/..." that they were given up, and
 * "d/..." that they are being removed. */
void rados_key_small(const struct store_name *name, char ret[RADOS_KEY_MAX]);
bool rados_key_parse_small(const char *key, struct store_name *io_name);
void rados_key_tails(char state, const struct store_name *name, uint64_t tails,
                     char ret[RADOS_KEY_MAX]);
bool rados_key_parse_tails(const char *key, struct store_name *io_name, uint64_t *ret_tails);

/* --- rados_small.c --- */
int rados_op_publish(struct rados_store *store, struct store_req *req);
int rados_op_fetch(struct rados_store *store, struct store_req *req);
int rados_op_delete_small(struct rados_store *store, struct store_req *req);
enum rados_burial {
    BURIAL_NAMED, /* the head is there and names these tails */
    /* It is not there and cannot be made until rados_small_unbury(), or it names other tails. */
    BURIAL_DONE,
    BURIAL_BUSY /* other tails of the same thing come first */
};
/* Prevents the head from naming these tails. Returns DAMAGED if the head cannot be read. */
int MUST_USE rados_small_bury(struct rados_store *store, const struct store_name *name,
                              const struct rados_tails *tails, enum rados_burial *ret,
                              struct diag *diag);
int MUST_USE rados_small_unbury(struct rados_store *store, const struct store_name *name,
                                const struct rados_tails *tails, struct diag *diag);
/* These remove the head and the tails. It is no error if they are not there. */
int MUST_USE rados_small_drop_head(struct rados_store *store, const struct store_name *name,
                                   struct diag *diag);
int MUST_USE rados_small_drop_tails(struct rados_store *store, const struct store_name *name,
                                    const struct rados_tails *tails, struct diag *diag);

/* --- rados_known.c --- */
/* Returns true if the entry exists. Waits, once, for a thread that is making it. */
bool rados_known_is(struct rados_store *store, const struct store_name *name);
/* Returns the same. After false the caller has to make the entry and call rados_known_end();
 * *ret_mine may be NULL. */
bool rados_known_begin(struct rados_store *store, const struct store_name *name,
                       struct rados_known **ret_mine);
/* Returns an entry that the caller has to make before it calls rados_known_end(). Returns NULL if
 * it exists, if another thread is making it, or if there is no room to remember it. */
struct rados_known *rados_known_try(struct rados_store *store, const struct store_name *name);
void rados_known_end(struct rados_store *store, struct rados_known *mine, bool entered);
/* Called before an entry may be removed: a checkpoint with all its small things, or one of them. */
void rados_known_drop(struct rados_store *store, const struct run_name *run, struct ckpt_id id);
void rados_known_drop_small(struct rados_store *store, const struct store_name *name);

/* --- rados_list.c --- */
/* Does ENTER, ahead of CREATE and PUBLISH. */
int rados_op_enter(struct rados_store *store, struct store_req *req);
struct rados_mark { /* the value of an entry when it was read */
    bool found;
    size_t bytes;
    uint8_t data[RADOS_MARK_BYTES];
};
void rados_list_smalls(const struct rados_store *store, const struct run_name *run,
                       struct ckpt_id id, struct rados_shard *ret);
/* Makes a new value for a key with a mark; each change gives another one. */
void rados_list_mark(struct rados_store *store, uint8_t ret[RADOS_MARK_BYTES]);
/* Enters the checkpoint in the list of stored ones; called before anything of it is made. */
int MUST_USE rados_list_enter(struct rados_store *store, const struct run_name *run,
                              struct ckpt_id id, struct diag *diag);
/* Two steps that remove a checkpoint from the list when nothing of it was found: `find` reads its
 * entry before the search, `leave` removes the entry unless it was entered anew meanwhile. */
int MUST_USE rados_list_find(struct rados_store *store, const struct store_req *req,
                             struct rados_mark *ret, struct diag *diag);
int MUST_USE rados_list_leave(struct rados_store *store, const struct store_req *req,
                              const struct rados_mark *mark, struct diag *diag);
/* Enters a small thing, and its tails if it has any; called before they are made. */
int MUST_USE rados_list_enter_small(struct rados_store *store, const struct store_name *name,
                                    const struct rados_tails *tails, struct diag *diag);
/* Called when the head is there and names its tails: removes the entry of the tails. Returns IO if
 * a sweep took the tails for those of a dead writer, or OUTCOME_UNKNOWN. */
int MUST_USE rados_list_settle_small(struct rados_store *store, const struct store_name *name,
                                     const struct rados_tails *tails, struct diag *diag);
/* Called before the small thing is removed, so that a sweep finds the tails that may be left. */
int MUST_USE rados_list_doom_small(struct rados_store *store, const struct store_name *name,
                                   const struct rados_tails *tails, struct diag *diag);
/* Removes the entry of a small thing. `tails` are those that are gone as well; NULL if there are
 * none, or if that is not certain. */
void rados_list_leave_small(struct rados_store *store, const struct store_name *name,
                            const struct rados_tails *tails);
int rados_op_list_ckpts(struct rados_store *store, struct store_req *req);
int rados_op_list_small(struct rados_store *store, struct store_req *req);

/* --- rados_sweep.c --- */
struct rados_sweep { /* the sweep of one object of the cluster: a shard of an index, or a list */
    struct rados_store *store;
    struct store_req *req;
    struct rados_shard shard;
    const char *what; /* cannot be done, for errors */
    int (*entry)(struct rados_sweep *sweep, const struct cluster_pair *pair);
    bool has_smalls;   /* it is the list of small things */
    bool is_used;      /* it holds something that stays */
    bool has_given_up; /* something was given up in this sweep: its w/ or x/ is for the next one */
    struct rados_mark mark; /* b, as it was read */
};
/* Sweeps every key but b, and removes the object if nothing is left in it. */
int MUST_USE rados_sweep_walk(struct rados_sweep *sweep);
int rados_sweep_failed(const struct rados_sweep *sweep, int rc);

/* --- rados_sweep_small.c --- */
/* Removes the tails that nothing needs, and the list if it holds nothing any more; *io_used is set
 * if it does. Adds to req->ret_count. */
int MUST_USE rados_sweep_smalls(struct rados_store *store, struct store_req *req, bool *io_used);

#endif
