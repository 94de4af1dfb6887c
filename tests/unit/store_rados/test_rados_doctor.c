/* SPDX-License-Identifier: Apache-2.0
 *
 * What makes a cluster unsafe for checkpoints is found, with the remedy, and what is good is called
 * good. Method: a fake cluster, and a monitor that says what the case wants to hear.
 */
#include "base/check.h"
#include "store/rados/cluster.h"
#include "store/rados/rados_doctor.h"
#include "support/cluster_fake.h"
#include "support/unit_test.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

struct cluster_said {
    const char *release, *flags, *checks, *pool_flags, *profile_k;
    unsigned type, size, min_size, used_percent;
    unsigned long long quota, stored;
    int skew_s;
    bool may_read_keys;
};

static struct cluster_said said;
static char answer[4096];

static int canned(struct cluster *cluster, const char *command, char **ret, size_t *ret_bytes)
{
    char stamp[40];
    time_t now = time(NULL) + said.skew_s;
    struct tm tm;
    if (strstr(command, "auth ls") != NULL) {
        *ret = said.may_read_keys ? strdup("{}") : NULL;
        *ret_bytes = 2;
        return said.may_read_keys ? 0 : -EACCES;
    }
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now, &tm));
    if (strstr(command, "\"df\"") != NULL) {
        snprintf(answer, sizeof(answer),
                 "{\"pools\":[{\"name\":\"p\",\"stats\":{\"stored\":%llu,\"percent_used\":%u.%02u,"
                 "\"max_avail\":1000000}}]}",
                 said.stored, said.used_percent / 100, said.used_percent % 100);
    } else {
        snprintf(answer, sizeof(answer),
                 "{\"version\":\"16.2.15\",\"timestamp\":\"%s.500000+0000\",\"health\":{\"status\":"
                 "\"HEALTH_OK\",\"checks\":{%s}},\"osdmap\":{\"flags\":\"%s\","
                 "\"require_osd_release\":\"%s\",\"pools\":[{\"pool_name\":\"q\"},{\"pool_name\":"
                 "\"p\",\"type\":%u,\"size\":%u,\"min_size\":%u,\"quota_max_bytes\":%llu,"
                 "\"flags_names\":\"hashpspool%s\",\"erasure_code_profile\":\"e\"}],"
                 "\"erasure_code_profiles\":{\"e\":{\"k\":\"%s\"}}}}",
                 stamp, said.checks, said.flags, said.release, said.type, said.size, said.min_size,
                 said.quota, said.pool_flags, said.profile_k);
    }
    *ret = strdup(answer);
    *ret_bytes = strlen(answer);
    return 0;
}

static const struct cluster_said good = {.release = "pacific",
                                         .flags = "sortbitwise",
                                         .checks = "",
                                         .pool_flags = "",
                                         .profile_k = "2",
                                         .type = 1,
                                         .size = 3,
                                         .min_size = 2};

/* What the case leaves out is good. */
static void say(const struct cluster_said *differs)
{
    said = *differs;
    said.release = said.release ? said.release : good.release;
    said.flags = said.flags ? said.flags : good.flags;
    said.checks = said.checks ? said.checks : good.checks;
    said.pool_flags = said.pool_flags ? said.pool_flags : good.pool_flags;
    said.profile_k = said.profile_k ? said.profile_k : good.profile_k;
    said.type = said.type ? said.type : good.type;
    said.size = said.size ? said.size : good.size;
    said.min_size = said.min_size ? said.min_size : good.min_size;
}

struct examined {
    struct doctor doctor;
    struct fake_medium *medium;
    bool silent;
};

static int examine(struct examined *examined, const char *user, bool coded_meta)
{
    static struct cluster_ops ops;
    struct cluster *cluster = fake_cluster_new(examined->medium);
    struct diag diag = DIAG_INIT;
    fake_medium_erasure_coded_meta(examined->medium, coded_meta);
    ops = *cluster->ops;
    ops.ask = canned;
    cluster->ops = &ops;
    struct rados_doctor_options options = {
        .cluster = cluster, .user = user, .meta_pool = "p", .data_pool = "p", .space = "cairn"};
    examined->doctor = (struct doctor){0};
    int rc = rados_doctor(&options, &examined->doctor, &examined->silent, &diag);
    cluster->ops->close(cluster);
    return rc;
}

/* Is there a finding of that level with these words, and with a remedy if it is bad? */
static bool has(const struct doctor *doctor, enum doctor_level level, const char *check,
                const char *word)
{
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        if (finding->level == level && strcmp(finding->check, check) == 0 &&
            strstr(finding->text, word) != NULL) {
            return (finding->remedy[0] != '\0') == (level != DOCTOR_GOOD);
        }
    }
    return false;
}

static void setup(struct examined *examined)
{
    examined->medium = fake_medium_new();
    said = good;
}

static void teardown(struct examined *examined) { fake_medium_free(examined->medium); }

#define EXAMINED_TEST(name) FIXTURE_TEST(name, setup, teardown, struct examined, examined)

