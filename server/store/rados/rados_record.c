/* SPDX-License-Identifier: Apache-2.0
 *
 * A record as one RADOS object, and the guarded update as one compound operation on it, so that the
 * fence and the commit cannot come apart (R5). Keys of its omap:
 *
 *   v               version u64, SHA-256 of the newest update
 *   k/<key>         the value, crc32c of key and value
 *   s               version u64, the sum of all entries u64: one that is missing is noticed. Of
 *                   another version than `v` (an older Cairn does not write it) it says nothing
 *   l/<version>     who made that version (writer u64, count u64), and the update as it is encoded
 *                   (FORMAT.md 8), which names the SHA-256 of the one before; the newest 128
 *
 * Every update is guarded by `v` as it was read. The version only grows, so an update that was
 * prepared for version n can take effect as n+1 or never. A daemon that is behind reads the log
 * instead of the map.
 *
 * A time-out leaves the outcome unknown (R9): the operation may happen later. It is resolved by
 * making the late one impossible: an empty update takes the same version. If that wins, ours has
 * never happened; if it loses, the log says who won.
 */
#include "rados_record.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FENCE_TRIES = 3, LOAD_TRIES = 8 };

struct maker { /* identifies the maker of an update */
    uint8_t bytes[MAKER_BYTES];
};

void rados_record_init(struct rados_record *rec, const char *space, const char *object)
{
    CHECK(pthread_mutex_init(&rec->lock, NULL) == 0);
    snprintf(rec->space, sizeof(rec->space), "%s", space);
    snprintf(rec->object, sizeof(rec->object), "%s", object);
}

void rados_record_fini(struct rados_record *rec)
{
    record_free(rec->record);
    rec->record = NULL;
    pthread_mutex_destroy(&rec->lock);
}

static void log_key(uint64_t version, char ret[KEY_MAX])
{
    snprintf(ret, KEY_MAX, "l/%016" PRIx64, version);
}

void rados_record_encode_version(uint64_t version, const struct sha256 *last,
                                 uint8_t ret[VERSION_BYTES])
{
    store_u64(ret, version);
    memcpy(ret + 8, last->bytes, sizeof(last->bytes));
}

static int damaged(const struct rados_record *rec, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_DAMAGED, "the record %s/%s is damaged: %s", rec->space,
                    rec->object, what);
}

uint32_t rados_record_crc(const char *key, const struct record_value *value)
{
    return crc32c(crc32c(0, strlen(key), key), value->bytes, value->data);
}

/* Returns the share of an entry in the sum. It is never 0, so that every entry counts. */
static uint64_t sum_of(const char *key, const struct record_value *value)
{
    return UINT64_C(1) + rados_record_crc(key, value);
}

uint64_t rados_record_sum(const struct record *record)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < record_count(record); i++) {
        struct record_value value;
        const char *key = record_at(record, i, &value);
        sum += sum_of(key, &value);
    }
    return sum;
}

/* Returns the sum after this update, which changes no key twice. */
static uint64_t sum_after(const struct rados_record *rec, const struct record_update *update)
{
    uint64_t sum = rec->sum;
    for (size_t i = 0; i < update->change_count; i++) {
        const struct record_change *change = &update->changes[i];
        struct record_value was;
        sum -= record_get(rec->record, change->key, &was) ? sum_of(change->key, &was) : 0;
        sum += change->remove ? 0 : sum_of(change->key, &change->value);
    }
    return sum;
}

void rados_record_encode_sum(uint64_t version, uint64_t sum, uint8_t ret[SUM_BYTES])
{
    store_u64(ret, version);
    store_u64(ret + 8, sum);
    store_u32(ret + 16, crc32c(0, 16, ret));
}

int rados_record_call(struct rados_store *store, const struct rados_record *rec, size_t count,
                      struct cluster_step *steps)
{
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = rec->space,
                                .object = rec->object,
                                .step_count = count,
                                .steps = steps};
    return cluster_do(store->cluster, &call);
}

static int failed(const struct rados_record *rec, int rc, bool change, struct diag *diag)
{
    char what[CLUSTER_NAMESPACE_MAX + CLUSTER_OBJECT_NAME_MAX + 32];
    snprintf(what, sizeof(what), "the record %s/%s", rec->space, rec->object);
    return rados_error(rc, change, what, diag);
}

/* --- reading ---------------------------------------------------------------------------------- */

