/* SPDX-License-Identifier: Apache-2.0
 *
 * config_retention: the sections [retention] and [retention "project/pattern"] of the
 * configuration.
 */
#ifndef CAIRN_DAEMON_CONFIG_RETENTION_H
#define CAIRN_DAEMON_CONFIG_RETENTION_H

#include "daemon/config.h"

#include <stdio.h>

/* Returns true for [retention] and for [retention NAME]. */
bool config_is_retention(const char *section);
/* Adds one line of such a section. Returns CONFIG, naming section and key. */
int MUST_USE config_add_retention(struct policy_table *table, const char *section, const char *name,
                                  const char *value, struct diag *diag);
/* Checks that each section is a policy without contradictions, and that an interval says when the
 * policies are applied. Returns CONFIG. */
int MUST_USE config_check_retention(const struct config *config, struct diag *diag);
void config_print_retention(const struct policy_table *table, FILE *out);

#endif
