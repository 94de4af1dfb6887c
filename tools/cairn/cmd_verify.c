/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn verify: one checkpoint, a run, or everything; damage is listed and gives exit 6.
 */
#include "cli.h"
#include "verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { VERIFY_SCRATCH_MAX = 1 << 30 };

struct totals {
    struct verify_result result;
    uint64_t checkpoints, damaged;
    struct json json;
};

static int verify_one(struct cli *cli, struct totals *totals, const struct ckpt_info *info,
                      struct diag *diag)
{
    struct verify_options options = {
        .read_data = !cli->no_read_data, .subset_n = cli->subset_n, .subset_t = cli->subset_t};
    size_t before = totals->result.finding_count;
    char name[RUN_NAME_TEXT_MAX], id[48];
    int status = verify_checkpoint(cli, info, &options, &totals->result, diag);
    if (status != 0) {
        return status;
    }
    bool good = totals->result.finding_count == before;
    run_name_format(&cli->run, name);
    format_ckpt(info->id, sizeof(id), id);
    totals->checkpoints++;
    totals->damaged += good ? 0 : 1;
    json_open(&totals->json, NULL, '{');
    json_str(&totals->json, "run", name);
    json_u64(&totals->json, "step", info->id.step);
    json_u64(&totals->json, "term", info->id.term);
    json_bool(&totals->json, "good", good);
    json_open(&totals->json, "findings", '[');
    if (!cli->json) {
        printf("%s %s: %s\n", name, id, good ? "good" : "DAMAGED");
    }
    for (size_t i = before; i < totals->result.finding_count; i++) {
        json_str(&totals->json, NULL, totals->result.findings[i].text);
        if (!cli->json) {
            printf("  %s\n", totals->result.findings[i].text);
        }
    }
    json_close(&totals->json, ']');
    json_close(&totals->json, '}');
    return 0;
}

/* Every committed checkpoint of the connected run. A run whose record is damaged is a finding, not
 * an end. */
static int verify_run(struct cli *cli, struct totals *totals, struct diag *diag)
{
    struct scratch scratch;
    struct ckpt_info *infos = NULL;
    size_t count = 0;
    scratch_init(&scratch, VERIFY_SCRATCH_MAX);
    int status = cli_list(cli, &scratch, &count, &infos, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        if (infos[i].state == CKPT_COMMITTED) {
            status = verify_one(cli, totals, &infos[i], diag);
        }
    }
    scratch_fini(&scratch);
    return status == 0 && count == 0 ? cli_check_run(cli, diag) : status;
}

static void note_damaged_run(struct cli *cli, struct totals *totals, const struct diag *diag)
{
    char name[RUN_NAME_TEXT_MAX];
    run_name_format(&cli->run, name);
    totals->damaged++;
    json_open(&totals->json, NULL, '{');
    json_str(&totals->json, "run", name);
    json_bool(&totals->json, "good", false);
    json_open(&totals->json, "findings", '[');
    json_str(&totals->json, NULL, diag->text);
    json_close(&totals->json, ']');
    json_close(&totals->json, '}');
    if (!cli->json) {
        printf("%s: DAMAGED\n  %s\n", name, diag->text);
    }
}

static bool is_damage(int status) { return err_exit_status(status) == EXIT_DAMAGE; }

static int verify_all(struct cli *cli, struct totals *totals, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = source_runs(cli->connection, &names, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct diag why = DIAG_INIT;
        cli->run = names[i];
        cli->has_run = true;
        status = source_use(cli->connection, &cli->run, &why);
        status = status != 0 ? status : verify_run(cli, totals, &why);
        if (is_damage(status)) {
            note_damaged_run(cli, totals, &why);
            status = 0;
        } else if (status != 0) {
            status = diag_set(diag, status, "%s", diag_text(&why, status));
        }
    }
    free(names);
    return status;
}

static int verify_selected(struct cli *cli, struct totals *totals, struct diag *diag)
{
    struct scratch scratch;
    struct ckpt_info info;
    scratch_init(&scratch, KIB(64));
    int status = cli_resolve(cli, &cli->selector, &scratch, &info, diag);
    if (status == 0) {
        status = verify_one(cli, totals, &info, diag);
    }
    scratch_fini(&scratch);
    return status;
}

static int finish(struct cli *cli, struct totals *totals)
{
    char bytes[32];
    format_bytes(totals->result.bytes, sizeof(bytes), bytes);
    json_close(&totals->json, ']');
    json_u64(&totals->json, "checkpoints", totals->checkpoints);
    json_u64(&totals->json, "damaged", totals->damaged);
    json_u64(&totals->json, "chunks", totals->result.chunks);
    json_u64(&totals->json, "bytes", totals->result.bytes);
    json_close(&totals->json, '}');
    if (cli->json) {
        int status = json_print(&totals->json);
        return status != 0 ? status : totals->damaged > 0 ? EXIT_DAMAGE : 0;
    }
    printf("%" PRIu64 " checkpoints, %" PRIu64 " damaged; read %s in %" PRIu64 " chunks of %" PRIu64
           " objects\n",
           totals->checkpoints, totals->damaged, bytes, totals->result.chunks,
           totals->result.objects);
    if (totals->damaged > 0) {
        fprintf(
            stderr,
            "cairn: damage found; `cairn restore` takes the newest good checkpoint by itself\n");
    }
    int status = out_flush();
    return totals->damaged > 0 ? EXIT_DAMAGE : status;
}

int command_verify(struct cli *cli, struct diag *diag)
{
    struct totals totals = {0};
    struct diag why = DIAG_INIT;
    json_init(&totals.json);
    json_open(&totals.json, NULL, '{');
    json_u64(&totals.json, "schema_version", JSON_SCHEMA_VERSION);
    json_open(&totals.json, "checked", '[');
    int status = cli_connect(cli, false, &why);
    if (status == 0 && !cli->has_run) {
        status = verify_all(cli, &totals, &why);
    } else if (status == 0) {
        status = cli->selector_text ? verify_selected(cli, &totals, &why)
                                    : verify_run(cli, &totals, &why);
    }
    if (is_damage(status) && cli->has_run) {
        note_damaged_run(cli, &totals, &why);
        status = 0;
    }
    status = status != 0 ? diag_copy(diag, &why) : finish(cli, &totals);
    json_fini(&totals.json);
    verify_result_fini(&totals.result);
    return status;
}
