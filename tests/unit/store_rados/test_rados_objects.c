/* SPDX-License-Identifier: Apache-2.0
 *
 * A single fault of the medium costs at most the checkpoint that it hits (I1), on a cluster.
 * Method: every object of a store of two runs is deleted, emptied, flipped, made unreadable, and
 * robbed of each of its keys, one fault at a time, on a copy of the cluster. A record is then whole
 * or lost by name, never empty and never made anew; after the remedy that its error prints
 * everything else is as before, and both runs take another checkpoint.
 */
#include "store/store_bed.h"

#include "base/check.h"
#include "store/store_record.h"

#include <stdio.h>

enum { RADOS_UPDATES = 128 /* that a log holds */ };
enum { RUNS = 2, CKPTS = 2, OBJECT_BYTES = 8192, SMALL_BYTES = 600 };
static const char *const runs[RUNS] = {"a", "b"};

struct trial {
    struct bed bed;
    struct fake_object hit;
    enum fake_damage damage;
    size_t at;
    bool failed, remedy_failed;
    bool is_remade; /* the store's own record was refused, so the salvage makes it again */
};

static void beyond(struct trial *trial, const char *what, const char *text)
{
    static const char *const words[] = {"deleted", "emptied", "flipped", "unreadable", "key lost"};
    trial->failed = true;
    print_message("%s, %zu, of %s %s: %s: %s\n", words[trial->damage], trial->at, trial->hit.space,
                  trial->hit.name, what, text);
}

static bool is_hit(const struct trial *trial, const char *name)
{
    return strcmp(trial->hit.name, name) == 0;
}

/* What a checkpoint consists of, and not what lists it. */
static bool is_of_ckpt(const struct trial *trial, size_t run, uint64_t step)
{
    char part[32];
    snprintf(part, sizeof(part), "/%s/1-%u/", runs[run], (unsigned)step);
    return strncmp(trial->hit.name, "smalls/", 7) != 0 && strstr(trial->hit.name, part) != NULL;
}

static struct run_name name_of(size_t run)
{
    struct run_name name = {.project = "p"};
    snprintf(name.run, sizeof(name.run), "%s", runs[run]);
    return name;
}

static struct store_name small_of(size_t run, uint64_t step, enum store_kind kind)
{
    return (struct store_name){
        .run = name_of(run), .id = {1, step}, .kind = kind, .number = 0, .tag = 7};
}

static int publish(struct bed *bed, size_t run, uint64_t step, enum store_kind kind)
{
    uint8_t *data = bed_bytes(SMALL_BYTES, (unsigned)step + kind);
    struct store_req req = {
        .op = STORE_PUBLISH, .name = small_of(run, step, kind), .bytes = SMALL_BYTES, .data = data};
    int rc = bed_do(bed, &req);
    free(data);
    return rc;
}

static int update(struct bed *bed, size_t run, uint64_t step, struct store_req *ret)
{
    char key[32];
    snprintf(key, sizeof(key), "ckpt/%u", (unsigned)step);
    struct record_change change = {.key = key, .value = {4, (const uint8_t *)"here"}};
    struct record_update update = {.change_count = 1, .changes = &change};
    *ret = (struct store_req){.op = STORE_RECORD_UPDATE, .run = name_of(run), .update = &update};
    return bed_do(bed, ret);
}

static int save(struct bed *bed, size_t run, uint64_t step)
{
    struct object_id id = {.term = 1, .step = step, .writer = 3, .sequence = 1};
    uint8_t *data = bed_bytes(OBJECT_BYTES, (unsigned)step);
    struct store_req done;
    struct store_req steps[] = {{.op = STORE_CREATE, .bytes = OBJECT_BYTES},
                                {.op = STORE_WRITE, .bytes = OBJECT_BYTES, .data = data},
                                {.op = STORE_SEAL}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(steps); i++) {
        steps[i].run = name_of(run);
        steps[i].object = id;
        rc = bed_do(bed, &steps[i]);
    }
    free(data);
    rc = rc ? rc : publish(bed, run, step, STORE_PART);
    rc = rc ? rc : publish(bed, run, step, STORE_MANIFEST);
    return rc ? rc : update(bed, run, step, &done);
}