static int take_version(const struct rados_record *rec, const struct cluster_map *map,
                        uint64_t *ret_version, struct sha256 *ret_last, struct diag *diag)
{
    if (map->count != 1 || map->pairs[0].bytes != VERSION_BYTES) {
        return damaged(rec, "its version is missing or malformed", diag);
    }
    *ret_version = load_u64(map->pairs[0].data);
    memcpy(ret_last->bytes, map->pairs[0].data + 8, sizeof(ret_last->bytes));
    return 0;
}

/* Applies one logged update to the cache. */
static int replay(struct rados_record *rec, const struct cluster_pair *pair,
                  struct scratch *scratch, struct diag *diag)
{
    struct record_update update;
    uint64_t version;
    struct sha256 previous;
    if (pair->bytes < MAKER_BYTES) {
        return damaged(rec, "an update in its log is cut off", diag);
    }
    const uint8_t *data = pair->data + MAKER_BYTES;
    size_t bytes = pair->bytes - MAKER_BYTES;
    int rc = record_update_decode(bytes, data, scratch, &update, &version, previous.bytes, diag);
    if (rc == 0 && (version != record_version(rec->record) + 1 ||
                    memcmp(previous.bytes, rec->last.bytes, sizeof(previous.bytes)) != 0)) {
        rc = damaged(rec, "an update in its log does not follow the previous one", diag);
    }
    uint64_t sum = rc == 0 ? sum_after(rec, &update) : 0;
    rc = rc != 0 ? rc : record_apply(rec->record, &update, diag);
    if (rc == 0) {
        rec->sum = sum;
        rec->last = sha256(bytes, data);
        rec->tried_won = rec->tried_won || (version == rec->tried &&
                                            memcmp(pair->data, rec->tried_by, MAKER_BYTES) == 0);
    }
    return rc;
}

static int replay_all(struct rados_record *rec, const struct cluster_map *log, struct diag *diag)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < log->count; i++) {
        struct scratch scratch;
        scratch_init(&scratch, UPDATE_SCRATCH_BYTES);
        rc = replay(rec, &log->pairs[i], &scratch, diag);
        scratch_fini(&scratch);
    }
    return rc;
}

void rados_record_drop(struct rados_record *rec)
{
    record_free(rec->record);
    rec->record = NULL;
    rec->last = (struct sha256){{0}};
}

/* Reads the updates behind the cached version. *ret_behind is set if the log does not go back that
 * far. */
static int catch_up(struct rados_store *store, struct rados_record *rec, bool *ret_behind,
                    struct diag *diag)
{
    bool more = true;
    *ret_behind = false;
    while (more) {
        char after[KEY_MAX];
        uint64_t have = record_version(rec->record), version = 0;
        struct sha256 last;
        log_key(have, after);
        struct cluster_step steps[] = {{.kind = STEP_KEY, .key = "v"},
                                       {.kind = STEP_KEYS, .key = "l/", .after = after}};
        int rc = rados_record_call(store, rec, 2, steps);
        if (rc == -ENOENT && have == 0) {
            return 0;
        }
        if (rc != 0) {
            return rc == -ENOENT ? damaged(rec, "it no longer exists", diag)
                                 : failed(rec, rc, false, diag);
        }
        struct cluster_map *log = &steps[1].ret_map;
        more = log->more;
        rc = take_version(rec, &steps[0].ret_map, &version, &last, diag);
        if (rc == 0 && version < have) {
            rc = damaged(rec, "its version went backwards", diag);
        }
        if (rc == 0 && version > have) {
            char next[KEY_MAX];
            log_key(have + 1, next);
            /* A damaged entry of the log costs a reading of the map. */
            *ret_behind = log->count == 0 || strcmp(log->pairs[0].key, next) != 0 ||
                          replay_all(rec, log, NULL) != 0;
            more = more && !*ret_behind;
        }
        cluster_map_fini(&steps[0].ret_map);
        cluster_map_fini(log);
        if (rc != 0) {
            rados_record_drop(rec);
            return rc;
        }
    }
    return 0;
}

