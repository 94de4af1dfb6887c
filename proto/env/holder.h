/* SPDX-License-Identifier: Apache-2.0
 *
 * holder: finds the process that has a file open, for texts that help an operator ("cairnd (pid
 * 4711)"). It reads Linux's /proc, where only root sees the processes of other users.
 */
#ifndef CAIRN_ENV_HOLDER_H
#define CAIRN_ENV_HOLDER_H

#include <stddef.h>

/* Writes the first process, other than this one, that has `path` open, or "" if none is seen. */
void holder_of(const char *path, size_t size, char *ret);

#endif
