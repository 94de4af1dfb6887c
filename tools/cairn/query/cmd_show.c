/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn show: one checkpoint from its manifest and index. Parts are read only where it has a base:
 * what it shares with which older one stands nowhere else.
 */
#include "cli.h"
#include "documents.h"

#include "base/digits.h"
#include "format/tree.h"

#include <inttypes.h>

enum { INFO_SCRATCH_MAX = 1 << 20 };

struct shares {
    bool known; /* else why says why not: the checkpoint is shown even so */
    size_t count;
    struct documents_share *items;
    struct diag why;
};

static const char *dtype_of(const struct index_entry *entry)
{
    if (entry->kind == INDEX_TENSOR) {
        return dtype_name(entry->dtype);
    }
    return entry->blob_kind == BLOB_TREE ? "tree" : "bytes";
}

static void json_entry(struct json *json, const struct index_entry *entry)
{
    json_open(json, NULL, '{');
    json_str(json, "name", entry->name);
    json_str(json, "coordinate", entry->coordinate[0] ? entry->coordinate : NULL);
    json_str(json, "kind", entry->kind == INDEX_TENSOR ? "tensor" : "blob");
    json_str(json, "dtype", dtype_of(entry));
    json_str(json, "placement", placement_name(entry->placement));
    json_lengths(json, "shape", entry->kind == INDEX_TENSOR ? entry->shape.ndim : 0,
                 entry->shape.length);
    json_u64(json, "plain_bytes", entry->plain_bytes);
    json_open(json, "ranks", '[');
    for (uint32_t i = 0; i < entry->rank_count; i++) {
        json_u64(json, NULL, entry->ranks[i]);
    }
    json_close(json, ']');
    json_close(json, '}');
}

static void json_manifest(struct json *json, const struct manifest *manifest)
{
    char token[33], uuid[33];
    hex_encode(sizeof(manifest->token), &manifest->token, token);
    hex_encode(sizeof(manifest->store_uuid), &manifest->store_uuid, uuid);
    json_str(json, "attempt", token);
    json_str(json, "store_uuid", uuid);
    json_u64(json, "chunk_bytes", manifest->chunk_bytes);
    json_u64(json, "tensors", manifest->tensor_count);
    json_u64(json, "blobs", manifest->blob_count);
    json_u64(json, "chunks", manifest->chunk_count);
    json_u64(json, "objects", manifest->object_count);
    json_notes(json, manifest->tag_count, manifest->tags, manifest->metric_count,
               manifest->metrics);
}

/* The metadata is opaque; a typed tree is shown as JSON, anything else as its length. */
static void json_metadata(struct json *json, const struct manifest *manifest)
{
    struct buf text;
    buf_init(&text, MIB(16));
    if (manifest->metadata_bytes > 0 &&
        tree_check(manifest->metadata_bytes, manifest->metadata, NULL) == 0 &&
        tree_to_json(manifest->metadata_bytes, manifest->metadata, 0, &text, NULL) == 0) {
        json_raw(json, "metadata", text.bytes, (const char *)text.data);
    } else {
        json_u64(json, "metadata_bytes", manifest->metadata_bytes);
    }
    buf_fini(&text);
}

