/* SPDX-License-Identifier: Apache-2.0
 *
 * exit_status: what `cairn` ends with, in one table: the manual's, the usage's, and the guide's
 * (docs/exit-statuses.md). Those of errors are in base/err.def; here are the commands' own too.
 */
#ifndef CAIRN_TOOLS_EXIT_STATUS_H
#define CAIRN_TOOLS_EXIT_STATUS_H

enum {
    EXIT_DIFFERENT = 1, /* diff, as diff(1) */
    EXIT_FELL_BACK = 3,
    EXIT_PARTIAL = 3,
    EXIT_DAMAGE = 6,
    EXIT_RED = 7, /* status */
    EXIT_INTERRUPTED = 130
};

struct exit_status {
    int status;
    const char *word;    /* for the one line of the usage */
    const char *meaning; /* a sentence */
};

extern const struct exit_status exit_statuses[]; /* ended by a NULL word */

#endif
