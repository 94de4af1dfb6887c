/* SPDX-License-Identifier: Apache-2.0
 *
 * intersect: the pure part of planning: wants against index pages, then against parts. Call order:
 * init; page for each index page; check_found; part for each rank of ranks(); end; take. Not
 * thread-safe, any thread.
 */
#ifndef CAIRN_RUN_INTERSECT_H
#define CAIRN_RUN_INTERSECT_H

#include "format/manifest.h"
#include "run_plan.h"

struct sect_want {
    const struct plan_want *want;
    const struct index_entry *entry; /* in a page that the caller holds; NULL: not found yet */
    uint64_t covered; /* elements of the box, or bytes of the blob, by the reads so far */
};

struct intersect {
    uint32_t want_count;
    const struct plan_want *wants; /* borrowed */
    struct sect_want *items;
    uint32_t *by_name;    /* indices of wants, sorted by name */
    uint64_t chunk_bytes; /* of the manifest; to be set before the first part */
    struct plan_read *reads;
    size_t read_count, read_cap;
};

int MUST_USE intersect_init(struct intersect *sect, uint32_t want_count,
                            const struct plan_want *wants);
void intersect_fini(struct intersect *sect);
/* Is there a want with first <= name <= last (NULL: no end)? */
bool intersect_has_name_between(const struct intersect *sect, const char *first, const char *last);
/* DTYPE_MISMATCH, SHAPE_MISMATCH, INVALID name the tensor, what is stored and what is wanted. */
int MUST_USE intersect_page(struct intersect *sect, const struct page *page, struct diag *diag);
/* MISSING_TENSOR names the first want that no page had, and how many more there are. */
int MUST_USE intersect_check_found(const struct intersect *sect, struct diag *diag);
/* Sets ret[rank] for each part that the index names, to RANK_LIKELY where a chunk that is wanted
 * will be, as far as the box's place tells (rows, columns, meshes, HSDP): these first, and mostly
 * no others: see intersect_is_covered. */
enum { RANK_POSSIBLE = 1, RANK_LIKELY = 2 };
void intersect_ranks(const struct intersect *sect, uint32_t world_size, uint8_t *ret);
/* Adds the part's chunks. DAMAGED when the part does not hold what the index says. */
int MUST_USE intersect_part(struct intersect *sect, const struct part *part, struct diag *diag);
/* Is every want covered by the parts so far? Coverage was checked at the commit, so no further part
 * has more of them. */
bool intersect_is_covered(const struct intersect *sect);
/* Sorts, and checks that each want is covered exactly. DAMAGED names one that is not. */
int MUST_USE intersect_end(struct intersect *sect, struct diag *diag);
struct plan_read *intersect_take(struct intersect *sect,
                                 size_t *ret_count); /* malloc'ed, the caller's */

#endif
