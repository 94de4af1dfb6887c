/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a store on a cluster: the store record (identity, format, feature bits, epoch), made once
 * whoever is first, then a new epoch for this daemon. Nothing is swept: another daemon may be at
 * work.
 */
#include "rados_private.h"

#include "base/check.h"

#include <string.h>

static int get_u64(const struct record *record, const char *key, uint64_t *ret, struct diag *diag)
{
    struct record_value value;
    if (!record_get(record, key, &value) || value.bytes != 8) {
        return diag_set(diag, CAIRN_E_FORMAT, "the store record has no proper \"%s\"", key);
    }
    *ret = load_u64(value.data);
    return 0;
}

static int make_store(struct rados_store *store, struct diag *diag)
{
    static const char *const keys[] = {"compat", "epoch", "format", "incompat", "ro-compat"};
    const uint64_t numbers[] = {0, 0, RADOS_FORMAT_VERSION, 0, 0};
    uint8_t bytes[5][8];
    struct uuid uuid;
    struct record_change changes[6];
    struct record_guard guard = {.key = "uuid", .absent = true};
    loop_random(store->loop, sizeof(uuid), &uuid);
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0f) | 0x40); /* a version 4 UUID */
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3f) | 0x80);
    for (size_t i = 0; i < 5; i++) {
        store_u64(bytes[i], numbers[i]);
        changes[i] = (struct record_change){.key = keys[i], .value = {8, bytes[i]}};
    }
    changes[5] = (struct record_change){.key = "uuid", .value = {sizeof(uuid), uuid.bytes}};
    struct record_update update = {
        .guard_count = 1, .guards = &guard, .change_count = 6, .changes = changes};
    uint64_t version;
    struct diag why = DIAG_INIT;
    int rc = rados_record_update(store, &store->store_record, &update, &version, &why);
    return rc == 0 || rc == CAIRN_E_CONFLICT ? 0 /* another daemon was first */
                                             : diag_copy(diag, &why);
}

static int check_features(struct rados_store *store, struct diag *diag)
{
    const struct record *record = store->store_record.record;
    uint64_t format, ro_compat, incompat;
    int rc = get_u64(record, "format", &format, diag);
    rc = rc ? rc : get_u64(record, "ro-compat", &ro_compat, diag);
    rc = rc ? rc : get_u64(record, "incompat", &incompat, diag);
    if (rc != 0) {
        return rc;
    }
    if (format != RADOS_FORMAT_VERSION || (incompat & ~RADOS_INCOMPAT_KNOWN) != 0) {
        return diag_set(diag, CAIRN_E_STORE_FEATURES,
                        "the store in namespace %s has format %llu and features %#llx; this "
                        "version knows format %d and %#llx: use a newer Cairn",
                        store->space, (unsigned long long)format, (unsigned long long)incompat,
                        RADOS_FORMAT_VERSION, (unsigned long long)RADOS_INCOMPAT_KNOWN);
    }
    store->read_only = store->read_only || (ro_compat & ~RADOS_RO_COMPAT_KNOWN) != 0;
    return 0;
}

static int check_identity(struct rados_store *store, const struct uuid *expected, struct diag *diag)
{
    struct record_value value;
    if (!record_get(store->store_record.record, "uuid", &value) ||
        value.bytes != sizeof(struct uuid)) {
        return diag_set(diag, CAIRN_E_FORMAT, "the store record has no proper \"uuid\"");
    }
    memcpy(&store->base.caps.uuid, value.data, sizeof(struct uuid));
    if (expected != NULL && memcmp(expected, value.data, sizeof(*expected)) != 0) {
        char have[33], want[33];
        hex_encode(sizeof(*expected), value.data, have);
        hex_encode(sizeof(*expected), expected, want);
        return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                        "namespace %s holds store %s; expected was %s: is it the right cluster?",
                        store->space, have, want);
    }
    return 0;
}

/* One more than any before; daemons that start at once get one each. */
static int raise_epoch(struct rados_store *store, struct diag *diag)
{
    for (unsigned i = 0; i < RADOS_RETRIES; i++) {
        uint64_t epoch, version;
        uint8_t old_bytes[8], new_bytes[8];
        int rc = get_u64(store->store_record.record, "epoch", &epoch, diag);
        if (rc != 0) {
            return rc;
        }
        store_u64(old_bytes, epoch);
        store_u64(new_bytes, epoch + 1);
        struct record_guard guard = {.key = "epoch", .value = {8, old_bytes}};
        struct record_change change = {.key = "epoch", .value = {8, new_bytes}};
        struct record_update update = {
            .guard_count = 1, .guards = &guard, .change_count = 1, .changes = &change};
        struct diag why = DIAG_INIT;
        rc = rados_record_update(store, &store->store_record, &update, &version, &why);
        if (rc == 0) {
            store->base.caps.epoch = epoch + 1;
            return 0;
        }
        if (rc != CAIRN_E_CONFLICT) {
            return diag_copy(diag, &why);
        }
    }
    return diag_set(diag, CAIRN_E_BUSY, "too many daemons start on this store at once");
}

static int find_or_make(struct rados_store *store, bool create, struct diag *diag)
{
    struct rados_record *record = &store->store_record;
    int rc = rados_record_refresh(store, record, diag);
    if (rc == 0 && record_version(record->record) == 0 && !create) {
        return diag_set(diag, CAIRN_E_NO_STORE, "namespace %s holds no Cairn store; %s",
                        store->space,
                        store->read_only ? "name the one that cairnd's `store` names"
                                         : "make one with --store-create yes");
    }
    if (rc == 0 && record_version(record->record) == 0) {
        rc = make_store(store, diag);
        rc = rc ? rc : rados_record_refresh(store, record, diag);
    }
    return rc;
}

int rados_start(struct rados_store *store, const struct store_rados_options *options,
                struct diag *diag)
{
    pthread_mutex_lock(&store->store_record.lock);
    int rc = find_or_make(store, options->create && !options->read_only, diag);
    rc = rc ? rc : check_features(store, diag);
    rc = rc ? rc : check_identity(store, options->expected_uuid, diag);
    if (rc == 0 && store->read_only) {
        rc = get_u64(store->store_record.record, "epoch", &store->base.caps.epoch, diag);
    } else if (rc == 0) {
        rc = raise_epoch(store, diag);
    }
    pthread_mutex_unlock(&store->store_record.lock);
    return rc;
}
