/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a salvage share: all that lies beside the record, and what becomes of it.
 *
 *   salvage.c: the record -> salvage_lost.c: what it does not explain
 *     -> salvage_enter.c: verified, entered or left  (salvage_parts.c: without a manifest)
 *
 * On the repair's thread.
 */
#ifndef CAIRN_REPAIR_SALVAGE_PRIVATE_H
#define CAIRN_REPAIR_SALVAGE_PRIVATE_H

#include "repair_private.h"

/* A manifest that the record does not explain, or the parts of one opening without a manifest. */
struct lost_manifest {
    struct ckpt_id id;
    uint64_t open_id;
    bool has_manifest; /* under its name lies something */
    bool explained, readable, foreign, entered;
    uint32_t part_count; /* names of parts of the same opening */
    uint32_t world_size; /* of one that cannot be read: what its parts say; 0: no idea */
    struct token token;
    struct ckpt_id parent;
    struct sha256 sha256;
    uint64_t bytes;
    int64_t created_wall_ns;
    char why[400]; /* it cannot be read */
};

struct salvaging {
    struct repair *repair;
    const struct salvage_options *how;
    bool record_missing;
    size_t count;
    struct lost_manifest *lost;
    size_t ckpt_count;
    struct ckpt_id *ckpts;
};

void salvage_add_item(struct repair *repair, struct ckpt_id id, enum salvage_outcome outcome,
                      const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* --- salvage_lost.c --------------------------------------------------------------------------- */

/* Fills s->lost, by term and step, and s->ckpts. */
int MUST_USE salvage_find_lost(struct salvaging *s, struct diag *diag);
/* It cannot be read, and parts of all ranks are there, as far as their names tell. */
bool salvage_is_complete(const struct lost_manifest *lost);
/* Of the parts here, whose run's; else a new one. */
void salvage_find_info(struct salvaging *s, struct entry_info *ret);

/* --- salvage_enter.c -------------------------------------------------------------------------- */

/* What cannot be entered stays as it is, or is given up. */
int MUST_USE salvage_leave(struct salvaging *s, const struct lost_manifest *lost, const char *why,
                           struct diag *diag);
/* A checkpoint whose manifest is there, or (remade) has been made again in memory. more: what else
 * is to be said of it. */
int MUST_USE salvage_enter(struct salvaging *s, struct lost_manifest *lost,
                           const struct remade *remade, const char *more, struct diag *diag);

/* --- salvage_parts.c -------------------------------------------------------------------------- */

/* The manifest of one that is complete is made again, and entered. */
int MUST_USE salvage_parts(struct salvaging *s, struct lost_manifest *lost, struct diag *diag);

#endif
