/* SPDX-License-Identifier: Apache-2.0
 *
 * Structured log: a constant message and typed fields, as text or as one JSON object a line, to
 * stderr or to a callback (libcairn hands the lines to the application). Keys are ts level msg
 * component run ckpt term step rank err dur_s bytes ..., with units as suffix. Any thread. Code
 * below session, engine and the CLI's commands never logs above debug; it returns a diag. There is
 * no field type for secrets, so they cannot be logged.
 */
#ifndef CAIRN_BASE_LOG_H
#define CAIRN_BASE_LOG_H

#include "diag.h"

#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };
enum log_kind { LOG_K_END, LOG_K_U64, LOG_K_I64, LOG_K_F64, LOG_K_STR };

/* One field of a line, made by lu(), li(), lf() or ls(); LOG_K_END ends an array of them. */
struct log_field {
    enum log_kind kind;
    const char *key;
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        const char *str; /* borrowed for the call; NULL prints nothing */
    } v;
};

static inline struct log_field lu(const char *key, uint64_t v)
{
    return (struct log_field){LOG_K_U64, key, {.u64 = v}};
}

static inline struct log_field li(const char *key, int64_t v)
{
    return (struct log_field){LOG_K_I64, key, {.i64 = v}};
}

static inline struct log_field lf(const char *key, double v)
{
    return (struct log_field){LOG_K_F64, key, {.f64 = v}};
}

static inline struct log_field ls(const char *key, const char *v)
{
    return (struct log_field){LOG_K_STR, key, {.str = v}};
}

/* A sink gets whole lines without newline. The settings belong to the process, and are made before
 * threads start. */
typedef void (*log_sink)(void *user, enum log_level level, const char *line, size_t bytes);
void log_setup(enum log_level least, enum log_format format);
/* NULL means stderr, with a <N> priority under systemd */
void log_set_sink(log_sink sink, void *user);
bool log_enabled(enum log_level level);
/* Writes one line. `fields` is an array that ends with LOG_K_END. Never fails: a line that cannot
 * be written is counted and dropped. */
void log_write(enum log_level level, const char *component, const char *msg,
               const struct log_field *fields);
uint64_t log_dropped(void); /* how many lines this process could not write */
/* Parse the words of flags and configuration ("info", "json"). INVALID for other words. */
int MUST_USE log_parse_level(const char *word, enum log_level *ret);
int MUST_USE log_parse_format(const char *word, enum log_format *ret);

/* Writes a line if the level is enabled:
 *     LOG(LOG_INFO, "commit", "checkpoint committed", ls("run", run), lu("step", step)); */
#define LOG(level, component, msg, ...)                                                   \
    (log_enabled(level)                                                                   \
         ? log_write(level, component, msg,                                               \
                     (struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){LOG_K_END, 0, {0}}}) \
         : (void)0)

#endif
