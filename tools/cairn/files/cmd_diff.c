/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn diff: two checkpoints of a run, tensor by tensor.
 */
#include "cli.h"
#include "exit_status.h"
#include "files/compare.h"

#include "base/check.h"
#include "base/glob.h"

#include <inttypes.h>
#include <math.h>

enum { DIFF_SCRATCH_MAX = 1 << 20 };

struct diff_options {
    const char *other;
    bool no_read_data, norms, all;
    struct option_texts only;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN},
                                            {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT},
                                            {"CHECKPOINT", .kind = ARGUMENT_TEXT,
                                             .at = offsetof(struct diff_options, other),
                                             .optional = true},
                                            {0}};

static const struct option options[] = {
    {"norms", NULL,
     "also print the norms of changed tensors and of their difference, which reads all of them",
     OPTION_AT_FLAG(struct diff_options, norms)},
    {"no-read-data", NULL,
     "compare only digests and read no data; changes are then shown in chunks of at most 4 MiB",
     OPTION_AT_FLAG(struct diff_options, no_read_data)},
    {"only", "PATTERN", "only tensors and blobs whose names match (* ? [a-z])",
     OPTION_AT_TEXTS(struct diff_options, only)},
    {"all", NULL, "also list what is equal", OPTION_AT_FLAG(struct diff_options, all),
     .letter = 'a'},
    {0}};

enum change { CHANGE_NONE, CHANGE_BYTES, CHANGE_TYPE, CHANGE_REMOVED, CHANGE_ADDED };
static const char *const change_names[] = {"equal", "changed", "other type", "removed", "added"};

struct differing {
    struct cli *cli;
    const struct diff_options *own;
    struct documents sides[2];
    struct json json;
    struct table *table;
    uint64_t changed, equal, changed_bytes, read_bytes;
    bool exact;
};

struct difference {
    enum change change;
    const struct index_entry *a, *b; /* one may be NULL */
    struct compare_result result;
};

/* --- showing --- */

static void json_type(struct json *json, const char *name, const struct index_entry *entry)
{
    json_open(json, name, '{');
    json_str(json, "dtype",
             entry->kind == INDEX_TENSOR     ? dtype_name(entry->dtype)
             : entry->blob_kind == BLOB_TREE ? "tree"
                                             : "bytes");
    json_lengths(json, "shape", entry->kind == INDEX_TENSOR ? entry->shape.ndim : 0,
                 entry->shape.length);
    json_u64(json, "plain_bytes", entry->plain_bytes);
    json_close(json, '}');
}

static void json_difference(struct json *json, const struct difference *difference)
{
    const struct index_entry *entry = difference->a ? difference->a : difference->b;
    const struct compare_result *result = &difference->result;
    json_open(json, NULL, '{');
    json_str(json, "name", entry->name);
    json_str(json, "coordinate", entry->coordinate[0] ? entry->coordinate : NULL);
    json_str(json, "change", change_names[difference->change]);
    if (difference->a) {
        json_type(json, "a", difference->a);
    }
    if (difference->b) {
        json_type(json, "b", difference->b);
    }
    if (difference->change == CHANGE_BYTES || difference->change == CHANGE_NONE) {
        json_u64(json, "changed_bytes", result->changed_bytes);
        json_bool(json, "exact", result->exact);
        json_u64(json, "changed_chunks", result->changed_chunks);
        json_u64(json, "chunks", result->chunks);
    }
    if (result->has_norms) {
        json_open(json, "norms", '{');
        json_f64(json, "a", sqrt(result->norms.a2));
        json_f64(json, "b", sqrt(result->norms.b2));
        json_f64(json, "difference", sqrt(result->norms.difference2));
        json_f64(json, "largest", result->norms.largest);
        json_close(json, '}');
    }
    json_close(json, '}');
}