/* What lies in objects of older checkpoints, whose forgetting frees nothing of that. */
static void json_shares(struct json *json, const struct manifest *manifest,
                        const struct shares *shares)
{
    uint64_t bytes = 0;
    json_str(json, "shares_error", shares->known ? NULL : shares->why.text);
    json_u64(json, "own_bytes", manifest->stored_bytes);
    if (!shares->known) {
        json_str(json, "shared_bytes", NULL);
        json_str(json, "shared_with", NULL);
        return;
    }
    for (size_t i = 0; i < shares->count; i++) {
        bytes += shares->items[i].stored_bytes;
    }
    json_u64(json, "shared_bytes", bytes);
    json_open(json, "shared_with", '[');
    for (size_t i = 0; i < shares->count; i++) {
        json_open(json, NULL, '{');
        json_ckpt_id(json, shares->items[i].id);
        json_u64(json, "stored_bytes", shares->items[i].stored_bytes);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static int print_json(const struct documents *documents, const struct shares *shares)
{
    struct json json;
    json_begin(&json);
    json_info(&json, "checkpoint", &documents->info);
    json_shares(&json, &documents->of.manifest, shares);
    json_open(&json, "manifest", '{');
    json_manifest(&json, &documents->of.manifest);
    json_metadata(&json, &documents->of.manifest);
    json_close(&json, '}');
    json_open(&json, "entries", '[');
    for (size_t i = 0; i < documents->of.index_count; i++) {
        json_entry(&json, &documents->of.index[i]);
    }
    json_close(&json, ']');
    return json_end(&json);
}

static void print_head(const struct cli *cli, const struct documents *documents)
{
    const struct manifest *manifest = &documents->of.manifest;
    const struct ckpt_info *info = &documents->info;
    struct ckpt_id_text parent = {"none"};
    char sha[65], standing[STANDING_BYTES];
    if (manifest->parent.term != 0) {
        parent = ckpt_id_text(manifest->parent);
    }
    format_standing(info, standing);
    struct text stored = bytes_text(manifest->stored_bytes);
    hex_encode(sizeof(info->manifest_sha256), &info->manifest_sha256, sha);
    printf("run         %s\ncheckpoint  %s%s\nhealth      %s\nparent      %s\ncommitted   %s "
           "(sequence %" PRIu64 ")\n",
           run_name_text(&cli->run).at, ckpt_id_text(info->id).at,
           info->is_latest ? " (latest)" : "", standing, parent.at, time_text(info->wall_ns).at,
           info->seq);
    printf("ranks       %u\nsize        %s, stored %s in %" PRIu64 " object%s, %" PRIu64
           " chunk%s\nmanifest    sha256 %s\n",
           manifest->world_size, bytes_text(manifest->plain_bytes).at, stored.at,
           manifest->object_count, plural(manifest->object_count), manifest->chunk_count,
           plural(manifest->chunk_count), sha);
    bool noted = info->note_version > 0; /* holds what the save was given, too */
    uint32_t tag_count = noted ? info->tag_count : manifest->tag_count;
    uint32_t metric_count = noted ? info->metric_count : manifest->metric_count;
    const struct metric *metrics = noted ? info->metrics : manifest->metrics;
    for (uint32_t i = 0; i < tag_count; i++) {
        struct shown room;
        printf("tag         %s\n", shown(&room, noted ? info->tags[i] : manifest->tags[i]));
    }
    for (uint32_t i = 0; i < metric_count; i++) {
        struct shown room;
        printf("metric      %s = %g\n", shown(&room, metrics[i].name), metrics[i].value);
    }
}

static void print_shares(const struct documents *documents, const struct shares *shares)
{
    const struct ckpt_info *info = &documents->info;
    struct text bytes;
    struct ckpt_id_text id;
    if (info->base.term != 0) {
        id = ckpt_id_text(info->base);
        printf("base        %s (sequence %" PRIu64 ")\n", id.at, info->base_seq);
    } else {
        printf("base        none\n");
    }
    bytes = bytes_text(documents->of.manifest.stored_bytes);
    printf("own         %s in objects of its own\n", bytes.at);
    if (!shares->known) {
        struct shown room;
        printf("shared      not known: %s\n", shown(&room, shares->why.text));
    }
    for (size_t i = 0; i < shares->count; i++) {
        id = ckpt_id_text(shares->items[i].id);
        bytes = bytes_text(shares->items[i].stored_bytes);
        printf("shared      %s in objects of %s\n", bytes.at, id.at);
    }
}

static void print_entries(const struct documents *documents)
{
    static const char *const titles[] = {"NAME",  "TYPE",      "SHAPE",
                                         ">SIZE", "PLACEMENT", "COORDINATE"};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    for (size_t i = 0; table && i < documents->of.index_count; i++) {
        const struct index_entry *entry = &documents->of.index[i];
        char shape[200] = "";
        if (entry->kind == INDEX_TENSOR) {
            shape_format(&entry->shape, sizeof(shape), shape);
        }
        table_row(table, (const char *const[]){
                             entry->name, dtype_of(entry), shape, bytes_text(entry->plain_bytes).at,
                             placement_name(entry->placement), entry->coordinate});
    }
    if (table) {
        printf("\n");
        table_print(table, stdout);
    }
    table_free(table);
}

static int run(struct cli *cli, void *options, struct diag *diag)
{
    struct documents documents;
    struct ckpt_info info;
    struct scratch scratch;
    (void)options;
    int status = cli_connect(cli, true, diag);
    if (status != 0) {
        return status;
    }
    scratch_init(&scratch, INFO_SCRATCH_MAX);
    status = cli_resolve(cli, &cli->selector, &scratch, &info, diag);
    if (status == 0) {
        struct shares shares = {.known = info.base.term == 0};
        status = documents_load(cli, &info, &documents, diag);
        if (status == 0 && !shares.known) {
            shares.known = documents_shares(&documents, &shares.count, &shares.items,
                                            &shares.why) == 0; /* a part is damaged: it says so */
        }
        if (status == 0 && cli->json) {
            status = print_json(&documents, &shares);
        } else if (status == 0) {
            print_head(cli, &documents);
            print_shares(&documents, &shares);
            print_entries(&documents);
            status = out_flush();
        }
        documents_fini(&documents);
    }
    scratch_fini(&scratch);
    return status;
}

const struct command command_show = {
    .name = "show",
    .group = GROUP_LOOK,
    .summary = "show one checkpoint: who saved it and when, its size, and its tensors",
    .details = "CHECKPOINT is latest (the default), STEP, or STEP@TERM. RUN may be left out where "
               "there is only one.",
    .arguments = cli_checkpoint_arguments,
    .run = run};
