/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of runs, and the list of runs: two objects whose keys are the runs' names
 * ("project/run"), because nothing else says which runs there are (R13). A run's name is claimed,
 * whatever its capitals, and it is entered in both, as intended, before its record is made, and
 * noted as made afterwards. A listing asks for the records of runs that are only intended. So no
 * run is missing from the list, none is there in two spellings, and none is listed that does not
 * exist. The next listing enters what one list lacks. If one list cannot be read at all, the other
 * is enough.
 */
#include "rados_private.h"

#include "base/array.h"
#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTS = 2, IN_ALL = (1 << LISTS) - 1 };
static const char *const lists[LISTS] = {"runs", "runs.copy"};
static const char MADE[] = "made";

static uint32_t hash_run(const struct run_name *run)
{
    uint32_t crc = crc32c(0, strlen(run->project) + 1, run->project);
    return crc32c(crc, strlen(run->run), run->run);
}

/* Returns the run's entry, locked. An entry that has a record stays until the store is closed. */
struct rados_record *rados_run_lock(struct rados_store *store, const struct run_name *name)
{
    if (store_is_own_record(name)) {
        pthread_mutex_lock(&store->store_record.lock);
        return &store->store_record;
    }
    pthread_mutex_lock(&store->lock);
    struct rados_record **link = &store->runs[hash_run(name) % RADOS_RUN_BUCKETS];
    while (*link != NULL && !run_name_equal(&(*link)->run, name)) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
        struct rados_record *run = calloc(1, sizeof(*run));
        if (run != NULL) {
            rados_space_of(store, name, space);
            snprintf(object, sizeof(object), "run.%s", name->run);
            rados_record_init(run, space, object);
            run->run = *name;
            *link = run;
        }
    }
    struct rados_record *found = *link;
    if (found != NULL) {
        found->users++;
    }
    pthread_mutex_unlock(&store->lock);
    if (found != NULL) {
        pthread_mutex_lock(&found->lock);
    }
    return found;
}

/* Unlocks an entry, and frees it if the run does not exist: names cost a client nothing. */
void rados_run_unlock(struct rados_store *store, struct rados_record *run)
{
    bool is_own = run == &store->store_record;
    bool is_nothing = run->tried == 0 && (run->record == NULL || record_version(run->record) == 0);
    pthread_mutex_unlock(&run->lock);
    if (is_own) {
        return;
    }
    pthread_mutex_lock(&store->lock);
    CHECK(run->users > 0);
    run->users--;
    if (run->users == 0 && is_nothing) {
        struct rados_record **link = &store->runs[hash_run(&run->run) % RADOS_RUN_BUCKETS];
        while (*link != run) {
            link = &(*link)->next;
        }
        *link = run->next;
        rados_record_fini(run);
        free(run);
    }
    pthread_mutex_unlock(&store->lock);
}

void rados_runs_free(struct rados_store *store)
{
    for (size_t i = 0; i < RADOS_RUN_BUCKETS; i++) {
        while (store->runs[i] != NULL) {
            struct rados_record *run = store->runs[i];
            store->runs[i] = run->next;
            rados_record_fini(run);
            free(run);
        }
    }
}

/* Answers for a lost record, with the remedy. With take_prefix the answer is what is left, which is
 * nothing. A missing record has no file that could be looked at. */
static int tell_loss(struct store_req *req, const struct rados_record *run, int code)
{
    struct diag why = req->diag;
    bool missing = run->record != NULL && record_version(run->record) == 0;
    diag_clear(&req->diag);
    if (store_is_own_record(&req->run)) {
        return diag_set(&req->diag, code,
                        "%.400s; `cairn salvage --yes --store URL` makes it again",
                        diag_text(&why, code));
    }
    code = diag_set(&req->diag, code,
                    "%.300s; with the daemons stopped `cairn salvage --yes --accept-loss --store "
                    "URL %s` makes one again from what is stored of the run",
                    diag_text(&why, code), run_name_text(&req->run).at);
    req->ret_lost_from = RADOS_LOST_FROM;
    req->ret_file_count = !missing;
    if (!req->take_prefix) {
        return code;
    }
    return record_new(&req->ret_record) == 0 ? 0 : diag_no_memory(&req->diag, "a record");
}

/* Reads the record from the cluster, beside the cache: what is in the cache may be gone from the
 * medium. */
static int read_anew(struct rados_store *store, struct rados_record *run, struct diag *diag)
{
    struct rados_record fresh = {.run = run->run};
    rados_record_init(&fresh, run->space, run->object);
    pthread_mutex_lock(&fresh.lock);
    int rc = rados_lost_refresh(store, &fresh, diag);
    pthread_mutex_unlock(&fresh.lock);
    rados_record_fini(&fresh);
    return rc;
}

