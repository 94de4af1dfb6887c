/* SPDX-License-Identifier: Apache-2.0
 *
 * rados_doctor: see rados_doctor.h. All facts of the monitors come from their `report` and `df`,
 * which the least user may read. The rights of this user are found by trying things that change
 * nothing: to look at an absent object gives one error if that is allowed, and another if it is
 * not.
 */
#include "rados_doctor.h"

#include "rados_private.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RELEASE_TESTED_FROM = 16, RELEASE_TESTED_TO = 16, SLOW_TRIP_MS = 100 };

static const char ASK_REPORT[] = "{\"prefix\":\"report\",\"format\":\"json\"}";
static const char ASK_DF[] = "{\"prefix\":\"df\",\"format\":\"json\"}";
static const char ASK_KEYS[] = "{\"prefix\":\"auth ls\",\"format\":\"json\"}";

struct checking {
    const struct rados_doctor_options *options;
    struct doctor *doctor;
    char *report_text, *df_text;
    struct json_view report, df;
};

static int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    CHECK(clock_gettime(clock, &ts) == 0);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* --- what the monitors report --------------------------------------------------------------- */

/* Tells whether the cluster's release is new enough and tested. */
static void check_version(struct checking *checking)
{
    static const char *const releases[] = {
        [12] = "luminous", [13] = "mimic", [14] = "nautilus", [15] = "octopus", [16] = "pacific",
        [17] = "quincy",   [18] = "reef",  [19] = "squid",    [20] = "tentacle"};
    char version[64], release[32];
    size_t number = 0;
    json_view_text(json_view_member(checking->report, "version"), sizeof(version), version);
    json_view_text(
        json_view_member(json_view_member(checking->report, "osdmap"), "require_osd_release"),
        sizeof(release), release);
    for (size_t i = 0; i < ARRAY_LEN(releases); i++) {
        number = releases[i] != NULL && strcmp(releases[i], release) == 0 ? i : number;
    }
    bool is_old = number > 0 && number < CLUSTER_RELEASE_MIN;
    bool is_untried = number < RELEASE_TESTED_FROM || number > RELEASE_TESTED_TO;
    doctor_add(checking->doctor,
               is_old       ? DOCTOR_UNSAFE
               : is_untried ? DOCTOR_WARNING
                            : DOCTOR_GOOD,
               "version", "Ceph %s; the cluster requires OSDs of %s or later%s", version, release,
               is_old       ? ", which is too old"
               : is_untried ? "; Cairn is tested on pacific"
                            : "");
    if (is_old) {
        doctor_remedy(checking->doctor,
                      "upgrade to nautilus or later, then run `ceph osd require-osd-release`");
    } else if (is_untried) {
        doctor_remedy(checking->doctor, "test it on such a cluster with `ctest -L ceph`");
    }
}

/* Tells the cluster's health checks, but not the muted ones. */
static void check_health(struct checking *checking)
{
    struct json_view health = json_view_member(checking->report, "health");
    struct json_view name, check = {NULL, 0};
    bool is_well = true;
    while (json_view_next_member(json_view_member(health, "checks"), &name, &check)) {
        char code[64], text[200];
        if (json_view_is_true(json_view_member(check, "muted"))) {
            continue;
        }
        bool is_error = json_view_is(json_view_member(check, "severity"), "HEALTH_ERR");
        json_view_text(name, sizeof(code), code);
        json_view_text(json_view_member(json_view_member(check, "summary"), "message"),
                       sizeof(text), text);
        doctor_add(checking->doctor, is_error ? DOCTOR_UNSAFE : DOCTOR_WARNING, "health", "%s: %s",
                   code, text);
        doctor_remedy(checking->doctor, "look at `ceph health detail`");
        is_well = false;
    }
    char status[32];
    json_view_text(json_view_member(health, "status"), sizeof(status), status);
    if (is_well) {
        doctor_add(checking->doctor,
                   strcmp(status, "HEALTH_OK") == 0 ? DOCTOR_GOOD : DOCTOR_WARNING, "health", "%s",
                   status[0] != '\0' ? status : "the monitors do not report it");
    }
}

/* Tells the flags of the cluster that stop writes or hinder it from healing. */
static void check_flags(struct checking *checking)
{
    static const char *const stop[] = {"full", "pauserd", "pausewr"};
    static const char *const hinder[] = {"nearfull", "backfillfull", "noup",      "nodown",
                                         "noin",     "nobackfill",   "norecover", "norebalance",
                                         "noscrub",  "nodeep-scrub", "noout"};
    char flags[512], *rest = flags, *flag;
    json_view_text(json_view_member(json_view_member(checking->report, "osdmap"), "flags"),
                   sizeof(flags), flags);
    while ((flag = strsep(&rest, ",")) != NULL) {
        for (size_t i = 0; i < ARRAY_LEN(stop); i++) {
            if (strcmp(flag, stop[i]) == 0) {
                doctor_add(checking->doctor, DOCTOR_UNSAFE, "flags",
                           "the flag %s is set, so saves hang or fail", flag);
                doctor_remedy(checking->doctor,
                              i == 0 ? "add OSDs, or delete data" : "ceph osd unpause");
            }
        }
        for (size_t i = 0; i < ARRAY_LEN(hinder); i++) {
            if (strcmp(flag, hinder[i]) == 0) {
                doctor_add(checking->doctor, DOCTOR_WARNING, "flags",
                           "the flag %s is set, so the cluster does not repair itself fully", flag);
                doctor_remedy(checking->doctor,
                              "run `ceph osd unset %s`, unless you are working on the cluster",
                              flag);
            }
        }
    }
}

