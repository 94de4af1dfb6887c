/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines as text or JSON, built in a fixed buffer on the stack. Invariants: one line is one
 * write, so lines of several threads do not mix; a field that does not fit is left out as a whole
 * and the line says so ("truncated"), so that a JSON line stays JSON; the line is valid UTF-8
 * without control characters, whatever the bytes of a value. Any thread.
 */
#include "base/log.h"

#include "base/check.h"
#include "base/plain.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 8192, LINE_TAIL_BYTES = 32 };

/* A bounded text. Once something did not fit, `full` stays set and nothing more is added. */
struct line {
    char text[LINE_MAX_BYTES];
    size_t bytes, max;
    bool full;
};

static _Atomic(enum log_level) log_least = LOG_INFO;
static _Atomic(enum log_format) log_layout = LOG_TEXT;
static _Atomic uint64_t log_dropped_lines;
static log_sink log_user_sink; /* set before threads start */
static void *log_user;

static const char *const log_level_names[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"};
/* The priorities of syslog, as systemd reads them from the start of a line. */
static const char log_priorities[] = {
    [LOG_DEBUG] = '7', [LOG_INFO] = '6', [LOG_WARN] = '4', [LOG_ERROR] = '3'};
static const char *const log_format_names[] = {[LOG_TEXT] = "text", [LOG_JSON] = "json"};

void log_setup(enum log_level least, enum log_format format)
{
    atomic_store(&log_least, least);
    atomic_store(&log_layout, format);
}

void log_set_sink(log_sink sink, void *user)
{
    log_user_sink = sink;
    log_user = user;
}

bool log_enabled(enum log_level level)
{
    return level >= atomic_load_explicit(&log_least, memory_order_relaxed);
}

uint64_t log_dropped(void) { return atomic_load(&log_dropped_lines); }

int log_parse_level(const char *word, enum log_level *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(log_level_names); i++) {
        if (strcmp(word, log_level_names[i]) == 0) {
            *ret = (enum log_level)i;
            return 0;
        }
    }
    return CAIRN_E_INVALID;
}

int log_parse_format(const char *word, enum log_format *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(log_format_names); i++) {
        if (strcmp(word, log_format_names[i]) == 0) {
            *ret = (enum log_format)i;
            return 0;
        }
    }
    return CAIRN_E_INVALID;
}

static void line_put(struct line *line, size_t bytes, const char *text)
{
    if (line->full || bytes > line->max - line->bytes) {
        line->full = true;
        return;
    }
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
}

static void line_puts(struct line *line, const char *text) { line_put(line, strlen(text), text); }

static void PRINTF(2, 3) line_printf(struct line *line, const char *fmt, ...)
{
    char text[128];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    CHECK(length >= 0);
    CHECK((size_t)length < sizeof(text));
    line_put(line, (size_t)length, text);
}

/* Writes the inside of a quoted string with JSON's escapes; text lines use the same. */
static void line_escaped(struct line *line, const char *value)
{
    char escape[PLAIN_ESCAPE_BYTES];
    for (size_t length; *value != '\0' && !line->full; value += length) {
        length = plain_next(value, escape);
        if (escape[0] != '\0') {
            line_puts(line, escape);
        } else if (*value == '"' || *value == '\\') {
            line_printf(line, "\\%c", *value);
        } else {
            line_put(line, length, value);
        }
    }
}

static void line_quoted(struct line *line, const char *value)
{
    line_puts(line, "\"");
    line_escaped(line, value);
    line_puts(line, "\"");
}

/* Returns whether a text line may show the value without quotes. */
static bool is_plain(const char *value)
{
    if (*value == '\0') {
        return false;
    }
    for (const uint8_t *at = (const uint8_t *)value; *at != '\0'; at++) {
        if (*at <= ' ' || *at >= 0x7f || *at == '"' || *at == '\\' || *at == '=') {
            return false;
        }
    }
    return true;
}

