/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of files and directories, made and parsed. They have at most 80 bytes, are in lower case
 * but for capitals of a run's name, and can be written in one way only (D24): a name that would not
 * be made again exactly as it is does not belong to the store.
 */
#include "dir_private.h"

#include "base/check.h"
#include "base/digits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

void dir_path_record(const struct run_name *run, char ret[DIR_PATH_MAX])
{
    int n = store_is_own_record(run)
                ? snprintf(ret, DIR_PATH_MAX, "store")
                : snprintf(ret, DIR_PATH_MAX, "runs/%s/%s/record", run->project, run->run);
    CHECK(n > 0 && n < DIR_PATH_MAX);
}

bool dir_parse_record(const char *path, struct run_name *ret)
{
    char text[DIR_PATH_MAX];
    size_t bytes = strlen(path), tail = sizeof("/record") - 1, head = sizeof("runs/") - 1;
    if (bytes <= head + tail || strncmp(path, "runs/", head) != 0) {
        return false;
    }
    dir_path_copy(path + head, text);
    text[bytes - head - tail] = 0;
    return run_name_parse(text, ret, NULL) == 0;
}

void dir_path_copy_of(const char *path, char ret[DIR_PATH_MAX])
{
    int n = snprintf(ret, DIR_PATH_MAX, "copy/%s", path);
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
    const char *at = name;
    uint64_t rank, writer, sequence;
    bool good = digits_read_decimal(&at, UINT32_MAX, &rank) && digits_skip(&at, "-") &&
                digits_read_hex(&at, 16, &writer) && digits_skip(&at, "-") &&
                digits_parse_decimal(at, UINT32_MAX, &sequence);
    if (good) {
        ret->rank = (uint32_t)rank;
        ret->writer = writer;
        ret->sequence = (uint32_t)sequence;
    }
    return good;
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

bool dir_parse_small(const char *name, struct store_name *ret)
{
    const char *at = name;
    uint64_t number = 0, tag;
    enum store_kind kind = STORE_MANIFEST;
    if (digits_skip(&at, "part-")) {
        kind = STORE_PART;
    } else if (digits_skip(&at, "page-")) {
        kind = STORE_PAGE;
    } else if (!digits_skip(&at, "manifest-")) {
        return false;
    }
    if (kind != STORE_MANIFEST &&
        (!digits_read_decimal(&at, UINT32_MAX, &number) || !digits_skip(&at, "-"))) {
        return false;
    }
    if (!digits_read_hex(&at, 16, &tag) || *at != '\0') {
        return false;
    }
    ret->kind = kind;
    ret->number = (uint32_t)number;
    ret->tag = tag;
    return true;
}

bool dir_parse_ckpt(const char *name, struct ckpt_id *ret)
{
    const char *at = name;
    struct ckpt_id id;
    bool good = digits_read_decimal(&at, UINT64_MAX, &id.term) && digits_skip(&at, "-") &&
                digits_parse_decimal(at, UINT64_MAX, &id.step) && id.term > 0;
    if (good) {
        *ret = id;
    }
    return good;
}

struct dir_name dir_name_version(uint64_t version, bool is_snapshot)
{
    struct dir_name name;
    snprintf(name.at, sizeof(name.at), "%016llx.%s", (ull)version,
             is_snapshot ? "snapshot" : "update");
    return name;
}

bool dir_parse_version(const char *name, uint64_t *ret_version, bool *ret_is_snapshot)
{
    const char *at = name;
    uint64_t version;
    if (!digits_read_hex(&at, 16, &version) || version == 0) {
        return false;
    }
    bool is_snapshot = strcmp(at, ".snapshot") == 0;
    if (!is_snapshot && strcmp(at, ".update") != 0) {
        return false;
    }
    *ret_version = version;
    *ret_is_snapshot = is_snapshot;
    return true;
}

bool dir_name_is_temp(const char *name, uint64_t *ret_epoch)
{
    const char *at = name;
    uint64_t epoch, random;
    if (!digits_skip(&at, ".tmp-")) {
        return false;
    }
    /* Probes of earlier versions, and those of the doctor, have the epoch in decimal digits. */
    const char *decimal = at;
    bool good = digits_read_hex(&at, 16, &epoch) && *at == '-';
    if (!good) {
        at = decimal;
        good = digits_read_decimal(&at, UINT64_MAX, &epoch);
    }
    good = good && digits_skip(&at, "-") && digits_read_hex(&at, 16, &random) && *at == '\0';
    if (good) {
        *ret_epoch = epoch;
    }
    return good;
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
