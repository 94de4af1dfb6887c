/* SPDX-License-Identifier: Apache-2.0
 *
 * export: writes safetensors into a target that has begun: one file, or shards and their index.
 */
#ifndef CAIRN_TOOLS_EXPORT_H
#define CAIRN_TOOLS_EXPORT_H

#include "documents.h"
#include "target.h"

enum { EXPORT_NAME_BYTES = LIMIT_NAME_BYTES + LIMIT_COORDINATE_BYTES + 2 };

struct export_item {
    const struct index_entry *entry;
    char name[EXPORT_NAME_BYTES];
};

struct export
{
    struct cli *cli;
    const struct documents *documents;
    struct target target;
    struct scratch scratch; /* of the writers */
    uint64_t shard_bytes, bytes;
    size_t count, left_out;
    struct export_item *items;
};

/* Writes the items to model.safetensors. If they have more than shard_bytes, writes them to
 * numbered files, each of at most shard_bytes or of one larger item, and an index. */
int MUST_USE export_safetensors(struct export *export, struct diag *diag);

#endif