int rados_op_record_get(struct rados_store *store, struct store_req *req)
{
    struct rados_record *run = rados_run_lock(store, &req->run);
    if (run == NULL) {
        return diag_no_memory(&req->diag, "a run");
    }
    int rc = req->from_medium ? read_anew(store, run, &req->diag) : 0;
    rc = rc != 0 ? rc : rados_lost_refresh(store, run, &req->diag);
    bool known = rc == 0 && !req->from_medium && req->known_version != 0 &&
                 record_version(run->record) == req->known_version;
    if (rados_is_loss(rc)) {
        rc = tell_loss(req, run, rc);
    } else if (rc == 0 && !known && record_clone(run->record, &req->ret_record) != 0) {
        rc = diag_no_memory(&req->diag, "a record");
    }
    rados_run_unlock(store, run);
    return rc;
}

/* --- the list --------------------------------------------------------------------------------- */

static struct cluster_call call_list(const struct rados_store *store, size_t list,
                                     struct cluster_step *step)
{
    return (struct cluster_call){.pool = CLUSTER_META,
                                 .space = store->space,
                                 .object = lists[list],
                                 .step_count = 1,
                                 .steps = step};
}

/* Enters a run in the lists that `where` names as bits. A list that cannot be read at all is left
 * out, because the other one has the run. */
static int enter(struct rados_store *store, const struct run_name *name, unsigned where,
                 const char *state, struct diag *diag)
{
    struct cluster_step steps[LISTS];
    struct cluster_call calls[LISTS];
    char key[RUN_NAME_TEXT_MAX];
    int failure = 0;
    unsigned entered = 0;
    run_name_format(name, key);
    for (size_t i = 0; i < LISTS; i++) {
        if ((where & 1u << i) != 0) {
            steps[i] = (struct cluster_step){
                .kind = STEP_KEY_SET, .key = key, .data = state, .bytes = strlen(state)};
            calls[i] = call_list(store, i, &steps[i]);
            cluster_start(store->cluster, &calls[i]);
        }
    }
    for (size_t i = 0; i < LISTS; i++) {
        int rc = (where & 1u << i) != 0 ? cluster_wait(store->cluster, &calls[i]) : 0;
        failure = rc != 0 && (failure == 0 || failure == -EIO) ? rc : failure;
        entered += (where & 1u << i) != 0 && rc == 0;
    }
    /* Whether it was entered does not matter to the record, which nobody has touched, so a time-out
     * is TIMED_OUT. A late "intended" that overwrites a "made" costs each listing a read. */
    return failure == 0 || (failure == -EIO && entered > 0)
               ? 0
               : rados_error(failure, false, "cannot list the runs", diag);
}

/* Compares a claim that is taken with the spelling that is to be made. */
static int compare_claim(struct rados_store *store, const char *key, const char *spelled,
                         struct diag *diag)
{
    struct cluster_step look = {.kind = STEP_KEY, .key = key};
    struct cluster_call call = call_list(store, 0, &look);
    int rc = cluster_do(store->cluster, &call);
    const struct cluster_map *map = &look.ret_map;
    rc = rc != 0 ? rados_error(rc, false, "cannot read who has the name of a run", diag) : 0;
    if (rc == 0 && map->count == 1 &&
        (map->pairs[0].bytes != strlen(spelled) ||
         memcmp(map->pairs[0].data, spelled, map->pairs[0].bytes) != 0)) {
        rc =
            diag_set(diag, CAIRN_E_INVALID,
                     "%s cannot be made, because the store has %.*s: names that differ in capitals "
                     "only are the same; open that one, or choose another name",
                     spelled, (int)map->pairs[0].bytes, (const char *)map->pairs[0].data);
    }
    cluster_map_fini(&look.ret_map);
    return rc;
}

/* Claims a name for one spelling: in small letters, behind a '=' that makes the key no run's. One
 * guarded operation, so of two daemons at the same instant one finds it taken. Where the list
 * cannot be read there is no claim, as of older runs. */
static int claim(struct rados_store *store, const char *spelled, struct diag *diag)
{
    char key[RUN_NAME_TEXT_MAX + 1] = "=";
    for (size_t i = 0; i <= strlen(spelled); i++) {
        bool is_capital = spelled[i] >= 'A' && spelled[i] <= 'Z';
        key[i + 1] = (char)(is_capital ? spelled[i] - 'A' + 'a' : spelled[i]);
    }
    struct cluster_step steps[] = {
        {.kind = STEP_ENSURE},
        {.kind = STEP_KEY_IS, .key = key},
        {.kind = STEP_KEY_SET, .key = key, .data = spelled, .bytes = strlen(spelled)}};
    struct cluster_call call = call_list(store, 0, steps);
    call.step_count = ARRAY_LEN(steps);
    int rc = cluster_do(store->cluster, &call);
    if (rc == -ECANCELED) {
        return compare_claim(store, key, spelled, diag);
    }
    return rc == 0 || rc == -EIO ? 0
                                 : rados_error(rc, false, "cannot claim the name of a run", diag);
}

