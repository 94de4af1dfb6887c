/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a store on a cluster: the store record (identity, format, feature bits, epoch), which the
 * first daemon makes, then a new epoch for this daemon. Nothing is swept, because another daemon
 * may be at work. A lost record is made again only by salvage, with the identity in a second
 * object.
 */
#include "rados_private.h"

#include "base/check.h"
#include "base/json_view.h"
#include "store/store_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Key in the store record: the name of the pool of pieces, or empty for the pool of the record. It
 * is a name, not a number: copied pools, in another cluster too, have other numbers. */
static const char DATA_POOL[] = "data-pool";

static struct record_value pool_value(const char *data_pool)
{
    return (struct record_value){.bytes = data_pool != NULL ? strlen(data_pool) : 0,
                                 .data = (const uint8_t *)data_pool};
}

static int make_store(struct rados_store *store, const char *data_pool, struct diag *diag)
{
    struct store_record_update first;
    struct uuid random;
    uint64_t version;
    struct diag why = DIAG_INIT;
    loop_random(store->loop, sizeof(random), &random);
    store_record_first(RADOS_FORMAT_VERSION, &random, &first);
    store_record_also(&first, DATA_POOL, pool_value(data_pool));
    int rc = rados_record_update(store, &store->store_record, &first.update, &version, &why);
    return rc == 0 || rc == CAIRN_E_CONFLICT ? 0 /* another daemon was first */
                                             : diag_copy(diag, &why);
}

/* Checks that the configured pool is the one that the store was made with. With another pool every
 * checkpoint would look damaged. */
static int check_pool(const struct rados_store *store, const char *data_pool, struct diag *diag)
{
    struct record_value has, wanted = pool_value(data_pool);
    if (!record_get(store->store_record.record, DATA_POOL, &has) || /* older than this entry */
        (has.bytes == wanted.bytes &&
         (has.bytes == 0 || memcmp(has.data, wanted.data, has.bytes) == 0))) {
        return 0;
    }
    const char *configured = data_pool != NULL ? data_pool : "the pool of its records";
    if (has.bytes == 0) {
        return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                        "the store in namespace %s has its data in the pool of its records, not in "
                        "%s: leave data-pool out of the store's URL",
                        store->space, configured);
    }
    return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                    "the store in namespace %s has its data in pool %.*s, not in %s: write "
                    "data-pool=%.*s in the store's URL (if the pool was renamed, give it its old "
                    "name with `ceph osd pool rename`)",
                    store->space, (int)has.bytes, (const char *)has.data, configured,
                    (int)has.bytes, (const char *)has.data);
}

/* Checks the store's own record: format, features, identity and pool. An unknown feature can make
 * the store read-only. */
static int check_record(struct rados_store *store, const struct store_rados_options *options,
                        struct diag *diag)
{
    char place[CLUSTER_NAMESPACE_MAX + 16];
    uint64_t newer = 0;
    snprintf(place, sizeof(place), "namespace %s", store->space);
    struct store_record_rules rules = {.place = place,
                                       .hint = "check that it is the right cluster",
                                       .format = RADOS_FORMAT_VERSION,
                                       .ro_compat_known = RADOS_RO_COMPAT_KNOWN,
                                       .incompat_known = RADOS_INCOMPAT_KNOWN,
                                       .expected = options->expected_uuid};
    int rc =
        store_record_check(store->store_record.record, &rules, &store->base.caps, &newer, diag);
    store->read_only = store->read_only || newer != 0;
    return rc ? rc : check_pool(store, options->data_pool, diag);
}

/* Raises the epoch by one. Daemons that start at the same time get different ones. */
static int raise_epoch(struct rados_store *store, struct diag *diag)
{
    for (unsigned i = 0; i < RADOS_RETRIES; i++) {
        struct store_record_update raise;
        uint64_t epoch, version;
        struct diag why = DIAG_INIT;
        int rc = store_record_raise(store->store_record.record, 1, &raise, &epoch, diag);
        if (rc != 0) {
            return rc;
        }
        rc = rados_record_update(store, &store->store_record, &raise.update, &version, &why);
        if (rc == 0) {
            store->base.caps.epoch = epoch;
            return 0;
        }
        if (rc != CAIRN_E_CONFLICT) {
            return diag_copy(diag, &why);
        }
    }
    return diag_set(diag, CAIRN_E_BUSY,
                    "too many daemons are starting on this store at once; start this one again");
}

/* Loads the store's own record, or makes the store if there is none and it may be created. */
static int find_or_make(struct rados_store *store, const struct store_rados_options *options,
                        struct diag *diag)
{
    bool create = options->create && !options->read_only;
    struct rados_record *record = &store->store_record;
    int rc = rados_lost_refresh(store, record, diag);
    if (rc == 0 && record_version(record->record) == 0 && !create) {
        return diag_set(diag, CAIRN_E_NO_STORE, "namespace %s holds no Cairn store; %s",
                        store->space,
                        options->remedy && !options->read_only
                            ? options->remedy
                            : "check the name, which [store] url gives in cairnd's configuration");
    }
    if (rc == 0 && record_version(record->record) == 0) {
        rc = make_store(store, options->data_pool, diag);
        rc = rc ? rc : rados_record_refresh(store, record, diag);
    }
    return rc;
}

static int find_and_check(struct rados_store *store, const struct store_rados_options *options,
                          struct diag *diag)
{
    int rc = find_or_make(store, options, diag);
    return rc ? rc : check_record(store, options, diag);
}

/* --- the copy of the store record, and making the record again ------------------------------ */

/* Reads the object that holds the permanent entries of the record. Its version is 0 if there is
 * none. */
static int read_copy(struct rados_store *store, struct rados_record *copy, struct diag *diag)
{
    rados_record_init(copy, store->space, "store.copy");
    return rados_record_refresh(store, copy, diag);
}

