/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovers a record of which an entry is damaged or missing on every copy that Ceph has. Its log
 * holds the newest updates, and with them a second copy of every entry that one of these has
 * changed. Invariant: the result is believed only if the record's sum proves it. Any thread; the
 * record's lock is held.
 */
#include "rados_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEALED_MAX = 16 };

struct tail { /* end of the log, as far as it was applied */
    uint64_t version;
    struct sha256 last;
};

/* Applies one update of the log, if it follows the one before it. */
static int add_update(struct rados_record *rec, const struct cluster_pair *pair, struct tail *io)
{
    struct scratch scratch;
    struct record_update update;
    struct sha256 previous;
    uint64_t version;
    if (pair->bytes < MAKER_BYTES) {
        return CAIRN_E_DAMAGED;
    }
    const uint8_t *data = pair->data + MAKER_BYTES;
    size_t bytes = pair->bytes - MAKER_BYTES;
    scratch_init(&scratch, UPDATE_SCRATCH_BYTES);
    int rc = record_update_decode(bytes, data, &scratch, &update, &version, previous.bytes, NULL);
    if (rc == 0 && io->version != 0 &&
        (version != io->version + 1 ||
         memcmp(previous.bytes, io->last.bytes, sizeof(previous.bytes)) != 0)) {
        rc = CAIRN_E_DAMAGED;
    }
    rc = rc != 0 ? rc : record_apply(rec->record, &update, NULL);
    scratch_fini(&scratch);
    *io = (struct tail){version, sha256(bytes, data)};
    return rc;
}

/* Applies all updates of the log to the record. */
static int add_log(struct rados_store *store, struct rados_record *rec, struct tail *ret)
{
    struct rados_pages pages = {.space = rec->space, .object = rec->object, .prefix = "l/"};
    int rc = 0;
    while (rc == 0 && rados_pages_next(store, &pages)) {
        for (size_t i = 0; rc == 0 && i < pages.map.count; i++) {
            rc = add_update(rec, &pages.map.pairs[i], ret);
        }
    }
    cluster_map_fini(&pages.map);
    return pages.failure != 0 ? CAIRN_E_IO : rc;
}

/* Compares the sum in the cluster with that of the rebuilt record. */
static int check_proof(struct rados_store *store, const struct rados_record *rec,
                       const uint8_t want[SUM_BYTES])
{
    struct cluster_step step = {.kind = STEP_KEY, .key = "s"};
    if (rados_record_call(store, rec, 1, &step) != 0) {
        return CAIRN_E_IO;
    }
    bool same = step.ret_map.count == 1 && step.ret_map.pairs[0].bytes == SUM_BYTES &&
                memcmp(step.ret_map.pairs[0].data, want, SUM_BYTES) == 0;
    cluster_map_fini(&step.ret_map);
    return same ? 0 : CAIRN_E_DAMAGED;
}

/* Writes the entries that were not found whole, as long as nobody has updated the record. The next
 * load mends what fails here. */
static void heal(struct rados_store *store, const struct rados_record *rec,
                 const struct record *found, const uint8_t sums[SUM_BYTES])
{
    uint8_t will[VERSION_BYTES], *values[HEALED_MAX];
    char keys[HEALED_MAX][KEY_MAX];
    struct cluster_step steps[HEALED_MAX + 2] = {
        {.kind = STEP_KEY_IS, .key = "s", .data = sums, .bytes = SUM_BYTES},
        {.kind = STEP_KEY_SET, .key = "v", .data = will, .bytes = VERSION_BYTES}};
    size_t count = 0;
    rados_record_encode_version(record_version(rec->record), &rec->last, will);
    for (size_t i = 0; i < record_count(rec->record) && count < HEALED_MAX; i++) {
        struct record_value value, was;
        const char *key = record_at(rec->record, i, &value);
        bool same = record_get(found, key, &was) && was.bytes == value.bytes &&
                    (was.bytes == 0 || memcmp(was.data, value.data, was.bytes) == 0);
        values[count] = same ? NULL : malloc(value.bytes + 4);
        if (values[count] == NULL) {
            continue;
        }
        if (value.bytes > 0) {
            memcpy(values[count], value.data, value.bytes);
        }
        store_u32(values[count] + value.bytes, rados_record_crc(key, &value));
        snprintf(keys[count], KEY_MAX, "k/%s", key);
        steps[count + 2] = (struct cluster_step){.kind = STEP_KEY_SET,
                                                 .key = keys[count],
                                                 .data = values[count],
                                                 .bytes = value.bytes + 4};
        count++;
    }
    err_ignore(rados_record_call(store, rec, count + 2, steps));
    while (count > 0) {
        free(values[--count]);
    }
}

/* Entries that are damaged or missing, and the version, may be in the log: its updates are applied,
 * in order, to the good entries. The sum proves that this gives the record as it was. */
bool rados_record_recover(struct rados_store *store, struct rados_record *rec)
{
    uint8_t sums[SUM_BYTES];
    struct tail tail = {0};
    struct record *found = NULL;
    bool is_whole = false;
    rados_record_drop(rec);
    if (record_new(&rec->record) == 0 && rados_record_load_map(store, rec, true, NULL) == 0 &&
        record_clone(rec->record, &found) == 0 && add_log(store, rec, &tail) == 0 &&
        tail.version != 0) {
        rec->sum = rados_record_sum(rec->record);
        rados_record_encode_sum(tail.version, rec->sum, sums);
        is_whole = check_proof(store, rec, sums) == 0;
    }
    if (is_whole) {
        record_set_version(rec->record, tail.version);
        rec->last = tail.last;
    }
    if (is_whole && !store->read_only) {
        heal(store, rec, found, sums);
    }
    record_free(found);
    return is_whole;
}