static void row(struct differing *differing, const struct difference *difference)
{
    const struct index_entry *entry = difference->a ? difference->a : difference->b;
    const struct compare_result *result = &difference->result;
    char changed[64] = "", share[32] = "", norms[160] = "";
    if (difference->change == CHANGE_BYTES) {
        snprintf(changed, sizeof(changed), "%s%s",
                 result->exact ? "" : "<= ", bytes_text(result->changed_bytes).at);
        snprintf(share, sizeof(share), "%.3g %%",
                 100.0 * (double)result->changed_bytes / (double)entry->plain_bytes);
    }
    if (difference->change == CHANGE_TYPE && entry->kind == INDEX_TENSOR) {
        char a[60], b[60];
        shape_format(&difference->a->shape, sizeof(a), a);
        shape_format(&difference->b->shape, sizeof(b), b);
        snprintf(norms, sizeof(norms), "%s%s, %s%s", dtype_name(difference->a->dtype), a,
                 dtype_name(difference->b->dtype), b);
    }
    if (result->has_norms) {
        snprintf(norms, sizeof(norms), "|a| %.6g  |b| %.6g  |b-a| %.6g  max %.6g",
                 sqrt(result->norms.a2), sqrt(result->norms.b2), sqrt(result->norms.difference2),
                 result->norms.largest);
    }
    table_row(differing->table,
              (const char *const[]){change_names[difference->change], entry->name,
                                    entry->coordinate, bytes_text(entry->plain_bytes).at, changed,
                                    share, norms});
}

static void take(struct differing *differing, const struct difference *difference)
{
    const struct compare_result *result = &difference->result;
    bool equal = difference->change == CHANGE_NONE;
    differing->equal += equal;
    differing->changed += !equal;
    differing->changed_bytes += result->changed_bytes;
    differing->read_bytes += result->read_bytes;
    differing->exact = differing->exact && (result->exact || equal);
    if (!equal || differing->own->all) {
        json_difference(&differing->json, difference);
        row(differing, difference);
    }
}

/* --- walking --- */

static bool is_chosen(const struct differing *differing, const struct index_entry *entry)
{
    const struct option_texts *only = &differing->own->only;
    return only->count == 0 || glob_matches_any(only->count, only->items, entry->name);
}

static bool same_type(const struct index_entry *a, const struct index_entry *b)
{
    if (a->kind == INDEX_BLOB) {
        return a->blob_kind == b->blob_kind && a->plain_bytes == b->plain_bytes;
    }
    return a->dtype == b->dtype && shape_equal(&a->shape, &b->shape);
}

static int compare_pair(struct differing *differing, struct difference *difference,
                        struct diag *diag)
{
    struct compare_options chosen = {.read_data = !differing->own->no_read_data,
                                     .norms = differing->own->norms};
    struct compare_side sides[2] = {{&differing->sides[0], difference->a},
                                    {&differing->sides[1], difference->b}};
    int status = compare_entries(differing->cli, sides, &chosen, &difference->result, diag);
    difference->change = difference->result.changed_bytes > 0 ? CHANGE_BYTES : CHANGE_NONE;
    if (status != 0) {
        diag_add(diag, "%s", difference->a->name);
    }
    return status;
}

static int walk(struct differing *differing, struct diag *diag)
{
    const struct documents *a = &differing->sides[0], *b = &differing->sides[1];
    size_t i = 0, k = 0;
    int status = 0;
    while (status == 0 && (i < a->of.index_count || k < b->of.index_count)) {
        struct difference difference = {0};
        int order = i == a->of.index_count   ? 1
                    : k == b->of.index_count ? -1
                                             : index_compare(&a->of.index[i], &b->of.index[k]);
        difference.a = order <= 0 ? &a->of.index[i++] : NULL;
        difference.b = order >= 0 ? &b->of.index[k++] : NULL;
        CHECK(order > 0 || difference.a != NULL);
        CHECK(order < 0 || difference.b != NULL);
        if (!is_chosen(differing, difference.a ? difference.a : difference.b)) {
            continue;
        }
        if (order != 0) {
            difference.change = order < 0 ? CHANGE_REMOVED : CHANGE_ADDED;
        } else if (!same_type(difference.a, difference.b)) {
            difference.change = CHANGE_TYPE;
        } else {
            status = compare_pair(differing, &difference, diag);
        }
        if (status == 0) {
            take(differing, &difference);
        }
    }
    return status;
}

