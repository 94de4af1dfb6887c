/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor_config: what `cairn doctor --config` says about a daemon's configuration: whether the
 * daemon would start with it, its certificates, and whether anything forgets, collects and scrubs.
 */
#ifndef CAIRN_TOOLS_DOCTOR_CONFIG_H
#define CAIRN_TOOLS_DOCTOR_CONFIG_H

#include "store/doctor.h"

/* Reads the file and adds findings. `now_s`: seconds since 1970. */
void doctor_config(const char *path, int64_t now_s, struct doctor *doctor);

#endif