/* Parses a time such as "2026-11-22T02:15:55.274687+0000", which is always UTC. */
static bool parse_time(const char *text, int64_t *ret_ns)
{
    struct tm tm = {0};
    char fraction[10] = "000000000";
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest) {
        return false;
    }
    if (rest[0] == '.') {
        size_t digits = strspn(rest + 1, "0123456789");
        memcpy(fraction, rest + 1, digits < 9 ? digits : 9);
    }
    *ret_ns = (int64_t)timegm(&tm) * 1000000000 + strtoll(fraction, NULL, 10);
    return true;
}

static int ask(struct checking *checking, const char *command, char **ret,
               struct json_view *ret_view)
{
    const struct cluster_ops *ops = checking->options->cluster->ops;
    size_t bytes = 0;
    int rc =
        ops->ask != NULL ? ops->ask(checking->options->cluster, command, ret, &bytes) : -EOPNOTSUPP;
    *ret_view = rc == 0 ? json_view_of(bytes, *ret) : (struct json_view){NULL, 0};
    return rc;
}

/* Asks the monitors for their report and tells what it says. A user without the right to ask only
 * gets a warning. */
static int ask_monitors(struct checking *checking, struct diag *diag)
{
    struct doctor_clock clock = {.whose = "the Ceph monitor's"};
    char time[48];
    clock.before_ns = clock_ns(CLOCK_REALTIME);
    int rc = ask(checking, ASK_REPORT, &checking->report_text, &checking->report);
    clock.after_ns = clock_ns(CLOCK_REALTIME);
    rc = rc != 0 ? rc : ask(checking, ASK_DF, &checking->df_text, &checking->df);
    if (rc == -EACCES || rc == -EPERM) {
        doctor_add(checking->doctor, DOCTOR_WARNING, "monitor",
                   "client.%s may not query the monitors, so pools and health cannot be examined",
                   checking->options->user);
        doctor_remedy(checking->doctor,
                      "give it the permission with deploy/ceph/make-user (mon 'allow r')");
        return 0;
    }
    if (rc != 0) {
        return rados_error(rc, false, "cannot query the Ceph monitors", diag);
    }
    check_version(checking);
    check_health(checking);
    check_flags(checking);
    rados_doctor_pool(checking->options->meta_pool, true, checking->report, checking->df,
                      checking->doctor);
    if (strcmp(checking->options->meta_pool, checking->options->data_pool) != 0) {
        rados_doctor_pool(checking->options->data_pool, false, checking->report, checking->df,
                          checking->doctor);
    }
    json_view_text(json_view_member(checking->report, "timestamp"), sizeof(time), time);
    if (parse_time(time, &clock.theirs_ns)) {
        doctor_clock(checking->doctor, &clock);
    }
    return 0;
}

/* --- what this user may do -------------------------------------------------------------------- */

struct probe {
    enum cluster_pool pool;
    char space[CLUSTER_NAMESPACE_MAX], object[64];
};

static int probe_do(struct checking *checking, const struct probe *probe, size_t count,
                    struct cluster_step *steps)
{
    struct cluster_call call = {.pool = probe->pool,
                                .space = probe->space,
                                .object = probe->object,
                                .step_count = count,
                                .steps = steps};
    return cluster_do(checking->options->cluster, &call);
}

/* Makes, reads and removes an object as the store does. *ret_trip_ns is the duration of one
 * operation. */
static int probe_use(struct checking *checking, const struct probe *probe, int64_t *ret_trip_ns)
{
    uint8_t wrote[4096], read[4096] = {0};
    memset(wrote, 0x5a, sizeof(wrote));
    struct cluster_step make[] = {
        {.kind = STEP_CREATE},
        {.kind = STEP_WRITE_FULL, .data = wrote, .bytes = sizeof(wrote)},
        {.kind = STEP_KEY_SET, .key = "doctor", .data = wrote, .bytes = 8}};
    struct cluster_step read_back = {.kind = STEP_READ, .bytes = sizeof(read), .into = read};
    struct cluster_step gone = {.kind = STEP_REMOVE};
    int rc = probe_do(checking, probe, probe->pool == CLUSTER_META ? 3 : 2, make);
    if (rc != 0) {
        return rc;
    }
    int64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    rc = probe_do(checking, probe, 1, &read_back);
    *ret_trip_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
    if (rc == 0 &&
        (read_back.ret_bytes != sizeof(read) || memcmp(wrote, read, sizeof(read)) != 0)) {
        rc = -EIO;
    }
    int removed = probe_do(checking, probe, 1, &gone);
    return rc != 0 ? rc : removed;
}

