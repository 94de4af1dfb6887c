/* SPDX-License-Identifier: Apache-2.0
 *
 * See exit_status.h.
 */
#include "exit_status.h"

#include <stddef.h>

const struct exit_status exit_statuses[] = {
    {0, "good", "done"},
    {1, "failed",
     "an error that has no status of its own, also `--only` that matches nothing; stderr names it; "
     "`diff`: the checkpoints differ; `doctor`: something is unsafe"},
    {2, "usage", "wrong usage or configuration"},
    {3, "partial",
     "`restore`: the newest checkpoint was damaged, an older good one was written; other commands: "
     "a part was done, stderr names the rest; `doctor`: warnings only"},
    {4, "not found", "no such run or checkpoint"},
    {5, "unreachable",
     "the server cannot be reached, did not answer in time, or is stopping: try again; `wait`, "
     "`flush`: the time was over"},
    {6, "damage", "stored bytes do not match their checksums"},
    {7, "red", "`status`: the server is reached, and its health is red: saves are refused"},
    {10, "no store", "no store here, or not one that this version can read"},
    {11, "busy", "in use by another process"},
    {12, "refused", "not allowed, or authentication failed"},
    {130, "interrupted", "interrupted by SIGINT, SIGTERM or SIGHUP"},
    {0, NULL, NULL}};