/* Appends the value of a field, with quotes if the format or the text needs them. */
static void line_value(struct line *line, const struct log_field *field, enum log_format format)
{
    switch (field->kind) {
    case LOG_K_U64:
        line_printf(line, "%" PRIu64, field->v.u64);
        return;
    case LOG_K_I64:
        line_printf(line, "%" PRId64, field->v.i64);
        return;
    case LOG_K_F64:
        if (isfinite(field->v.f64)) {
            line_printf(line, "%.9g", field->v.f64);
        } else if (format == LOG_JSON) {
            line_puts(line, "null"); /* JSON has no infinities */
        } else {
            line_printf(line, "%f", field->v.f64);
        }
        return;
    case LOG_K_STR:
        if (format == LOG_TEXT && is_plain(field->v.str)) {
            line_puts(line, field->v.str);
        } else {
            line_quoted(line, field->v.str);
        }
        return;
    case LOG_K_END:
        return;
    }
}

/* Adds ` key=value`, or `,"key":value` in JSON. A text that is NULL adds nothing. */
static void line_field(struct line *line, const struct log_field *field, enum log_format format)
{
    if (field->kind == LOG_K_STR && field->v.str == NULL) {
        return;
    }
    if (format == LOG_JSON) {
        line_puts(line, ",");
        line_quoted(line, field->key);
        line_puts(line, ":");
    } else {
        line_printf(line, " %.64s=", field->key);
    }
    line_value(line, field, format);
}

/* Appends time, level, component and message, with which every line begins. */
static void line_head(struct line *line, enum log_level level, const char *component,
                      const char *msg)
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    char ts[32];
    size_t length = strftime(ts, sizeof(ts), "%Y-%m-%dT%H:%M:%S", &tm);
    CHECK(length > 0);

    int ms = (int)(now.tv_nsec / 1000000);
    if (atomic_load(&log_layout) == LOG_JSON) {
        line_printf(line, "{\"ts\":\"%s.%03dZ\",\"level\":\"%s\",\"component\":", ts, ms,
                    log_level_names[level]);
        line_quoted(line, component);
        line_puts(line, ",\"msg\":");
        line_quoted(line, msg);
    } else {
        line_printf(line, "%s.%03dZ %-5s %.64s: ", ts, ms, log_level_names[level], component);
        line_escaped(line, msg);
    }
}

/* Writes the line to stderr in one write. A pipe that is full or closed costs this line, never the
 * program. */
static void log_to_stderr(enum log_level level, struct line *line)
{
    char out[LINE_MAX_BYTES + 8];
    size_t bytes = 0;
    if (getenv("JOURNAL_STREAM") != NULL) {
        out[bytes++] = '<';
        out[bytes++] = log_priorities[level];
        out[bytes++] = '>';
    }
    memcpy(out + bytes, line->text, line->bytes);
    bytes += line->bytes;
    out[bytes++] = '\n';

    ssize_t written;
    do {
        written = write(STDERR_FILENO, out, bytes);
    } while (written < 0 && errno == EINTR);
    if (written != (ssize_t)bytes) {
        atomic_fetch_add(&log_dropped_lines, 1);
    }
}

void log_write(enum log_level level, const char *component, const char *msg,
               const struct log_field *fields)
{
    int saved_errno = errno; /* logging must not change what its caller sees */
    enum log_format format = atomic_load(&log_layout);
    struct line line;
    line.bytes = 0;
    line.max = sizeof(line.text) - LINE_TAIL_BYTES;
    line.full = false;

    line_head(&line, level, component, msg);
    bool truncated = line.full;
    if (truncated) {
        /* Only a message that is no constant can be this long. The line is kept whole without
         * it. */
        line.full = false;
        line.bytes = 0;
        line_head(&line, level, component, "this message is too long for the log");
    }
    for (const struct log_field *field = fields; field->kind != LOG_K_END; field++) {
        size_t mark = line.bytes;
        line_field(&line, field, format);
        if (line.full) {
            line.full = false;
            line.bytes = mark;
            truncated = true;
        }
    }

    line.max = sizeof(line.text) - 1; /* the reserved bytes are for this */
    if (truncated) {
        line_puts(&line, format == LOG_JSON ? ",\"truncated\":true" : " truncated=true");
    }
    if (format == LOG_JSON) {
        line_puts(&line, "}");
    }
    CHECK(!line.full);
    line.text[line.bytes] = '\0';
    if (log_user_sink != NULL) {
        log_user_sink(log_user, level, line.text, line.bytes);
    } else {
        log_to_stderr(level, &line);
    }
    errno = saved_errno;
}
