/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn version.
 */
#include "base/build_id.h"
#include "cli.h"

static int run(struct cli *cli, void *options, struct diag *diag)
{
    (void)options;
    (void)diag;
    if (!cli->json) {
        printf("cairn %s (build %s)\n", CAIRN_VERSION, build_id);
        return out_flush();
    }
    struct json json;
    json_begin(&json);
    json_str(&json, "version", CAIRN_VERSION);
    json_str(&json, "build", build_id);
    return json_end(&json);
}

const struct command command_version = {
    .name = "version",
    .group = GROUP_SYSTEM,
    .summary = "print the version and the build",
    .details = "The build is the commit of the sources, or, where they "
               "came without git, a name made of their content.",
    .run = run};
