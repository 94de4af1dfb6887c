/* SPDX-License-Identifier: Apache-2.0
 *
 * holder: which process has a file open, for texts that help an operator ("cairnd (pid 4711)").
 * Linux's /proc; other users' processes are seen by root alone.
 */
#ifndef CAIRN_ENV_HOLDER_H
#define CAIRN_ENV_HOLDER_H

#include <stddef.h>

/* The first process but this one that has `path` open; "" when none is seen. */
void holder_of(const char *path, size_t size, char *ret);

#endif
