/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a store on a cluster: the store record (identity, format, feature bits, epoch), made once
 * whoever is first, then a new epoch for this daemon. Nothing is swept: another daemon may be at
 * work.
 */
#include "rados_private.h"

#include "base/json_view.h"
#include "store/store_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the store record: the name of the pool that pieces are in; empty: the one that the record is
 * in. A name, not a number: pools that were copied, to another cluster too, have other numbers. */
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

static int check_record(struct rados_store *store, const struct uuid *expected, struct diag *diag)
{
    char place[CLUSTER_NAMESPACE_MAX + 16];
    struct store_record_facts facts;
    snprintf(place, sizeof(place), "namespace %s", store->space);
    struct store_record_rules rules = {.place = place,
                                       .hint = "is it the right cluster?",
                                       .format = RADOS_FORMAT_VERSION,
                                       .ro_compat_known = RADOS_RO_COMPAT_KNOWN,
                                       .incompat_known = RADOS_INCOMPAT_KNOWN,
                                       .expected = expected};
    int rc = store_record_check(store->store_record.record, &rules, &facts, diag);
    if (rc == 0) {
        store->base.caps.uuid = facts.uuid;
        store->base.caps.epoch = facts.epoch;
        if (facts.ro_compat_unknown != 0) {
            store->read_only = true;
            snprintf(store->base.caps.read_only_why, sizeof(store->base.caps.read_only_why),
                     "it has features that a newer Cairn is needed for to write");
        }
    }
    return rc;
}

/* Whoever looks for pieces in another pool than they are in takes every checkpoint for damaged. */
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
                        "the store in namespace %s has its data in the pool of its records, and "
                        "not in %s: leave data-pool out of the store's URL",
                        store->space, configured);
    }
    return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                    "the store in namespace %s has its data in pool %.*s, and not in %s: write "
                    "data-pool=%.*s in the store's URL (a pool that was renamed gets its name back "
                    "with `ceph osd pool rename`)",
                    store->space, (int)has.bytes, (const char *)has.data, configured,
                    (int)has.bytes, (const char *)has.data);
}

/* One more than any before; daemons that start at once get one each. */
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
    return diag_set(diag, CAIRN_E_BUSY, "too many daemons start on this store at once");
}

static int find_or_make(struct rados_store *store, const struct store_rados_options *options,
                        struct diag *diag)
{
    bool create = options->create && !options->read_only;
    struct rados_record *record = &store->store_record;
    int rc = rados_record_refresh(store, record, diag);
    if (rc == 0 && record_version(record->record) == 0 && !create) {
        return diag_set(diag, CAIRN_E_NO_STORE, "namespace %s holds no Cairn store; %s",
                        store->space,
                        options->remedy && !options->read_only
                            ? options->remedy
                            : "check the name: [store] url of cairnd's configuration has it");
    }
    if (rc == 0 && record_version(record->record) == 0) {
        rc = make_store(store, options->data_pool, diag);
        rc = rc ? rc : rados_record_refresh(store, record, diag);
    }
    return rc;
}

/* The OSDs did not answer, the monitors may know why: the checks that are not well, as text. */
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
    pthread_mutex_lock(&store->store_record.lock);
    int rc = find_or_make(store, options, diag);
    rc = rc ? rc : check_record(store, options->expected_uuid, diag);
    rc = rc ? rc : check_pool(store, options->data_pool, diag);
    if (rc == 0 && !store->read_only) {
        rc = raise_epoch(store, diag);
    }
    pthread_mutex_unlock(&store->store_record.lock);
    if (rc == CAIRN_E_TIMED_OUT || rc == CAIRN_E_OUTCOME_UNKNOWN) {
        add_health(store, diag);
    }
    return rc;
}
