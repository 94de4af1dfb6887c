/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn verify: one checkpoint, a run, or everything; damage is listed and gives exit 6. With
 * --repair the server, or this process on the bare store, repairs what is found, and what it made
 * is verified here once more.
 */
#include "cli.h"
#include "exit_status.h"
#include "keep/mark.h"
#include "system/maintenance.h"
#include "verify.h"

#include "base/digits.h"
#include "store/open/store_open.h"
#include "wire/negotiate.h"

#include <inttypes.h>
#include <stdlib.h>

enum { VERIFY_SCRATCH_MAX = 1 << 30 };

struct subset {
    uint64_t n, t; /* the n-th of t shares; n of 0 means everything */
};

struct verify_command_options {
    bool no_read_data, repair;
    struct subset subset;
    const char *from;
};

static int take_subset(void *to, const char *text, struct diag *diag);

static const struct option options[] = {
    {"read-data-subset", "N/T", "read only the Nth of T shares of the data", .kind = OPTION_OTHER,
     .take = take_subset, .at = OPTION_AT(struct verify_command_options, subset, struct subset)},
    {"no-read-data", NULL, "check records, manifests, pages and parts only",
     OPTION_AT_FLAG(struct verify_command_options, no_read_data)},
    {"repair", NULL, "repair what is damaged, where there is a copy",
     OPTION_AT_FLAG(struct verify_command_options, repair), .alone = true},
    {"from", "URL", "with --store and --repair: a store with the same things, to take copies from",
     OPTION_AT_TEXT(struct verify_command_options, from), .alone = true},
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
    uint64_t checkpoints, damaged, unread, repaired;
    uint64_t records;                 /* of the damaged, those that are no checkpoints: records */
    uint64_t records_hurt;            /* of these, with a second copy */
    uint64_t records_lost;            /* of these, for a mirror or cairn salvage */
    char lost[RUN_NAME_TEXT_MAX + 1]; /* " demo/run" if that is the only one of these, else "" */
    bool repair;
    bool is_told;           /* what is wrong with the record of the run at hand was said */
    bool is_unread;         /* a server was asked, and did not read the files of its records */
    struct diag unrepaired; /* what stands in for a repair: the server knows none of records */
    struct json json;
};

/* --- repair --- */

static const struct ckpt_id the_record = {0, 0};

/* id: a checkpoint, or the_record. */
static int ask_repair(struct cli *cli, struct ckpt_id id, bool begin,
                      struct source_request *request, struct diag *diag)
{
    char actor[MARK_ACTOR_BYTES];
    mark_actor(actor);
    *request = (struct source_request){
        .call.request = {.type = MSG_REPAIR,
                         .u.repair = {.id = id, .begin = begin, .actor = actor}}};
    if (id.term == 0) {
        request->call.request.u.repair.run = cli->run;
        request->call.features = WIRE_FEATURE_RECORD;
    }
    return source_call(cli->connection, request, diag);
}

static void show_lines(const struct cli *cli, struct totals *totals,
                       const struct msg_repair_status *status, bool mended)
{
    json_open(&totals->json, mended ? "repaired" : "left", '[');
    for (uint32_t i = 0; i < status->line_count; i++) {
        if (status->lines[i].mended == mended) {
            json_str(&totals->json, NULL, status->lines[i].text);
            if (!cli->json) {
                struct shown room;
                printf("  %s: %s\n", mended ? "repaired" : "left",
                       shown(&room, status->lines[i].text));
            }
        }
    }
    json_close(&totals->json, ']');
}

/* Begins and waits. *ret has the reply, also after a failure: engine_call_fini(). */
static int await_repair(struct cli *cli, struct ckpt_id id, struct source_request *ret,
                        struct diag *diag)
{
    int status = ask_repair(cli, id, true, ret, diag);
    while (status == 0 && ret->call.reply.u.repair_status.running) {
        status = maintenance_sleep(cli, ret, diag);
        if (status == 0) {
            status = ask_repair(cli, id, false, ret, diag);
        }
    }
    const struct msg_repair_status *last = &ret->call.reply.u.repair_status;
    if (status == 0 && (!ckpt_id_equal(last->id, id) || !run_name_equal(&last->run, &cli->run))) {
        status = diag_set(diag, CAIRN_E_BUSY, "somebody else repairs here; run this again");
    }
    return status;
}

/* Shows what became of a repair. Where the medium gave an error, and what it hit is told as left,
 * that is damage which the verdict counts, and no reason to leave the other checkpoints alone. */
