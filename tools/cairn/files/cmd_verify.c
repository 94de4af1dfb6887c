/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn verify: one checkpoint, a run, or everything; damage is listed and gives exit 6.
 */
#include "cli.h"
#include "exit_status.h"
#include "verify.h"

#include "base/digits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { VERIFY_SCRATCH_MAX = 1 << 30 };

struct subset {
    uint64_t n, t; /* 0: everything */
};

struct verify_command_options {
    bool no_read_data;
    struct subset subset;
};

static int take_subset(void *to, const char *text, struct diag *diag);

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN, .optional = true},
    {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT, .optional = true},
    {0}};

static const struct option options[] = {
    {"read-data-subset", "N/T", "read only the Nth of T shares of the data", .kind = OPTION_OTHER,
     .take = take_subset, .at = OPTION_AT(struct verify_command_options, subset, struct subset)},
    {"no-read-data", NULL, "check records, manifests, pages and parts only",
     OPTION_AT_FLAG(struct verify_command_options, no_read_data)},
    {0}};

static int take_subset(void *to, const char *text, struct diag *diag)
{
    const char *at = text;
    uint64_t n = 0, t = 0;
    if (digits_read_decimal(&at, UINT32_MAX, &n) && digits_skip(&at, "/") &&
        digits_parse_decimal(at, UINT32_MAX, &t) && n >= 1 && n <= t) {
        *(struct subset *)to = (struct subset){n, t};
        return 0;
    }
    return diag_set(diag, CAIRN_E_INVALID, "write N/T with 1 <= N <= T, for instance 1/7");
}

struct totals {
    struct verify_options options;
    struct verify_result result;
    uint64_t checkpoints, damaged, unread;
    struct json json;
};

static int verify_one(struct cli *cli, struct totals *totals, const struct ckpt_info *info,
                      struct diag *diag)
{
    size_t before = totals->result.finding_count, unread_before = totals->result.unread;
    char name[RUN_NAME_TEXT_MAX], id[48];
    int status = verify_checkpoint(cli, info, &totals->options, &totals->result, diag);
    if (status != 0) {
        return status;
    }
    size_t found = totals->result.finding_count - before;
    size_t unread = totals->result.unread - unread_before;
    bool good = found == 0, damaged = found > unread;
    run_name_format(&cli->run, name);
    format_ckpt(info->id, sizeof(id), id);
    totals->checkpoints++;
    totals->damaged += damaged;
    totals->unread += unread > 0;
    json_open(&totals->json, NULL, '{');
    json_str(&totals->json, "run", name);
    json_u64(&totals->json, "step", info->id.step);
    json_u64(&totals->json, "term", info->id.term);
    json_bool(&totals->json, "good", good);
    json_open(&totals->json, "findings", '[');
    if (!cli->json) {
        printf("%s %s: %s\n", name, id, good ? "good" : damaged ? "DAMAGED" : "NOT READ WHOLE");
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
    struct cli_list list = {0};
    scratch_init(&scratch, VERIFY_SCRATCH_MAX);
    int status = cli_list(cli, &scratch, &list, diag);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        if (list.items[i].state == CKPT_COMMITTED) {
            status = verify_one(cli, totals, &list.items[i], diag);
        }
    }
    scratch_fini(&scratch);
    return status == 0 && list.count == 0 ? cli_check_run(cli, diag) : status;
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

static int verdict(const struct totals *totals)
{
    return totals->damaged > 0  ? EXIT_DAMAGE
           : totals->unread > 0 ? err_exit_status(CAIRN_E_TIMED_OUT)
                                : 0;
}

static int finish(struct cli *cli, struct totals *totals)
{
    char bytes[32];
    format_bytes(totals->result.bytes, sizeof(bytes), bytes);
    json_close(&totals->json, ']');
    json_u64(&totals->json, "checkpoints", totals->checkpoints);
    json_u64(&totals->json, "damaged", totals->damaged);
    json_u64(&totals->json, "unread", totals->unread);
    json_u64(&totals->json, "chunks", totals->result.chunks);
    json_u64(&totals->json, "bytes", totals->result.bytes);
    json_close(&totals->json, '}');
    if (cli->json) {
        int status = json_print(&totals->json);
        return status != 0 ? status : verdict(totals);
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
    if (totals->unread > 0) {
        fprintf(stderr,
                "cairn: of %" PRIu64 " checkpoints not everything could be read in time; look at "
                "the store (cairn doctor, `ceph health detail`) and verify them again\n",
                totals->unread);
    }
    int status = out_flush();
    return status != 0 ? status : verdict(totals);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct verify_command_options *own = values;
    struct totals totals = {.options = {.read_data = !own->no_read_data,
                                        .subset_n = own->subset.n,
                                        .subset_t = own->subset.t}};
    struct diag why = DIAG_INIT;
    if (own->no_read_data && own->subset.t != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--no-read-data reads none of the data, --read-data-subset a share of it: "
                        "name one of them");
    }
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

const struct command command_verify = {
    .name = "verify",
    .group = GROUP_FILES,
    .summary = "read everything and check every checksum; exit 6 on damage",
    .details =
        "Without CHECKPOINT: every checkpoint of the run; without RUN: of every run. Damage is "
        "named by checkpoint, tensor and object. --read-data-subset N/T reads the Nth of T "
        "shares of the objects: T runs read everything once. What the store did not give in time "
        "is "
        "named and passed over; without damage the exit status is then 5.",
    .example = "cairn verify\ncairn verify lab/gpt --read-data-subset 1/7",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct verify_command_options),
    .run = run};
