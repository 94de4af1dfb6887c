/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixture of all store tests. Everything here fails the test on the spot where it cannot do its
 * part.
 */
#include "store_bed.h"

#include "base/check.h"

#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum bed_kind bed_kind_parse(const char *name)
{
    static const char *const kinds[] = {"memory", "dir", "dir-sim", "rados", "ceph"};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (strcmp(kinds[i], name) == 0) {
            return (enum bed_kind)i;
        }
    }
    fprintf(stderr, "unknown kind of store %s\n", name);
    exit(2);
}

/* --- life ------------------------------------------------------------------------------------- */

static void enter_host(struct bed *bed)
{
    bed->loop = sim_loop(bed->host);
    bed->pool = sim_pool(bed->host);
    bed->vfs = sim_vfs(bed->host);
}

static void make_directory(struct bed *bed, const char *parent)
{
    const char *tmp = getenv("TMPDIR");
    parent = parent[0] != 0 ? parent : tmp != NULL ? tmp : "/tmp";
    mkdir(parent, 0700); /* may be there */
    snprintf(bed->path, sizeof(bed->path), "%s/store-XXXXXX", parent);
    assert_non_null(mkdtemp(bed->path));
}

void bed_init(struct bed *bed, enum bed_kind kind, const char *parent, uint64_t seed)
{
    struct diag diag = DIAG_INIT;
    *bed = (struct bed){.kind = kind};
    if (kind == BED_DIR_SIM) {
        bed->sim = sim_new(seed);
        bed->disk = sim_disk_new(bed->sim);
        bed->host = sim_host_new(bed->sim, "server", bed->disk);
        enter_host(bed);
        snprintf(bed->path, sizeof(bed->path), "/store");
        return;
    }
    assert_int_equal(loop_uv_new(&bed->loop, &diag), 0);
    assert_int_equal(work_threads_new(bed->loop, 4, "store", &bed->pool, &diag), 0);
    if (kind == BED_DIR) {
        bed->vfs = vfs_posix();
        bed->copy_after_ms = 3600000;
        make_directory(bed, parent);
    } else if (kind == BED_RADOS) {
        bed->cluster = fake_medium_new();
    } else if (kind == BED_CEPH) {
        uint64_t random;
        loop_random(bed->loop, sizeof(random), &random);
        snprintf(bed->space, sizeof(bed->space), "test-%016llx", (unsigned long long)random);
    } else {
        assert_int_equal(memory_medium_new(&bed->medium), 0);
    }
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

bool bed_remove(const char *path) { return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0; }

void bed_fini(struct bed *bed)
{
    bed_close(bed);
    if (bed->sim != NULL) {
        assert_int_equal(sim_open_files(bed->host), 0); /* I8 */
        sim_free(bed->sim);
        return;
    }
    work_threads_free(bed->pool);
    loop_uv_free(bed->loop);
    memory_medium_free(bed->medium);
    fake_medium_free(bed->cluster);
    if (bed->path[0] != 0) {
        (void)bed_remove(bed->path);
    }
}

void bed_setup_rados(struct bed *bed)
{
    bed_init(bed, BED_RADOS, "", 1);
    bed_open_ok(bed);
}

static int open_rados(struct bed *bed, bool create, bool read_only, struct diag *diag)
{
    struct store_rados_options options = {.loop = bed->loop,
                                          .pool = bed->pool,
                                          .space = bed->kind == BED_CEPH ? bed->space : "bed",
                                          .create = create,
                                          .read_only = read_only,
                                          .expected_uuid = bed->expected_uuid,
                                          .salvaged = bed->salvaged};
    if (bed->kind == BED_RADOS) {
        options.cluster = fake_cluster_new(bed->cluster);
        options.data_pool = bed->data_pool;
    } else {
        struct cluster_rados_options where = {.meta_pool = getenv("CAIRN_CEPH_POOL"),
                                              .data_pool = getenv("CAIRN_CEPH_DATA_POOL")};
        if (!where.meta_pool) {
            fail_msg("CEPH_CONF and CAIRN_CEPH_POOL name the cluster and pool of this test");
        }
        options.data_pool = where.data_pool;
        int rc = cluster_rados_new(&where, &options.cluster, diag);
        if (rc != 0) {
            return rc;
        }
    }
    return store_rados_new(&options, &bed->store, diag);
}

int bed_open(struct bed *bed, bool create, bool read_only, struct diag *diag)
{
    assert_null(bed->store);
    if (bed->kind == BED_RADOS || bed->kind == BED_CEPH) {
        return open_rados(bed, create, read_only, diag);
    }
    if (bed->kind != BED_DIR && bed->kind != BED_DIR_SIM) {
        return store_memory_new(bed->loop, bed->pool, bed->medium, &bed->store, diag);
    }
    struct store_dir_options options = {.loop = bed->loop,
                                        .pool = bed->pool,
                                        .vfs = bed->vfs,
                                        .path = bed->path,
                                        .create = create,
                                        .force_fs = !bed->is_not_forced,
                                        .read_only = read_only,
                                        .expected_uuid = bed->expected_uuid,
                                        .reserve_bytes = bed->reserve_bytes,
                                        .snapshot_every = bed->snapshot_every,
                                        .copy_after_ms = bed->copy_after_ms};
    return store_dir_new(&options, &bed->store, diag);
}

void bed_open_ok(struct bed *bed)
{
    struct diag diag = DIAG_INIT;
    if (bed_open(bed, true, false, &diag) != 0) {
        fail_msg("open: %s", diag.text);
    }
}

/* --- waiting ---------------------------------------------------------------------------------- */

struct wait {
    struct bed *bed;
    bool is_over;
};

static void run_loop(struct wait *wait)
{
    if (wait->bed->sim != NULL) {
        assert_true(sim_await(wait->bed->sim, &wait->is_over, 3600000));
        return;
    }
    while (!wait->is_over) {
        loop_uv_run(wait->bed->loop);
    }
}

static void end_wait(struct wait *wait)
{
    wait->is_over = true;
    if (wait->bed->sim == NULL) {
        loop_uv_stop(wait->bed->loop);
    }
}

/* One batch at a time: a request's own user pointer is the decorators'. */
static struct wait *current;
static size_t current_left;

static void op_done(struct store_req *req)
{
    (void)req;
    assert_non_null(current);
    assert_true(current_left > 0);
    if (--current_left == 0) {
        end_wait(current);
    }
}

void bed_do_all(struct bed *bed, size_t count, struct store_req *reqs)
{
    struct wait wait = {.bed = bed};
    current = &wait;
    current_left = count;
    for (size_t i = 0; i < count; i++) {
        reqs[i].done = op_done;
        store_submit(bed->store, &reqs[i]);
        assert_int_equal(current_left, count); /* never inside submit */
    }
    run_loop(&wait);
    current = NULL;
}

int bed_do(struct bed *bed, struct store_req *req)
{
    bed_do_all(bed, 1, req);
    return req->status;
}

static void on_closed(void *user) { end_wait(user); }

void bed_close(struct bed *bed)
{
    if (bed->store == NULL) {
        return;
    }
    struct wait wait = {.bed = bed};
    store_close(bed->store, on_closed, &wait);
    run_loop(&wait);
    bed->store = NULL;
}

void bed_reopen(struct bed *bed)
{
    bed_close(bed);
    bed_open_ok(bed);
}

/* The process is gone, and the store's memory with it. */
static void die(struct bed *bed)
{
    assert_int_equal(bed->kind, BED_DIR_SIM);
    if (!sim_is_dead(bed->host)) {
        sim_kill(bed->host, SIM_RESET);
    }
    bed_close(bed);
}

static void rise(struct bed *bed)
{
    bed->host = sim_restart(bed->host);
    enter_host(bed);
}

void bed_crash(struct bed *bed, bool lose_all)
{
    die(bed);
    if (lose_all) {
        sim_disk_crash_lose_all(bed->disk);
    } else {
        sim_disk_crash(bed->disk);
    }
    rise(bed);
}

void bed_kill(struct bed *bed)
{
    die(bed);
    rise(bed);
}

/* --- operations ------------------------------------------------------------------------------- */

struct run_name bed_run(void) { return (struct run_name){.project = "p", .run = "r"}; }

struct object_id bed_object(uint64_t step, uint32_t rank, uint32_t sequence)
{
    return (struct object_id){
        .term = 1, .step = step, .writer = 0xabc, .rank = rank, .sequence = sequence};
}

struct store_name bed_name(uint64_t step, enum store_kind kind, uint32_t number, uint64_t tag)
{
    return (struct store_name){
        .run = bed_run(), .id = {1, step}, .kind = kind, .number = number, .tag = tag};
}

uint8_t *bed_bytes(size_t bytes, unsigned seed)
{
    uint8_t *data =
        aligned_alloc(LIMIT_ALIGN_BYTES, round_up_u64(max_u64(bytes, 1), LIMIT_ALIGN_BYTES));
    assert_non_null(data);
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (uint8_t)(x >> 24);
    }
    return data;
}