/* Tries the use of a pool and reports it. After -ETIMEDOUT everything else that is tried would take
 * as long. */
static int check_use(struct checking *checking, const struct probe *probe, const char *pool)
{
    char check[32];
    int64_t trip_ns = 0;
    struct diag why = DIAG_INIT;
    snprintf(check, sizeof(check), "use of %s", pool);
    int rc = probe_use(checking, probe, &trip_ns);
    if (rc != 0) {
        int code = rados_error(rc, false, "cannot create, read and remove an object", &why);
        doctor_add(checking->doctor, DOCTOR_UNSAFE, check, "%s: %s", err_name(code),
                   diag_text(&why, code));
        doctor_remedy(checking->doctor,
                      rc == -EPERM || rc == -EACCES
                          ? "run deploy/ceph/make-user --pool … --namespace %s --user %s, which "
                            "gives it the permissions that it needs"
                          : "follow the advice in the message (namespace %s, user %s)",
                      checking->options->space, checking->options->user);
        return rc;
    }
    int64_t trip_us = trip_ns / 1000;
    bool is_slow = trip_us > INT64_C(1000) * SLOW_TRIP_MS;
    doctor_add(
        checking->doctor, is_slow ? DOCTOR_WARNING : DOCTOR_GOOD, check,
        "a test object was written, read and removed in namespace %s; a round trip takes %" PRId64
        ".%03" PRId64 " ms",
        probe->space, trip_us / 1000, trip_us % 1000);
    if (is_slow) {
        doctor_remedy(
            checking->doctor,
            "each commit waits for about ten of these: check the network and `ceph osd perf`");
    }
    return 0;
}

/* Checks that the user has no more rights than it needs. */
static void check_rights(struct checking *checking, const struct probe *own)
{
    const char *user = checking->options->user;
    char *keys = NULL;
    struct json_view view;
    struct probe other = *own;
    struct cluster_step look = {.kind = STEP_STAT};
    if (strcmp(user, "admin") == 0 || ask(checking, ASK_KEYS, &keys, &view) == 0) {
        doctor_add(checking->doctor, DOCTOR_UNSAFE, "rights",
                   "client.%s may read the keys of all users of the cluster", user);
        doctor_remedy(checking->doctor, "create a user for Cairn alone with deploy/ceph/make-user");
    } else {
        doctor_add(checking->doctor, DOCTOR_GOOD, "rights",
                   "client.%s may not read the keys of other users", user);
    }
    free(keys);
    snprintf(other.space, sizeof(other.space), "not-%.200s", checking->options->space);
    int rc = probe_do(checking, &other, 1, &look);
    if (rc == -ENOENT) {
        doctor_add(checking->doctor, DOCTOR_WARNING, "rights",
                   "client.%s may use every namespace of pool %s", user,
                   checking->options->meta_pool);
        doctor_remedy(checking->doctor,
                      "run deploy/ceph/make-user --user %s --namespace %s, which restricts it to "
                      "its own namespaces",
                      user, checking->options->space);
    } else if (rc == -EPERM || rc == -EACCES) {
        doctor_add(checking->doctor, DOCTOR_GOOD, "rights",
                   "client.%s may use only its own namespaces", user);
    }
}

int rados_doctor(const struct rados_doctor_options *options, struct doctor *doctor,
                 bool *ret_silent, struct diag *diag)
{
    struct checking checking = {.options = options, .doctor = doctor};
    struct probe meta = {.pool = CLUSTER_META}, data = {.pool = CLUSTER_DATA};
    snprintf(meta.space, sizeof(meta.space), "%s", options->space);
    snprintf(data.space, sizeof(data.space), "%.200s/doctor", options->space);
    snprintf(meta.object, sizeof(meta.object), "doctor-%016" PRIx64,
             (uint64_t)clock_ns(CLOCK_REALTIME) ^ (uint64_t)(uintptr_t)&checking);
    memcpy(data.object, meta.object, sizeof(data.object));
    int rc = ask_monitors(&checking, diag);
    if (rc == 0) {
        bool silent = check_use(&checking, &meta, options->meta_pool) == -ETIMEDOUT;
        if (!silent && strcmp(options->meta_pool, options->data_pool) != 0) {
            silent = check_use(&checking, &data, options->data_pool) == -ETIMEDOUT;
        }
        if (!silent) {
            check_rights(&checking, &meta);
        }
        *ret_silent = silent;
    }
    free(checking.report_text);
    free(checking.df_text);
    return rc;
}
