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

struct looking {
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
static void look_at_version(struct looking *looking)
{
    static const char *const releases[] = {
        [12] = "luminous", [13] = "mimic", [14] = "nautilus", [15] = "octopus", [16] = "pacific",
        [17] = "quincy",   [18] = "reef",  [19] = "squid",    [20] = "tentacle"};
    char version[64], release[32];
    size_t number = 0;
    json_view_text(json_view_member(looking->report, "version"), sizeof(version), version);
    json_view_text(
        json_view_member(json_view_member(looking->report, "osdmap"), "require_osd_release"),
        sizeof(release), release);
    for (size_t i = 0; i < ARRAY_LEN(releases); i++) {
        number = releases[i] != NULL && strcmp(releases[i], release) == 0 ? i : number;
    }
    bool is_old = number > 0 && number < CLUSTER_RELEASE_MIN;
    bool is_untried = number < RELEASE_TESTED_FROM || number > RELEASE_TESTED_TO;
    doctor_add(looking->doctor,
               is_old       ? DOCTOR_UNSAFE
               : is_untried ? DOCTOR_WARNING
                            : DOCTOR_GOOD,
               "version", "Ceph %s; the cluster requires OSDs of %s or later%s", version, release,
               is_old       ? ", which is too old"
               : is_untried ? "; Cairn is tested on pacific"
                            : "");
    if (is_old) {
        doctor_remedy(looking->doctor,
                      "upgrade to nautilus or later, then run `ceph osd require-osd-release`");
    } else if (is_untried) {
        doctor_remedy(looking->doctor, "test it on such a cluster with `ctest -L ceph`");
    }
}

/* Tells the cluster's health checks, but not the muted ones. */
static void look_at_health(struct looking *looking)
{
    struct json_view health = json_view_member(looking->report, "health");
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
        doctor_add(looking->doctor, is_error ? DOCTOR_UNSAFE : DOCTOR_WARNING, "health", "%s: %s",
                   code, text);
        doctor_remedy(looking->doctor, "look at `ceph health detail`");
        is_well = false;
    }
    char status[32];
    json_view_text(json_view_member(health, "status"), sizeof(status), status);
    if (is_well) {
        doctor_add(looking->doctor, strcmp(status, "HEALTH_OK") == 0 ? DOCTOR_GOOD : DOCTOR_WARNING,
                   "health", "%s", status[0] != '\0' ? status : "the monitors do not report it");
    }
}

