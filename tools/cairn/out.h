/* SPDX-License-Identifier: Apache-2.0
 *
 * out: the end of what a command prints to stdout. stdio keeps errors until somebody asks; here is
 * who asks.
 */
#ifndef CAIRN_TOOLS_OUT_H
#define CAIRN_TOOLS_OUT_H

#include "base/diag.h"

/* Everything printed so far is with the reader, or with nobody: a reader that has gone (`| head`)
 * wanted no more, which is no error, and the exit status stays the command's. IO: a full disk and
 * the like. */
int MUST_USE out_flush(void);

#endif
