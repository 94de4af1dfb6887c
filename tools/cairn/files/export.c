/* SPDX-License-Identifier: Apache-2.0
 *
 * See export.h.
 */
#include "files/export.h"

#include "formats/archive.h"
#include "formats/npz_write.h"
#include "formats/safetensors.h"
#include "formats/torch_write.h"
#include "writeout.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_MAX = 1 << 30, TORCH_ALIGN = 64, ARCHIVE_MEMBERS = 4 };

static int no_memory(struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for an export");
}

static int write_piece(int fd, const char *name, uint64_t offset, const struct buf *buf,
                       struct diag *diag)
{
    int status = buf_status(buf);
    struct target_piece piece = {
        .name = name, .offset = offset, .bytes = buf->bytes, .data = buf->data};
    return status != 0 ? diag_set(diag, status, "the contents of %s", name)
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

/* --- safetensors --- */

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
    struct safetensors file = {.checkpoint = export->id, .count = shard->count, .tensors = tensors};
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

/* --- archives --- */

static int fill_archives(struct export *export, int fd, size_t count, struct sink *sinks,
                         struct diag *diag)
{
    for (size_t i = 0; i < count; i++) {
        sinks[i].fd = fd;
    }
    return writeout(export->cli, &export->documents->info, count, sinks, diag);
}

struct one_archive { /* in a file of its own */
    const char *file;
    struct archive archive;
    struct sink *sinks; /* one for each member that has a tensor */
    size_t sink_count;
};

static int write_archive(struct export *export, struct one_archive *one, struct diag *diag)
{
    int fd = -1;
    int status = target_create(&export->target, one->file, &fd, diag);
    if (status == 0) {
        status = fill_archives(export, fd, one->sink_count, one->sinks, diag);
        status = status != 0 ? status : archive_finish(&one->archive, fd, one->file, diag);
        int closed = target_close(fd, one->file, diag);
        status = status != 0 ? status : closed;
    }
    return status;
}

/* Appends printf's text as a string of the scratch. */
static const char *name_of(struct export *export, const char *prefix, const char *name,
                           const char *suffix)
{
    char text[EXPORT_NAME_BYTES + 40];
    snprintf(text, sizeof(text), "%s%s%s", prefix, name, suffix);
    return scratch_string(&export->scratch, strlen(text), text);
}

static int add_head(struct export *export, struct archive_member *member, const struct buf *buf,
                    struct diag *diag)
{
    int status = buf_status(buf);
    if (status != 0) {
        return diag_set(diag, status, "the contents of %s", member->name);
    }
    member->head = scratch_copy(&export->scratch, buf->bytes, buf->data);
    member->head_bytes = buf->bytes;
    return member->head && member->name ? 0 : no_memory(diag);
}

/* --- npz --- */

static int add_array(struct export *export, const struct export_item *item,
                     struct archive_member *member, bool *ret_void, struct diag *diag)
{
    struct buf head;
    buf_init(&head, KIB(4));
    *ret_void = npy_put_header(&head, item->entry->dtype, &item->entry->shape);
    member->name = name_of(export, "", item->name, ".npy");
    member->tensor_bytes = item->entry->plain_bytes;
    int status = add_head(export, member, &head, diag);
    buf_fini(&head);
    return status;
}

/* Arrays of types that numpy lacks: the entry cairn.json says which. */
static int add_types(struct export *export, struct archive_member *members, struct json *types,
                     struct diag *diag)
{
    size_t voids = 0;
    int status = 0;
    json_open(types, NULL, '{');
    for (size_t i = 0; status == 0 && i < export->count; i++) {
        bool is_void = false;
        status = add_array(export, &export->items[i], &members[i], &is_void, diag);
        if (is_void) {
            json_str(types, export->items[i].name, dtype_name(export->items[i].entry->dtype));
            voids++;
        }
    }
    json_close(types, '}');
    members[export->count].name = "cairn.json";
    status = status != 0 || voids == 0
                 ? status
                 : add_head(export, &members[export->count], &types->buf, diag);
    return status;
}

int export_npz(struct export *export, struct diag *diag)
{
    struct one_archive one = {.file = "model.npz", .sink_count = export->count};
    struct json types;
    one.archive.align = 1;
    one.archive.members =
        scratch_array(&export->scratch, export->count + 1, sizeof(*one.archive.members));
    one.sinks = scratch_array(&export->scratch, export->count + 1, sizeof(*one.sinks));
    if (!one.archive.members || !one.sinks) {
        return no_memory(diag);
    }
    memset(one.archive.members, 0, (export->count + 1) * sizeof(*one.archive.members));
    json_init(&types);
    int status = add_types(export, one.archive.members, &types, diag);
    one.archive.count = export->count + (one.archive.members[export->count].head_bytes > 0);
    status = status != 0 ? status : archive_layout(&one.archive, diag);
    for (size_t i = 0; i < export->count; i++) {
        one.sinks[i] =
            (struct sink){.entry = export->items[i].entry, .base = one.archive.members[i].data};
    }
    status = status != 0 ? status : write_archive(export, &one, diag);
    json_fini(&types);
    return status;
}

/* --- torch.save --- */

static void fill_item(const struct export_item *item, struct torch_item *ret)
{
    const struct index_entry *entry = item->entry;
    *ret = (struct torch_item){.name = item->name,
                               .dtype = entry->dtype,
                               .shape = entry->shape,
                               .plain_bytes = entry->plain_bytes,
                               .is_blob = entry->kind == INDEX_BLOB};
}

static int add_text(struct export *export, struct archive_member *member, const char *name,
                    const char *text)
{
    *member = (struct archive_member){.name = name_of(export, "archive/", name, ""),
                                      .head = (const uint8_t *)text,
                                      .head_bytes = strlen(text)};
    return member->name ? 0 : CAIRN_E_NO_MEMORY;
}

/* data.pkl, byteorder, the storages, version. members: count + 3. */
struct torch_state {
    size_t count;
    const struct torch_item *items;
    bool single;
};

static int lay_out_torch(struct export *export, const struct torch_state *state, struct archive *io,
                         struct diag *diag)
{
    size_t count = state->count;
    const struct torch_item *items = state->items;
    struct archive_member *members = io->members;
    struct buf pickle;
    buf_init(&pickle, HEAD_MAX);
    torch_put_state(&pickle, count, items, state->single);
    members[0] = (struct archive_member){.name = "archive/data.pkl"};
    int status = add_head(export, &members[0], &pickle, diag);
    status = status != 0 ? status : add_text(export, &members[1], "byteorder", "little");
    for (size_t i = 0; status == 0 && i < count; i++) {
        char number[24];
        snprintf(number, sizeof(number), "%zu", i);
        members[2 + i] =
            (struct archive_member){.name = name_of(export, "archive/data/", number, ""),
                                    .tensor_bytes = items[i].plain_bytes};
        status = members[2 + i].name ? 0 : no_memory(diag);
    }
    status = status != 0 ? status : add_text(export, &members[2 + count], "version", "3\n");
    io->count = count + 3;
    io->align = TORCH_ALIGN;
    buf_fini(&pickle);
    return status != 0 ? status : archive_layout(io, diag);
}

int export_torch(struct export *export, struct diag *diag)
{
    struct one_archive one = {.file = "model.pt", .sink_count = export->count};
    struct torch_item *items = scratch_array(&export->scratch, export->count + 1, sizeof(*items));
    one.archive.members =
        scratch_array(&export->scratch, export->count + 3, sizeof(*one.archive.members));
    one.sinks = scratch_array(&export->scratch, export->count + 1, sizeof(*one.sinks));
    if (!items || !one.archive.members || !one.sinks) {
        return no_memory(diag);
    }
    for (size_t i = 0; i < export->count; i++) {
        fill_item(&export->items[i], &items[i]);
    }
    int status = lay_out_torch(export, &(struct torch_state){export->count, items, false},
                               &one.archive, diag);
    for (size_t i = 0; status == 0 && i < export->count; i++) {
        one.sinks[i] =
            (struct sink){.entry = export->items[i].entry, .base = one.archive.members[2 + i].data};
    }
    return status != 0 ? status : write_archive(export, &one, diag);
}

/* --- torch.distributed.checkpoint: an archive for each tensor, one behind the other --- */

struct dcp {
    struct torch_item *items;
    struct archive *archives; /* of tensors; a blob is an archive already */
    struct sink *sinks;
};

static int lay_out_item(struct export *export, struct dcp *dcp, size_t i, uint64_t *io_at,
                        struct diag *diag)
{
    struct archive *archive = &dcp->archives[i];
    struct torch_item *item = &dcp->items[i];
    fill_item(&export->items[i], item);
    item->offset = *io_at;
    item->bytes = item->plain_bytes;
    dcp->sinks[i] = (struct sink){.entry = export->items[i].entry, .base = *io_at};
    *archive = (struct archive){.at = *io_at};
    int status = 0;
    if (!item->is_blob) {
        archive->members =
            scratch_array(&export->scratch, ARCHIVE_MEMBERS, sizeof(*archive->members));
        status = archive->members
                     ? lay_out_torch(export, &(struct torch_state){1, item, true}, archive, diag)
                     : no_memory(diag);
        status = status != 0 ? status : archive_bytes(archive, &item->bytes, diag);
        dcp->sinks[i].base = status == 0 ? archive->members[2].data : 0;
    }
    *io_at += item->bytes;
    return status;
}

static int write_dcp(struct export *export, struct dcp *dcp, const char *file, struct diag *diag)
{
    int fd = -1;
    int status = target_create(&export->target, file, &fd, diag);
    if (status != 0) {
        return status;
    }
    status = fill_archives(export, fd, export->count, dcp->sinks, diag);
    for (size_t i = 0; status == 0 && i < export->count; i++) {
        if (!dcp->items[i].is_blob) {
            status = archive_finish(&dcp->archives[i], fd, file, diag);
        }
    }
    int closed = target_close(fd, file, diag);
    return status != 0 ? status : closed;
}

int export_dcp(struct export *export, struct diag *diag)
{
    static const char file[] = "__0_0.distcp";
    size_t count = export->count + 1;
    struct dcp dcp = {.items = scratch_array(&export->scratch, count, sizeof(*dcp.items)),
                      .archives = scratch_array(&export->scratch, count, sizeof(*dcp.archives)),
                      .sinks = scratch_array(&export->scratch, count, sizeof(*dcp.sinks))};
    uint64_t at = 0;
    int status = dcp.items && dcp.archives && dcp.sinks ? 0 : no_memory(diag);
    for (size_t i = 0; status == 0 && i < export->count; i++) {
        status = lay_out_item(export, &dcp, i, &at, diag);
    }
    status = status != 0 ? status : write_dcp(export, &dcp, file, diag);
    if (status == 0) { /* last: its presence says that all else is there */
        struct buf metadata;
        buf_init(&metadata, HEAD_MAX);
        dcp_put_metadata(&metadata, export->count, dcp.items, file);
        status = write_whole(export, ".metadata", &metadata, diag);
        buf_fini(&metadata);
    }
    return status;
}