static int finish(struct differing *differing)
{
    struct json *json = &differing->json;
    struct text read;
    int status = 0;
    json_close(json, ']');
    json_u64(json, "changed", differing->changed);
    json_u64(json, "equal", differing->equal);
    json_u64(json, "changed_bytes", differing->changed_bytes);
    json_bool(json, "exact", differing->exact);
    json_u64(json, "read_bytes", differing->read_bytes);
    json_close(json, '}');
    if (differing->cli->json) {
        status = json_print(json);
    } else {
        if (differing->changed > 0 || (differing->own->all && differing->equal > 0)) {
            table_print(differing->table, stdout);
        }
        read = bytes_text(differing->read_bytes);
        printf("%" PRIu64 " differ, %" PRIu64 " are equal; %s%s changed; read %s\n",
               differing->changed, differing->equal, differing->exact ? "" : "at most ",
               bytes_text(differing->changed_bytes).at, read.at);
        status = out_flush();
    }
    return status != 0 ? status : differing->changed > 0 ? EXIT_DIFFERENT : 0;
}

static int load(struct differing *differing, size_t side, const struct selector *selector,
                struct diag *diag)
{
    struct scratch scratch;
    struct ckpt_info info;
    scratch_init(&scratch, DIFF_SCRATCH_MAX);
    int status = cli_resolve_newest(differing->cli, selector, &scratch, &info, diag);
    if (status == 0) {
        status = documents_load(differing->cli, &info, &differing->sides[side], diag);
        differing->sides[side].info.text = NULL; /* is in the scratch, as are tags and metrics */
        differing->sides[side].info.tag_count = differing->sides[side].info.metric_count = 0;
    }
    scratch_fini(&scratch);
    return status != 0 ? status : documents_parts(&differing->sides[side], diag);
}

static int compare_all(struct differing *differing, struct diag *diag)
{
    static const char *const titles[] = {"",       "NAME", "COORDINATE", ">SIZE", ">CHANGED",
                                         ">SHARE", ""};
    differing->table = table_new(ARRAY_LEN(titles), titles);
    json_begin(&differing->json);
    json_str(&differing->json, "run", run_name_text(&differing->cli->run).at);
    json_info(&differing->json, "a", &differing->sides[0].info);
    json_info(&differing->json, "b", &differing->sides[1].info);
    json_open(&differing->json, "entries", '[');
    int status = walk(differing, diag);
    if (status == 0) {
        status = finish(differing);
    }
    table_free(differing->table);
    json_fini(&differing->json);
    return status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct diff_options *own = values;
    struct differing differing = {.cli = cli, .own = own, .exact = true};
    struct selector other = {.kind = SELECT_LATEST};
    int status = own->other ? selector_parse(own->other, &other, diag) : 0;
    if (status != 0) {
        return status;
    }
    if (own->norms && own->no_read_data) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "--norms and --no-read-data exclude each other, because norms need the data");
    }
    status = cli_connect(cli, true, diag);
    if (status == 0) {
        status = load(&differing, 0, &cli->selector, diag);
    }
    if (status == 0) {
        status = load(&differing, 1, &other, diag);
    }
    if (status == 0) {
        status = compare_all(&differing, diag);
    }
    if (status != CAIRN_E_CANCELLED) {
        documents_fini(&differing.sides[0]);
        documents_fini(&differing.sides[1]);
    }
    return status;
}

const struct command command_diff = {
    .name = "diff",
    .group = GROUP_FILES,
    .summary = "compare two checkpoints of a run, tensor by tensor",
    .details = "The second checkpoint is latest unless it is named. Chunks with equal digests are "
               "not read. Other chunks are read from both checkpoints, and the bytes that differ "
               "are counted. The exit status is 0 if the checkpoints are equal, 1 if they differ, "
               "and 2 after an error without a status of its own.",
    .example = "cairn diff lab/gpt 1000\ncairn diff lab/gpt 1000 1200@3 --norms --only 'model.*'",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct diff_options),
    .failure = 2,
    .run = run};