/* Claims the project and the run, and enters the run as one that is going to be made. The claims
 * stay: a run that was begun is not made in another spelling later. */
static int intend(struct rados_store *store, const struct run_name *name, struct diag *diag)
{
    int rc = claim(store, name->project, diag);
    if (rc == 0) {
        rc = claim(store, run_name_text(name).at, diag);
    }
    return rc != 0 ? rc : enter(store, name, IN_ALL, "intended", diag);
}

static bool is_made_text(const struct cluster_pair *pair)
{
    return pair->bytes == strlen(MADE) && memcmp(pair->data, MADE, pair->bytes) == 0;
}

int rados_list_has_run(struct rados_store *store, const struct run_name *run, bool *ret,
                       struct diag *diag)
{
    struct cluster_step steps[LISTS];
    struct cluster_call calls[LISTS];
    char key[RUN_NAME_TEXT_MAX] = "";
    int failure = 0;
    bool own = store_is_own_record(run), found = false;
    if (!own) {
        run_name_format(run, key);
    }
    for (size_t i = 0; i < LISTS; i++) {
        steps[i] = own ? (struct cluster_step){.kind = STEP_KEYS, .after = ""}
                       : (struct cluster_step){.kind = STEP_KEY, .key = key};
        calls[i] = call_list(store, i, &steps[i]);
        cluster_start(store->cluster, &calls[i]);
    }
    for (size_t i = 0; i < LISTS; i++) {
        int rc = cluster_wait(store->cluster, &calls[i]);
        const struct cluster_map *map = &steps[i].ret_map;
        failure = rc != 0 && rc != -ENOENT ? rc : failure;
        found = found || (rc == 0 && map->count > 0 && (own || is_made_text(&map->pairs[0])));
        cluster_map_fini(&steps[i].ret_map);
    }
    *ret = found;
    return found || failure == 0 ? 0 : rados_error(failure, false, "cannot list the runs", diag);
}

int rados_op_record_update(struct rados_store *store, struct store_req *req)
{
    struct rados_record *run = rados_run_lock(store, &req->run);
    if (run == NULL) {
        return diag_no_memory(&req->diag, "a run");
    }
    int rc = run->record == NULL ? rados_lost_refresh(store, run, &req->diag)
                                 : rados_lost_check(store, run, &req->diag);
    bool new = rc == 0 && record_version(run->record) == 0;
    if (new &&store_is_own_record(&req->run)) {
        rc = diag_set(&req->diag, CAIRN_E_DAMAGED, "the store's own record is missing");
    }
    rc = rados_is_loss(rc) ? tell_loss(req, run, rc) : rc;
    if (rc == 0 && new &&record_guards_hold(run->record, req->update, NULL)) {
        rc = intend(store, &req->run, &req->diag);
    }
    if (rc == 0) {
        rc = rados_record_update(store, run, req->update, &req->ret_version, &req->diag);
    }
    if (rc == 0 && new) {
        /* If this fails, the run stays intended, and each listing looks at its record. */
        err_ignore(enter(store, &req->run, IN_ALL, MADE, NULL));
    }
    rados_run_unlock(store, run);
    return rc;
}

/* Says in `*ret` whether the run has a record. */
static int is_made(struct rados_store *store, const struct run_name *run, bool *ret,
                   struct diag *diag)
{
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
    struct cluster_step step = {.kind = STEP_STAT};
    rados_space_of(store, run, space);
    snprintf(object, sizeof(object), "run.%s", run->run);
    struct cluster_call call = {
        .pool = CLUSTER_META, .space = space, .object = object, .step_count = 1, .steps = &step};
    int rc = cluster_do(store->cluster, &call);
    *ret = rc == 0 || rc == -EIO; /* an unreadable one exists */
    return *ret || rc == -ENOENT ? 0
                                 : rados_error(rc, false, "cannot read a run of the list", diag);
}

struct listed {
    struct run_name name; /* first, for run_name_order() */
    unsigned in, made_in; /* bits of the lists */
};
struct listing {
    struct listed *runs;
    size_t count, cap;
};

