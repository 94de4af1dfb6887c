/* SPDX-License-Identifier: Apache-2.0
 *
 * See export.h.
 */
#include "files/export.h"

#include "writeout.h"

struct shard {
    char name[64];
    size_t first, count;
};

static int write_shard(struct export *export, const struct shard *shard, struct diag *diag)
{
    struct safetensor *tensors =
        scratch_array(&export->scratch, shard->count + 1, sizeof(*tensors));
    int fd = -1, status = tensors ? 0 : diag_no_memory(diag, "an export");
    for (size_t i = 0; status == 0 && i < shard->count; i++) {
        const struct export_item *item = &export->items[shard->first + i];
        struct index_entry *entry = scratch_copy(&export->scratch, sizeof(*entry), item->entry);
        if (!entry) {
            return diag_no_memory(diag, "an export");
        }
        entry->name = item->name;
        tensors[i] = (struct safetensor){.entry = entry, .stored = item->entry};
    }
    if (status == 0) {
        status = target_create(&export->target, shard->name, &fd, diag);
    }
    struct tensor_file file = {fd, shard->name, shard->count, tensors};
    return status != 0 ? status : writeout_tensors(export->cli, export->documents, &file, diag);
}

/* Where the shard that begins at `first` ends: at least one tensor. */
static size_t shard_end(const struct export *export, size_t first)
{
    uint64_t bytes = 0;
    size_t end = first;
    while (end < export->count &&
           (end == first || bytes + export->items[end].entry->plain_bytes <= export->shard_bytes)) {
        bytes += export->items[end++].entry->plain_bytes;
    }
    return end;
}

static int write_index(struct export *export, size_t shards, struct diag *diag)
{
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_open(&json, "metadata", '{');
    json_u64(&json, "total_size", export->bytes);
    json_close(&json, '}');
    json_open(&json, "weight_map", '{');
    size_t number = 0;
    for (size_t first = 0; first < export->count;) {
        char name[64];
        size_t end = shard_end(export, first);
        snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", ++number, shards);
        for (; first < end; first++) {
            json_str(&json, export->items[first].name, name);
        }
    }
    json_close(&json, '}');
    json_close(&json, '}');
    int status = target_put(&export->target, "model.safetensors.index.json", &json.buf, diag);
    json_fini(&json);
    return status;
}

int export_safetensors(struct export *export, struct diag *diag)
{
    size_t shards = 0, number = 0;
    int status = 0;
    for (size_t first = 0; first < export->count; first = shard_end(export, first)) {
        shards++;
    }
    for (size_t first = 0; status == 0 && first < export->count;) {
        struct shard shard = {.name = "model.safetensors", .first = first};
        size_t end = shard_end(export, first);
        shard.count = end - first;
        if (shards > 1) {
            snprintf(shard.name, sizeof(shard.name), "model-%05zu-of-%05zu.safetensors", ++number,
                     shards);
        }
        status = write_shard(export, &shard, diag);
        first = end;
    }
    return status == 0 && shards > 1 ? write_index(export, shards, diag) : status;
}