/* --- what is asked ---------------------------------------------------------------------------- */

static void expect_small(struct trial *trial, size_t run, uint64_t step, enum store_kind kind)
{
    struct store_req req = {.op = STORE_FETCH, .name = small_of(run, step, kind)};
    uint8_t *want = bed_bytes(SMALL_BYTES, (unsigned)step + kind);
    int rc = bed_do(&trial->bed, &req);
    if (rc != 0 || req.ret_bytes != SMALL_BYTES || memcmp(req.ret_data, want, SMALL_BYTES) != 0) {
        beyond(trial, "a small thing is lost", req.diag.text);
    }
    free(req.ret_data);
    free(want);
}

static void expect_ckpts(struct trial *trial)
{
    for (size_t run = 0; run < RUNS; run++) {
        for (uint64_t step = 1; step <= CKPTS; step++) {
            if (is_of_ckpt(trial, run, step)) {
                continue;
            }
            uint8_t *data = bed_bytes(OBJECT_BYTES, 99);
            uint8_t *want = bed_bytes(OBJECT_BYTES, (unsigned)step);
            struct store_req req = {.op = STORE_READ,
                                    .run = name_of(run),
                                    .object = {.term = 1, .step = step, .writer = 3, .sequence = 1},
                                    .bytes = OBJECT_BYTES,
                                    .data = data};
            if (bed_do(&trial->bed, &req) != 0 || memcmp(data, want, OBJECT_BYTES) != 0) {
                beyond(trial, "an object is lost", req.diag.text);
            }
            free(data);
            free(want);
            expect_small(trial, run, step, STORE_PART);
            expect_small(trial, run, step, STORE_MANIFEST);
        }
    }
}

static void expect_runs(struct trial *trial)
{
    struct store_req req = {.op = STORE_LIST_RUNS};
    if (bed_do(&trial->bed, &req) != 0) {
        beyond(trial, "the runs cannot be listed", req.diag.text);
        return;
    }
    if (req.ret_count != RUNS || strcmp(req.ret_runs[0].run, runs[0]) != 0 ||
        strcmp(req.ret_runs[1].run, runs[1]) != 0) {
        beyond(trial, "other runs are listed", "");
    }
    free(req.ret_runs);
}

static bool is_whole(const struct record *record)
{
    struct record_value value;
    return record && record_get(record, "ckpt/1", &value) && record_get(record, "ckpt/2", &value);
}

/* A record that is lost goes on when an operator says so, and not before. */
static void expect_loss(struct trial *trial, size_t run, const struct store_req *said)
{
    struct store_req prefix = {.op = STORE_RECORD_GET, .run = name_of(run), .take_prefix = true};
    struct store_req change;
    struct store_req cut = {
        .op = STORE_RECORD_CUT, .run = name_of(run), .file.version = said->ret_lost_from};
    struct store_req after = {.op = STORE_RECORD_GET, .run = name_of(run)};
    if (!strstr(said->diag.text, "cairn salvage --yes --accept-loss") || said->ret_lost_from != 1) {
        beyond(trial, "no remedy is told", said->diag.text);
    }
    if (bed_do(&trial->bed, &prefix) != 0 || record_version(prefix.ret_record) != 0 ||
        prefix.ret_lost_from != 1) {
        beyond(trial, "nothing is left of it, and that is not said", prefix.diag.text);
    }
    record_free(prefix.ret_record);
    if (update(&trial->bed, run, 3, &change) == 0) {
        beyond(trial, "a record was made over one that is lost", "");
    }
    if (bed_do(&trial->bed, &cut) != 0 || bed_do(&trial->bed, &after) != 0 ||
        record_version(after.ret_record) <= CKPTS) {
        trial->remedy_failed = true;
        print_message("%s: the record does not go on: %s %s\n", trial->hit.name, cut.diag.text,
                      after.diag.text);
    }
    record_free(after.ret_record);
}