static int show_repair(const struct cli *cli, struct totals *totals,
                       const struct source_request *request, struct diag *diag)
{
    const struct msg_repair_status *repaired = &request->call.reply.u.repair_status;
    totals->repaired += repaired->mended;
    show_lines(cli, totals, repaired, true);
    show_lines(cli, totals, repaired, false);
    bool is_told = repaired->code == 0 || (repaired->code == CAIRN_E_IO && repaired->left > 0);
    return is_told ? 0 : diag_set(diag, repaired->code, "%s", repaired->text);
}

static int repair_one(struct cli *cli, struct totals *totals, struct ckpt_id id, struct diag *diag)
{
    struct source_request request = {.done = false};
    int status = await_repair(cli, id, &request, diag);
    if (status == 0) {
        status = show_repair(cli, totals, &request, diag);
    }
    engine_call_fini(&request.call);
    return status;
}

/* --- verify --- */

static void show_findings(const struct cli *cli, struct totals *totals, size_t from,
                          const char *name)
{
    json_open(&totals->json, name, '[');
    for (size_t i = from; i < totals->result.finding_count; i++) {
        json_str(&totals->json, NULL, totals->result.findings[i].text);
        if (!cli->json) {
            struct shown room;
            printf("  %s\n", shown(&room, totals->result.findings[i].text));
        }
    }
    json_close(&totals->json, ']');
}

struct judged {
    bool damaged, unread;
};

/* A range that timed out is listed as a finding, but is not counted as damage. */
static struct judged judge(const struct totals *totals, size_t findings_before,
                           size_t unread_before)
{
    size_t found = totals->result.finding_count - findings_before;
    size_t unread = totals->result.unread - unread_before;
    return (struct judged){.damaged = found > unread, .unread = unread > 0};
}

/* What was found before, and what was done; then everything once more. */
static int repair_and_verify(struct cli *cli, struct totals *totals, const struct ckpt_info *info,
                             size_t before, struct diag *diag)
{
    if (!cli->json) {
        printf("%s %s: repairing\n", run_name_text(&cli->run).at, ckpt_id_text(info->id).at);
    }
    show_findings(cli, totals, before, "found");
    totals->result.finding_count = before;
    int status = repair_one(cli, totals, info->id, diag);
    return status != 0 ? status
                       : verify_checkpoint(cli, info, &totals->options, &totals->result, diag);
}

static int verify_one(struct cli *cli, struct totals *totals, const struct ckpt_info *info,
                      struct diag *diag)
{
    size_t before = totals->result.finding_count, unread_before = totals->result.unread;
    struct run_name_text name = run_name_text(&cli->run);
    int status = verify_checkpoint(cli, info, &totals->options, &totals->result, diag);
    if (status != 0) {
        return status;
    }
    json_open(&totals->json, NULL, '{');
    json_str(&totals->json, "run", name.at);
    json_ckpt_id(&totals->json, info->id);
    struct judged judged = judge(totals, before, unread_before);
    if (totals->repair && (judged.damaged || info->health != HEALTH_VERIFIED)) {
        totals->result.unread = unread_before;
        status = repair_and_verify(cli, totals, info, before, diag);
        judged = judge(totals, before, unread_before);
    }
    if (status != 0) {
        return status;
    }
    totals->checkpoints++;
    totals->damaged += judged.damaged;
    totals->unread += judged.unread;
    bool good = !judged.damaged && !judged.unread;
    json_bool(&totals->json, "good", good);
    if (!cli->json) {
        printf("%s %s: %s\n", name.at, ckpt_id_text(info->id).at,
               good             ? "good"
               : judged.damaged ? "DAMAGED"
                                : "NOT READ WHOLE");
    }
    show_findings(cli, totals, before, "findings");
    json_close(&totals->json, '}');
    return 0;
}

/* Counts a record that is for a mirror or cairn salvage. The store's own has no run. */
static void add_lost(struct totals *totals, const struct run_name *run)
{
    bool is_first = totals->records_lost++ == 0;
    snprintf(totals->lost, sizeof(totals->lost), "%s%s", is_first && run ? " " : "",
             is_first && run ? run_name_text(run).at : "");
}

/* A record that can be read, and is damaged: covered damage, or for cairn salvage. */
static void note_record(struct cli *cli, struct totals *totals, const struct run_name *run,
                        const char *says, const char *why)
{
    char name[RUN_NAME_TEXT_MAX] = "(store)";
    struct shown room;
    if (run) {
        run_name_format(run, name);
    }
    json_open(&totals->json, NULL, '{');
    json_str(&totals->json, "run", name);
    json_open(&totals->json, "findings", '[');
    json_str(&totals->json, NULL, why);
    json_close(&totals->json, ']');
    if (!cli->json) {
        printf("%s: %s RECORD\n  %s\n", name, says, shown(&room, why));
    }
    json_bool(&totals->json, "good", false);
    json_close(&totals->json, '}');
    totals->damaged++;
    totals->records++;
    totals->is_told = true;
}