static struct store_req object_req(enum store_op op, struct object_id id)
{
    return (struct store_req){.op = op, .run = bed_run(), .object = id};
}

int bed_create(struct bed *bed, struct object_id id, uint64_t bytes_max)
{
    struct store_req req = object_req(STORE_CREATE, id);
    req.bytes = bytes_max;
    return bed_do(bed, &req);
}

int bed_write(struct bed *bed, struct object_id id, uint64_t offset, size_t bytes, unsigned seed)
{
    struct store_req req = object_req(STORE_WRITE, id);
    uint8_t *data = bed_bytes(bytes, seed);
    req.offset = offset;
    req.bytes = bytes;
    req.data = data;
    int rc = bed_do(bed, &req);
    free(data);
    return rc;
}

int bed_seal(struct bed *bed, struct object_id id)
{
    struct store_req req = object_req(STORE_SEAL, id);
    return bed_do(bed, &req);
}

int bed_abort(struct bed *bed, struct object_id id)
{
    struct store_req req = object_req(STORE_ABORT, id);
    return bed_do(bed, &req);
}

int bed_stat(struct bed *bed, struct object_id id, uint64_t *ret_bytes)
{
    struct store_req req = object_req(STORE_STAT, id);
    int rc = bed_do(bed, &req);
    if (rc == 0) {
        *ret_bytes = req.ret_bytes;
    }
    return rc;
}

