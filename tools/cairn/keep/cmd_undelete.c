/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn undelete: bring back a forgotten checkpoint, or say which can be.
 */
#include "mark.h"

struct undelete_options {
    const char *reason;
    bool dry_run, all;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN},
    {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT, .optional = true},
    {0}};

static const struct option options[] = {
    {"reason", "TEXT", "reason for the audit record",
     OPTION_AT_TEXT(struct undelete_options, reason)},
    {"all", NULL, "bring back everything that can be, also a run that was removed",
     OPTION_AT_FLAG(struct undelete_options, all)},
    {"dry-run", NULL, "show what would be brought back, and change nothing",
     OPTION_AT_FLAG(struct undelete_options, dry_run), .letter = 'n'},
    {0}};

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct undelete_options *own = values;
    bool list = cli->selector_text == NULL && !own->all;
    if (own->all && cli->selector_text != NULL) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--all brings everything back, so a checkpoint cannot be named as well");
    }
    struct mark_words words = {.kind = MSG_MARK_UNDELETE,
                               .done = list ? "forgotten" : "undeleted",
                               .said = own->dry_run && !list ? "would be undeleted" : NULL,
                               .reason = own->reason,
                               .all = own->all,
                               .dry_run = own->dry_run || list};
    return mark_run(cli, &words, diag);
}

const struct command command_undelete = {
    .name = "undelete",
    .group = GROUP_KEEP,
    .summary = "bring back a forgotten checkpoint",
    .details = "A forgotten checkpoint can be brought back, complete and verified as it was, until "
               "garbage collection has reclaimed its space. Without CHECKPOINT the command lists "
               "those that can be brought back. With --all they come back together, and a removed "
               "run is what it was; a job that ran before the removal has to be started again.",
    .example = "cairn undelete lab/gpt\ncairn undelete lab/gpt 1200\ncairn undelete lab/gpt --all",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct undelete_options),
    .run = run};
