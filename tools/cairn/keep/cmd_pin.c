/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn pin, cairn unpin: keep a checkpoint whatever a policy says, and take the pin away.
 */
#include "mark.h"

struct pin_options {
    const char *reason;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN}, {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT}, {0}};

static const struct option options[] = {
    {"reason", "TEXT", "reason for the audit record", OPTION_AT_TEXT(struct pin_options, reason)},
    {0}};

static int pin(struct cli *cli, void *values, struct diag *diag)
{
    const struct pin_options *own = values;
    struct mark_words words = {.kind = MSG_MARK_PIN, .done = "pinned", .reason = own->reason};
    return mark_run(cli, &words, diag);
}

static int unpin(struct cli *cli, void *values, struct diag *diag)
{
    const struct pin_options *own = values;
    struct mark_words words = {.kind = MSG_MARK_UNPIN, .done = "unpinned", .reason = own->reason};
    return mark_run(cli, &words, diag);
}

const struct command command_pin = {.name = "pin",
                                    .group = GROUP_KEEP,
                                    .summary = "keep a checkpoint, whatever a policy says",
                                    .details =
                                        "Nobody can forget a pinned checkpoint until it is "
                                        "unpinned. The run's record keeps who pinned it and why.",
                                    .example = "cairn pin lab/gpt 1200 --reason \"paper, table 3\"",
                                    .arguments = arguments,
                                    .options = options,
                                    .options_bytes = sizeof(struct pin_options),
                                    .run = pin};

const struct command command_unpin = {
    .name = "unpin",
    .group = GROUP_KEEP,
    .summary = "remove the pin of a checkpoint",
    .details =
        "From then on policies decide about the checkpoint again. Unpinning does not forget it.",
    .example = "cairn unpin lab/gpt 1200",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct pin_options),
    .run = unpin};
