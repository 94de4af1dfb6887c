/* SPDX-License-Identifier: Apache-2.0
 *
 * config_value: values of the configuration, read from text with units, and written back. After a
 * bad text they return CONFIG, and diag says what was expected.
 */
#ifndef CAIRN_DAEMON_CONFIG_VALUE_H
#define CAIRN_DAEMON_CONFIG_VALUE_H

#include "base/diag.h"
#include "run/run_usage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read a value of the configuration: a size ("64KiB"), a duration ("10s"), a count from `least` to
 * 1000000, yes or no, and a text that fits into `bytes` bytes with its NUL. Return CONFIG for any
 * other text. */
int MUST_USE value_bytes(const char *text, uint64_t *ret, struct diag *diag);
int MUST_USE value_duration_ms(const char *text, uint64_t *ret, struct diag *diag);
int MUST_USE value_count(const char *text, uint64_t least, uint64_t *ret, struct diag *diag);
int MUST_USE value_bool(const char *text, bool *ret, struct diag *diag);
int MUST_USE value_text(const char *text, size_t bytes, char *ret, struct diag *diag);
/* Reads a project's row of [quota]: "2TiB", "1000 checkpoints", or both with a comma. */
int MUST_USE value_quota(const char *project, const char *text, struct quota *ret,
                         struct diag *diag);
/* These write a value as text, such as "128MiB" or "10s". */
void value_format_bytes(uint64_t value, size_t bytes, char *ret);
void value_format_quota(const struct quota *quota, size_t bytes, char *ret);
void value_format_duration(uint64_t value_ms, size_t bytes, char *ret);

#endif
