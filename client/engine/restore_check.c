/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares what is registered with what is stored. Dtypes and shapes must be equal. A missing name
 * is an error if the restore is strict, and else goes into a list; the error names the stored names
 * that are nearest to the missing one. Pure.
 */
#include "engine/restore_private.h"

#include "base/array.h"
#include "base/check.h"
#include "base/glob.h"

#include <stdio.h>
#include <string.h>

enum { NEAR_NAME_MAX = 256, NEAR_SCAN_MAX = 20000 };

/* --- close matches --------------------------------------------------------------- */

/* Returns the edit distance of two names. Names longer than NEAR_NAME_MAX bytes count as infinitely
 * far apart. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NEAR_NAME_MAX + 1], a_len = strlen(a), b_len = strlen(b);
    if (a_len > NEAR_NAME_MAX || b_len > NEAR_NAME_MAX) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t shorter = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < shorter ? change : shorter;
        }
    }
    return row[b_len];
}

/* Writes "; similar names are 'a.weight' and 'b.weight'" with at most two stored names, or "" if no
 * stored name is similar. */
static void similar_names(const struct index *index, const char *name, size_t bytes, char *ret)
{
    const char *best[2] = {NULL, NULL};
    size_t best_distance[2] = {SIZE_MAX, SIZE_MAX}, far = strlen(name) / 3 + 2;
    ret[0] = '\0';
    for (size_t i = 0; i < index->count && i < NEAR_SCAN_MAX; i++) {
        const struct index_entry *entry = &index->entries[i];
        size_t d = entry->kind == INDEX_TENSOR ? distance(name, entry->name) : SIZE_MAX;
        if (d < best_distance[0]) {
            best[1] = best[0], best_distance[1] = best_distance[0];
            best[0] = entry->name, best_distance[0] = d;
        } else if (d < best_distance[1]) {
            best[1] = entry->name, best_distance[1] = d;
        }
    }
    CHECK(best_distance[0] <= best_distance[1]);
    if (best_distance[1] <= far) {
        snprintf(ret, bytes, "; similar names are '%.100s' and '%.100s'", best[0], best[1]);
    } else if (best_distance[0] <= far) {
        snprintf(ret, bytes, "; a similar name is '%.100s'", best[0]);
    }
}

/* --- tensors --------------------------------------------------------------------- */

/* Compares dtype and shape of a tensor with what is stored. */
static int check_tensor(const struct registered_tensor *tensor, const struct index_entry *entry,
                        struct diag *diag)
{
    char stored[160], wanted[160];
    if (entry->dtype != tensor->dtype) {
        return diag_set(diag, CAIRN_E_DTYPE_MISMATCH,
                        "tensor '%s' is stored as %s, but registered as %s", tensor->name,
                        dtype_name(entry->dtype), dtype_name(tensor->dtype));
    }
    if (!shape_equal(&entry->shape, &tensor->shape)) {
        shape_format(&entry->shape, sizeof stored, stored);
        shape_format(&tensor->shape, sizeof wanted, wanted);
        return diag_set(diag, CAIRN_E_SHAPE_MISMATCH,
                        "tensor '%s' is stored with shape %s, but registered with %s", tensor->name,
                        stored, wanted);
    }
    return 0;
}

/* Notes a registered tensor that is not stored: an error if the restore is strict, else an entry of
 * `missing`. */
static int add_missing(struct restore *restore, const struct registered_tensor *tensor,
                       struct diag *diag)
{
    char similar[256];
    if (restore->user->strict) {
        similar_names(&restore->index, tensor->name, sizeof similar, similar);
        return diag_set(diag, CAIRN_E_MISSING_TENSOR, "the checkpoint has no tensor '%s'%s%s%s%s",
                        tensor->name, tensor->coordinate[0] ? " at '" : "", tensor->coordinate,
                        tensor->coordinate[0] ? "'" : "", similar);
    }
    CHECK(restore->user->missing_count < restore->set->tensor_count);
    restore->user->missing[restore->user->missing_count++] = tensor->name;
    return 0;
}

/* Returns whether the stored tensor is registered. */
static bool is_registered(const struct registered *set, const struct index_entry *entry)
{
    const char *const key[] = {entry->name, entry->coordinate};
    return array_find(key, set->tensors, set->tensor_count, sizeof(*set->tensors), part_order) !=
           NULL;
}