/* Writes the copy if it is missing. The store works without it, and the next start tries again. */
static void keep_copy(struct rados_store *store)
{
    struct rados_record copy = {.listed = false};
    struct record_value pool;
    struct store_record_update first;
    uint64_t version;
    int rc = read_copy(store, &copy, NULL);
    if (rados_is_loss(rc)) {
        rc = rados_lost_renew(store, &copy, NULL);
    }
    store_record_first(RADOS_FORMAT_VERSION, &store->base.caps.uuid, &first);
    if (record_get(store->store_record.record, DATA_POOL, &pool)) {
        store_record_also(&first, DATA_POOL, pool);
    }
    if (rc == 0 && record_guards_hold(copy.record, &first.update, NULL)) {
        err_ignore(rados_record_update(store, &copy, &first.update, &version, NULL));
    }
    rados_record_fini(&copy);
}

/* Makes the store record again, with the identity of the copy, or a new one. The epoch is the
 * seconds of the wall clock, which is beyond any that was given, because no store is opened every
 * second for years. */
static int fill_again(struct rados_store *store, const struct store_rados_options *options,
                      struct diag *diag)
{
    struct rados_record copy = {.listed = false}, *record = &store->store_record;
    struct record_value had;
    struct store_record_update first;
    struct uuid uuid;
    uint8_t epoch[8];
    uint64_t version;
    struct record_value pool = pool_value(options->data_pool);
    struct record_change raise = {.key = "epoch", .value = {sizeof(epoch), epoch}};
    struct record_update after = {.change_count = 1, .changes = &raise};
    const struct record_update *updates[] = {&first.update, &after};
    bool has_copy = read_copy(store, &copy, NULL) == 0;
    loop_random(store->loop, sizeof(uuid), &uuid);
    if (has_copy && record_get(copy.record, "uuid", &had) && had.bytes == sizeof(uuid)) {
        memcpy(&uuid, had.data, sizeof(uuid));
    }
    if (has_copy && record_get(copy.record, DATA_POOL, &had)) {
        pool = had;
    }
    store_u64(epoch, (uint64_t)loop_wall_ns(store->loop) / 1000000000);
    store_record_first(RADOS_FORMAT_VERSION, &uuid, &first);
    store_record_also(&first, DATA_POOL, pool);
    store_record_add_lost(&first, loop_wall_ns(store->loop));
    int rc;
    if (store->read_only) { /* in memory only; nobody else sees it */
        rados_record_drop(record);
        rc = record_new(&record->record) == 0 ? 0 : diag_no_memory(diag, "a record");
    } else {
        rc = rados_lost_renew(store, record, diag);
    }
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(updates); i++) {
        rc = store->read_only ? record_apply(record->record, updates[i], diag)
                              : rados_record_update(store, record, updates[i], &version, diag);
    }
    rados_record_fini(&copy);
    return rc;
}

static int make_again(struct rados_store *store, const struct store_rados_options *options,
                      struct diag *diag)
{
    int rc = fill_again(store, options, diag);
    return rc ? rc : check_record(store, options, diag);
}

/* Adds the health checks that are not well to the text: if the OSDs do not answer, the monitors may
 * know why. */
static void add_health(struct rados_store *store, struct diag *diag)
{
    static const char ask_health[] = "{\"prefix\":\"health\",\"format\":\"json\"}";
    struct cluster *cluster = store->cluster;
    struct json_view name, check = {NULL, 0};
    char *text = NULL, said[200] = "";
    size_t bytes = 0, at = 0;
    if (diag == NULL || cluster->ops->ask == NULL ||
        cluster->ops->ask(cluster, ask_health, &text, &bytes) != 0) {
        return;
    }
    struct json_view checks = json_view_member(json_view_of(bytes, text), "checks");
    while (at < sizeof(said) - 1 && json_view_next_member(checks, &name, &check)) {
        char code[64], message[120];
        json_view_text(name, sizeof(code), code);
        json_view_text(json_view_member(json_view_member(check, "summary"), "message"),
                       sizeof(message), message);
        int wrote =
            snprintf(said + at, sizeof(said) - at, "%s%s: %s", at > 0 ? ", " : "", code, message);
        at += wrote > 0 ? (size_t)wrote : 0;
    }
    free(text);
    if (said[0] != '\0') {
        struct diag before = *diag;
        diag_clear(diag);
        diag_set(diag, before.code, "%.200s; the cluster says: %s", before.text, said);
    }
}

int rados_start(struct rados_store *store, const struct store_rados_options *options,
                struct diag *diag)
{
    struct diag why = DIAG_INIT;
    pthread_mutex_lock(&store->store_record.lock);
    int rc = find_and_check(store, options, &why);
    if (rados_is_loss(rc) && options->salvaged != NULL) {
        err_ignore(diag_copy(options->salvaged, &why)); /* reported when it is done */
        rc = make_again(store, options, diag);
    } else if (rados_is_loss(rc)) {
        rc = diag_set(diag, rc,
                      "%.360s; `cairn salvage --store URL` says what can be made again, and `cairn "
                      "salvage --yes --store URL` does it",
                      diag_text(&why, rc));
    } else if (rc != 0) {
        err_ignore(diag_copy(diag, &why)); /* rc is its code */
    }
    if (rc == 0 && !store->read_only) {
        rc = raise_epoch(store, diag);
    }
    if (rc == 0 && !store->read_only) {
        keep_copy(store);
    }
    pthread_mutex_unlock(&store->store_record.lock);
    if (rc == CAIRN_E_TIMED_OUT || rc == CAIRN_E_OUTCOME_UNKNOWN) {
        add_health(store, diag);
    }
    return rc;
}
