/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn doctor: examines a store and what it stands on, or asks a running server how it sees its
 * own, and says what is unsafe, and the remedy.
 */
#include "cli.h"
#include "doctor_config.h"
#include "system/offline_store.h"

#include "base/check.h"
#include "base/digits.h"
#include "policy/policy.h"
#include "store/open/store_doctor.h"
#include "store/open/store_open.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_UNSAFE = 1, EXIT_WARNINGS = 3 };

struct doctor_options {
    uint64_t reserve_bytes;
    bool bad_only;
    const char *config;
};

static const struct option options[] = {
    {.name = "reserve",
     .value = "SIZE",
     .help = "free space that a directory store keeps in reserve, as [store] reserve of cairnd "
             "sets it; a server reports its own",
     .preset = "256MiB",
     OPTION_AT_SIZE(struct doctor_options, reserve_bytes)},
    {.name = "config",
     .value = "FILE",
     .help = "also examine a daemon's configuration, for instance /etc/cairn/cairnd.conf: its "
             "certificates, policies and timers",
     OPTION_AT_TEXT(struct doctor_options, config)},
    {.name = "only-bad",
     .help = "leave out findings that are good",
     OPTION_AT_FLAG(struct doctor_options, bad_only)},
    {0}};

static void print_text(const struct doctor_options *own, const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        if (own->bad_only && finding->level == DOCTOR_GOOD) {
            continue;
        }
        struct shown room;
        printf("%-8s %s: %s\n", doctor_level_name(finding->level), finding->check,
               shown(&room, finding->text));
        if (finding->remedy[0] != '\0') {
            printf("         remedy: %s\n", shown(&room, finding->remedy));
        }
    }
    size_t warnings = doctor_count(doctor, DOCTOR_WARNING);
    printf("%zu unsafe, %zu warning%s\n", doctor_count(doctor, DOCTOR_UNSAFE), warnings,
           plural(warnings));
    if (doctor->left_out > 0) {
        printf("%zu further finding%s not shown\n", doctor->left_out,
               doctor->left_out == 1 ? " is" : "s are");
    }
}

static int print_json(const struct cli *cli, const struct doctor_options *own,
                      const struct doctor *doctor)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "store", cli->source.store);
    json_str(&json, "server", cli->source.store ? NULL : cli->source.url);
    json_u64(&json, "unsafe", doctor_count(doctor, DOCTOR_UNSAFE));
    json_u64(&json, "warnings", doctor_count(doctor, DOCTOR_WARNING));
    json_u64(&json, "left_out", doctor->left_out);
    json_open(&json, "findings", '[');
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        if (own->bad_only && finding->level == DOCTOR_GOOD) {
            continue;
        }
        json_open(&json, NULL, '{');
        json_str(&json, "level", doctor_level_name(finding->level));
        json_str(&json, "check", finding->check);
        json_str(&json, "text", finding->text);
        json_str(&json, "remedy", finding->remedy[0] != '\0' ? finding->remedy : NULL);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    return json_end(&json);
}

static int examine(const struct cli *cli, const struct doctor_options *own, struct doctor *doctor,
                   struct diag *diag)
{
    struct offline_store at = {.loop = NULL};
    int status = offline_store_begin(&at, cli->source.store, diag);
    if (status == 0) {
        struct store_doctor_options asked = {.loop = at.loop,
                                             .pool = at.store_pool,
                                             .url = cli->source.store,
                                             .reserve_bytes = own->reserve_bytes};
        status = store_doctor(&asked, doctor, diag);
    }
    offline_store_close(&at);
    return status;
}

/* --- a server's own view ---------------------------------------------------------------------- */

static int64_t wall_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void judge_health(const struct msg_server_status *status, struct doctor *doctor)
{
    enum doctor_level level = status->health == SERVER_RED      ? DOCTOR_UNSAFE
                              : status->health == SERVER_YELLOW ? DOCTOR_WARNING
                                                                : DOCTOR_GOOD;
    if (status->health == SERVER_HEALTH_UNKNOWN) {
        doctor_add(doctor, DOCTOR_WARNING, "health", "the server does not report its health");
        doctor_remedy(doctor, "the server is older than this command; upgrade the server");
        return;
    }
    doctor_add(doctor, level, "health", "%s",
               level == DOCTOR_GOOD ? "green: the store takes saves" : status->health_text);
    if (level != DOCTOR_GOOD) {
        doctor_remedy(doctor, "%s", status->health_remedy);
    }
}

