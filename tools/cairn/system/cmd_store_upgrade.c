/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn store-upgrade: raises a store's feature bits. This version knows no bit that a store of its
 * format lacks, so it looks, says so, and changes nothing.
 */
#include "cli.h"

#include <string.h>

struct upgrade_options {
    bool dry_run;
};

static const struct option options[] = {{"dry-run", NULL, "say what would change",
                                         OPTION_AT_FLAG(struct upgrade_options, dry_run),
                                         .letter = 'n'},
                                        {0}};

static int show(const struct cli *cli)
{
    if (!cli->json) {
        printf("%s: nothing to upgrade: cairn %s knows no feature that this store lacks\n",
               cli->source.store, CAIRN_VERSION);
        return out_flush();
    }
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_str(&json, "store", cli->source.store);
    json_bool(&json, "changed", false);
    json_open(&json, "features", '[');
    json_close(&json, ']');
    json_close(&json, '}');
    int status = json_print(&json);
    json_fini(&json);
    return status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    (void)values; /* a dry run does what a run does: nothing */
    if (!cli->source.store) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "which store? Say --store dir:/PATH or rados:POOL; a server's is not asked");
    }
    /* Opening reads the store's record and refuses, by name, what this version does not know. */
    int status = cli_connect(cli, false, diag);
    return status != 0 ? status : show(cli);
}

const struct command command_store_upgrade = {
    .name = "store-upgrade",
    .group = GROUP_SYSTEM,
    .summary = "raise a store to the features of this version",
    .details =
        "Features are bits in the store's record; raising one may lock older versions out, so "
        "it happens only here. This version has none to raise: the command opens the store, "
        "refuses with exit 10 when it uses features that this version does not know, and "
        "otherwise says that there is nothing to do.",
    .example = "cairn store-upgrade --store dir:/var/lib/cairn/store",
    .options = options,
    .options_bytes = sizeof(struct upgrade_options),
    .run = run};
