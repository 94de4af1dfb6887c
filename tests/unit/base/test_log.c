/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines are whole, valid and escaped in both layouts whatever the values are; errno stays. Method:
 * a sink that keeps the line; stderr replaced by a pipe.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "support/unit_test.h"

static char kept[16384];
static enum log_level kept_level;

static void keep(void *user, enum log_level level, const char *line, size_t bytes)
{
    assert_ptr_equal(user, kept);
    assert_int_equal(strlen(line), bytes);
    assert_true(bytes < sizeof(kept));
    memcpy(kept, line, bytes + 1);
    kept_level = level;
}

static void set_up(void)
{
    kept[0] = '\0';
    log_set_sink(keep, kept);
}

static void tear_down(void)
{
    log_set_sink(NULL, NULL);
    log_setup(LOG_INFO, LOG_TEXT);
}

#define FIXED_TEST(name) SETUP_TEST(name, set_up, tear_down)

FIXED_TEST(test_text_line)
{
    log_setup(LOG_INFO, LOG_TEXT);
    LOG(LOG_WARN, "commit", "checkpoint committed", ls("run", "p/r"), lu("step", 5),
        li("delta", -3), lf("dur_s", 0.25), ls("absent", NULL), ls("path", "a b\"c"),
        ls("empty", ""));
    assert_int_equal(kept_level, LOG_WARN);
    assert_int_equal(kept[10], 'T');
    assert_int_equal(kept[23], 'Z');
    assert_string_equal(kept + 25,
                        "warn  commit: checkpoint committed run=p/r step=5 delta=-3 dur_s=0.25 "
                        "path=\"a b\\\"c\" empty=\"\"");
}

FIXED_TEST(test_json_line)
{
    log_setup(LOG_INFO, LOG_JSON);
    LOG(LOG_INFO, "c", "m", ls("s", "x\ty\n\x01"), lu("u", UINT64_MAX),
        lf("inf", (double)INFINITY));
    assert_non_null(strstr(kept, "\"level\":\"info\",\"component\":\"c\",\"msg\":\"m\","
                                 "\"s\":\"x\\u0009y\\n\\u0001\",\"u\":18446744073709551615,"
                                 "\"inf\":null}"));
    assert_int_equal(kept[0], '{');
}

FIXED_TEST(test_level_is_obeyed)
{
    log_setup(LOG_WARN, LOG_TEXT);
    LOG(LOG_INFO, "c", "not this");
    assert_string_equal(kept, "");
    assert_false(log_enabled(LOG_DEBUG));
    LOG(LOG_ERROR, "c", "this");
    assert_non_null(strstr(kept, "error c: this"));
}

FIXED_TEST(test_invalid_utf8_is_replaced)
{
    log_setup(LOG_INFO, LOG_JSON);
    /* a lone continuation, an overlong form, a surrogate, above U+10FFFF, a cut character */
    LOG(LOG_INFO, "c", "m", ls("a", "\x80"), ls("b", "\xc0\xaf"), ls("c", "\xed\xa0\x80"),
        ls("d", "\xf4\x90\x80\x80"), ls("e", "\xe2\x82"), ls("ok", "\xe2\x82\xac"));
    assert_non_null(strstr(kept, "\"a\":\"\\ufffd\","));
    assert_non_null(strstr(kept, "\"b\":\"\\ufffd\\ufffd\","));
    assert_non_null(strstr(kept, "\"c\":\"\\ufffd\\ufffd\\ufffd\","));
    assert_non_null(strstr(kept, "\"d\":\"\\ufffd\\ufffd\\ufffd\\ufffd\","));
    assert_non_null(strstr(kept, "\"e\":\"\\ufffd\\ufffd\","));
    assert_non_null(strstr(kept, "\"ok\":\"\xe2\x82\xac\"}"));
}

/* For lengths around the capacity: the field is whole or absent, and the line ends as it must. */
FIXED_TEST(test_long_value_leaves_the_line_whole)
{
    log_setup(LOG_INFO, LOG_JSON);
    char *value = malloc(20001);
    assert_non_null(value);
    for (size_t length = 7900; length <= 8300; length++) {
        memset(value, '"', length);
        value[length] = '\0';
        LOG(LOG_INFO, "c", "m", ls("long", value), lu("after", 1));
        assert_non_null(strstr(kept, "\"after\":1,\"truncated\":true}"));
        memset(value, 'x', length);
        LOG(LOG_INFO, "c", "m", ls("long", value));
        size_t end = strlen(kept);
        assert_int_equal(kept[end - 1], '}');
        assert_true(strstr(kept, "x\"}") != NULL ||
                    strstr(kept, "\"m\",\"truncated\":true}") != NULL);
    }
    memset(value, 'y', 20000);
    value[20000] = '\0';
    LOG(LOG_INFO, "c", value, lu("n", 2));
    assert_non_null(strstr(
        kept, "\"msg\":\"this message is too long for the log\",\"n\":2,\"truncated\":true}"));
    free(value);
}

FIXED_TEST(test_words_are_parsed)
{
    enum log_level level = LOG_INFO;
    enum log_format format = LOG_TEXT;
    assert_int_equal(log_parse_level("error", &level), 0);
    assert_int_equal(level, LOG_ERROR);
    assert_int_equal(log_parse_level("loud", &level), CAIRN_E_INVALID);
    assert_int_equal(log_parse_format("json", &format), 0);
    assert_int_equal(format, LOG_JSON);
    assert_int_equal(log_parse_format("xml", &format), CAIRN_E_INVALID);
    assert_int_equal(format, LOG_JSON);
}

/* A pipe in the place of stderr: whole lines, the priority under systemd, and a count of lost
 * lines. */
FIXED_TEST(test_stderr)
{
    int ends[2];
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0);
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    log_set_sink(NULL, NULL);
    log_setup(LOG_INFO, LOG_TEXT);
    assert_int_equal(setenv("JOURNAL_STREAM", "8:1", 1), 0);
    errno = EDOM;
    LOG(LOG_ERROR, "c", "told");
    int errno_after = errno;
    assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
    LOG(LOG_INFO, "c", "plain");
    uint64_t before = log_dropped();
    for (int i = 0; i < 5000; i++) { /* more than a pipe holds */
        LOG(LOG_INFO, "c", "fill the pipe until it refuses");
    }
    uint64_t lost = log_dropped() - before;
    char text[256];
    ssize_t got = read(ends[0], text, sizeof(text) - 1);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[0]);
    close(ends[1]);
    assert_true(got > 0);
    text[got] = '\0';
    assert_memory_equal(text, "<3>", 3);
    assert_non_null(strstr(text, "error c: told\n2"));
    assert_non_null(strstr(text, "info  c: plain\n"));
    assert_true(lost > 0);
    assert_int_equal(errno_after, EDOM);
}
