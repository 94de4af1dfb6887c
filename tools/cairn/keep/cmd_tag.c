/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn tag: a tag on a checkpoint, or off: the short form of annotate, also on a store without its
 * daemon.
 */
#include "format/note.h"
#include "mark.h"

#include <inttypes.h>

struct tag_options {
    const char *tag;
    bool remove;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN},
    {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT},
    {"TAG", .kind = ARGUMENT_TEXT, .at = OPTION_AT(struct tag_options, tag, const char *)},
    {0}};

static const struct option options[] = {
    {"remove", NULL, "remove the tag", OPTION_AT_FLAG(struct tag_options, remove), .alone = true},
    {0}};

static int run(struct cli *cli, void *values, struct diag *diag)
{
    struct tag_options *own = values;
    struct source_request request = {
        .call.request = {.type = MSG_ANNOTATE,
                         .u.annotate = {.selector = cli->selector,
                                        .tag_count = own->remove ? 0 : 1,
                                        .tags = &own->tag,
                                        .removed_count = own->remove ? 1 : 0,
                                        .removed_tags = &own->tag}}};
    int status = note_check_label("the tag", own->tag, diag);
    if (status == 0) {
        status = mark_connect(cli, true, diag);
    }
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        const struct ckpt_info *info = &request.call.reply.u.annotated.info;
        if (cli->json) {
            status = cli_print_info(info);
        } else if (!cli->quiet) {
            struct shown room;
            printf("%s: %s \"%s\", version %" PRIu64 "\n", ckpt_id_text(info->id).at,
                   own->remove ? "no tag" : "tag", shown(&room, own->tag), info->note_version);
            status = out_flush();
        }
    }
    engine_call_fini(&request.call);
    return status;
}

const struct command command_tag = {
    .name = "tag",
    .group = GROUP_KEEP,
    .summary = "add a tag to a checkpoint, or remove one",
    .details =
        "`ls` and `show` show tags, and `forget --keep-tag` uses them. `annotate` sets metrics.",
    .example = "cairn tag lab/gpt 1200 best\ncairn tag lab/gpt 1200 best --remove",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct tag_options),
    .run = run};
