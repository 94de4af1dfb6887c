/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a salvage, and its parts. The state has all that lies beside the record, and what
 * becomes of it.
 *
 *   file               what it does
 *   salvage.c          mends the record, then takes the lost manifests one after the other
 *   salvage_parts.c    decides about a checkpoint that has lost its manifest, by its parts
 *   salvage_enter.c    verifies a checkpoint, and enters it or leaves it by name
 *   salvage_lost.c     finds the manifests and the parts that the record does not explain
 *
 * Each file calls only files that stand below it. On the repair's thread.
 */
#ifndef CAIRN_REPAIR_SALVAGE_PRIVATE_H
#define CAIRN_REPAIR_SALVAGE_PRIVATE_H

#include "repair_private.h"

/* A manifest that the record does not explain, or the parts of one opening without a manifest. */
struct lost_manifest {
    struct ckpt_id id;
    uint64_t open_id;
    bool has_manifest; /* something is stored under its name */
    bool explained, readable, foreign, entered;
    uint32_t part_count; /* parts of the same opening, by their names */
    uint32_t world_size; /* if the manifest cannot be read: what its parts state; 0 if not known */
    struct token token;
    struct ckpt_id parent;
    struct sha256 sha256;
    uint64_t bytes;
    int64_t created_wall_ns;
    char why[400]; /* why it cannot be read */
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

/* Adds a line about a checkpoint, or about the record itself, to the report of the salvage. */
void salvage_add_item(struct repair *repair, struct ckpt_id id, enum salvage_outcome outcome,
                      const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* --- salvage_lost.c --------------------------------------------------------------------------- */

/* Fills s->lost, sorted by term and step, and s->ckpts. */
int MUST_USE salvage_find_lost(struct salvaging *s, struct diag *diag);
/* Returns true if its manifest cannot be read and, by their names, the parts of all ranks are
 * there. */
bool salvage_is_complete(const struct lost_manifest *lost);
/* Makes the run's info entry with the run's identity as the parts state it, or with a new one. */
void salvage_find_info(struct salvaging *s, struct entry_info *ret);

/* --- salvage_enter.c -------------------------------------------------------------------------- */

/* Called for a checkpoint that cannot be entered. It stays as it is, or is given up. */
int MUST_USE salvage_leave(struct salvaging *s, const struct lost_manifest *lost, const char *why,
                           struct diag *diag);
/* Enters a checkpoint whose manifest is stored, or has been made again in memory (`remade`). `more`
 * is added to the text of its item. */
int MUST_USE salvage_enter(struct salvaging *s, struct lost_manifest *lost,
                           const struct remade *remade, const char *more, struct diag *diag);

/* --- salvage_parts.c -------------------------------------------------------------------------- */

/* Makes the manifest of a complete checkpoint again and enters it. */
int MUST_USE salvage_parts(struct salvaging *s, struct lost_manifest *lost, struct diag *diag);

#endif
