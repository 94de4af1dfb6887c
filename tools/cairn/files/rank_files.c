/* SPDX-License-Identifier: Apache-2.0
 *
 * See rank_files.h.
 */
#include "files/rank_files.h"

#include "writeout.h"

#include "base/digits.h"

#include <stdlib.h>
#include <string.h>

/* --- sets --- */

static void add(struct rank_set *set, uint64_t rank)
{
    uint8_t bit = (uint8_t)(1u << rank % 8);
    set->count += (set->bits[rank / 8] & bit) == 0;
    set->bits[rank / 8] |= bit;
    set->highest = rank > set->highest ? (uint32_t)rank : set->highest;
}

int rank_set_take(void *to, const char *text, struct diag *diag)
{
    struct rank_set *set = to;
    const char *at = text;
    bool fine = true;
    do {
        uint64_t first = 0, last = 0;
        fine = digits_read_decimal(&at, LIMIT_WORLD_SIZE - 1, &first);
        last = first;
        if (fine && digits_skip(&at, "-")) {
            fine = digits_read_decimal(&at, LIMIT_WORLD_SIZE - 1, &last) && last >= first;
        }
        for (uint64_t rank = first; fine && rank <= last; rank++) {
            add(set, rank);
        }
    } while (fine && digits_skip(&at, ","));
    return fine && *at == '\0'
               ? 0
               : diag_set(diag, CAIRN_E_INVALID, "it must be a list of ranks, for instance 0,3-5");
}

static bool rank_set_has(const struct rank_set *set, uint32_t rank)
{
    return rank / 8 < RANKS_BYTES && (set->bits[rank / 8] >> rank % 8 & 1) != 0;
}

/* --- one rank's file --- */

struct held {                 /* a rectangle of a tensor */
    struct index_entry entry; /* as it is called in the file, with the rectangle's shape */
    const struct index_entry *whole;
    const struct box *box;
};

struct rank_file {
    struct cli *cli;
    const struct documents *documents;
    struct target *target;
    uint32_t rank, of; /* of: so many ranks share the tensors anew; 0 means as they were saved */
    const struct part *part; /* if `of` is 0 */
    struct held *held;
    size_t count;
    struct scratch scratch;
};

/* Adds a rectangle of a tensor under the name that it has in the file. */
static int hold(struct rank_file *file, const struct index_entry *whole, const struct box *box,
                const char *name, struct diag *diag)
{
    struct held *held = &file->held[file->count++];
    *held = (struct held){.entry = *whole, .whole = whole, .box = box};
    held->entry.name = scratch_string(&file->scratch, strlen(name), name);
    held->entry.shape.ndim = box->ndim;
    memcpy(held->entry.shape.length, box->length, sizeof(box->length));
    held->entry.plain_bytes = box_bytes(box, whole->dtype);
    return held->entry.name ? 0 : diag_no_memory(diag, "names");
}

/* A tensor of several rectangles is NAME#0, NAME#1 ... in the file. */
static int collect(struct rank_file *file, struct diag *diag)
{
    int status = 0;
    file->held = calloc(file->part->box_count + 1u, sizeof(*file->held));
    if (!file->held) {
        return diag_no_memory(diag, "%u boxes", file->part->box_count);
    }
    for (uint32_t i = 0; i < file->part->tensor_count; i++) {
        const struct part_tensor *tensor = &file->part->tensors[i];
        const struct index_entry *whole =
            index_find(file->documents->of.index_count, file->documents->of.index, tensor->name,
                       tensor->coordinate, INDEX_TENSOR);
        for (uint32_t k = 0; status == 0 && whole && k < tensor->box_count; k++) {
            char name[LIMIT_NAME_BYTES + 16];
            snprintf(name, sizeof(name), tensor->box_count > 1 ? "%s#%u" : "%s", tensor->name, k);
            status = hold(file, whole, &file->part->boxes[tensor->box_first + k].box, name, diag);
        }
    }
    return status;
}

/* Rows [L * rank / of, L * (rank + 1) / of) of each tensor of L rows; what has no rows, or belongs
 * to a coordinate and is never divided, is the first rank's. False: none of it. */
static bool share_of(const struct rank_file *file, const struct index_entry *entry, struct box *ret)
{
    bool whole = entry->shape.ndim == 0 || entry->coordinate[0] != '\0';
    *ret = (struct box){.ndim = entry->shape.ndim};
    memcpy(ret->length, entry->shape.length, sizeof(ret->length));
    if (whole) {
        return file->rank == 0;
    }
    uint64_t rows = (uint64_t)entry->shape.length[0], each = rows / file->of,
             rest = rows % file->of;
    uint64_t from = each * file->rank + rest * file->rank / file->of;
    uint64_t to = each * (file->rank + 1) + rest * (file->rank + 1) / file->of;
    ret->offset[0] = (int64_t)from;
    ret->length[0] = (int64_t)(to - from);
    return to > from || (rows == 0 && file->rank == 0);
}

