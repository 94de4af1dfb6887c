/* SPDX-License-Identifier: Apache-2.0
 *
 * Small things on a cluster, the list of them, and the list of checkpoints of which anything is
 * stored.
 */
#ifndef CAIRN_STORE_RADOS_SMALL_H
#define CAIRN_STORE_RADOS_SMALL_H

#include "rados_private.h"

struct rados_tails { /* of a small thing: what its head does not hold */
    uint64_t name;   /* drawn for each try at publishing */
    uint32_t count;  /* 0: the head holds all */
};

/* --- rados_names.c --- */
/* Of a list of small things: "<kind>-<number>-<tag>"; and, with "/<tails>" behind, "t/...": these
 * tails are being made; "x/...": the same, given up; "d/...": they are being removed. */
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
    BURIAL_DONE,  /* it is not, and cannot be made until rados_small_unbury(); or it names others */
    BURIAL_BUSY   /* other tails of the same thing come first */
};
/* DAMAGED: the head does not say. */
int MUST_USE rados_small_bury(struct rados_store *store, const struct store_name *name,
                              const struct rados_tails *tails, enum rados_burial *ret,
                              struct diag *diag);
int MUST_USE rados_small_unbury(struct rados_store *store, const struct store_name *name,
                                const struct rados_tails *tails, struct diag *diag);
/* What is not there is no error. */
int MUST_USE rados_small_drop_head(struct rados_store *store, const struct store_name *name,
                                   struct diag *diag);
int MUST_USE rados_small_drop_tails(struct rados_store *store, const struct store_name *name,
                                    const struct rados_tails *tails, struct diag *diag);

/* --- rados_known.c --- */
/* True: it is entered. Who is at it is waited for, once. */
bool rados_known_is(struct rados_store *store, const struct store_name *name);
/* The same; false: the caller enters it, and says so with rados_known_end(); *ret_mine may be NULL.
 */
bool rados_known_begin(struct rados_store *store, const struct store_name *name,
                       struct rados_known **ret_mine);
/* The caller enters it and says so with rados_known_end(). NULL: it is entered, somebody is at it,
 * or nobody would remember it. */
struct rados_known *rados_known_try(struct rados_store *store, const struct store_name *name);
void rados_known_end(struct rados_store *store, struct rados_known *mine, bool entered);
/* It may be taken out: the checkpoint with all of its small things; one of them. */
void rados_known_drop(struct rados_store *store, const struct run_name *run, struct ckpt_id id);
void rados_known_drop_small(struct rados_store *store, const struct store_name *name);

/* --- rados_list.c --- */
/* Ahead of CREATE and PUBLISH. */
int rados_op_enter(struct rados_store *store, struct store_req *req);
struct rados_mark { /* of an entry: what it was when it was looked at */
    bool found;
    size_t bytes;
    uint8_t data[RADOS_MARK_BYTES];
};
void rados_list_smalls(const struct rados_store *store, const struct run_name *run,
                       struct ckpt_id id, struct rados_shard *ret);
/* Of a key with a mark: another one at each change. */
void rados_list_mark(struct rados_store *store, uint8_t ret[RADOS_MARK_BYTES]);
/* The checkpoint is in the list of what is stored: before anything of it is made. */
int MUST_USE rados_list_enter(struct rados_store *store, const struct run_name *run,
                              struct ckpt_id id, struct diag *diag);
/* How its entry is now; then, when nothing was found of it: out of the list, unless it was entered
 * anew meanwhile. */
int MUST_USE rados_list_look(struct rados_store *store, const struct store_req *req,
                             struct rados_mark *ret, struct diag *diag);
int MUST_USE rados_list_leave(struct rados_store *store, const struct store_req *req,
                              const struct rados_mark *mark, struct diag *diag);
/* The small thing is named, and its tails if it has any: before they are made. */
int MUST_USE rados_list_enter_small(struct rados_store *store, const struct store_name *name,
                                    const struct rados_tails *tails, struct diag *diag);
/* Its head is there, which names its tails: this list need not any more. IO: a sweep took them for
 * what a dead writer left. OUTCOME_UNKNOWN. */
int MUST_USE rados_list_settle_small(struct rados_store *store, const struct store_name *name,
                                     const struct rados_tails *tails, struct diag *diag);
/* It is about to be removed: what is left of its tails is found by a sweep. */
int MUST_USE rados_list_doom_small(struct rados_store *store, const struct store_name *name,
                                   const struct rados_tails *tails, struct diag *diag);
/* tails: those that are gone as well; NULL: none, or not for certain. */
void rados_list_leave_small(struct rados_store *store, const struct store_name *name,
                            const struct rados_tails *tails);
int rados_op_list_ckpts(struct rados_store *store, struct store_req *req);
int rados_op_list_small(struct rados_store *store, struct store_req *req);

/* --- rados_sweep_small.c --- */
/* The tails that nothing needs, and the list when it holds nothing any more; *io_used: it does.
 * Counts in req->ret_count. */
int MUST_USE rados_sweep_smalls(struct rados_store *store, struct store_req *req, bool *io_used);

#endif
