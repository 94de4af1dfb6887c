/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn unpin: take a pin away.
 */
#include "mark.h"

struct unpin_options {
    const char *reason;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN}, {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT}, {0}};

static const struct option options[] = {
    {"reason", "TEXT", "reason for the audit record", OPTION_AT_TEXT(struct unpin_options, reason)},
    {0}};

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct unpin_options *own = values;
    struct mark_words words = {.kind = MSG_MARK_UNPIN, .done = "unpinned", .reason = own->reason};
    return mark_run(cli, &words, diag);
}

const struct command command_unpin = {
    .name = "unpin",
    .group = GROUP_KEEP,
    .summary = "remove the pin of a checkpoint",
    .details =
        "From then on policies decide about the checkpoint again. Unpinning does not forget it.",
    .example = "cairn unpin lab/gpt 1200",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct unpin_options),
    .run = run};