/* Checks every file of the record of a run, or of the store's own record if `run` is NULL: also the
 * files that nothing needs while the others are whole. A server checks its records itself, when it
 * scrubs. */
static int check_record(struct cli *cli, struct totals *totals, const struct run_name *run,
                        struct diag *diag)
{
    struct diag why = DIAG_INIT;
    bool salvage = false;
    int status = source_check_record(cli->connection, run, &salvage, &why);
    totals->is_unread = status == CAIRN_E_UNSUPPORTED && !totals->repair;
    if (status == 0 || status == CAIRN_E_UNSUPPORTED || status == CAIRN_E_NOT_FOUND) {
        return 0;
    }
    bool unread = status == CAIRN_E_IO && salvage;
    if (status != CAIRN_E_DAMAGED && !unread) {
        return diag_set(diag, status, "%s", diag_text(&why, status));
    }
    note_record(cli, totals, run, unread ? "UNREADABLE" : "DAMAGED", why.text);
    totals->records_hurt += !salvage;
    if (salvage && !unread) {
        add_lost(totals, run);
    }
    return 0;
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

static void open_run(struct cli *cli, struct totals *totals, const char *says)
{
    struct run_name_text name = run_name_text(&cli->run);
    json_open(&totals->json, NULL, '{');
    json_str(&totals->json, "run", name.at);
    if (!cli->json) {
        printf("%s: %s\n", name.at, says);
    }
}

static void close_run(const struct cli *cli, struct totals *totals, bool good)
{
    json_bool(&totals->json, "good", good);
    json_close(&totals->json, '}');
    totals->damaged += !good;
    totals->records += !good;
    totals->is_told = !good;
    if (!good) {
        add_lost(totals, &cli->run);
    }
}

static void leave_record(const struct cli *cli, struct totals *totals, struct diag *why)
{
    json_open(&totals->json, "left", '[');
    json_str(&totals->json, NULL, why->text);
    json_close(&totals->json, ']');
    if (!cli->json) {
        struct shown room;
        printf("  left: %s\n", shown(&room, why->text));
    }
    diag_clear(why);
}

static void open_damaged(struct cli *cli, struct totals *totals, const char *why)
{
    struct shown room;
    open_run(cli, totals, totals->repair ? "repairing its record" : "DAMAGED");
    json_open(&totals->json, totals->repair ? "found" : "findings", '[');
    json_str(&totals->json, NULL, why);
    json_close(&totals->json, ']');
    if (!cli->json) {
        printf("  %s\n", shown(&room, why));
    }
}

/* Reports what the record has lost, which its other checkpoints do not show. Where no checkpoint is
 * left, the run's own error says it. */
static void note_lost(struct cli *cli, struct totals *totals, const struct cli_list *list)
{
    if (totals->is_told) {
        return;
    }
    if (totals->unrepaired.code == 0) {
        note_record(cli, totals, &cli->run, "DAMAGED", list->mark); /* it names the remedy */
    } else if (list->count > 0) {
        open_damaged(cli, totals, list->mark);
        leave_record(cli, totals, &totals->unrepaired);
        close_run(cli, totals, false);
    }
}

/* Every committed checkpoint of the connected run. A run whose record is damaged is a finding, not
 * an end. */
static int verify_run(struct cli *cli, struct totals *totals, struct diag *diag)
{
    struct scratch scratch;
    struct cli_list list = {0};
    scratch_init(&scratch, VERIFY_SCRATCH_MAX);
    int status = cli_list(cli, &scratch, &list, diag);
    if (status == 0 && list.mark[0] != 0) {
        note_lost(cli, totals, &list);
    }
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        if (list.items[i].state == CKPT_COMMITTED) {
            status = verify_one(cli, totals, &list.items[i], diag);
        }
    }
    scratch_fini(&scratch);
    return status == 0 && list.count == 0 ? cli_check_run(cli, diag) : status;
}

/* The record does not let the run be joined. With --repair it is repaired on a connection that
 * needs no run, and joined once more. */
