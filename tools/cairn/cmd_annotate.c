/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn annotate: metrics and tags of a checkpoint after the fact.
 */
#include "cli.h"
#include "out.h"

#include <inttypes.h>

static int show(struct cli *cli, const struct ckpt_info *info)
{
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_info(&json, "checkpoint", info);
    json_close(&json, '}');
    int status = 0;
    if (cli->json) {
        status = json_print(&json);
    } else {
        printf("%" PRIu64 "@%" PRIu64 ": annotated, version %" PRIu64 "\n", info->id.step,
               info->id.term, info->note_version);
    }
    json_fini(&json);
    return status;
}

int command_annotate(struct cli *cli, struct diag *diag)
{
    if (!cli->run_text || !cli->selector_text) {
        return diag_set(diag, CAIRN_E_INVALID, "cairn annotate RUN CHECKPOINT: which checkpoint?");
    }
    if (cli->metric_count + cli->tag_count + cli->removed_tag_count == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "annotate with what? Give --metric, --tag or --remove-tag");
    }
    if (cli->source.store) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "--store is read only: annotate through the server (--server)");
    }
    int status = cli_connect(cli, true, diag);
    struct source_request request = {
        .call.request = {.type = MSG_ANNOTATE,
                         .u.annotate = {.selector = cli->selector,
                                        .metric_count = cli->metric_count,
                                        .metrics = cli->metrics,
                                        .tag_count = cli->tag_count,
                                        .tags = cli->tags,
                                        .removed_count = cli->removed_tag_count,
                                        .removed = cli->removed_tags}}};
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        status = show(cli, &request.call.reply.u.annotated.info);
    }
    engine_call_fini(&request.call);
    return status;
}
