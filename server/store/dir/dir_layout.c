/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of files and directories, made and parsed. Lower case only, at most 80 bytes, one way to
 * write each (D24): a name that would not be made again as it is, is not ours.
 */
#include "dir_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

void dir_path_record(const struct run_name *run, char ret[DIR_PATH_MAX])
{
    int n = snprintf(ret, DIR_PATH_MAX, "runs/%s/%s/record", run->project, run->run);
    CHECK(n > 0 && n < DIR_PATH_MAX);
}

void dir_path_objects(const struct run_name *run, struct ckpt_id id, char ret[DIR_PATH_MAX])
{
    int n = snprintf(ret, DIR_PATH_MAX, "runs/%s/%s/objects/%llu-%llu", run->project, run->run,
                     (ull)id.term, (ull)id.step);
    CHECK(n > 0 && n < DIR_PATH_MAX);
}

void dir_path_checkpoint(const struct run_name *run, struct ckpt_id id, char ret[DIR_PATH_MAX])
{
    int n = snprintf(ret, DIR_PATH_MAX, "runs/%s/%s/checkpoints/%llu-%llu", run->project, run->run,
                     (ull)id.term, (ull)id.step);
    CHECK(n > 0 && n < DIR_PATH_MAX);
}

void dir_name_object(const struct object_id *id, char ret[DIR_NAME_MAX])
{
    snprintf(ret, DIR_NAME_MAX, "%u-%016llx-%u", id->rank, (ull)id->writer, id->sequence);
}

bool dir_parse_object(const char *name, struct object_id *ret)
{
    struct object_id id = *ret;
    ull writer;
    char again[DIR_NAME_MAX];
    if (sscanf(name, "%10u-%16llx-%10u", &id.rank, &writer, &id.sequence) != 3) {
        return false;
    }
    id.writer = writer;
    dir_name_object(&id, again);
    if (strcmp(name, again) != 0) {
        return false;
    }
    *ret = id;
    return true;
}

void dir_name_small(const struct store_name *name, char ret[DIR_NAME_MAX])
{
    switch (name->kind) {
    case STORE_MANIFEST:
        snprintf(ret, DIR_NAME_MAX, "manifest-%016llx", (ull)name->tag);
        return;
    case STORE_PART:
        snprintf(ret, DIR_NAME_MAX, "part-%u-%016llx", name->number, (ull)name->tag);
        return;
    case STORE_PAGE:
        snprintf(ret, DIR_NAME_MAX, "page-%u-%016llx", name->number, (ull)name->tag);
        return;
    }
    UNREACHABLE();
}

void dir_name_version(uint64_t version, bool is_snapshot, char ret[DIR_NAME_MAX])
{
    snprintf(ret, DIR_NAME_MAX, "%016llx.%s", (ull)version, is_snapshot ? "snapshot" : "update");
}

bool dir_parse_version(const char *name, uint64_t *ret_version, bool *ret_is_snapshot)
{
    ull version;
    char again[DIR_NAME_MAX];
    if (sscanf(name, "%16llx", &version) != 1) {
        return false;
    }
    for (int is_snapshot = 0; is_snapshot <= 1; is_snapshot++) {
        dir_name_version(version, is_snapshot, again);
        if (strcmp(name, again) == 0 && version > 0) {
            *ret_version = version;
            *ret_is_snapshot = is_snapshot;
            return true;
        }
    }
    return false;
}

bool dir_name_is_temp(const char *name, uint64_t *ret_epoch)
{
    ull epoch, random;
    if (sscanf(name, ".tmp-%16llx-%16llx", &epoch, &random) != 2) {
        return false;
    }
    *ret_epoch = epoch;
    return true;
}

void dir_path_copy(const char *path, char ret[DIR_PATH_MAX])
{
    size_t bytes = strlen(path) + 1;
    CHECK(bytes <= DIR_PATH_MAX);
    memcpy(ret, path, bytes);
}

uint64_t dir_hash(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *text != 0; text++) {
        hash = (hash ^ (uint8_t)*text) * UINT64_C(1099511628211);
    }
    return hash ^ (hash >> 32);
}

uint64_t dir_hash_run(const struct run_name *run)
{
    return dir_hash(run->project) * 31 + dir_hash(run->run);
}

bool dir_run_equal(const struct run_name *a, const struct run_name *b)
{
    return strcmp(a->project, b->project) == 0 && strcmp(a->run, b->run) == 0;
}