static int note_damaged_run(struct cli *cli, struct totals *totals, struct diag *why)
{
    uint64_t repaired = totals->repaired;
    if (totals->is_told) {
        return 0; /* by the look at its files, or by a repair that left it */
    }
    open_damaged(cli, totals, why->text);
    int status = 0;
    if (totals->repair) {
        diag_clear(why);
        status = source_use_server(cli->connection, why);
        if (status == 0) {
            status = repair_one(cli, totals, the_record, why);
        }
        if (status == CAIRN_E_UNSUPPORTED) { /* its other runs it can verify */
            leave_record(cli, totals, why);
            close_run(cli, totals, false);
            return 0;
        }
        if (status == 0) {
            status = source_use(cli->connection, &cli->run, why);
        }
    }
    close_run(cli, totals, totals->repair && status == 0 && totals->repaired > repaired);
    return status;
}

/* A server that read the record before it was damaged goes on with what it read. */
static int repair_joined(struct cli *cli, struct totals *totals, struct diag *diag)
{
    struct source_request request = {.done = false};
    int status = await_repair(cli, the_record, &request, diag);
    const struct msg_repair_status *repaired = &request.call.reply.u.repair_status;
    if (status == 0 && (repaired->mended > 0 || repaired->left > 0 || repaired->code != 0)) {
        open_run(cli, totals, "repairing its record");
        status = show_repair(cli, totals, &request, diag);
        close_run(cli, totals, status == 0 && repaired->left == 0);
    }
    engine_call_fini(&request.call);
    if (status == CAIRN_E_UNSUPPORTED) { /* its checkpoints it can repair */
        diag_clear(&totals->unrepaired);
        err_ignore(diag_copy(&totals->unrepaired, diag)); /* note_lost() says it */
        diag_clear(diag);
        return 0;
    }
    return status;
}

static bool is_damage(int status) { return err_exit_status(status) == EXIT_DAMAGE; }

static int verify_joined(struct cli *cli, struct totals *totals, struct diag *diag)
{
    if (cli->selector_text) {
        return verify_selected(cli, totals, diag);
    }
    int status = totals->repair ? repair_joined(cli, totals, diag) : 0;
    if (status == 0 && !totals->is_told && totals->unrepaired.code == 0) {
        status = check_record(cli, totals, &cli->run, diag);
    }
    return status != 0 ? status : verify_run(cli, totals, diag);
}

/* joined: what came of joining it, and why. A run whose record is damaged is a finding, not an end;
 * where that was repaired its checkpoints are read. */
static int verify_named(struct cli *cli, struct totals *totals, int joined, struct diag *why)
{
    totals->is_told = false;
    int status = joined != 0 ? joined : verify_joined(cli, totals, why);
    if (!is_damage(status)) {
        return status;
    }
    status = note_damaged_run(cli, totals, why);
    if (is_damage(status)) {
        return 0; /* as it was */
    }
    if (status != 0 || totals->is_told) {
        return status;
    }
    status = verify_joined(cli, totals, why);
    return is_damage(status) && totals->is_told ? 0 : status;
}

static int verify_all(struct cli *cli, struct totals *totals, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = check_record(cli, totals, NULL, diag);
    status = status != 0 ? status : source_runs(cli->connection, false, &names, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct diag why = DIAG_INIT;
        cli->run = names[i];
        cli->has_run = true;
        status = source_use(cli->connection, &cli->run, &why);
        status = verify_named(cli, totals, status, &why);
        if (status != 0) {
            status = diag_set(diag, status, "%s", diag_text(&why, status));
        }
    }
    free(names);
    return status;
}

static int verdict(const struct totals *totals)
{
    return totals->damaged > 0  ? EXIT_DAMAGE
           : totals->unread > 0 ? err_exit_status(CAIRN_E_TIMED_OUT)
                                : 0;
}

static void say_remedies(const struct cli *cli, const struct totals *totals)
{
    char typed[STORE_URL_MAX] = "";
    if (cli->source.store) {
        store_url_typed(cli->source.store, sizeof(typed), typed);
    }
    const char *store = typed[0] != '\0' ? typed : "URL";
    if (totals->records_hurt > 0) {
        fprintf(stderr,
                "cairn: records are damaged that can be read all the same: they have a second "
                "copy. With the daemon stopped `cairn verify --repair --store %s` makes them good; "
                "a daemon does so when it starts\n",
                store);
    }
    if (totals->records_lost > 0) {
        fprintf(
            stderr,
            "cairn: a record does not tell of all that lies in the store. With the daemon "
            "stopped, a mirror of this store repairs one that is damaged or missing: `cairn verify "
            "--repair --store %s --from MIRROR` (or [scrub] repair-from); one that is behind "
            "has older checkpoints: `cairn restore RUN --store MIRROR --to DIR`. Without one, "
            "`cairn salvage --store %s%s` says what can be entered again, and `cairn salvage --yes "
            "--store %s%s` does it\n",
            store, store, totals->lost, store, totals->lost);
    }
    if (totals->damaged > totals->records) {
        fprintf(
            stderr,
            "cairn: damage found; `cairn restore` takes the newest good checkpoint by itself\n");
    }
}