static void judge_care(const struct msg_server_status *status, struct doctor *doctor)
{
    const struct scrub_info *scrub = &status->scrub;
    if (status->has_scrub && scrub->every_ms == 0 && !scrub->waiting) {
        doctor_add(doctor, DOCTOR_WARNING, "scrub", "scrub runs only on request");
        doctor_remedy(doctor, "set [scrub] every in the server's configuration, or run `cairn "
                              "scrub` by a timer; without scrub, damage stays unnoticed");
    } else if (status->has_scrub) {
        doctor_add(doctor, scrub->findings > 0 ? DOCTOR_WARNING : DOCTOR_GOOD, "scrub",
                   "pass %" PRIu64 ": %" PRIu64 " checkpoint%s, %" PRIu64 " finding%s%s",
                   scrub->pass, scrub->ckpts, plural(scrub->ckpts), scrub->findings,
                   plural(scrub->findings), scrub->running ? " so far" : "");
        if (scrub->findings > 0) {
            doctor_remedy(doctor, "`cairn scrub --wait` reads everything again and names them; "
                                  "check the disk or the pool that holds the store");
        }
    }
    if (status->has_gc && status->gc.errors > 0) {
        doctor_add(doctor, DOCTOR_WARNING, "gc", "%" PRIu64 " error%s: %s", status->gc.errors,
                   plural(status->gc.errors), status->gc.text);
        doctor_remedy(doctor, "`cairn gc --status` shows more; the daemon tries again by itself");
    }
}

/* --- records: as scrub saw them on the medium, and as the server reads them ------------------- */

struct records {
    struct cli *cli;
    struct doctor *doctor;
    const struct scrub_info *scrub; /* NULL if the server does not scrub */
    const char *url;                /* of the store, as it is typed; "": not known */
    size_t runs, bad;
};

/* Returns what a pass of the scrub has found in the run's record, if no later pass has found the
 * record whole, or NULL. */
static const struct scrub_finding_info *scrubbed(const struct records *records,
                                                 const struct run_name *run)
{
    const struct scrub_info *scrub = records->scrub;
    for (uint32_t i = 0; scrub && i < scrub->recent_count; i++) {
        const struct scrub_finding_info *finding = &scrub->recent[i];
        if (finding->id.term == 0 && run_name_equal(&finding->run, run)) {
            return finding;
        }
    }
    return NULL;
}

/* Returns whether the check of the files has found the run's record damaged already. */
static bool is_told(const struct doctor *doctor, const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        if (finding->level == DOCTOR_UNSAFE && strcmp(finding->check, "records") == 0 &&
            strncmp(finding->text, name, length) == 0 && finding->text[length] == ':') {
            return true;
        }
    }
    return false;
}

static void judge_row(struct records *records, const struct msg_usage_row *row)
{
    const struct scrub_finding_info *finding = scrubbed(records, &row->run);
    struct run_name_text name = run_name_text(&row->run);
    records->runs++;
    if (is_told(records->doctor, name.at)) {
        return;
    }
    if (row->code != 0) {
        doctor_add(records->doctor, DOCTOR_UNSAFE, "records", "%s: %s: %s", name.at,
                   err_name(row->code), row->text);
        doctor_remedy_of(records->doctor, row->code, records->url);
    } else if (row->text[0] != 0) {
        doctor_add(records->doctor, DOCTOR_UNSAFE, "records", "%s: %s: %s", name.at,
                   err_name(CAIRN_E_DAMAGED), row->text);
        doctor_remedy_of(records->doctor, CAIRN_E_DAMAGED, records->url);
    } else if (finding) {
        doctor_add(records->doctor, DOCTOR_UNSAFE, "records", "%s: %s: %s", name.at,
                   err_name(CAIRN_E_DAMAGED), finding->text);
        doctor_remedy_of(records->doctor, CAIRN_E_DAMAGED, records->url);
    }
    records->bad += row->code != 0 || row->text[0] != 0 || finding != NULL;
}

/* As `doctor --store` judges them: a run whose record is damaged is unsafe. */
static int judge_records(struct records *records, struct diag *diag)
{
    struct run_name after = {.project = ""};
    bool more = true;
    int status = 0;
    while (status == 0 && more) {
        struct source_request request = {
            .call.request = {.type = MSG_USAGE, .u.usage = {"", after, 0}}};
        status = source_call(records->cli->connection, &request, diag);
        const struct msg_usage_reply *reply = &request.call.reply.u.usage_reply;
        for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
            judge_row(records, &reply->rows[i]);
            after = reply->rows[i].run;
        }
        more = status == 0 && reply->more && reply->count > 0;
        engine_call_fini(&request.call);
    }
    return status;
}

