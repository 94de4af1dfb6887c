/* SPDX-License-Identifier: Apache-2.0
 *
 * Examines what the monitors report about a pool: whether it survives what a store promises.
 * Pure.
 */
#include "rados_doctor.h"

#include "base/digits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    TYPE_REPLICATED = 1,
    TYPE_ERASURE = 3,
    QUOTA_WARNING_PERCENT = 85,
    FULL_WARNING_PERCENT = 75
};

struct pool {
    const char *name;
    char check[32];
    struct doctor *doctor;
    struct json_view map, stats; /* of the osdmap, and of df */
    uint64_t type, size, min_size;
};

/* Returns true if the word is in a comma-separated text, in which the monitors give flags and
 * lists. */
static bool has_word(struct json_view text, const char *word)
{
    char all[512], *rest = all, *one;
    json_view_text(text, sizeof(all), all);
    while ((one = strsep(&rest, ",")) != NULL) {
        if (strcmp(one, word) == 0) {
            return true;
        }
    }
    return false;
}

/* Tells whether a replicated pool survives the loss of a disk, and goes on writing with one OSD
 * down. */
static void check_replicas(const struct pool *pool)
{
    enum doctor_level level = pool->size < 2 || pool->min_size < 2             ? DOCTOR_UNSAFE
                              : pool->size < 3 || pool->min_size >= pool->size ? DOCTOR_WARNING
                                                                               : DOCTOR_GOOD;
    doctor_add(pool->doctor, level, pool->check,
               "replicated, size %" PRIu64 ", min_size %" PRIu64 "%s", pool->size, pool->min_size,
               pool->size < 2            ? ": there is one copy, which is lost with its disk"
               : pool->min_size < 2      ? ": the pool accepts writes with one copy left, and data "
                                           "written then is lost with that disk"
               : pool->size < 3          ? ": after one failure there is one copy left"
               : level == DOCTOR_WARNING ? ": one OSD that is down stops all writes"
                                         : "");
    if (level != DOCTOR_GOOD) {
        doctor_remedy(pool->doctor,
                      "ceph osd pool set %s size 3 && ceph osd pool set %s min_size 2", pool->name,
                      pool->name);
    }
}

/* Tells the same of an erasure-coded pool, whose profile says how many of its parts are data. */
static void check_coding(const struct pool *pool, struct json_view osdmap)
{
    char profile[128], text[16];
    uint64_t k = 0;
    json_view_text(json_view_member(pool->map, "erasure_code_profile"), sizeof(profile), profile);
    struct json_view profiles = json_view_member(osdmap, "erasure_code_profiles");
    json_view_text(json_view_member(json_view_member(profiles, profile), "k"), sizeof(text), text);
    if (!digits_parse_decimal(text, UINT32_MAX, &k) || k == 0 || k >= pool->size) {
        doctor_add(pool->doctor, DOCTOR_WARNING, pool->check,
                   "the pool is erasure-coded by profile '%s', whose k is not known", profile);
        doctor_remedy(pool->doctor, "look at `ceph osd erasure-code-profile get %s`", profile);
        return;
    }
    uint64_t m = pool->size - k;
    bool is_unsafe = pool->min_size <= k;
    enum doctor_level level = is_unsafe ? DOCTOR_UNSAFE : m < 2 ? DOCTOR_WARNING : DOCTOR_GOOD;
    doctor_add(pool->doctor, level, pool->check,
               "erasure-coded %" PRIu64 "+%" PRIu64 ", min_size %" PRIu64 "%s", k, m,
               pool->min_size,
               is_unsafe ? ": the pool accepts writes when it can survive no further failure"
               : m < 2   ? ": one OSD that is down stops all writes"
                         : "");
    if (is_unsafe && m >= 2) {
        doctor_remedy(pool->doctor, "ceph osd pool set %s min_size %" PRIu64, pool->name, k + 1);
    } else if (level != DOCTOR_GOOD) {
        doctor_remedy(pool->doctor,
                      "create a pool with m=2 or more (k=%" PRIu64 " m=2 needs %" PRIu64
                      " OSDs), and a new store with that data-pool",
                      k, k + 2);
    }
}

/* Tells whether the pool is of a kind that fits: records need keys (omap), which erasure-coded
 * pools do not have. */
