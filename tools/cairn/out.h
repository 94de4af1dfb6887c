/* SPDX-License-Identifier: Apache-2.0
 *
 * out: what a command prints. Text that others wrote passes shown() before a terminal sees it. At
 * the end of stdout stdio keeps errors until somebody asks; here is who asks.
 */
#ifndef CAIRN_TOOLS_OUT_H
#define CAIRN_TOOLS_OUT_H

#include "base/diag.h"

/* Foreign text on its way to a terminal: names, tags, reasons, what a server or a store says. Room
 * for one; what is longer ends with "...". */
struct shown {
    char text[4096];
};
/* As base/plain.h has it; NULL is "". Borrowed from room. Tables and cli_error() do it themselves;
 * JSON has escapes of its own. */
const char *shown(struct shown *room, const char *text);

/* Everything printed so far is with the reader, or with nobody: a reader that has gone (`| head`)
 * wanted no more, which is no error, and the exit status stays the command's. IO: a full disk and
 * the like. */
int MUST_USE out_flush(void);

#endif