/* Takes one entry into the record, if its checksum matches. */
static int take_value(struct rados_record *rec, const struct cluster_pair *pair, struct diag *diag)
{
    const char *key = pair->key + 2;
    size_t bytes = pair->bytes - 4;
    if (pair->bytes < 4 ||
        load_u32(pair->data + bytes) != crc32c(crc32c(0, strlen(key), key), bytes, pair->data)) {
        char what[LIMIT_RECORD_KEY_BYTES + 48];
        snprintf(what, sizeof(what), "the crc of its entry %s does not match", key);
        return damaged(rec, what, diag);
    }
    struct record_change change = {.key = key, .value = {bytes, pair->data}};
    struct record_update update = {.change_count = 1, .changes = &change};
    return record_apply(rec->record, &update, diag);
}

/* Reads the map, page by page. Others may update the record meanwhile: what a page misses, or has
 * too early, is corrected by the log behind the version that was read first (catch_up). */
int rados_record_load_map(struct rados_store *store, struct rados_record *rec, bool skips_damaged,
                          struct diag *diag)
{
    struct rados_pages pages = {.space = rec->space, .object = rec->object, .prefix = "k/"};
    int rc = 0;
    while (rc == 0 && rados_pages_next(store, &pages)) {
        for (size_t i = 0; rc == 0 && i < pages.map.count; i++) {
            rc = take_value(rec, &pages.map.pairs[i], diag);
            rc = rc == CAIRN_E_DAMAGED && skips_damaged ? 0 : rc;
        }
    }
    cluster_map_fini(&pages.map);
    return pages.failure != 0 ? failed(rec, pages.failure, false, diag) : rc;
}

/* Checks the sum of the entries that were read. Returns AGAIN if others have updated the record
 * meanwhile. */
static int check_sum(struct rados_store *store, const struct rados_record *rec,
                     const struct cluster_map *map, const uint8_t was[VERSION_BYTES],
                     struct diag *diag)
{
    uint8_t want[SUM_BYTES];
    const uint8_t *have = map->count == 1 ? map->pairs[0].data : NULL;
    rados_record_encode_sum(load_u64(was), rec->sum, want);
    if (have == NULL || map->pairs[0].bytes != SUM_BYTES ||
        load_u32(have + 16) != crc32c(0, 16, have) || memcmp(have, want, 8) != 0 ||
        memcmp(have, want, SUM_BYTES) == 0) {
        return 0;
    }
    struct cluster_step step = {.kind = STEP_KEY, .key = "v"};
    int rc = rados_record_call(store, rec, 1, &step);
    if (rc != 0) {
        return failed(rec, rc, false, diag);
    }
    bool still = step.ret_map.count == 1 && step.ret_map.pairs[0].bytes == VERSION_BYTES &&
                 memcmp(step.ret_map.pairs[0].data, was, VERSION_BYTES) == 0;
    cluster_map_fini(&step.ret_map);
    return still ? damaged(rec, "an entry of it is missing", diag) : CAIRN_E_AGAIN;
}

/* Reads the entries of the record whose version and sum are in `steps`, and checks them against
 * both. */
static int load_from(struct rados_store *store, struct rados_record *rec,
                     const struct cluster_step steps[2], struct diag *diag)
{
    uint8_t was[VERSION_BYTES];
    uint64_t version = 0;
    struct sha256 last = {{0}};
    int rc = take_version(rec, &steps[0].ret_map, &version, &last, diag);
    if (rc == 0) {
        rc = rados_record_load_map(store, rec, false, diag);
    }
    if (rc == 0) {
        rec->sum = rados_record_sum(rec->record);
        rados_record_encode_version(version, &last, was);
        rc = check_sum(store, rec, &steps[1].ret_map, was, diag);
    }
    if (rc == 0) {
        record_set_version(rec->record, version);
        rec->last = last;
    }
    return rc;
}

/* Reads the whole record from the cluster. One that is damaged is rebuilt from its log if that is
 * whole. A record that is missing is empty. */
static int load(struct rados_store *store, struct rados_record *rec, struct diag *diag)
{
    struct cluster_step steps[] = {{.kind = STEP_KEY, .key = "v"}, {.kind = STEP_KEY, .key = "s"}};
    int rc = record_new(&rec->record);
    if (rc != 0) {
        return diag_set(diag, rc, "there is not enough memory for a record");
    }
    rec->last = (struct sha256){{0}};
    rec->sum = 0;
    rc = rados_record_call(store, rec, 2, steps);
    if (rc == -ENOENT) {
        return 0;
    }
    rc = rc != 0 ? failed(rec, rc, false, diag) : load_from(store, rec, steps, diag);
    cluster_map_fini(&steps[0].ret_map);
    cluster_map_fini(&steps[1].ret_map);
    if (rc == CAIRN_E_DAMAGED && rados_record_recover(store, rec)) {
        diag_clear(diag);
        return 0;
    }
    if (rc != 0) {
        rados_record_drop(rec);
    }
    return rc;
}

