/* SPDX-License-Identifier: Apache-2.0
 *
 * intersect: the pure part of planning a restore: finds the wanted tensors in index pages, and
 * their chunks in parts. The calls have this order: intersect_init(); intersect_page() for each
 * index page; intersect_check_found(); intersect_part() for each rank that intersect_ranks() names;
 * intersect_end(); intersect_take(). Works on any thread, on one at a time.
 */
#ifndef CAIRN_RUN_INTERSECT_H
#define CAIRN_RUN_INTERSECT_H

#include "format/manifest.h"
#include "run_plan.h"

/* One want and what was found of it so far. */
struct sect_want {
    const struct plan_want *want;
    const struct index_entry *entry; /* in a page that the caller holds; NULL until it is found */
    uint64_t covered; /* elements of the box, or bytes of the blob, that the reads so far bring */
};

struct intersect {
    uint32_t want_count;
    const struct plan_want *wants; /* borrowed */
    struct sect_want *items;
    uint32_t *by_name;    /* indices into wants, sorted by name */
    uint64_t chunk_bytes; /* from the manifest; has to be set before the first part */
    struct plan_read *reads;
    size_t read_count, read_cap;
};

int MUST_USE intersect_init(struct intersect *sect, uint32_t want_count,
                            const struct plan_want *wants);
void intersect_fini(struct intersect *sect);
/* Returns true if there is a want with first <= name <= last. A NULL `last` means no upper end. */
bool intersect_has_name_between(const struct intersect *sect, const char *first, const char *last);
/* Finds the wants in one index page. Returns DTYPE_MISMATCH, SHAPE_MISMATCH or INVALID, naming the
 * tensor, what is stored and what is wanted. */
int MUST_USE intersect_page(struct intersect *sect, const struct page *page, struct diag *diag);
/* Returns MISSING_TENSOR, naming the first want that no page had and how many more there are. */
int MUST_USE intersect_check_found(const struct intersect *sect, struct diag *diag);
/* Sets ret[rank] to RANK_POSSIBLE for each part that the index names, and to RANK_LIKELY where the
 * position of the box (rows, columns, meshes, HSDP) suggests that the part holds a wanted chunk. A
 * caller reads the likely parts first, and mostly needs no others: see intersect_is_covered(). */
enum { RANK_POSSIBLE = 1, RANK_LIKELY = 2 };
void intersect_ranks(const struct intersect *sect, uint32_t world_size, uint8_t *ret);
/* Adds the chunks of a part. Returns DAMAGED if the part does not hold what the index says. */
int MUST_USE intersect_part(struct intersect *sect, const struct part *part, struct diag *diag);
/* Returns true if the parts so far cover every want. Coverage was checked at the commit, so no
 * other part can hold more of them. */
bool intersect_is_covered(const struct intersect *sect);
/* Sorts the reads and checks that each want is covered exactly. Returns DAMAGED, naming one that is
 * not. */
int MUST_USE intersect_end(struct intersect *sect, struct diag *diag);
struct plan_read *intersect_take(struct intersect *sect,
                                 size_t *ret_count); /* malloc'ed; the caller frees it */

#endif