/* Returns whether the coordinate is this rank's: "rank=<rank>", or one that it has registered. */
static bool is_own_coordinate(const struct registered *set, const char *coordinate)
{
    char own[32];
    snprintf(own, sizeof own, "rank=%u", set->rank);
    if (strcmp(coordinate, own) == 0) {
        return true;
    }
    for (size_t i = 0; i < set->blob_count; i++) {
        if (set->blobs[i].placement == PLACEMENT_LOCAL &&
            strcmp(set->blobs[i].coordinate, coordinate) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (set->tensors[i].placement == PLACEMENT_LOCAL &&
            strcmp(set->tensors[i].coordinate, coordinate) == 0) {
            return true;
        }
    }
    return false;
}

bool restore_is_chosen(const struct restore *restore, const char *name)
{
    const struct engine_restore *user = restore->user;
    return user->only_count == 0 || glob_matches_any(user->only_count, user->only, name);
}

bool restore_takes_blob(const struct restore *restore, const struct index_entry *entry)
{
    const struct registered *set = restore->set;
    if (entry->kind != INDEX_BLOB || !restore_is_chosen(restore, entry->name)) {
        return false;
    }
    if (entry->placement == PLACEMENT_LOCAL) {
        return restore->user->all_local || is_own_coordinate(set, entry->coordinate);
    }
    if (entry->placement == PLACEMENT_REPLICATED) {
        return true;
    }
    /* A blob of another rank is taken only by name. */
    for (size_t i = 0; i < set->blob_count; i++) {
        if (strcmp(set->blobs[i].name, entry->name) == 0) {
            return true;
        }
    }
    return false;
}

/* Checks that each pattern of `only` matches a name, because a pattern that matches nothing is a
 * typing error. Names of other ranks, and names that only this rank has registered, count as
 * well. */
static int check_patterns(const struct restore *restore, struct diag *diag)
{
    const struct engine_restore *user = restore->user;
    char similar[256];
    for (size_t i = 0; user->strict && i < user->only_count; i++) {
        bool found = false;
        for (size_t k = 0; !found && k < restore->index.count; k++) {
            found = glob_matches(user->only[i], restore->index.entries[k].name);
        }
        for (size_t k = 0; !found && k < restore->set->tensor_count; k++) {
            found = glob_matches(user->only[i], restore->set->tensors[k].name);
        }
        if (!found) {
            similar_names(&restore->index, user->only[i], sizeof similar, similar);
            return diag_set(diag, CAIRN_E_MISSING_TENSOR,
                            "no name in the checkpoint matches the pattern '%.200s' of `only`%s",
                            user->only[i], similar);
        }
    }
    return 0;
}

int restore_check(struct restore *restore, struct diag *diag)
{
    struct engine_restore *user = restore->user;
    const struct registered *set = restore->set;
    user->missing_count = user->unexpected_count = user->local_count = 0;
    user->entries = restore->index.entries; /* the memory is the scratch's, which the op owns */
    user->entry_count = restore->index.count;
    user->missing = scratch_array(&user->scratch, set->tensor_count + 1, sizeof *user->missing);
    user->unexpected =
        scratch_array(&user->scratch, restore->index.count + 1, sizeof *user->unexpected);
    user->locals = scratch_array(&user->scratch, restore->index.count + 1, sizeof *user->locals);
    if (!user->missing || !user->unexpected || !user->locals) {
        return diag_no_memory(diag, "the lists of missing and unexpected names");
    }
    int rc = check_patterns(restore, diag);
    for (size_t i = 0; rc == 0 && i < set->tensor_count; i++) {
        const struct registered_tensor *tensor = &set->tensors[i];
        if (!restore_is_chosen(restore, tensor->name)) {
            continue;
        }
        const struct index_entry *entry = restore_entry_of(restore, tensor);
        rc = entry ? check_tensor(tensor, entry, diag) : add_missing(restore, tensor, diag);
    }
    for (size_t i = 0; rc == 0 && i < restore->index.count; i++) {
        const struct index_entry *entry = &restore->index.entries[i];
        if (entry->placement == PLACEMENT_LOCAL) {
            user->locals[user->local_count++] = *entry;
        }
        bool foreign =
            entry->placement == PLACEMENT_LOCAL && !is_own_coordinate(set, entry->coordinate);
        if (entry->kind == INDEX_TENSOR && !foreign && restore_is_chosen(restore, entry->name) &&
            !is_registered(set, entry)) {
            CHECK(user->unexpected_count <= i);
            user->unexpected[user->unexpected_count++] = entry->name;
        }
    }
    return rc;
}
