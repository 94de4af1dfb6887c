/* SPDX-License-Identifier: Apache-2.0
 *
 * store_record: see store_record.h.
 */
#include "store_record.h"

#include "base/check.h"
#include "hash/hash.h"

#include <stdio.h>
#include <string.h>

static int get_u64(const struct record *record, const char *key, uint64_t *ret, struct diag *diag)
{
    struct record_value value;
    if (!record_get(record, key, &value) || value.bytes != 8) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the store's own record has no valid \"%s\"; use another copy of the "
                        "store, or `cairn salvage`",
                        key);
    }
    *ret = load_u64(value.data);
    return 0;
}

void store_record_first(uint64_t format, const struct uuid *random, struct store_record_update *ret)
{
    static const char *const keys[] = {"compat", "epoch", "format", "incompat", "ro-compat"};
    const uint64_t numbers[] = {0, 0, format, 0, 0};
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        store_u64(ret->bytes[i], numbers[i]);
        ret->changes[i] = (struct record_change){.key = keys[i], .value = {8, ret->bytes[i]}};
    }
    uint8_t *uuid = ret->bytes[5];
    memcpy(uuid, random->bytes, sizeof(random->bytes));
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* a version 4 UUID */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
    ret->changes[5] = (struct record_change){.key = "uuid", .value = {sizeof(*random), uuid}};
    ret->guard = (struct record_guard){.key = "uuid", .absent = true};
    ret->update = (struct record_update){
        .guard_count = 1, .guards = &ret->guard, .change_count = 6, .changes = ret->changes};
}

void store_record_go_on(struct store_record_update *io_first, uint64_t epoch)
{
    CHECK(strcmp(io_first->changes[1].key, "epoch") == 0);
    store_u64(io_first->bytes[1], epoch);
}

void store_record_also(struct store_record_update *io_first, const char *key,
                       struct record_value value)
{
    CHECK(io_first->update.change_count < ARRAY_LEN(io_first->changes));
    io_first->changes[io_first->update.change_count++] =
        (struct record_change){.key = key, .value = value};
}

void store_record_add_lost(struct store_record_update *io, int64_t wall_ns)
{
    uint8_t *when = io->bytes[ARRAY_LEN(io->bytes) - 1];
    store_u64(when, (uint64_t)wall_ns);
    io->update.changes = io->changes;
    store_record_also(io, STORE_RECORD_LOST, (struct record_value){.bytes = 8, .data = when});
}

int store_record_raise(const struct record *record, uint64_t by, struct store_record_update *ret,
                       uint64_t *ret_epoch, struct diag *diag)
{
    uint64_t epoch;
    int rc = get_u64(record, "epoch", &epoch, diag);
    if (rc != 0) {
        return rc;
    }
    memset(ret, 0, sizeof(*ret));
    store_u64(ret->bytes[0], epoch);
    store_u64(ret->bytes[1], epoch + by);
    ret->guard = (struct record_guard){.key = "epoch", .value = {8, ret->bytes[0]}};
    ret->changes[0] = (struct record_change){.key = "epoch", .value = {8, ret->bytes[1]}};
    ret->update = (struct record_update){
        .guard_count = 1, .guards = &ret->guard, .change_count = 1, .changes = ret->changes};
    *ret_epoch = epoch + by;
    return 0;
}

/* Returns an error if the store has another format, or a feature without which this version must
 * not read it. Features without which it must not write are returned in `*ret_newer`. */
static int check_features(const struct record *record, const struct store_record_rules *rules,
                          uint64_t *ret_newer, struct diag *diag)
{
    uint64_t format, ro_compat, incompat;
    int rc = get_u64(record, "format", &format, diag);
    rc = rc ? rc : get_u64(record, "ro-compat", &ro_compat, diag);
    rc = rc ? rc : get_u64(record, "incompat", &incompat, diag);
    if (rc != 0) {
        return rc;
    }
    if (format != rules->format || (incompat & ~rules->incompat_known) != 0) {
        return diag_set(diag, CAIRN_E_STORE_FEATURES,
                        "the store in %s has format %llu and features %#llx, but this version "
                        "knows format %llu and features %#llx: use a newer Cairn",
                        rules->place, (unsigned long long)format, (unsigned long long)incompat,
                        (unsigned long long)rules->format,
                        (unsigned long long)rules->incompat_known);
    }
    *ret_newer = ro_compat & ~rules->ro_compat_known;
    return 0;
}

/* Reads the store's UUID and compares it with the expected one, if there is one. */
static int check_identity(const struct record *record, const struct store_record_rules *rules,
                          struct uuid *ret, struct diag *diag)
{
    struct record_value value;
    if (!record_get(record, "uuid", &value) || value.bytes != sizeof(struct uuid)) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the store's own record has no valid \"uuid\"; use another copy of the "
                        "store, or `cairn salvage`");
    }
    memcpy(ret, value.data, sizeof(*ret));
    if (rules->expected != NULL && memcmp(rules->expected, ret, sizeof(*ret)) != 0) {
        char have[33], want[33];
        hex_encode(sizeof(struct uuid), value.data, have);
        hex_encode(sizeof(struct uuid), rules->expected, want);
        return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                        "%s holds store %s, but store %s was expected: %s", rules->place, have,
                        want, rules->hint);
    }
    return 0;
}

int store_record_check(const struct record *record, const struct store_record_rules *rules,
                       struct store_caps *caps, uint64_t *ret_newer, struct diag *diag)
{
    struct uuid uuid;
    uint64_t epoch, newer = 0;
    int rc = check_features(record, rules, &newer, diag);
    rc = rc ? rc : check_identity(record, rules, &uuid, diag);
    rc = rc ? rc : get_u64(record, "epoch", &epoch, diag);
    if (rc != 0) {
        return rc;
    }
    caps->uuid = uuid;
    caps->epoch = epoch;
    if (newer != 0) {
        snprintf(caps->read_only_why, sizeof(caps->read_only_why),
                 "it uses features that only a newer Cairn can write");
    }
    *ret_newer = newer;
    return 0;
}