static void check_kind(const struct pool *pool, bool is_meta, struct json_view osdmap)
{
    if (pool->type == TYPE_REPLICATED) {
        check_replicas(pool);
    } else if (pool->type != TYPE_ERASURE) {
        doctor_add(pool->doctor, DOCTOR_WARNING, pool->check,
                   "the pool has the unknown type %" PRIu64, pool->type);
        doctor_remedy(pool->doctor, "use a replicated pool");
    } else if (is_meta) {
        doctor_add(pool->doctor, DOCTOR_UNSAFE, pool->check,
                   "the pool is erasure-coded and has no keys (omap), which records need");
        doctor_remedy(pool->doctor,
                      "name a replicated pool in the store's URL, and this one as data-pool=%s",
                      pool->name);
    } else {
        check_coding(pool, osdmap);
    }
}

/* Tells how much of the pool's quotas is used. */
static void check_quota(const struct pool *pool)
{
    uint64_t quota = json_view_count(pool->map, "quota_max_bytes"),
             used = json_view_count(pool->stats, "stored");
    uint64_t objects_max = json_view_count(pool->map, "quota_max_objects"),
             objects = json_view_count(pool->stats, "objects");
    if (quota > 0) {
        bool is_full = used >= quota;
        bool is_near = used / QUOTA_WARNING_PERCENT >= quota / 100;
        doctor_add(pool->doctor,
                   is_full   ? DOCTOR_UNSAFE
                   : is_near ? DOCTOR_WARNING
                             : DOCTOR_GOOD,
                   pool->check, "%" PRIu64 " of %" PRIu64 " MiB of the pool's quota are used",
                   used >> 20, quota >> 20);
        if (is_near || is_full) {
            doctor_remedy(pool->doctor, FREES_ROOM ", or `ceph osd pool set-quota %s max_bytes N`",
                          pool->name);
        }
    }
    if (objects_max > 0) {
        bool is_near = objects / QUOTA_WARNING_PERCENT >= objects_max / 100;
        doctor_add(pool->doctor,
                   objects >= objects_max ? DOCTOR_UNSAFE
                   : is_near              ? DOCTOR_WARNING
                                          : DOCTOR_GOOD,
                   pool->check, "%" PRIu64 " of %" PRIu64 " objects of the pool's quota are used",
                   objects, objects_max);
        if (is_near) {
            doctor_remedy(pool->doctor, "`ceph osd pool set-quota %s max_objects N`", pool->name);
        }
    }
}

/* Tells how full the pool is. */
static void check_fullness(const struct pool *pool)
{
    struct json_view flags = json_view_member(pool->map, "flags_names");
    double used = 0;
    bool known = json_view_f64(json_view_member(pool->stats, "percent_used"), &used);
    if (has_word(flags, "full")) {
        doctor_add(pool->doctor, DOCTOR_UNSAFE, pool->check,
                   "the pool is full%s, so no save is accepted",
                   has_word(flags, "full_quota") ? " by its quota" : "");
        doctor_remedy(pool->doctor,
                      FREES_ROOM ", raise the quota (`ceph osd pool set-quota %s`), or add OSDs",
                      pool->name);
    } else if (has_word(flags, "nearfull") || has_word(flags, "backfillfull") ||
               (known && used * 100 > FULL_WARNING_PERCENT)) {
        doctor_add(pool->doctor, DOCTOR_WARNING, pool->check,
                   "the pool is nearly full: %.0f %% of it is used", used * 100);
        doctor_remedy(pool->doctor, FREES_ROOM ", or add OSDs");
    } else if (known) {
        doctor_add(pool->doctor, DOCTOR_GOOD, pool->check,
                   "%.1f GiB are stored, and there is room for %.1f GiB more",
                   (double)json_view_count(pool->stats, "stored") / (1 << 30),
                   (double)json_view_count(pool->stats, "max_avail") / (1 << 30));
    }
}

void rados_doctor_pool(const char *name, bool is_meta, struct json_view report, struct json_view df,
                       struct doctor *doctor)
{
    struct json_view osdmap = json_view_member(report, "osdmap");
    struct pool pool = {.name = name, .doctor = doctor};
    snprintf(pool.check, sizeof(pool.check), "pool %s", name);
    pool.map = json_view_named(json_view_member(osdmap, "pools"), "pool_name", name);
    if (pool.map.at == NULL) {
        doctor_add(doctor, DOCTOR_UNSAFE, pool.check, "there is no pool of that name");
        doctor_remedy(doctor, "ceph osd pool create %s", name);
        return;
    }
    pool.stats =
        json_view_member(json_view_named(json_view_member(df, "pools"), "name", name), "stats");
    pool.type = json_view_count(pool.map, "type");
    pool.size = json_view_count(pool.map, "size");
    pool.min_size = json_view_count(pool.map, "min_size");
    check_kind(&pool, is_meta, osdmap);
    check_quota(&pool);
    check_fullness(&pool);
}