static void expect_records(struct trial *trial)
{
    for (size_t run = 0; run < RUNS; run++) {
        char name[32];
        snprintf(name, sizeof(name), "run.%s", runs[run]);
        struct store_req req = {.op = STORE_RECORD_GET, .run = name_of(run), .from_medium = true};
        int rc = bed_do(&trial->bed, &req);
        if (rc == 0 && !is_whole(req.ret_record)) {
            beyond(trial, "a record is not whole, and nothing says so", name);
        }
        if (rc != 0 && !is_hit(trial, name)) {
            beyond(trial, "a record cannot be read", req.diag.text);
        } else if (rc != 0) {
            if (trial->damage == FAKE_FLIPPED || trial->damage == FAKE_KEY_LOST) {
                beyond(trial, "the log has what is lost", req.diag.text);
            }
            expect_loss(trial, run, &req);
        }
        record_free(req.ret_record);
    }
}

/* What lies there is listed; where the list is unreadable, its text says what to remove. */
static void expect_lists(struct trial *trial)
{
    for (size_t run = 0; run < RUNS; run++) {
        struct store_req req = {.op = STORE_LIST_CKPTS, .run = name_of(run)};
        char name[32], remedy[400];
        snprintf(name, sizeof(name), "stored/%s", runs[run]);
        snprintf(remedy, sizeof(remedy), "rados rm -N %s %s", trial->hit.space, name);
        int rc = bed_do(&trial->bed, &req);
        if (!is_hit(trial, name) && (rc != 0 || req.ret_count != CKPTS)) {
            beyond(trial, "checkpoints are not listed", req.diag.text);
        }
        if (rc != 0 && !strstr(req.diag.text, remedy)) {
            beyond(trial, "no remedy is told", req.diag.text);
        }
        free(req.ret_ckpts);
    }
}

static void type_rados_rm(struct trial *trial)
{
    struct fake_object object;
    for (size_t i = 0; i < fake_medium_objects(trial->bed.cluster); i++) {
        fake_medium_get(trial->bed.cluster, i, &object);
        if (strcmp(object.space, trial->hit.space) == 0 && is_hit(trial, object.name)) {
            assert_true(fake_medium_damage(trial->bed.cluster, i, FAKE_DELETED, 0));
            return;
        }
    }
}

/* Neither a daemon nor `store create` makes a store where there are runs. */
static void open_damaged(struct trial *trial)
{
    struct diag note = DIAG_INIT;
    for (size_t i = 0; i < 3; i++) {
        struct diag diag = DIAG_INIT;
        bool read_only = i == 0, create = i == 2;
        int rc = bed_open(&trial->bed, create, read_only, &diag);
        if (rc == 0) {
            bed_close(&trial->bed);
        } else if (!is_hit(trial, "store") || rc == CAIRN_E_NO_STORE ||
                   !strstr(diag.text, "`cairn salvage --yes --store URL`")) {
            beyond(trial, "the store does not open", diag.text);
        }
        trial->is_remade |= rc != 0 && !read_only;
    }
    trial->bed.salvaged = &note;
    struct diag diag = DIAG_INIT;
    for (size_t i = 0; i < 2; i++) { /* without --yes, and with it */
        if (bed_open(&trial->bed, false, i == 0, &diag) != 0) {
            trial->remedy_failed = true;
            print_message("%s: salvage does not open it: %s\n", trial->hit.name, diag.text);
            return;
        }
        bed_close(&trial->bed);
    }
    trial->bed.salvaged = NULL;
}

