/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of the daemon: defaults, then the file, then flags. Every value is checked, and
 * every mistake is reported with its line or flag. The table is config.def.
 */
#ifndef CAIRN_DAEMON_CONFIG_H
#define CAIRN_DAEMON_CONFIG_H

#include "base/diag.h"
#include "policy/policy.h"
#include "run/run_usage.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CONFIG_TEXT_MAX = 512 };

struct config {
#define CONFIG_FIELD_TEXT(field)                     char field[CONFIG_TEXT_MAX];
#define CONFIG_FIELD_BYTES(field)                    uint64_t field;
#define CONFIG_FIELD_DURATION(field)                 uint64_t field; /* ms */
#define CONFIG_FIELD_COUNT(field)                    uint64_t field;
#define CONFIG_FIELD_COUNT_OR_0(field)               uint64_t field;
#define CONFIG_FIELD_BOOL(field)                     bool field;
#define CONF(section, key, kind, field, value, help) CONFIG_FIELD_##kind(field)
#include "config.def"
#undef CONF
    struct policy_table retention; /* the sections [retention] and [retention "project/pattern"] */
    bool retention_said;           /* its interval was set, perhaps to 0s */
    struct quota_table quotas;     /* section [quota]: a project or * = its limits; no flags */
};

void config_defaults(struct config *config);
/* Reads a file. Returns NOT_FOUND, or CONFIG with "path:line: what is wrong", and for an
 * unknown key or section the one that may be meant. */
int MUST_USE config_read(struct config *config, const char *path, struct diag *diag);
/* Sets one value, as from a flag; `name` is "section-key". Returns CONFIG for a bad name or value,
 * and if value is NULL, because nothing followed the flag. */
int MUST_USE config_set(struct config *config, const char *name, const char *value,
                        struct diag *diag);
/* Checks what single values cannot show: that there is a store and at least one listener, that TLS
 * files come together, that the network has TLS, and so on. Returns CONFIG. */
int MUST_USE config_check(const struct config *config, struct diag *diag);
/* Copies into `config` those values of `fresh` that may change while a daemon runs: retention,
 * quotas, level and format of the log, times and rates of scrub and gc, and the grace. Calls
 * differs() for each key whose value differs; is_taken is false if the new value has to wait for a
 * restart. */
void config_reload(struct config *config, const struct config *fresh,
                   void (*differs)(void *user, const char *section, const char *name,
                                   bool is_taken),
                   void *user);
/* Prints the effective configuration as a file with comments. */
void config_print(const struct config *config, FILE *out);
void config_usage(FILE *out); /* prints the flags */

#endif