int bed_read(struct bed *bed, struct object_id id, uint64_t offset, size_t bytes, void *data)
{
    struct store_req req = object_req(STORE_READ, id);
    req.offset = offset;
    req.bytes = bytes;
    req.data = data;
    return bed_do(bed, &req);
}

int bed_read_to_end(struct bed *bed, struct object_id id, uint64_t offset, size_t bytes, void *data)
{
    struct store_req req = object_req(STORE_READ, id);
    req.offset = offset;
    req.bytes = bytes;
    req.data = data;
    req.to_end = true;
    return bed_do(bed, &req);
}

int bed_delete(struct bed *bed, struct object_id id)
{
    struct store_req req = object_req(STORE_DELETE_OBJECT, id);
    return bed_do(bed, &req);
}

int bed_put_object(struct bed *bed, struct object_id id, size_t bytes, unsigned seed)
{
    int rc = bed_create(bed, id, bytes);
    if (rc != 0) {
        return rc;
    }
    rc = bed_write(bed, id, 0, bytes, seed);
    if (rc != 0) {
        assert_int_equal(bed_abort(bed, id), 0);
        return rc;
    }
    return bed_seal(bed, id);
}

int bed_check_object(struct bed *bed, struct object_id id, size_t bytes, unsigned seed)
{
    uint64_t have;
    int rc = bed_stat(bed, id, &have);
    if (rc != 0 && rc != CAIRN_E_READ_ONLY) {
        return rc;
    }
    /* READ_ONLY: an fsync of its directory failed, so the store vouches for nothing new in it; what
     * is there can be read all the same. */
    assert_true(rc != 0 || have == bytes);
    uint8_t *expected = bed_bytes(bytes, seed), *data = bed_bytes(bytes, seed + 1);
    rc = bed_read(bed, id, 0, bytes, data);
    if (rc == 0) {
        assert_memory_equal(expected, data, bytes);
    }
    free(expected);
    free(data);
    return rc;
}