static void go(struct trial *trial, const struct uuid *uuid, uint64_t epoch)
{
    struct diag diag = DIAG_INIT;
    open_damaged(trial);
    if (trial->remedy_failed) {
        return;
    }
    if (bed_open(&trial->bed, false, false, &diag) != 0) {
        beyond(trial, "it does not open after the remedy", diag.text);
        return;
    }
    struct store_req get = {.op = STORE_RECORD_GET};
    struct record_value value;
    int rc = bed_do(&trial->bed, &get);
    if (rc != 0 || record_get(get.ret_record, STORE_RECORD_LOST, &value) != trial->is_remade) {
        beyond(trial, "the record does not say whether entries of it are lost", get.diag.text);
    }
    record_free(get.ret_record);
    if (memcmp(&trial->bed.store->caps.uuid, uuid, sizeof(*uuid)) != 0 ||
        trial->bed.store->caps.epoch <= epoch) {
        beyond(trial, "another store", "");
    }
    expect_runs(trial);
    expect_ckpts(trial);
    expect_records(trial);
    expect_lists(trial);
    if (trial->damage == FAKE_UNREADABLE && strncmp(trial->hit.name, "stored/", 7) == 0) {
        type_rados_rm(trial); /* what the list's error said */
    }
    for (size_t run = 0; run < RUNS; run++) {
        if (save(&trial->bed, run, CKPTS + 1) != 0) {
            trial->remedy_failed = true;
            print_message("%s: %s takes no checkpoint\n", trial->hit.name, runs[run]);
        }
    }
    bed_close(&trial->bed);
    if (bed_open(&trial->bed, false, false, &diag) != 0) {
        beyond(trial, "it does not open again", diag.text);
        return;
    }
    expect_runs(trial);
    expect_ckpts(trial);
    bed_close(&trial->bed);
}

#define BED_TEST(name) FIXTURE_TEST(name, bed_setup_rados, bed_fini, struct bed, bed)

BED_TEST(one_fault_costs_what_it_hits)
{
    size_t cases = 0, failed = 0, remedies = 0;
    for (size_t run = 0; run < RUNS; run++) {
        for (uint64_t step = 1; step <= CKPTS; step++) {
            assert_int_equal(save(bed, run, step), 0);
        }
    }
    struct uuid uuid = bed->store->caps.uuid;
    uint64_t epoch = bed->store->caps.epoch;
    bed_close(bed);
    bool full = getenv("CAIRN_FULL") != NULL;
    for (size_t i = 0; i < fake_medium_objects(bed->cluster); i++) {
        struct fake_object hit;
        fake_medium_get(bed->cluster, i, &hit);
        for (int damage = 0; damage < FAKE_DAMAGES; damage++) {
            size_t bytes = damage == FAKE_FLIPPED    ? hit.bytes
                           : damage == FAKE_KEY_LOST ? hit.keys
                                                     : 1;
            size_t step = max_u64(bytes / (full ? 200 : 12), 1);
            for (size_t at = 0; at < bytes; at += step) {
                struct trial trial = {.hit = hit, .damage = damage, .at = at};
                bed_init(&trial.bed, BED_RADOS, "", 1);
                fake_medium_free(trial.bed.cluster);
                trial.bed.cluster = fake_medium_copy(bed->cluster);
                assert_true(fake_medium_damage(trial.bed.cluster, i, damage, at));
                go(&trial, &uuid, epoch);
                bed_fini(&trial.bed);
                cases++;
                failed += trial.failed;
                remedies += trial.remedy_failed;
            }
        }
    }
    print_message("%zu cases: %zu beyond the checkpoint that was hit, %zu remedies that fail\n",
                  cases, failed, remedies);
    assert_int_equal(failed, 0);
    assert_int_equal(remedies, 0);
}

/* Goal: what the log has is written again where it belongs, before the log has moved on. */
BED_TEST(an_entry_is_made_good_from_the_log)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = name_of(0), .from_medium = true};
    struct store_req change, again = req;
    struct fake_object object;
    for (uint64_t step = 1; step <= CKPTS; step++) {
        assert_int_equal(save(bed, 0, step), 0);
    }
    for (size_t i = 0; i < fake_medium_objects(bed->cluster); i++) {
        fake_medium_get(bed->cluster, i, &object);
        if (strcmp(object.name, "run.a") == 0) {
            assert_true(
                fake_medium_damage(bed->cluster, i, FAKE_KEY_LOST, 0)); /* the first entry */
        }
    }
    assert_int_equal(bed_do(bed, &req), 0);
    assert_true(is_whole(req.ret_record));
    record_free(req.ret_record);
    for (uint64_t step = CKPTS + 1; step < 2 * RADOS_UPDATES; step++) {
        assert_int_equal(update(bed, 0, step, &change), 0);
    }
    assert_int_equal(bed_do(bed, &again), 0);
    assert_true(is_whole(again.ret_record));
    record_free(again.ret_record);
}