int rados_record_begin(struct rados_store *store, struct rados_record *rec, uint64_t version,
                       struct diag *diag)
{
    uint8_t first[VERSION_BYTES];
    rados_record_drop(rec);
    rados_record_encode_version(version, &rec->last, first);
    struct cluster_step steps[] = {
        {.kind = STEP_CREATE},
        {.kind = STEP_KEY_SET, .key = "v", .data = first, .bytes = sizeof(first)}};
    int rc = rados_record_call(store, rec, 2, steps);
    return rc != 0 ? failed(rec, rc, true, diag) : rados_record_refresh(store, rec, diag);
}

int rados_record_refresh(struct rados_store *store, struct rados_record *rec, struct diag *diag)
{
    for (unsigned i = 0; i < LOAD_TRIES; i++) {
        bool behind = false;
        int rc = rec->record == NULL ? load(store, rec, diag) : 0;
        rc = rc != 0 ? rc : catch_up(store, rec, &behind, diag);
        if (rc != CAIRN_E_AGAIN && (rc != 0 || !behind)) {
            return rc;
        }
        rados_record_drop(rec);
    }
    return diag_set(diag, CAIRN_E_BUSY,
                    "the record %s/%s changes faster than it can be read; try again", rec->space,
                    rec->object);
}

/* --- the guarded update ----------------------------------------------------------------------- */

struct attempt { /* at making version `version` */
    uint64_t version;
    struct maker maker;
    struct buf log; /* the maker, then the update */
    struct sha256 sha256;
    uint64_t sum;
    size_t count;
    struct cluster_step *steps;
    char (*keys)[KEY_MAX];
    uint8_t *values; /* of the keys k/ */
    uint8_t was[VERSION_BYTES], will[VERSION_BYTES], sums[SUM_BYTES];
};

static struct maker next_maker(struct rados_store *store)
{
    struct maker maker;
    store_u64(maker.bytes, store->writer);
    store_u64(maker.bytes + 8, atomic_fetch_add(&store->next, 1));
    return maker;
}

static void attempt_fini(struct attempt *attempt)
{
    buf_fini(&attempt->log);
    free(attempt->steps);
    free(attempt->keys);
    free(attempt->values);
}

/* Adds a step for each change of the update. Each value gets a checksum of its key and its bytes.
 */
static void add_values(struct attempt *attempt, const struct record_update *update)
{
    uint8_t *at = attempt->values;
    for (size_t i = 0; i < update->change_count; i++) {
        const struct record_change *change = &update->changes[i];
        char *key = attempt->keys[i];
        snprintf(key, KEY_MAX, "k/%s", change->key);
        if (change->remove) {
            attempt->steps[attempt->count++] =
                (struct cluster_step){.kind = STEP_KEY_REMOVE, .key = key};
            continue;
        }
        uint32_t crc = crc32c(crc32c(0, strlen(change->key), change->key), change->value.bytes,
                              change->value.data);
        if (change->value.bytes > 0) {
            memcpy(at, change->value.data, change->value.bytes);
        }
        store_u32(at + change->value.bytes, crc);
        attempt->steps[attempt->count++] = (struct cluster_step){
            .kind = STEP_KEY_SET, .key = key, .data = at, .bytes = change->value.bytes + 4};
        at += change->value.bytes + 4;
    }
}

/* Fills in the steps of the operation that updates the record: the guard (it is created, or its
 * version is the one we read), the changes, the log, the new version. */