/* In one file, names of several coordinates are told apart: NAME@COORDINATE. */
static int collect_share(struct rank_file *file, struct diag *diag)
{
    const struct documents *documents = file->documents;
    file->held = calloc(documents->of.index_count + 1, sizeof(*file->held));
    if (!file->held) {
        return diag_no_memory(diag, "%zu tensors", documents->of.index_count);
    }
    int status = 0;
    for (size_t i = 0; status == 0 && i < documents->of.index_count; i++) {
        const struct index_entry *entry = &documents->of.index[i];
        struct box *box = scratch_alloc(&file->scratch, sizeof(*box));
        if (!box) {
            return diag_no_memory(diag, "a share");
        }
        if (entry->kind == INDEX_TENSOR && share_of(file, entry, box)) {
            char name[LIMIT_NAME_BYTES + LIMIT_COORDINATE_BYTES + 2];
            snprintf(name, sizeof(name), "%s%s%s", entry->name, entry->coordinate[0] ? "@" : "",
                     entry->coordinate);
            status = hold(file, entry, box, name, diag);
        }
    }
    return status;
}

/* Writes the file and closes it. */
static int write_held_tensors(struct rank_file *file, int fd, const char *name, struct diag *diag)
{
    struct safetensor *tensors = scratch_array(&file->scratch, file->count + 1, sizeof(*tensors));
    for (size_t i = 0; tensors && i < file->count; i++) {
        struct held *held = &file->held[i];
        tensors[i] =
            (struct safetensor){.entry = &held->entry, .stored = held->whole, .box = held->box};
    }
    struct tensor_file out = {fd, name, file->count, tensors};
    return tensors ? writeout_tensors(file->cli, file->documents, &out, diag)
                   : target_close(fd, name, diag_no_memory(diag, "a file"), diag);
}

static void summarise(const struct rank_file *file, const char *name, struct json *json)
{
    json_open(json, NULL, '{');
    json_u64(json, "rank", file->rank);
    json_str(json, "file", name);
    json_open(json, "tensors", '[');
    for (size_t i = 0; i < file->count; i++) {
        const struct held *held = &file->held[i];
        json_open(json, NULL, '{');
        json_str(json, "name", held->whole->name);
        json_str(json, "coordinate", held->whole->coordinate[0] ? held->whole->coordinate : NULL);
        json_str(json, "stored_as", held->entry.name);
        json_lengths(json, "shape", held->whole->shape.ndim, held->whole->shape.length);
        json_lengths(json, "offset", held->box->ndim, held->box->offset);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

static int write_rank(struct rank_file *file, struct json *json, struct diag *diag)
{
    char name[48];
    int fd = -1;
    scratch_init(&file->scratch, (size_t)1 << 30);
    snprintf(name, sizeof(name), "rank-%u.safetensors", file->rank);
    int status = file->of > 0 ? collect_share(file, diag) : collect(file, diag);
    if (status == 0) {
        status = target_create(file->target, name, &fd, diag);
    }
    if (status == 0) {
        status = write_held_tensors(file, fd, name, diag);
        summarise(file, name, json);
    }
    if (status != CAIRN_E_CANCELLED) {
        free(file->held);
        scratch_fini(&file->scratch);
    }
    return status;
}

/* Writes the files of the ranks that were chosen; none chosen means all. base: what all files
 * share. */
static int write_ranks(const struct rank_file *base, size_t count, const struct rank_set *ranks,
                       struct json *json, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct rank_file file = *base;
        file.part = base->of > 0 ? NULL : &base->documents->parts[i];
        file.rank = file.part ? file.part->rank : (uint32_t)i;
        if (ranks->count == 0 || rank_set_has(ranks, file.rank)) {
            /* After an interrupt reads still go into what it holds:
               NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
            status = write_rank(&file, json, diag);
        }
    }
    return status;
}

int rank_files_write(struct cli *cli, struct documents *documents, const struct rank_choice *choice,
                     struct target *target, struct diag *diag)
{
    struct json json;
    const struct rank_set *ranks = choice->ranks;
    size_t count = choice->as_ranks > 0 ? choice->as_ranks : documents->of.part_count;
    if (ranks->count > 0 && ranks->highest >= count) {
        return diag_set(diag, CAIRN_E_INVALID, "--ranks names rank %u: there are ranks 0 to %zu",
                        ranks->highest, count - 1);
    }
    json_begin(&json);
    json_info(&json, "checkpoint", &documents->info);
    json_u64(&json, "world_size", count);
    json_open(&json, "ranks", '[');
    struct rank_file base = {
        .cli = cli, .documents = documents, .target = target, .of = choice->as_ranks};
    int status = base.of > 0 ? 0 : documents_parts(documents, diag);
    status = status != 0 ? status : write_ranks(&base, count, ranks, &json, diag);
    json_close(&json, ']');
    json_close(&json, '}');
    if (status == 0) {
        status = target_put(target, "ranks.json", &json.buf, diag);
    }
    json_fini(&json);
    return status;
}