static int finish(struct cli *cli, struct totals *totals)
{
    struct text bytes = bytes_text(totals->result.bytes);
    json_close(&totals->json, ']');
    json_u64(&totals->json, "checkpoints", totals->checkpoints);
    json_u64(&totals->json, "damaged", totals->damaged);
    json_u64(&totals->json, "records_damaged", totals->records);
    json_bool(&totals->json, "records_read", !totals->is_unread && !cli->selector_text);
    json_u64(&totals->json, "unread", totals->unread);
    json_u64(&totals->json, "repaired", totals->repaired);
    json_u64(&totals->json, "chunks", totals->result.chunks);
    json_u64(&totals->json, "bytes", totals->result.bytes);
    json_close(&totals->json, '}');
    if (cli->json) {
        int status = json_print(&totals->json);
        return status != 0 ? status : verdict(totals);
    }
    printf("%" PRIu64 " checkpoint%s, %" PRIu64 " damaged; ", totals->checkpoints,
           plural(totals->checkpoints), totals->damaged - totals->records);
    if (totals->records > 0) {
        printf("%" PRIu64 " record%s damaged; ", totals->records, plural(totals->records));
    }
    printf("read %s in %" PRIu64 " chunk%s of %" PRIu64 " object%s\n", bytes.at,
           totals->result.chunks, plural(totals->result.chunks), totals->result.objects,
           plural(totals->result.objects));
    if (totals->is_unread) {
        printf("the files of the records were not read: the server does that in a scrub (`cairn "
               "scrub --wait`)\n");
    }
    if (totals->repaired > 0) {
        printf("%" PRIu64
               " repaired; damaged bytes that were replaced are kept: a record's in quarantine/ of "
               "the store until somebody removes them (rm), others until garbage collection\n",
               totals->repaired);
    }
    say_remedies(cli, totals);
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
                                        .subset_t = own->subset.t},
                            .repair = own->repair};
    struct diag why = DIAG_INIT;
    if (own->no_read_data && own->subset.t != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--no-read-data reads none of the data, --read-data-subset a share of it: "
                        "name one of them");
    }
    if (own->from && (!own->repair || !cli->source.store)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--from goes with --repair and --store; a server repairs from what its "
                        "configuration names: [scrub] repair-from");
    }
    if (own->repair && own->no_read_data) {
        return diag_set(diag, CAIRN_E_INVALID, "--repair reads the data: without --no-read-data");
    }
    cli->source.writable = cli->source.repairs = own->repair;
    cli->source.repair_from = own->from;
    json_begin(&totals.json);
    json_open(&totals.json, "checked", '[');
    int status = cli_connect(cli, false, &why);
    if (cli->has_run) {
        status = verify_named(cli, &totals, status, &why);
    } else if (status == 0) {
        status = verify_all(cli, &totals, &why);
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
        "is named and passed over; without damage the exit status is then 5.\n\n"
        "--repair puts right what is damaged and has a copy: the same chunk in another object of "
        "the run, or the same file in another store (--from with --store; [scrub] repair-from of a "
        "server). Of a run's record single files are taken, which the chain of the others proves "
        "to be the ones that were here; a mirror that is behind the damage cannot repair it. A "
        "record that is missing in both places is taken from the mirror as a whole; checkpoints "
        "that it does not tell of are then left for cairn salvage, and the exit status is 6. "
        "Footers and padding need none. The new object is built beside the damaged one, "
        "read back whole, and takes its place in one step; the damaged bytes are kept until "
        "garbage collection; the run's record says who replaced what. What has no copy is left "
        "alone. Exit 0: all is good now; 6: some damage is left; 11: a daemon has the store; 5: "
        "another repair is at work for longer than --timeout. A Ceph cluster repairs its own "
        "copies: ceph pg repair.",
    .example = "cairn verify\ncairn verify lab/gpt --read-data-subset 1/7\n"
               "cairn --store dir:/srv/cairn verify --repair --from dir:/mnt/mirror",
    .arguments = cli_checkpoint_arguments,
    .options = options,
    .options_bytes = sizeof(struct verify_command_options),
    .run = run};
