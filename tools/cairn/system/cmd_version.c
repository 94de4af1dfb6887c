/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn version.
 */
#include "cli.h"

static int run(struct cli *cli, void *options, struct diag *diag)
{
    (void)options;
    (void)diag;
    if (!cli->json) {
        printf("cairn %s\n", CAIRN_VERSION);
        return out_flush();
    }
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_str(&json, "version", CAIRN_VERSION);
    json_close(&json, '}');
    int status = json_print(&json);
    json_fini(&json);
    return status;
}

const struct command command_version = {.name = "version",
                                        .group = GROUP_SYSTEM,
                                        .summary = "print the version",
                                        .details = "",
                                        .run = run};
