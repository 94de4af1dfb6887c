/* SPDX-License-Identifier: Apache-2.0
 *
 * Golden files: bytes of released formats, which are only ever added. Tests read them, and the
 * programs make_golden* write those that are missing.
 */
#ifndef CAIRN_TESTS_SUPPORT_GOLDEN_FILE_H
#define CAIRN_TESTS_SUPPORT_GOLDEN_FILE_H

#include "base/buf.h"

/* Returns the bytes of a golden file. Where there is no such file the program ends, and says so. */
struct buf golden_read(const char *folder, const char *name);
/* Writes a golden file, unless there is one of this name. Returns 0, or 1 if it could not be
 * written; says on the terminal which. */
int golden_write(const char *folder, const char *name, const struct buf *bytes);

#endif