static int check_records(struct records *records, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int status = judge_records(records, &why);
    if (status == CAIRN_E_CANCELLED) {
        return diag_copy(diag, &why);
    }
    if (status != 0) { /* a server without its store says why in its health */
        doctor_add(records->doctor, DOCTOR_WARNING, "records",
                   "the server did not report them: %s: %s", err_name(status),
                   diag_text(&why, status));
        doctor_remedy(
            records->doctor,
            "look at the server's health, and run `cairn doctor --store URL` on its host");
    } else {
        doctor_add(records->doctor, DOCTOR_GOOD, "records",
                   "%zu of %zu runs' records can be read and are whole",
                   records->runs - records->bad, records->runs);
    }
    return 0;
}

/* Examines the policies: one that cannot be used forgets nothing, so the disk fills. An older
 * server knows none. */
static int judge_policies(struct cli *cli, struct doctor *doctor, struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_POLICY, .u.policy.kind = MSG_POLICY_SHOW}};
    struct diag why = DIAG_INIT;
    int status = source_call(cli->connection, &request, &why);
    const struct msg_policy_reply *reply = &request.call.reply.u.policy_reply;
    size_t bad = 0;
    for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
        const struct msg_policy_row *row = &reply->rows[i];
        const char *pattern = row->pattern[0] != '\0' ? row->pattern : "(without a pattern)";
        if (row->code != 0) {
            doctor_add(doctor, DOCTOR_WARNING, "policies",
                       "the %s policy %s cannot be used, so it forgets nothing: %s: %s",
                       policy_source_name(row->source), pattern, err_name(row->code), row->text);
            doctor_remedy(doctor, "set it again with `cairn policy set`; on a store with a newer "
                                  "version's policies, upgrade this one");
        }
        bad += row->code != 0;
    }
    if (status == 0 && reply->count == 0 && reply->interval_ms > 0) {
        doctor_add(doctor, DOCTOR_WARNING, "policies",
                   "[retention] interval is set, but there is no policy, so nothing is forgotten");
        doctor_remedy(doctor, "set one with `cairn policy set`");
    } else if (status == 0 && bad == 0) {
        doctor_add(doctor, DOCTOR_GOOD, "policies", "%u retention polic%s, of the store%s%s",
                   reply->count, reply->count == 1 ? "y" : "ies",
                   cli->source.store ? "" : " and the configuration",
                   reply->interval_ms > 0 ? ", which the daemon applies by itself" : "");
    } else if (status != 0 && status != CAIRN_E_CANCELLED && status != CAIRN_E_UNSUPPORTED) {
        doctor_add(doctor, DOCTOR_WARNING, "policies", "they cannot be read: %s: %s",
                   err_name(status), diag_text(&why, status));
        doctor_remedy(doctor, "nothing is forgotten by a policy meanwhile; look at the store");
    }
    engine_call_fini(&request.call);
    return status == CAIRN_E_CANCELLED ? diag_copy(diag, &why) : 0;
}

/* The store's own doctor has read each record's files. What lies in the store and no record tells
 * of, the server's core knows: here the one of this process. */
static int examine_leftovers(struct cli *cli, const char *url, struct doctor *doctor,
                             struct diag *diag)
{
    struct records records = {.cli = cli, .doctor = doctor, .url = url};
    struct diag why = DIAG_INIT;
    int status = source_new(&cli->source, &cli->connection, &why);
    if (status == 0) {
        status = source_use(cli->connection, NULL, &why);
    }
    if (status == 0) {
        status = judge_records(&records, &why);
    }
    if (status == 0) {
        status = judge_policies(cli, doctor, &why);
    }
    if (status == CAIRN_E_CANCELLED) {
        return diag_copy(diag, &why);
    }
    if (status != 0) {
        doctor_add(doctor, DOCTOR_UNSAFE, "records",
                   "it is not known whether everything that is stored has a record: %s: %s",
                   err_name(status), diag_text(&why, status));
        doctor_remedy_of(doctor, status, url);
    }
    return 0;
}

static void judge_room(const struct msg_server_status *status, struct doctor *doctor)
{
    struct doctor_room room = {.free_bytes = status->free_bytes,
                               .total_bytes = status->total_bytes,
                               .reserve_bytes = status->reserve_bytes,
                               .beyond = true,
                               .records_free_bytes = status->records_free_bytes};
    if (status->total_bytes > 0) {
        doctor_space(doctor, "space", &room);
    }
}

/* Without one (its cluster is out of reach) it answers nothing else; its health says why. */
static bool has_store(const struct msg_server_status *status)
{
    static const struct uuid none;
    return memcmp(&status->store_uuid, &none, sizeof(none)) != 0;
}

