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
    json_begin(&json);
    json_str(&json, "version", CAIRN_VERSION);
    return json_end(&json);
}

const struct command command_version = {.name = "version",
                                        .group = GROUP_SYSTEM,
                                        .summary = "print the version",
                                        .details = "",
                                        .run = run};