EXAMINED_TEST(a_good_cluster_is_good)
{
    assert_int_equal(examine(examined, "cairn", false), 0);
    assert_int_equal(doctor_count(&examined->doctor, DOCTOR_UNSAFE), 0);
    /* The fake knows no rights: every namespace is open. */
    assert_int_equal(doctor_count(&examined->doctor, DOCTOR_WARNING), 1);
    assert_true(has(&examined->doctor, DOCTOR_WARNING, "rights", "every namespace"));
    assert_int_equal(fake_medium_objects(examined->medium), 0); /* nothing stays behind */
}

EXAMINED_TEST(what_is_bad_is_found)
{
    static const struct {
        struct cluster_said said;
        enum doctor_level level;
        const char *check, *word;
    } cases[] = {
        {{.release = "mimic"}, DOCTOR_UNSAFE, "version", "too old"},
        {{.release = "squid"}, DOCTOR_WARNING, "version", "tested on pacific"},
        {{.release = "zebra"}, DOCTOR_WARNING, "version", "tested on pacific"},
        {{.size = 1, .min_size = 1}, DOCTOR_UNSAFE, "pool p", "one copy"},
        {{.min_size = 1}, DOCTOR_UNSAFE, "pool p", "min_size 1"},
        {{.size = 2}, DOCTOR_WARNING, "pool p", "one copy left"},
        {{.min_size = 3}, DOCTOR_WARNING, "pool p", "stops all writes"},
        {{.type = 3}, DOCTOR_UNSAFE, "pool p", "omap"},
        {{.flags = "sortbitwise,pausewr"}, DOCTOR_UNSAFE, "flags", "pausewr"},
        {{.flags = "full,sortbitwise"}, DOCTOR_UNSAFE, "flags", "full"},
        {{.flags = "noout"}, DOCTOR_WARNING, "flags", "noout"},
        {{.pool_flags = ",full,full_quota"}, DOCTOR_UNSAFE, "pool p", "full by its quota"},
        {{.pool_flags = ",nearfull"}, DOCTOR_WARNING, "pool p", "nearly full"},
        {{.used_percent = 80}, DOCTOR_WARNING, "pool p", "80 % of it is used"},
        {{.quota = 100 << 20, .stored = 90 << 20},
         DOCTOR_WARNING,
         "pool p",
         "90 of 100 MiB of the pool's quota"},
        {{.quota = 100 << 20, .stored = 101 << 20}, DOCTOR_UNSAFE, "pool p", "101 of 100 "},
        {{.quota = 100 << 20, .stored = 10 << 20}, DOCTOR_GOOD, "pool p", "10 of 100 "},
        {{.skew_s = 30}, DOCTOR_WARNING, "clock", "differ by"},
        {{.skew_s = -30}, DOCTOR_WARNING, "clock", "differ by"},
        {{.skew_s = 3600}, DOCTOR_UNSAFE, "clock", "differ by"},
        {{.may_read_keys = true}, DOCTOR_UNSAFE, "rights", "keys of all users"},
        {{.checks = "\"OSD_FULL\":{\"severity\":\"HEALTH_ERR\",\"summary\":{\"message\":"
                    "\"1 full osd(s)\"}}"},
         DOCTOR_UNSAFE,
         "health",
         "OSD_FULL: 1 full osd"},
        {{.checks = "\"OSD_DOWN\":{\"severity\":\"HEALTH_WARN\",\"summary\":{\"message\":\"x\"}}"},
         DOCTOR_WARNING,
         "health",
         "OSD_DOWN"},
        {{.checks = "\"OSD_DOWN\":{\"severity\":\"HEALTH_WARN\",\"muted\":true}"},
         DOCTOR_GOOD,
         "health",
         "HEALTH_OK"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        say(&cases[i].said);
        assert_int_equal(examine(examined, "cairn", said.type == 3), 0);
        if (!has(&examined->doctor, cases[i].level, cases[i].check, cases[i].word)) {
            fail_msg("case %zu: no %s finding '%s' of %s", i, doctor_level_name(cases[i].level),
                     cases[i].word, cases[i].check);
        }
    }
    said = good;
    assert_int_equal(examine(examined, "admin", false), 0);
    assert_true(has(&examined->doctor, DOCTOR_UNSAFE, "rights", "client.admin"));
}

static struct json_view view(const char *text) { return json_view_of(strlen(text), text); }

EXAMINED_TEST(coded_pools_need_spare_pieces)
{
    static const struct {
        const char *k;
        unsigned size, min_size;
        enum doctor_level level;
        const char *remedy;
    } cases[] = {
        {"2", 4, 3, DOCTOR_GOOD, ""},
        {"2", 4, 2, DOCTOR_UNSAFE, "min_size 3"},
        {"2", 3, 3, DOCTOR_WARNING, "m=2"},
        {"2", 3, 2, DOCTOR_UNSAFE, "m=2"},
        {"", 3, 2, DOCTOR_WARNING, "erasure-code-profile"},
    };
    struct doctor *doctor = &examined->doctor;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[400];
        snprintf(text, sizeof(text),
                 "{\"osdmap\":{\"pools\":[{\"pool_name\":\"d\",\"type\":3,\"size\":%u,\"min_size\":"
                 "%u,\"erasure_code_profile\":\"e\"}],\"erasure_code_profiles\":{\"e\":{\"k\":"
                 "\"%s\"}}}}",
                 cases[i].size, cases[i].min_size, cases[i].k);
        *doctor = (struct doctor){0};
        rados_doctor_pool("d", false, view(text), view("{}"), doctor);
        assert_int_equal(doctor->count, 1);
        assert_int_equal(doctor->findings[0].level, cases[i].level);
        assert_non_null(strstr(doctor->findings[0].remedy, cases[i].remedy));
    }
    *doctor = (struct doctor){0};
    rados_doctor_pool("absent", true, view("{\"osdmap\":{\"pools\":[]}}"), view("{}"), doctor);
    assert_true(has(doctor, DOCTOR_UNSAFE, "pool absent", "no pool of that name"));
}

