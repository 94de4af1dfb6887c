/* SPDX-License-Identifier: Apache-2.0
 *
 * See export.h.
 */
#include "files/export.h"

#include "formats/safetensors.h"
#include "writeout.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int no_memory(struct diag *diag) { return diag_no_memory(diag, "an export"); }

static int write_piece(int fd, const char *name, uint64_t offset, const struct buf *buf,
                       struct diag *diag)
{
    int status = buf_status(buf);
    struct target_piece piece = {
        .name = name, .offset = offset, .bytes = buf->bytes, .data = buf->data};
    return status != 0 ? diag_set(diag, status, "cannot write the contents of %s", name)
                       : target_write(fd, &piece, diag);
}

static int write_whole(struct export *export, const char *name, const struct buf *buf,
                       struct diag *diag)
{
    int fd = -1;
    int status = target_create(&export->target, name, &fd, diag);
    if (status == 0) {
        status = write_piece(fd, name, 0, buf, diag);
        int closed = target_close(fd, name, diag);
        status = status != 0 ? status : closed;
    }
    return status;
}

/* An index entry under its exported name. */
static int rename_entry(struct export *export, const struct export_item *item,
                        struct index_entry **ret, struct diag *diag)
{
    struct index_entry *entry = scratch_copy(&export->scratch, sizeof(*entry), item->entry);
    if (!entry) {
        return no_memory(diag);
    }
    entry->name = item->name;
    *ret = entry;
    return 0;
}

struct shard {
    char name[64];
    size_t first, count;
};

static int fill_shard(struct export *export, const struct shard *shard, int fd,
                      struct safetensor *tensors, struct diag *diag)
{
    const struct manifest *manifest = &export->documents->of.manifest;
    struct safetensors file = {.checkpoint = export->id.at,
                               .metadata_bytes = manifest->metadata_bytes,
                               .metadata = manifest->metadata,
                               .count = shard->count,
                               .tensors = tensors};
    struct sink *sinks = scratch_array(&export->scratch, shard->count + 1, sizeof(*sinks));
    struct buf header;
    buf_init(&header, MIB(128));
    int status = sinks ? safetensors_layout(&file, &header, diag) : no_memory(diag);
    status = status != 0 ? status : write_piece(fd, shard->name, 0, &header, diag);
    for (size_t i = 0; status == 0 && i < shard->count; i++) {
        /* A renamed entry's name is its item's, so it leads to the entry as it is stored. */
        const struct export_item *item =
            container_of((char *)(uintptr_t)tensors[i].entry->name, struct export_item, name);
        sinks[i] =
            (struct sink){.entry = item->entry, .fd = fd, .base = header.bytes + tensors[i].offset};
    }
    buf_fini(&header);
    return status != 0 ? status
                       : writeout(export->cli, &export->documents->info, shard->count, sinks, diag);
}

static int write_shard(struct export *export, const struct shard *shard, struct diag *diag)
{
    struct safetensor *tensors =
        scratch_array(&export->scratch, shard->count + 1, sizeof(*tensors));
    int fd = -1, status = tensors ? 0 : no_memory(diag);
    for (size_t i = 0; status == 0 && i < shard->count; i++) {
        struct index_entry *entry = NULL;
        status = rename_entry(export, &export->items[shard->first + i], &entry, diag);
        tensors[i] = (struct safetensor){.entry = entry};
    }
    status = status != 0 ? status : target_create(&export->target, shard->name, &fd, diag);
    if (status == 0) {
        status = fill_shard(export, shard, fd, tensors, diag);
        int closed = target_close(fd, shard->name, diag);
        status = status != 0 ? status : closed;
    }
    return status;
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
    int status = write_whole(export, "model.safetensors.index.json", &json.buf, diag);
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
