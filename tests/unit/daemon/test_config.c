/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kind of value is taken or refused as its row says, every mistake is named with its line or
 * flag, what is printed can be read again, and the shipped file passes. Method: small files in a
 * folder of the test's own.
 */
#include "daemon/config.h"
#include "daemon/config_value.h"
#include "daemon/listeners.h"
#include "support/unit_test.h"

#include <unistd.h>

static struct config config, other;
static char dir[] = "/tmp/cairn-config-XXXXXX";
static char path[64];

static int group_setup(void **state)
{
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/cairnd.conf", dir);
    return 0;
}

static int group_teardown(void **state)
{
    unlink(path);
    return rmdir(dir);
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

static int read_text(const char *text, struct diag *diag)
{
    write_file(text);
    config_defaults(&config);
    return config_read(&config, path, diag);
}

static void assert_refused(const char *text, const char *line, const char *what)
{
    struct diag diag = DIAG_INIT;
    char where[96];
    assert_int_equal(read_text(text, &diag), CAIRN_E_CONFIG);
    snprintf(where, sizeof where, "%s:%s:", path, line);
    if (!strstr(diag.text, where) || !strstr(diag.text, what)) {
        fail_msg("'%s' lacks '%s' or '%s'", diag.text, where, what);
    }
}

TEST(test_values)
{
    static const struct {
        const char *text;
        uint64_t bytes, ms; /* UINT64_MAX: refused */
    } cases[] = {{"0", 0, UINT64_MAX},
                 {"512", 512, UINT64_MAX},
                 {"64KiB", 65536, UINT64_MAX},
                 {"128MiB", UINT64_C(128) << 20, UINT64_MAX},
                 {"1GiB", UINT64_C(1) << 30, UINT64_MAX},
                 {"2TiB", UINT64_C(2) << 40, UINT64_MAX},
                 {"250ms", UINT64_MAX, 250},
                 {"10s", UINT64_MAX, 10000},
                 {"5m", UINT64_MAX, 300000},
                 {"1h", UINT64_MAX, 3600000},
                 {"", UINT64_MAX, UINT64_MAX},
                 {"-1", UINT64_MAX, UINT64_MAX},
                 {" 1", UINT64_MAX, UINT64_MAX},
                 {"1 MiB", UINT64_MAX, UINT64_MAX},
                 {"1MB", UINT64_MAX, UINT64_MAX},
                 {"1d", UINT64_MAX, UINT64_MAX},
                 {"18446744073709551616", UINT64_MAX, UINT64_MAX},
                 {"18446744073709551615GiB", UINT64_MAX, UINT64_MAX},
                 {"18446744073709551615h", UINT64_MAX, UINT64_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t value = 7;
        bool good = cases[i].bytes != UINT64_MAX;
        assert_int_equal(value_bytes(cases[i].text, &value, NULL), good ? 0 : CAIRN_E_CONFIG);
        assert_true(value == (good ? cases[i].bytes : 7));
        value = 7;
        good = cases[i].ms != UINT64_MAX;
        assert_int_equal(value_duration_ms(cases[i].text, &value, NULL), good ? 0 : CAIRN_E_CONFIG);
        assert_true(value == (good ? cases[i].ms : 7));
    }
    uint64_t count;
    bool flag = false;
    char text[4];
    assert_int_equal(value_count("1", 1, &count, NULL), 0);
    assert_int_equal(value_count("0", 1, &count, NULL), CAIRN_E_CONFIG);
    assert_int_equal(value_count("0", 0, &count, NULL), 0);
    assert_int_equal(value_count("1000001", 0, &count, NULL), CAIRN_E_CONFIG);
    assert_int_equal(value_bool("yes", &flag, NULL), 0);
    assert_true(flag);
    assert_int_equal(value_bool("1", &flag, NULL), CAIRN_E_CONFIG);
    assert_int_equal(value_text("abc", sizeof text, text, NULL), 0);
    assert_int_equal(value_text("abcd", sizeof text, text, NULL), CAIRN_E_CONFIG);
}

TEST(test_values_print_as_they_read)
{
    static const uint64_t values[] = {
        0, 1, 999, 1024, 65536, 1000, 300000, 3600000, UINT64_C(3) << 40, 1234567};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        char text[64];
        uint64_t back;
        value_format_bytes(values[i], sizeof text, text);
        assert_int_equal(value_bytes(text, &back, NULL), 0);
        assert_true(back == values[i]);
        value_format_duration(values[i], sizeof text, text);
        assert_int_equal(value_duration_ms(text, &back, NULL), 0);
        assert_true(back == values[i]);
    }
    char text[64];
    value_format_bytes(UINT64_C(128) << 20, sizeof text, text);
    assert_string_equal(text, "128MiB");
    value_format_duration(300000, sizeof text, text);
    assert_string_equal(text, "5m");
}

TEST(test_quotas)
{
    static const struct {
        const char *project, *text;
        uint64_t bytes, checkpoints; /* both 0: refused */
    } cases[] = {{"vision", "2TiB", UINT64_C(2) << 40, 0},
                 {"*", "10 checkpoints", 0, 10},
                 {"nlp", "1GiB, 1000 checkpoints", UINT64_C(1) << 30, 1000},
                 {"nlp", "5 checkpoints ,64KiB", 65536, 5},
                 {"nlp", "", 0, 0},
                 {"nlp", "0", 0, 0},
                 {"nlp", "0 checkpoints", 0, 0},
                 {"nlp", "1GiB, 2GiB", 0, 0},
                 {"nlp", "1GiB,", 0, 0},
                 {"nlp", "10 saves", 0, 0},
                 {"NLP", "1GiB", UINT64_C(1) << 30, 0},
                 {"a/b", "1GiB", 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quota quota;
        bool good = cases[i].bytes != 0 || cases[i].checkpoints != 0;
        assert_int_equal(value_quota(cases[i].project, cases[i].text, &quota, NULL),
                         good ? 0 : CAIRN_E_CONFIG);
        if (good) {
            assert_string_equal(quota.project, cases[i].project);
            assert_true(quota.bytes == cases[i].bytes);
            assert_true(quota.checkpoints == cases[i].checkpoints);
        }
    }
    struct diag diag = DIAG_INIT;
    assert_int_equal(read_text("[quota]\n* = 1GiB\nvision = 7 checkpoints\n", &diag), 0);
    assert_true(quota_of(&config.quotas, "vision")->checkpoints == 7);
    assert_true(quota_of(&config.quotas, "nlp")->bytes == UINT64_C(1) << 30);
    config.quotas.count = 0;
    assert_null(quota_of(&config.quotas, "nlp"));
    assert_refused("[quota]\n* = 1GiB\n* = 2GiB\n", "3", "twice");
    assert_refused("[quota]\nvision = much\n", "2", "1000 checkpoints");
}

TEST(test_retention)
{
    struct diag diag = DIAG_INIT;
    struct run_name gpt, vit;
    assert_int_equal(run_name_parse("lab/gpt-7", &gpt, NULL), 0);
    assert_int_equal(run_name_parse("lab/vit", &vit, NULL), 0);
    assert_int_equal(read_text("[retention]\ninterval = 1h\nkeep-last = 3\n"
                               "[retention \"lab/gpt-*\"]\nkeep-daily = 7\nkeep-tag = a\n"
                               "keep-tag = b\n",
                               &diag),
                     0);
    assert_true(config.retention_ms == 3600000);
    assert_true(config.retention.count == 2);
    assert_string_equal(policy_row_of(&config.retention, &gpt)->options[0].name, "keep-daily");
    assert_true(policy_row_of(&config.retention, &gpt)->option_count == 3);
    assert_string_equal(policy_row_of(&config.retention, &vit)->options[0].name, "keep-last");
    assert_refused("[retention]\nkeep-lots = 3\n", "2", "keep-lots");
    assert_refused("[retention]\nkeep-last = three\n", "2", "keep-last");
    assert_refused("[retention]\nkeep-last = 3\nkeep-last = 4\n", "3", "twice");
    assert_refused("[retention lab/gpt]\nkeep-last = 3\n", "2", "project/pattern");
    assert_refused("[retention \"gpt\"]\nkeep-last = 3\n", "2", "gpt/*");
    assert_refused(
        "[retention \"lab/a-name-that-is-much-too-long-for-a-section\"]\nkeep-last = 3\n", "2",
        "36");
}

/* Goal: a policy that nobody would follow, and an interval with nothing to do, are told. */
TEST(test_retention_is_whole)
{
    static const struct {
        const char *text, *what; /* NULL means that it is good */
    } cases[] = {{"[retention]\nkeep-last = 3\n", "set interval = 1h"},
                 {"[retention \"lab/*\"]\nkeep-last = 3\n", "set interval = 1h"},
                 {"[retention]\ninterval = 1h\n", NULL}, /* for stored policies */
                 {"[retention]\ninterval = 0s\nkeep-last = 3\n", NULL},
                 {"[retention]\ninterval = 1h\n[retention \"lab/*\"]\nkeep-last = 3\n", NULL},
                 {"[retention]\ninterval = 0s\n", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct diag diag = DIAG_INIT;
        char text[300];
        snprintf(text, sizeof text, "[store]\nurl = dir:/srv\n[listen]\ntcp = 127.0.0.1:1\n%s",
                 cases[i].text);
        int status = read_text(text, &diag);
        status = status != 0 ? status : config_check(&config, &diag);
        if (status != (cases[i].what ? CAIRN_E_CONFIG : 0) ||
            (cases[i].what && !strstr(diag.text, cases[i].what))) {
            fail_msg("%s: %d '%s'", cases[i].text, status, diag.text);
        }
    }
}

TEST(test_a_file_is_read)
{
    struct diag diag = DIAG_INIT;
    int status = read_text("# a comment\n; another\n\n[store]\nurl = dir:/srv/cairn\n"
                           "single-writer = yes\n[listen]\ntcp = 127.0.0.1:7421\n"
                           "[memory]\nbuffers = 64MiB\n[daemon]\ngrace = 3s",
                           &diag);
    if (status != 0) {
        fail_msg("%s", diag.text);
    }
    assert_string_equal(config.store_url, "dir:/srv/cairn");
    assert_true(config.store_force);
    assert_true(config.buffer_bytes == 64 << 20);
    assert_true(config.grace_ms == 3000);
    assert_int_equal(config_check(&config, NULL), 0);
}

TEST(test_mistakes_have_their_line)
{
    char text[2048];
    assert_refused("[store]\n\nurll = x\n", "3", "in section [store]; did you mean 'url'?");
    assert_refused("[store]\nfoo = x\n", "2", "there is no key 'foo' in section [store]; `cairnd");
    assert_refused("[store]\nurl = dir:/a\n[stare]\nurl = dir:/a\n", "4",
                   "there is no section [stare]; did you mean [store]?");
    assert_refused("[backup]\nunix = /a\n", "2", "there is no section [backup]; `cairnd --print");
    assert_refused("[store]\nurl = dir:/a\nurl = dir:/b\n", "3", "set twice");
    assert_refused("[memory]\nbuffers = 12 apples\n", "2", "not a size");
    assert_refused("[session]\nlogin = 10\n", "2", "not a duration");
    assert_refused("[store]\nsingle-writer = maybe\n", "2", "neither yes nor no");
    assert_refused("[store]\nurl = dir:/a\ncreate = yes\n", "3", "cairn store create");
    assert_refused("[listen]\nplaintext-on-network = no\n", "2", "plain-tcp = network");
    assert_refused("[store]\nnonsense\n", "2", "neither [section] nor key");
    assert_refused("[store]\nthreads = 0\n", "2", "not a count");
    snprintf(text, sizeof text, "[store]\nurl = dir:/%01000d\n", 0);
    assert_refused(text, "2", "the line has more than");
    struct diag diag = DIAG_INIT;
    config_defaults(&config);
    assert_int_not_equal(config_read(&config, "/nowhere/cairnd.conf", &diag), 0);
    assert_non_null(strstr(diag.text, "/nowhere/cairnd.conf"));
}

TEST(test_flags)
{
    struct diag diag = DIAG_INIT;
    config_defaults(&config);
    assert_int_equal(config_set(&config, "store-url", "dir:/x", &diag), 0);
    assert_string_equal(config.store_url, "dir:/x");
    assert_int_equal(config_set(&config, "store-ulr", "dir:/x", &diag), CAIRN_E_CONFIG);
    assert_non_null(strstr(diag.text, "did you mean --store-url?"));
    diag_clear(&diag);
    assert_int_equal(config_set(&config, "hlp", NULL, &diag), CAIRN_E_CONFIG);
    assert_non_null(strstr(diag.text, "no option --hlp; did you mean --help?"));
    diag_clear(&diag);
    assert_int_equal(config_set(&config, "frob", NULL, &diag), CAIRN_E_CONFIG);
    assert_non_null(strstr(diag.text, "no option --frob; see cairnd --help"));
    diag_clear(&diag);
    assert_int_equal(config_set(&config, "store-url", NULL, &diag), CAIRN_E_CONFIG);
    assert_non_null(strstr(diag.text, "--store-url needs a value"));
    diag_clear(&diag);
    assert_int_equal(config_set(&config, "store-create", "yes", &diag), CAIRN_E_CONFIG);
    assert_non_null(strstr(diag.text, "cairn store create"));
    diag_clear(&diag);
    assert_int_equal(config_set(&config, "memory-buffers", "x", &diag), CAIRN_E_CONFIG);
    assert_non_null(strstr(diag.text, "--memory-buffers"));
}

/* Settings that are good one by one and not together. */
#define NINE     "/socket89"
#define TOO_LONG /* by one byte, for the path of a socket */ \
    NINE NINE NINE NINE NINE NINE NINE NINE NINE NINE NINE NINE

TEST(test_cross_checks)
{
    static const struct {
        const char *flag, *value, *what;
    } cases[] = {{"store-url", "", "[store] url is not set"},
                 {"store-url", "dir:relative", "[store] url"},
                 {"listen-tcp", "", "[listen]"},
                 {"tls-cert", "cert.pem", "must be set together"},
                 {"save-chunk", "5000", "[save] chunk"},
                 {"save-chunk", "8MiB", "[save] chunk"},
                 {"memory-buffers", "15MiB", "[memory] buffers"},
                 {"session-dead-after", "6s", "twice heartbeat"},
                 {"session-heartbeat", "0ms", "twice heartbeat"},
                 {"session-login", "0s", "longer than zero"},
                 {"session-grant-idle", "1200h", "at most 24h"},
                 {"store-threads", "65", "at most 64"},
                 {"log-level", "loud", "[log] level"},
                 {"log-format", "xml", "[log] format"},
                 {"listen-unix-mode", "0999", "unix-mode"},
                 {"listen-unix", TOO_LONG, "[listen] unix has 108 bytes"},
                 {"store-uuid", "abc", "[store] uuid"},
                 {"listen-tcp", "0.0.0.0:7421", "plain-tcp = network"},
                 {"listen-plain-tcp", "no", "plain-tcp = loopback"},
                 {"listen-plain-tcp", "yes", "it must be no, loopback or network"},
                 {"listen-tcp", "127.0.0.1:7421,nonsense:port", "[listen] tcp"},
                 {"metrics-listen", "0.0.0.0:7422", "on-network"},
                 {"metrics-listen", "nonsense:port", "[http] listen"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct diag diag = DIAG_INIT;
        config_defaults(&config);
        assert_int_equal(config_set(&config, "store-url", "dir:/srv", NULL), 0);
        assert_int_equal(config_set(&config, "listen-tcp", "127.0.0.1:1,localhost:2", NULL), 0);
        assert_int_equal(config_set(&config, "listen-plain-tcp", "loopback", NULL), 0);
        assert_int_equal(config_check(&config, NULL), 0);
        assert_int_equal(listeners_check(&config, NULL), 0);
        assert_int_equal(config_set(&config, cases[i].flag, cases[i].value, NULL), 0);
        int status = config_check(&config, &diag);
        status = status != 0 ? status : listeners_check(&config, &diag);
        if (status == 0 || !strstr(diag.text, cases[i].what)) {
            fail_msg("%s=%s: %d '%s'", cases[i].flag, cases[i].value, status, diag.text);
        }
    }
    config_defaults(&config);
    assert_int_equal(config_set(&config, "listen-tcp", "0.0.0.0:7421", NULL), 0);
    assert_int_equal(config_set(&config, "listen-plain-tcp", "network", NULL), 0);
    assert_int_equal(listeners_check(&config, NULL), 0);
    assert_int_equal(config_set(&config, "metrics-listen", "0.0.0.0:7422", NULL), 0);
    assert_int_equal(config_set(&config, "metrics-on-network", "yes", NULL), 0);
    assert_int_equal(listeners_check(&config, NULL), 0);
}

static void print_to_file(const struct config *from)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    config_print(from, file);
    assert_int_equal(fclose(file), 0);
}

TEST(test_what_is_printed_can_be_read)
{
    config_defaults(&config);
    assert_int_equal(config_set(&config, "store-url", "dir:/srv/cairn", NULL), 0);
    assert_int_equal(config_set(&config, "memory-buffers", "100MiB", NULL), 0);
    assert_int_equal(config_set(&config, "daemon-grace", "90s", NULL), 0);
    assert_int_equal(config_set(&config, "store-single-writer", "yes", NULL), 0);
    assert_int_equal(config_set(&config, "retention-interval", "0s", NULL), 0); /* all is said */
    print_to_file(&config);
    struct diag diag = DIAG_INIT;
    memset(&other, 0, sizeof other);
    config_defaults(&other);
    if (config_read(&other, path, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    assert_memory_equal(&config, &other, sizeof config);
}

TEST(test_the_shipped_file_is_good)
{
    struct diag diag = DIAG_INIT;
    config_defaults(&config);
    int status = config_read(&config, CAIRN_DEPLOY "/cairnd.conf", &diag);
    status = status != 0 ? status : config_check(&config, &diag);
    status = status != 0 ? status : listeners_check(&config, &diag);
    if (status != 0) {
        fail_msg("%s", diag.text);
    }
}

UNIT_TEST_GROUP(group_setup, group_teardown)
