/* SPDX-License-Identifier: Apache-2.0
 *
 * The sections [retention] and [retention "project/pattern"] of the configuration.
 */
#ifndef CAIRN_DAEMON_CONFIG_RETENTION_H
#define CAIRN_DAEMON_CONFIG_RETENTION_H

#include "daemon/config.h"

#include <stdio.h>

bool config_is_retention(const char *section);
/* One line of such a section. CONFIG, by section and name. */
int MUST_USE config_add_retention(struct retain_table *table, const char *section, const char *name,
                                  const char *value, struct diag *diag);
/* Each section is a policy without contradiction; an interval has something to do. CONFIG. */
int MUST_USE config_check_retention(const struct config *config, struct diag *diag);
void config_print_retention(const struct retain_table *table, FILE *out);

#endif
