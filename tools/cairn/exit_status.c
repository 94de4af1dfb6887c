/* SPDX-License-Identifier: Apache-2.0
 *
 * See exit_status.h.
 */
#include "exit_status.h"

#include <stddef.h>

const struct exit_status exit_statuses[] = {
    {0, "good", "done"},
    {1, "failed",
     "an error without a status of its own; `diff`: the checkpoints differ; `doctor`: something is "
     "unsafe"},
    {2, "usage", "wrong usage or configuration"},
    {3, "partial",
     "`restore`: an older checkpoint was written; others: only a part was done; `doctor`: only "
     "warnings"},
    {4, "not found", "no such run or checkpoint"},
    {5, "unreachable",
     "no server answers, or it is stopping: try again; `wait`, `flush`: the time ran out"},
    {6, "damage", "stored bytes do not match their checksums"},
    {7, "red", "`status`: the server answers, but its health is red, so saves are refused"},
    {10, "no store", "there is no store here, or none that this version can read"},
    {11, "busy", "in use by another process"},
    {12, "refused", "not allowed, or authentication failed"},
    {130, "interrupted", "interrupted by SIGINT, SIGTERM or SIGHUP"},
    {0, NULL, NULL}};