/* Tells the flags of the cluster that stop writes or hinder it from healing. */
static void look_at_flags(struct looking *looking)
{
    static const char *const stop[] = {"full", "pauserd", "pausewr"};
    static const char *const hinder[] = {"nearfull", "backfillfull", "noup",      "nodown",
                                         "noin",     "nobackfill",   "norecover", "norebalance",
                                         "noscrub",  "nodeep-scrub", "noout"};
    char flags[512], *rest = flags, *flag;
    json_view_text(json_view_member(json_view_member(looking->report, "osdmap"), "flags"),
                   sizeof(flags), flags);
    while ((flag = strsep(&rest, ",")) != NULL) {
        for (size_t i = 0; i < ARRAY_LEN(stop); i++) {
            if (strcmp(flag, stop[i]) == 0) {
                doctor_add(looking->doctor, DOCTOR_UNSAFE, "flags",
                           "the flag %s is set, so saves hang or fail", flag);
                doctor_remedy(looking->doctor,
                              i == 0 ? "add OSDs, or delete data" : "ceph osd unpause");
            }
        }
        for (size_t i = 0; i < ARRAY_LEN(hinder); i++) {
            if (strcmp(flag, hinder[i]) == 0) {
                doctor_add(looking->doctor, DOCTOR_WARNING, "flags",
                           "the flag %s is set, so the cluster does not repair itself fully", flag);
                doctor_remedy(looking->doctor,
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

static int ask(struct looking *looking, const char *command, char **ret, struct json_view *ret_view)
{
    const struct cluster_ops *ops = looking->options->cluster->ops;
    size_t bytes = 0;
    int rc =
        ops->ask != NULL ? ops->ask(looking->options->cluster, command, ret, &bytes) : -EOPNOTSUPP;
    *ret_view = rc == 0 ? json_view_of(bytes, *ret) : (struct json_view){NULL, 0};
    return rc;
}

/* Asks the monitors for their report and tells what it says. A user without the right to ask only
 * gets a warning. */
static int ask_monitors(struct looking *looking, struct diag *diag)
{
    struct doctor_clock clock = {.whose = "the Ceph monitor's"};
    char time[48];
    clock.before_ns = clock_ns(CLOCK_REALTIME);
    int rc = ask(looking, ASK_REPORT, &looking->report_text, &looking->report);
    clock.after_ns = clock_ns(CLOCK_REALTIME);
    rc = rc != 0 ? rc : ask(looking, ASK_DF, &looking->df_text, &looking->df);
    if (rc == -EACCES || rc == -EPERM) {
        doctor_add(looking->doctor, DOCTOR_WARNING, "monitor",
                   "client.%s may not query the monitors, so pools and health cannot be examined",
                   looking->options->user);
        doctor_remedy(looking->doctor,
                      "give it the permission with deploy/ceph/make-user (mon 'allow r')");
        return 0;
    }
    if (rc != 0) {
        return rados_error(rc, false, "cannot query the Ceph monitors", diag);
    }
    look_at_version(looking);
    look_at_health(looking);
    look_at_flags(looking);
    rados_doctor_pool(looking->options->meta_pool, true, looking->report, looking->df,
                      looking->doctor);
    if (strcmp(looking->options->meta_pool, looking->options->data_pool) != 0) {
        rados_doctor_pool(looking->options->data_pool, false, looking->report, looking->df,
                          looking->doctor);
    }
    json_view_text(json_view_member(looking->report, "timestamp"), sizeof(time), time);
    if (parse_time(time, &clock.theirs_ns)) {
        doctor_clock(looking->doctor, &clock);
    }
    return 0;
}

/* --- what this user may do -------------------------------------------------------------------- */

struct probe {
    enum cluster_pool pool;
    char space[CLUSTER_NAMESPACE_MAX], object[64];
};

static int probe_do(struct looking *looking, const struct probe *probe, size_t count,
                    struct cluster_step *steps)
{
    struct cluster_call call = {.pool = probe->pool,
                                .space = probe->space,
                                .object = probe->object,
                                .step_count = count,
                                .steps = steps};
    return cluster_do(looking->options->cluster, &call);
}

/* Makes, reads and removes an object as the store does. *ret_trip_ns is the duration of one
 * operation. */
static int probe_use(struct looking *looking, const struct probe *probe, int64_t *ret_trip_ns)
{
    uint8_t wrote[4096], read[4096] = {0};
    memset(wrote, 0x5a, sizeof(wrote));
    struct cluster_step make[] = {
        {.kind = STEP_CREATE},
        {.kind = STEP_WRITE_FULL, .data = wrote, .bytes = sizeof(wrote)},
        {.kind = STEP_KEY_SET, .key = "doctor", .data = wrote, .bytes = 8}};
    struct cluster_step look = {.kind = STEP_READ, .bytes = sizeof(read), .into = read};
    struct cluster_step gone = {.kind = STEP_REMOVE};
    int rc = probe_do(looking, probe, probe->pool == CLUSTER_META ? 3 : 2, make);
    if (rc != 0) {
        return rc;
    }
    int64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    rc = probe_do(looking, probe, 1, &look);
    *ret_trip_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
    if (rc == 0 && (look.ret_bytes != sizeof(read) || memcmp(wrote, read, sizeof(read)) != 0)) {
        rc = -EIO;
    }
    int removed = probe_do(looking, probe, 1, &gone);
    return rc != 0 ? rc : removed;
}

/* Tries the use of a pool and reports it. After -ETIMEDOUT everything else that is tried would take
 * as long. */
static int look_at_use(struct looking *looking, const struct probe *probe, const char *pool)
{
    char check[32];
    int64_t trip_ns = 0;
    struct diag why = DIAG_INIT;
    snprintf(check, sizeof(check), "use of %s", pool);
    int rc = probe_use(looking, probe, &trip_ns);
    if (rc != 0) {
        int code = rados_error(rc, false, "cannot create, read and remove an object", &why);
        doctor_add(looking->doctor, DOCTOR_UNSAFE, check, "%s: %s", err_name(code),
                   diag_text(&why, code));
        doctor_remedy(looking->doctor,
                      rc == -EPERM || rc == -EACCES
                          ? "run deploy/ceph/make-user --pool … --namespace %s --user %s, which "
                            "gives it the permissions that it needs"
                          : "follow the advice in the message (namespace %s, user %s)",
                      looking->options->space, looking->options->user);
        return rc;
    }
    int64_t trip_us = trip_ns / 1000;
    bool is_slow = trip_us > INT64_C(1000) * SLOW_TRIP_MS;
    doctor_add(
        looking->doctor, is_slow ? DOCTOR_WARNING : DOCTOR_GOOD, check,
        "a test object was written, read and removed in namespace %s; a round trip takes %" PRId64
        ".%03" PRId64 " ms",
        probe->space, trip_us / 1000, trip_us % 1000);
    if (is_slow) {
        doctor_remedy(
            looking->doctor,
            "each commit waits for about ten of these: check the network and `ceph osd perf`");
    }
    return 0;
}

/* Checks that the user has no more rights than it needs. */
static void look_at_rights(struct looking *looking, const struct probe *own)
{
    const char *user = looking->options->user;
    char *keys = NULL;
    struct json_view view;
    struct probe other = *own;
    struct cluster_step look = {.kind = STEP_STAT};
    if (strcmp(user, "admin") == 0 || ask(looking, ASK_KEYS, &keys, &view) == 0) {
        doctor_add(looking->doctor, DOCTOR_UNSAFE, "rights",
                   "client.%s may read the keys of all users of the cluster", user);
        doctor_remedy(looking->doctor, "create a user for Cairn alone with deploy/ceph/make-user");
    } else {
        doctor_add(looking->doctor, DOCTOR_GOOD, "rights",
                   "client.%s may not read the keys of other users", user);
    }
    free(keys);
    snprintf(other.space, sizeof(other.space), "not-%.200s", looking->options->space);
    int rc = probe_do(looking, &other, 1, &look);
    if (rc == -ENOENT) {
        doctor_add(looking->doctor, DOCTOR_WARNING, "rights",
                   "client.%s may use every namespace of pool %s", user,
                   looking->options->meta_pool);
        doctor_remedy(looking->doctor,
                      "run deploy/ceph/make-user --user %s --namespace %s, which restricts it to "
                      "its own namespaces",
                      user, looking->options->space);
    } else if (rc == -EPERM || rc == -EACCES) {
        doctor_add(looking->doctor, DOCTOR_GOOD, "rights",
                   "client.%s may use only its own namespaces", user);
    }
}

int rados_doctor(const struct rados_doctor_options *options, struct doctor *doctor,
                 bool *ret_silent, struct diag *diag)
{
    struct looking looking = {.options = options, .doctor = doctor};
    struct probe meta = {.pool = CLUSTER_META}, data = {.pool = CLUSTER_DATA};
    snprintf(meta.space, sizeof(meta.space), "%s", options->space);
    snprintf(data.space, sizeof(data.space), "%.200s/doctor", options->space);
    snprintf(meta.object, sizeof(meta.object), "doctor-%016" PRIx64,
             (uint64_t)clock_ns(CLOCK_REALTIME) ^ (uint64_t)(uintptr_t)&looking);
    memcpy(data.object, meta.object, sizeof(data.object));
    int rc = ask_monitors(&looking, diag);
    if (rc == 0) {
        bool silent = look_at_use(&looking, &meta, options->meta_pool) == -ETIMEDOUT;
        if (!silent && strcmp(options->meta_pool, options->data_pool) != 0) {
            silent = look_at_use(&looking, &data, options->data_pool) == -ETIMEDOUT;
        }
        if (!silent) {
            look_at_rights(&looking, &meta);
        }
        *ret_silent = silent;
    }
    free(looking.report_text);
    free(looking.df_text);
    return rc;
}