static int prepare(struct rados_store *store, const struct rados_record *rec,
                   const struct record_update *update, struct attempt *ret, struct diag *diag)
{
    size_t values = 0, changes = update->change_count;
    for (size_t i = 0; i < changes; i++) {
        values += update->changes[i].value.bytes + 4;
    }
    uint64_t was = record_version(rec->record);
    *ret = (struct attempt){.version = was + 1, .maker = next_maker(store)};
    buf_init(&ret->log, MAKER_BYTES + LIMIT_RECORD_UPDATE_BYTES);
    ret->steps = calloc(changes + 5, sizeof(*ret->steps));
    ret->keys = calloc(changes + 2, sizeof(*ret->keys));
    ret->values = malloc(values + 1);
    if (ret->steps == NULL || ret->keys == NULL || ret->values == NULL) {
        return diag_no_memory(diag, "an update of a record");
    }
    buf_put(&ret->log, MAKER_BYTES, ret->maker.bytes);
    record_update_encode(update, ret->version, rec->last.bytes, &ret->log);
    if (buf_status(&ret->log) != 0) {
        return buf_status(&ret->log); /* the caller knows which change it is */
    }
    ret->sha256 = sha256(ret->log.bytes - MAKER_BYTES, ret->log.data + MAKER_BYTES);
    rados_record_encode_version(was, &rec->last, ret->was);
    rados_record_encode_version(ret->version, &ret->sha256, ret->will);
    ret->sum = sum_after(rec, update);
    rados_record_encode_sum(ret->version, ret->sum, ret->sums);
    ret->steps[ret->count++] =
        was == 0 ? (struct cluster_step){.kind = STEP_CREATE}
                 : (struct cluster_step){
                       .kind = STEP_KEY_IS, .key = "v", .data = ret->was, .bytes = VERSION_BYTES};
    add_values(ret, update);
    char *log = ret->keys[changes], *old = ret->keys[changes + 1];
    log_key(ret->version, log);
    ret->steps[ret->count++] = (struct cluster_step){
        .kind = STEP_KEY_SET, .key = log, .data = ret->log.data, .bytes = ret->log.bytes};
    if (ret->version > RADOS_LOG_KEPT) {
        log_key(ret->version - RADOS_LOG_KEPT, old);
        ret->steps[ret->count++] = (struct cluster_step){.kind = STEP_KEY_REMOVE, .key = old};
    }
    ret->steps[ret->count++] = (struct cluster_step){
        .kind = STEP_KEY_SET, .key = "s", .data = ret->sums, .bytes = SUM_BYTES};
    ret->steps[ret->count++] = (struct cluster_step){
        .kind = STEP_KEY_SET, .key = "v", .data = ret->will, .bytes = VERSION_BYTES};
    return 0;
}

/* Tells whether this attempt made that version. Returns OUTCOME_UNKNOWN if the log does not say any
 * more. */
static int find_maker(struct rados_store *store, const struct rados_record *rec,
                      const struct attempt *attempt, bool *ret_ours, struct diag *diag)
{
    char key[KEY_MAX];
    log_key(attempt->version, key);
    struct cluster_step step = {.kind = STEP_KEY, .key = key};
    int rc = rados_record_call(store, rec, 1, &step);
    if (rc != 0) {
        return failed(rec, rc, false, diag);
    }
    const struct cluster_map *map = &step.ret_map;
    bool known = map->count == 1 && map->pairs[0].bytes >= MAKER_BYTES;
    *ret_ours = known && memcmp(map->pairs[0].data, attempt->maker.bytes, MAKER_BYTES) == 0;
    cluster_map_fini(&step.ret_map);
    return known
               ? 0
               : diag_set(
                     diag, CAIRN_E_OUTCOME_UNKNOWN,
                     "the record %s/%s has changed too often since to tell whether update %" PRIu64
                     " took effect",
                     rec->space, rec->object, attempt->version);
}

/* Called after a time-out: takes the version away from the attempt, or finds that it is taken. */
static int resolve(struct rados_store *store, const struct rados_record *rec,
                   const struct attempt *attempt, bool *ret_ours, struct diag *diag)
{
    static const struct record_update nothing = {0};
    int rc = -ETIMEDOUT;
    *ret_ours = false;
    for (unsigned i = 0; rc == -ETIMEDOUT && i < FENCE_TRIES; i++) {
        struct attempt fence;
        int prepared = prepare(store, rec, &nothing, &fence, diag);
        rc = prepared == 0 ? rados_record_call(store, rec, fence.count, fence.steps) : 0;
        attempt_fini(&fence);
        if (prepared != 0) {
            return prepared;
        }
    }
    if (rc == 0) {
        return 0; /* nobody can make this version any more */
    }
    if (rc == -ECANCELED || rc == -EEXIST) {
        return find_maker(store, rec, attempt, ret_ours, diag);
    }
    /* The late update may still happen, whatever the fence has met: only a search that finds the
     * version taken decides. */
    struct diag why = DIAG_INIT;
    if (find_maker(store, rec, attempt, ret_ours, &why) == 0) {
        return 0;
    }
    err_ignore(failed(rec, rc, true, &why)); /* only the text; the caller sets the code */
    return diag_set(diag, CAIRN_E_OUTCOME_UNKNOWN,
                    "an update of the record %s/%s timed out, and the cluster cannot be asked now "
                    "whether it took effect: %s",
                    rec->space, rec->object, why.text);
}