size_t bed_count_objects(struct bed *bed, uint64_t step)
{
    struct store_req req = {.op = STORE_LIST_OBJECTS, .run = bed_run(), .id = {1, step}};
    assert_int_equal(bed_do(bed, &req), 0);
    free(req.ret_objects);
    return req.ret_count;
}

int bed_publish(struct bed *bed, struct store_name name, size_t bytes, unsigned seed)
{
    uint8_t *data = bed_bytes(bytes, seed);
    struct store_req req = {.op = STORE_PUBLISH, .name = name, .bytes = bytes, .data = data};
    int rc = bed_do(bed, &req);
    free(data);
    return rc;
}

int bed_check_small(struct bed *bed, struct store_name name, size_t bytes, unsigned seed)
{
    struct store_req req = {.op = STORE_FETCH, .name = name};
    int rc = bed_do(bed, &req);
    if (rc == 0) {
        uint8_t *data = bed_bytes(bytes, seed);
        bool is_equal = req.ret_bytes == bytes && memcmp(data, req.ret_data, bytes) == 0;
        rc = is_equal ? 0 : CAIRN_E_DIGEST_MISMATCH;
        free(data);
        free(req.ret_data);
    }
    return rc;
}

int bed_delete_small(struct bed *bed, struct store_name name)
{
    struct store_req req = {.op = STORE_DELETE_SMALL, .name = name};
    return bed_do(bed, &req);
}

static struct record_value value_of(const char *text)
{
    return text == NULL ? (struct record_value){0, NULL}
                        : (struct record_value){strlen(text), (const uint8_t *)text};
}

int bed_update(struct bed *bed, const struct bed_change *change, uint64_t *ret_version)
{
    struct record_guard guard = {
        .key = change->key, .absent = change->was == NULL, .value = value_of(change->was)};
    struct record_change set = {
        .key = change->key, .remove = change->value == NULL, .value = value_of(change->value)};
    struct record_update update = {
        .guard_count = change->is_guarded, .guards = &guard, .change_count = 1, .changes = &set};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .run = bed_run(), .update = &update};
    int rc = bed_do(bed, &req);
    if (rc == 0 && ret_version != NULL) {
        *ret_version = req.ret_version;
    }
    return rc;
}

int bed_set(struct bed *bed, const char *key, const char *value)
{
    return bed_update(bed, &(struct bed_change){.key = key, .value = value}, NULL);
}

void bed_number(struct bed *bed, const char *key, unsigned number)
{
    char value[16];
    snprintf(value, sizeof(value), "%u", number);
    assert_int_equal(bed_set(bed, key, value), 0);
}

int bed_record(struct bed *bed, struct record **ret)
{
    struct store_req req = {.op = STORE_RECORD_GET, .run = bed_run()};
    int rc = bed_do(bed, &req);
    if (rc == 0) {
        *ret = req.ret_record;
    }
    return rc;
}

bool bed_has(struct bed *bed, const char *key, const char *value)
{
    struct record *record;
    struct record_value have, want = value_of(value);
    assert_int_equal(bed_record(bed, &record), 0);
    bool is_there = record_get(record, key, &have);
    bool is_equal = is_there && value != NULL && have.bytes == want.bytes &&
                    memcmp(have.data, want.data, want.bytes) == 0;
    record_free(record);
    return value == NULL ? !is_there : is_equal;
}

uint64_t bed_version(struct bed *bed)
{
    struct record *record;
    assert_int_equal(bed_record(bed, &record), 0);
    uint64_t version = record_version(record);
    record_free(record);
    return version;
}