/* Goal: refusals in use are findings. */
EXAMINED_TEST(use_is_tried)
{
    static const struct {
        int error;
        const char *word;
    } cases[] = {{EPERM, "DENIED"}, {EDQUOT, "QUOTA"}, {ESHUTDOWN, "blocklist"}, {ENOSPC, "full"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct fake_plan plan = {
            .seed = 1, .percent = {[FAKE_REFUSED] = 100}, .error = cases[i].error};
        fake_medium_plan(examined->medium, &plan);
        assert_int_equal(examine(examined, "cairn", false), 0);
        assert_true(has(&examined->doctor, DOCTOR_UNSAFE, "use of p", cases[i].word));
    }
    fake_medium_plan(examined->medium, NULL);
}

EXAMINED_TEST(an_old_cluster_is_refused)
{
    struct diag diag = DIAG_INIT;
    assert_int_equal(cluster_release_check(16, NULL), 0);
    assert_int_equal(cluster_release_check(CLUSTER_RELEASE_MIN, NULL), 0);
    assert_int_equal(cluster_release_check(13, &diag), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(diag.text, "require-osd-release"));
}

/* OSDs that answer nothing: what the monitors know of it is told, and one operation is waited for,
 * not one after another. */
EXAMINED_TEST(silence_is_waited_for_once)
{
    struct fake_plan silence = {.seed = 1, .percent[FAKE_REFUSED] = 100, .error = ETIMEDOUT};
    say(&(struct cluster_said){.checks = "\"OSD_DOWN\":{\"severity\":\"HEALTH_WARN\","
                                         "\"summary\":{\"message\":\"3 osds down\"}}"});
    fake_medium_plan(examined->medium, &silence);
    uint64_t before = fake_medium_calls(examined->medium);
    assert_int_equal(examine(examined, "cairn", false), 0);
    assert_true(examined->silent);
    assert_true(fake_medium_calls(examined->medium) - before <= 1);
    assert_true(has(&examined->doctor, DOCTOR_WARNING, "health", "OSD_DOWN: 3 osds down"));
    assert_true(has(&examined->doctor, DOCTOR_UNSAFE, "use of p", "did not answer in time"));
}

/* What the pools leave: not the cluster's raw space, but without copies and parity, and no more
 * than a quota leaves. */
TEST(the_room_is_that_of_the_pools)
{
    static const char format[] =
        "{\"stats\":{\"total_avail_bytes\":9000000},\"pools\":["
        "{\"name\":\"meta\",\"stats\":{\"stored\":10,\"objects\":4,\"max_avail\":%u}},"
        "{\"name\":\"data\",\"stats\":{\"stored\":500,\"objects\":7,\"max_avail\":2000,"
        "\"quota_objects\":%u,\"quota_bytes\":%u}}]}";
    static const struct {
        unsigned meta, objects_max, quota;
        uint64_t free_bytes, total_bytes;
    } rows[] = {{900, 0, 0, 2000, 2500}, {900, 8, 700, 200, 700}, {900, 0, 9000, 2000, 2500},
                {900, 0, 400, 0, 500},   {900, 7, 0, 0, 500},     {0, 0, 0, 0, 500}};
    static const char *const pools[CLUSTER_POOLS] = {"meta", "data"};
    static const char *const other[CLUSTER_POOLS] = {"meta", "none"};
    char text[512];
    struct cluster_usage usage;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int bytes =
            snprintf(text, sizeof(text), format, rows[i].meta, rows[i].objects_max, rows[i].quota);
        assert_true(cluster_usage_read((size_t)bytes, text, pools, &usage));
        assert_true(usage.free_bytes == rows[i].free_bytes);
        assert_true(usage.total_bytes == rows[i].total_bytes);
        assert_true(usage.records_free_bytes == rows[i].meta);
        assert_false(usage.is_raw);
        assert_false(cluster_usage_read((size_t)bytes, text, other, &usage));
        assert_false(cluster_usage_read((size_t)bytes / 2, text, pools, &usage));
    }
}