/* Applies an update that the cluster has made to the cache. If the cache cannot follow, it is
 * dropped and read anew. */
static void adopt(struct rados_record *rec, const struct record_update *update,
                  const struct attempt *attempt)
{
    struct record_update changes = *update;
    changes.guard_count = 0;
    if (record_apply(rec->record, &changes, NULL) == 0) {
        rec->last = attempt->sha256;
        rec->sum = attempt->sum;
    } else {
        rados_record_drop(rec);
    }
}

/* Tries the update on a copy of the record. It is refused before it is sent if it would make the
 * record too large. */
static int would_fit(const struct rados_record *rec, const struct record_update *update,
                     struct diag *diag)
{
    struct record *copy;
    int rc = record_clone(rec->record, &copy);
    if (rc != 0) {
        return diag_set(diag, rc, "there is not enough memory for an update of a record");
    }
    rc = record_apply(copy, update, diag);
    record_free(copy);
    return rc;
}

/* Tries an update once. Returns 0 with *ret_version, CONFLICT if a guard does not hold, or AGAIN if
 * another daemon was faster. */
static int try_update(struct rados_store *store, struct rados_record *rec,
                      const struct record_update *update, uint64_t *ret_version, struct diag *diag)
{
    struct attempt attempt;
    bool ours = false;
    int rc = prepare(store, rec, update, &attempt, diag);
    if (rc != 0) {
        int why = would_fit(rec, update, diag);
        rc = why != 0 ? why : rc;
    } else if (record_bytes(rec->record) + attempt.log.bytes > LIMIT_RECORD_BYTES) {
        rc = would_fit(rec, update, diag);
    }
    if (rc == 0) {
        int made = rados_record_call(store, rec, attempt.count, attempt.steps);
        if (made == -ETIMEDOUT) {
            rc = resolve(store, rec, &attempt, &ours, diag);
            rc = rc == 0 && !ours ? CAIRN_E_AGAIN : rc;
        } else if (made == -ECANCELED || made == -EEXIST) {
            rc = CAIRN_E_AGAIN; /* or it was ours, sent again (R10); the log will say */
            rec->tried = attempt.version;
            memcpy(rec->tried_by, attempt.maker.bytes, sizeof(rec->tried_by));
        } else {
            rc = made == 0 ? 0 : failed(rec, made, true, diag);
        }
    }
    if (rc == 0) {
        *ret_version = attempt.version;
        adopt(rec, update, &attempt);
    }
    attempt_fini(&attempt);
    return rc;
}

int rados_record_update(struct rados_store *store, struct rados_record *rec,
                        const struct record_update *update, uint64_t *ret_version,
                        struct diag *diag)
{
    bool fresh = rec->record == NULL;
    rec->tried = 0;
    rec->tried_won = false;
    int rc = fresh ? rados_record_refresh(store, rec, diag) : 0;
    for (unsigned i = 0; rc == 0 && i < RADOS_RETRIES; i++) {
        if (!record_guards_hold(rec->record, update, fresh ? diag : NULL)) {
            if (fresh) {
                return CAIRN_E_CONFLICT;
            }
        } else {
            rc = try_update(store, rec, update, ret_version, diag);
            if (rc != CAIRN_E_AGAIN) {
                if (rc != 0) {
                    rados_record_drop(rec);
                }
                return rc;
            }
        }
        rc = rados_record_refresh(store, rec, diag);
        fresh = true;
        if (rc == 0 && rec->tried_won) {
            *ret_version = rec->tried;
            return 0;
        }
    }
    return rc != 0 ? rc
                   : diag_set(diag, CAIRN_E_BUSY,
                              "the record %s/%s could not be updated, because %d updates by others "
                              "came first; try again",
                              rec->space, rec->object, RADOS_RETRIES);
}