static int ask_server(struct cli *cli, struct doctor *doctor, struct diag *diag)
{
    struct source_request request = {.call.request = {.type = MSG_SERVER}};
    int status = cli_connect_server(cli, diag);
    struct doctor_clock clock = {.whose = "the server's", .before_ns = wall_ns()};
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        const struct msg_server_status *reply = &request.call.reply.u.server_status;
        clock.after_ns = wall_ns();
        clock.theirs_ns = reply->wall_ns;
        judge_health(reply, doctor);
        doctor_add(doctor, reply->read_only ? DOCTOR_UNSAFE : DOCTOR_GOOD, "store",
                   "%s, epoch %" PRIu64 ", %u run%s%s", reply->store, reply->epoch, reply->runs,
                   plural(reply->runs), reply->read_only ? ", read-only" : "");
        if (reply->read_only) {
            doctor_remedy(
                doctor,
                "look at the server's health, and run `cairn doctor --store URL` on its host");
        }
        judge_room(reply, doctor);
        if (reply->wall_ns != 0) {
            doctor_clock(doctor, &clock);
        }
        struct records records = {
            .cli = cli, .doctor = doctor, .scrub = reply->has_scrub ? &reply->scrub : NULL};
        status = has_store(reply) ? check_records(&records, diag) : 0;
        if (status == 0 && has_store(reply)) {
            status = judge_policies(cli, doctor, diag);
        }
        judge_care(reply, doctor);
    }
    engine_call_fini(&request.call);
    return status;
}

static bool could_open(const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++) {
        if (doctor->findings[i].level == DOCTOR_GOOD &&
            strcmp(doctor->findings[i].check, "store") == 0) {
            return true;
        }
    }
    return false;
}

static int examine_all(struct cli *cli, const struct doctor_options *own, struct doctor *doctor,
                       struct diag *diag)
{
    char url[STORE_URL_MAX];
    int status = examine(cli, own, doctor, diag);
    store_url_typed(cli->source.store, sizeof(url), url);
    return status == 0 && could_open(doctor) ? examine_leftovers(cli, url, doctor, diag) : status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct doctor_options *own = values;
    struct doctor *doctor = calloc(1, sizeof(*doctor));
    if (!doctor) {
        return diag_no_memory(diag, "this command");
    }
    if (own->config) {
        doctor_config(own->config, wall_ns() / 1000000000, doctor);
    }
    bool asks = cli->source.store || cli->common.server || getenv("CAIRN_SERVER") || !own->config;
    int status = !asks               ? 0
                 : cli->source.store ? examine_all(cli, own, doctor, diag)
                                     : ask_server(cli, doctor, diag);
    if (status == 0 && cli->json) {
        status = print_json(cli, own, doctor);
    } else if (status == 0) {
        print_text(own, doctor);
        status = out_flush();
    }
    if (status == 0) {
        status = doctor_count(doctor, DOCTOR_UNSAFE) > 0    ? EXIT_UNSAFE
                 : doctor_count(doctor, DOCTOR_WARNING) > 0 ? EXIT_WARNINGS
                                                            : 0;
    }
    free(doctor);
    return status;
}

const struct command command_doctor = {
    .name = "doctor",
    .group = GROUP_SYSTEM,
    .summary = "examine a store and its disk or cluster, and name what is unsafe, with the remedy",
    .details =
        "For a directory the command examines the file system, free space, permissions, whether a "
        "file can be made durable, O_DIRECT, and which process holds the lock. For a Ceph cluster "
        "it examines the version, health and flags, the size, min_size, quota and room of the "
        "pools, whether they take what the store puts there, and what the user may do and should "
        "not be allowed to do. For both it examines the clocks, the retention policies and every "
        "run's record on "
        "the medium. It writes one small file or object and removes it. Run it as the user that "
        "cairnd "
        "runs as.\n\nWith a server instead of a store it shows the running daemon's own view: its "
        "health, its store with room and reserve, every run's record as the daemon and its scrub "
        "read it, the difference between its clock and this host's, and what scrub and garbage "
        "collection found. Damage that was found is shown until a scrub has found it whole again. "
        "A run is unsafe if its record is lost, cut off, or older than what is stored of the "
        "run.\n\nWith --config it also examines a daemon's configuration: whether the daemon would "
        "start with it, when its certificates expire and whether they fit the key, and whether "
        "the daemon or a timer of this host forgets, collects garbage and scrubs. Without a store "
        "and a server it examines that alone.\n\nThe exit status is 0 if all is good, 3 if there "
        "are only warnings, and 1 if "
        "something is unsafe. If the store cannot be examined at all, it is that of the error.\n",
    .example = "cairn doctor --store dir:/var/lib/cairn\n"
               "cairn doctor --store 'rados:cairn?data-pool=cairn-ec' --json\n"
               "cairn doctor --server host:7421\n",
    .options = options,
    .options_bytes = sizeof(struct doctor_options),
    .run = run};