/* Adds a run that one of the two lists names. A key that is no run's name is skipped. */
static int add_listed(struct listing *io, size_t list, const struct cluster_pair *pair,
                      struct diag *diag)
{
    struct listed run = {.in = 1u << list, .made_in = is_made_text(pair) ? 1u << list : 0};
    if (run_name_parse(pair->key, &run.name, NULL) != 0) {
        return 0; /* no run of ours: a spoilt key is whole in the other list */
    }
    struct listed *grown = array_room(io->runs, io->count, &io->cap, sizeof(*grown));
    if (grown == NULL) {
        return diag_no_memory(diag, "a list of %zu runs", io->count);
    }
    io->runs = grown;
    io->runs[io->count++] = run;
    return 0;
}

/* Reads one list. *ret_rc is a negative errno if the list itself cannot be read. */
static int read_list(struct rados_store *store, size_t list, struct listing *io, int *ret_rc,
                     struct diag *diag)
{
    struct rados_pages pages = {.space = store->space, .object = lists[list]};
    int rc = 0;
    while (rc == 0 && rados_pages_next(store, &pages)) {
        for (size_t i = 0; rc == 0 && i < pages.map.count; i++) {
            rc = add_listed(io, list, &pages.map.pairs[i], diag);
        }
    }
    cluster_map_fini(&pages.map);
    *ret_rc = pages.failure;
    return rc;
}

/* Sorts the runs and makes each name occur once. */
static void fold(struct listing *io)
{
    size_t count = 0;
    if (io->count > 1) {
        qsort(io->runs, io->count, sizeof(*io->runs), run_name_order);
    }
    for (size_t i = 0; i < io->count; i++) {
        if (count > 0 && run_name_equal(&io->runs[count - 1].name, &io->runs[i].name)) {
            io->runs[count - 1].in |= io->runs[i].in;
            io->runs[count - 1].made_in |= io->runs[i].made_in;
        } else {
            io->runs[count++] = io->runs[i];
        }
    }
    io->count = count;
}

/* Takes the runs that were made, and enters them in the lists that lack them, unless nothing may be
 * written. */
static int take_made(struct rados_store *store, const struct listing *listing, unsigned readable,
                     struct store_req *req)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < listing->count; i++) {
        const struct listed *run = &listing->runs[i];
        unsigned lacks = readable & ~run->made_in;
        bool made = run->made_in != 0;
        rc = made ? 0 : is_made(store, &run->name, &made, &req->diag);
        if (rc != 0 || !made) {
            continue;
        }
        req->ret_runs[req->ret_count++] = run->name;
        if (lacks != 0 && !store->read_only) {
            /* The run is listed all the same; the next listing tries again. */
            err_ignore(enter(store, &run->name, lacks, MADE, NULL));
        }
    }
    return rc;
}

int rados_op_list_runs(struct rados_store *store, struct store_req *req)
{
    struct listing listing = {.count = 0};
    unsigned readable = 0;
    int rc = 0, unread = 0;
    for (size_t i = 0; rc == 0 && i < LISTS; i++) {
        int why = 0;
        rc = read_list(store, i, &listing, &why, &req->diag);
        if (rc == 0 && why != 0 && why != -ENOENT && why != -EIO) {
            rc = rados_error(why, false, "cannot list the runs", &req->diag);
        }
        readable |= why != -EIO ? 1u << i : 0;
        unread = why == -EIO ? why : unread;
    }
    if (rc == 0 && readable == 0) {
        rc = rados_error(unread, false, "cannot read either list of runs", &req->diag);
    }
    fold(&listing);
    req->ret_count = 0;
    req->ret_runs = calloc(listing.count + 1, sizeof(*req->ret_runs)); /* never NULL on success */
    if (rc == 0 && req->ret_runs == NULL) {
        rc = diag_no_memory(&req->diag, "a list of %zu runs", listing.count);
    }
    if (rc == 0) {
        rc = take_made(store, &listing, readable, req);
    }
    free(listing.runs);
    if (rc != 0) {
        free(req->ret_runs);
        req->ret_runs = NULL;
    }
    return rc;
}

int rados_op_usage(struct rados_store *store, struct store_req *req)
{
    struct cluster_usage usage;
    int rc = store->cluster->ops->usage(store->cluster, &usage);
    if (rc != 0) {
        return rados_error(rc, false, "cannot ask for the cluster's usage", &req->diag);
    }
    req->ret_usage = (struct store_usage){.total_bytes = usage.total_bytes,
                                          .free_bytes = usage.free_bytes,
                                          .records_free_bytes = usage.records_free_bytes,
                                          .read_only = store->read_only};
    if (usage.is_raw) {
        snprintf(req->ret_usage.detail, sizeof(req->ret_usage.detail),
                 "this is the cluster's raw space, of which pools and quotas leave less: the cephx "
                 "user may not ask for it (`ceph auth caps` mon 'allow r')");
    }
    return 0;
}
