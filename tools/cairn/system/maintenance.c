/* SPDX-License-Identifier: Apache-2.0
 *
 * See maintenance.h.
 */
#include "maintenance.h"

#include "base/digits.h"
#include "condition.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { SLEEP_MS = 500, FOLLOWS_MAX = 3, ADDRESSES_MAX = 8 };

static void where_text(const struct run_name *run, struct ckpt_id id, size_t size, char *ret)
{
    char name[RUN_NAME_TEXT_MAX] = "";
    struct ckpt_id_text ckpt = {""};
    if (run->project[0] != '\0') {
        run_name_format(run, name);
    }
    if (id.term != 0) {
        ckpt = ckpt_id_text(id);
    }
    snprintf(ret, size, "%s%s%s", name, ckpt.at[0] != '\0' ? " " : "", ckpt.at);
}

static void show_findings(const struct scrub_info *info)
{
    for (uint32_t i = 0; i < info->recent_count; i++) {
        const struct scrub_finding_info *finding = &info->recent[i];
        char where[RUN_NAME_TEXT_MAX + 64];
        where_text(&finding->run, finding->id, sizeof(where), where);
        struct shown room;
        printf("  %s: %s: %s\n", where, health_name(finding->health), shown(&room, finding->text));
    }
}

void maintenance_show_scrub(const struct scrub_info *info)
{
    char where[RUN_NAME_TEXT_MAX + 64];
    struct text bytes = bytes_text(info->bytes);
    if (info->waiting) {
        printf(
            "scrub      not this daemon's duty: another daemon of the store runs it, or takes it "
            "within a minute\n");
        return;
    }
    if (info->running) {
        where_text(&info->run, info->id, sizeof(where), where);
        printf("scrub      pass %" PRIu64 " at %s: %" PRIu64 " checkpoint%s, %s; %s%s\n",
               info->pass, where, info->ckpts, plural(info->ckpts), bytes.at,
               info->rate > 0 ? bytes_text(info->rate).at : "no limit", info->rate > 0 ? "/s" : "");
    } else if (info->ended_wall_ns == 0) {
        printf("scrub      no pass has run yet\n");
    } else {
        printf("scrub      pass %" PRIu64 " ended %s: %" PRIu64 " checkpoint%s, %s\n", info->pass,
               time_text(info->ended_wall_ns).at, info->ckpts, plural(info->ckpts), bytes.at);
    }
    if (info->yielding) {
        printf("           it yields to saves and restores\n");
    }
    printf("           %" PRIu64 " finding%s in this pass, %" PRIu64
           " since the daemon's start; %" PRIu64 " found whole again; %" PRIu64 " error%s\n",
           info->findings, plural(info->findings), info->findings_total, info->healed_total,
           info->errors_total, plural(info->errors_total));
    show_findings(info);
}

void maintenance_tell_damage(const struct scrub_info *info)
{
    char where[RUN_NAME_TEXT_MAX + 64] = "";
    const struct scrub_finding_info *newest = info->recent_count > 0 ? &info->recent[0] : NULL;
    if (newest) {
        where_text(&newest->run, newest->id, sizeof(where), where);
    }
    struct shown room;
    fprintf(stderr,
            "cairn: scrub has found %" PRIu64
            " damaged item%s%s%s%s%s; `cairn scrub --status` names them%s\n",
            info->findings, plural(info->findings), newest ? ", last in " : "", where,
            newest ? ": " : "", shown(&room, newest ? newest->text : ""),
            newest && newest->id.term == 0 /* a record, whose text names its own remedy */
                ? ""
                : ", and `cairn verify --repair` repairs what has a copy");
}

void maintenance_waits_text(int64_t first_wall_ns, int64_t last_wall_ns, size_t size, char *ret)
{
    if (last_wall_ns == 0) {
        snprintf(ret, size, "%s",
                 "until as many cycles of garbage collection have begun as [gc] keep-cycles says "
                 "(24, if it does not)");
        return;
    }
    struct text first = time_text(first_wall_ns);
    struct text last = time_text(last_wall_ns);
    if (strcmp(first.at, last.at) == 0) {
        snprintf(ret, size, "until %s", last.at);
    } else {
        snprintf(ret, size, "the first until %s, the last until %s", first.at, last.at);
    }
}

/* What waits, and the command that frees it. */
static void show_forgotten(const struct gc_info *info)
{
    char until[160];
    if (info->forgotten == 0) {
        return;
    }
    struct text bytes = bytes_text(info->forgotten_bytes);
    maintenance_waits_text(info->first_wall_ns, info->last_wall_ns, sizeof(until), until);
    printf("           %s of %" PRIu64 " forgotten checkpoint%s wait%s to be reclaimed, %s;\n"
           "           `cairn gc --now` frees %s now, for good\n",
           bytes.at, info->forgotten, plural(info->forgotten), info->forgotten == 1 ? "s" : "",
           until, info->forgotten == 1 ? "it" : "them");
}

static void show_now(const struct gc_info *info)
{
    if (info->now && !info->running && info->reclaimed > 0) {
        printf("           %s without waiting for cycles, and gone for good%s\n",
               info->dry_run ? "it would be reclaimed" : "reclaimed", info->dry_run ? " then" : "");
    } else if (info->now && !info->running && info->held == 0 && info->errors == 0) {
        printf("           nothing that is forgotten waits: nothing %s\n",
               info->dry_run ? "would be reclaimed" : "was reclaimed");
    }
    if (info->held > 0) {
        printf("           %" PRIu64 " forgotten checkpoint%s: an open save or a restore uses %s\n",
               info->held, info->held == 1 ? " stays" : "s stay", info->held == 1 ? "it" : "them");
    }
}

static void show_pressure(const struct gc_info *info)
{
    if (info->pressed_wall_ns == 0) {
        return;
    }
    struct text bytes = bytes_text(info->pressed_bytes_total);
    struct text when = time_text(info->pressed_wall_ns);
    printf("           for lack of room %" PRIu64
           " checkpoint%s reclaimed before %s time (%s), the last at %s\n",
           info->pressed_total, info->pressed_total == 1 ? " was" : "s were",
           info->pressed_total == 1 ? "its" : "their", bytes.at, when.at);
}

void maintenance_show_gc(const struct gc_info *info, bool tells_why)
{
    struct text read = bytes_text(info->bytes_read);
    if (info->waiting) {
        printf(
            "gc         not this daemon's duty: another daemon of the store runs it, or takes it "
            "within a minute\n");
        return;
    }
    if (info->pass == 0 && !info->running) {
        printf("gc         no pass has run yet\n");
        show_forgotten(info);
        return;
    }
    if (info->running) {
        printf("gc         a pass is running\n");
    } else {
        printf("gc         pass %" PRIu64 " ended %s%s\n", info->pass,
               time_text(info->ended_wall_ns).at,
               info->dry_run ? "; it was a dry run that removed nothing" : "");
    }
    printf("           %" PRIu64 " %sreclaimed; %s %" PRIu64 " object%s (%s) and %" PRIu64
           " %s; %" PRIu64 " go%s next time\n",
           info->reclaimed, info->dry_run ? "would be " : "",
           info->dry_run ? "would remove" : "removed", info->objects, plural(info->objects),
           bytes_text(info->bytes).at, info->smalls,
           info->smalls == 1 ? "part, page or manifest" : "parts, pages and manifests", info->kept,
           info->kept == 1 ? "es" : "");
    struct shown room;
    printf("           looked at %" PRIu64 " checkpoint%s of %" PRIu64
           " run%s, read %s of tables; %" PRIu64 " error%s%s%s\n",
           info->ckpts, plural(info->ckpts), info->runs, plural(info->runs), read.at, info->errors,
           plural(info->errors), tells_why && info->errors > 0 ? ": " : "",
           shown(&room, tells_why && info->errors > 0 ? info->text : ""));
    show_now(info);
    show_forgotten(info);
    show_pressure(info);
}

static void json_number(struct json *json, const char *name, bool is_bool, uint64_t value)
{
    if (is_bool) {
        json_bool(json, name, value != 0);
    } else {
        json_u64(json, name, value);
    }
}
#define NUMBER(number, kind, type, name)  \
    json_number(json, #name,              \
                _Generic(info->name, bool \
                         : true, default  \
                         : false),        \
                (uint64_t)info->name);

void maintenance_json_scrub(struct json *json, const char *name, const struct scrub_info *info)
{
    char where[RUN_NAME_TEXT_MAX + 64];
    json_open(json, name, '{');
    SCRUB_INFO_FIELDS(NUMBER)
    where_text(&info->run, info->id, sizeof(where), where);
    json_str(json, "at", where[0] != '\0' ? where : NULL);
    json_open(json, "recent", '[');
    for (uint32_t i = 0; i < info->recent_count; i++) {
        const struct scrub_finding_info *finding = &info->recent[i];
        json_open(json, NULL, '{');
        json_str(json, "run", run_name_text(&finding->run).at);
        json_ckpt_id(json, finding->id);
        json_str(json, "health", health_name(finding->health));
        json_str(json, "text", finding->text);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

void maintenance_json_gc(struct json *json, const char *name, const struct gc_info *info)
{
    json_open(json, name, '{');
    GC_INFO_FIELDS(NUMBER)
    GC_INFO_MORE_FIELDS(NUMBER)
    json_str(json, "error", info->code != 0 ? err_name(info->code) : NULL);
    json_str(json, "text", info->text && info->text[0] != '\0' ? info->text : NULL);
    json_close(json, '}');
}
#undef NUMBER

/* --- the daemon on duty ----------------------------------------------------------------------- */

/* Connects to one of the addresses, those of this host first. All of them together have the time
 * of one: a daemon that stands still takes connections and answers none. */
static int go_to(struct cli *cli, const struct daemon_info *daemon, struct diag *diag)
{
    char host[64] = "", texts[512], *save = NULL;
    const char *addresses[ADDRESSES_MAX];
    unsigned count = 0;
    size_t bytes = gethostname(host, sizeof(host) - 1) == 0 ? strlen(host) : 0;
    bool is_here = strncmp(daemon->name, host, bytes) == 0 && daemon->name[bytes] == ':';
    int status = diag_set(diag, CAIRN_E_BUSY, "it did not say where it can be reached");
    snprintf(texts, sizeof(texts), "%s", daemon->addresses);
    for (char *text = strtok_r(texts, " ", &save); text && count < ADDRESSES_MAX;
         text = strtok_r(NULL, " ", &save)) {
        if (is_here || strncmp(text, "unix:", 5) != 0) {
            addresses[count++] = strncmp(text, "tcp:", 4) == 0 ? text + 4 : text;
        }
    }
    for (unsigned i = 0; i < count && status != 0; i++) {
        diag_clear(diag);
        cli->source.connect_ms = max_u64(cli->source.deadline_ms / count, 1);
        status = cli_reconnect(cli, addresses[i], diag);
    }
    cli->source.connect_ms = 0;
    return status;
}

/* Goes over to the daemon that has the duty, if it is another one. *ret_went says whether. Without
 * `must`, it is no error that nobody is known to have the duty. */
static int follow(struct cli *cli, bool scrub, bool must, bool *ret_went, struct diag *diag)
{
    struct source_request request = {.call.request = {.type = MSG_SERVER}};
    struct diag why = DIAG_INIT;
    int status = source_call(cli->connection, &request, diag);
    const struct msg_server_status *server = &request.call.reply.u.server_status;
    const struct daemon_info *on_duty = NULL;
    bool waits = status == 0 && (scrub ? server->scrub.waiting : server->gc.waiting);
    for (uint32_t i = 0; status == 0 && i < server->daemon_count; i++) {
        const struct daemon_info *one = &server->daemons[i];
        on_duty = (scrub ? one->scrubs : one->collects) && !one->is_self ? one : on_duty;
    }
    *ret_went = false;
    if (on_duty) {
        struct shown room;
        status = go_to(cli, on_duty, &why);
        *ret_went = status == 0;
        if (status != 0 && status != CAIRN_E_CANCELLED) {
            diag_set(
                diag, CAIRN_E_BUSY,
                "%s of this store is the duty of another daemon, %s (%s; last seen %" PRIu64
                " s ago), which cannot be reached from here: %.200s; ask it on its host; if it "
                "has died, another one takes the duty within a minute of its last sign",
                scrub ? "the scrub" : "garbage collection", on_duty->name, on_duty->addresses,
                on_duty->seen_ms / 1000, diag_text(&why, status));
            status = CAIRN_E_BUSY;
        } else if (status == 0 && !cli->quiet) {
            fprintf(stderr, "cairn: daemon %s has this duty, and is asked\n",
                    shown(&room, on_duty->name));
        }
    } else if (waits && must) {
        status = diag_set(diag, CAIRN_E_BUSY,
                          "%s of this store is the duty of another daemon, which is not known yet; "
                          "ask again in a minute",
                          scrub ? "the scrub" : "garbage collection");
    }
    engine_call_fini(&request.call);
    return status;
}

/* Asks for the state. A daemon that is off duty knows nothing of passes. */
static int ask_state(struct cli *cli, const struct msg *msg, struct source_request *ret,
                     struct diag *diag)
{
    bool went = true, scrub = msg->type == MSG_SCRUB;
    int status = 0;
    for (unsigned i = 0; i < FOLLOWS_MAX && status == 0 && went; i++) {
        engine_call_fini(&ret->call);
        *ret = (struct source_request){.call.request = *msg};
        status = source_call(cli->connection, ret, diag);
        const struct msg *reply = &ret->call.reply;
        went = status == 0 &&
               (scrub ? reply->u.scrub_status.info.waiting : reply->u.gc_report.info.waiting);
        if (went) {
            status = follow(cli, scrub, false, &went, diag);
        }
    }
    return status;
}

int maintenance_ask(struct cli *cli, const struct msg *msg, struct source_request *ret,
                    struct diag *diag)
{
    bool went = true, begins = msg->type == MSG_SCRUB ? msg->u.scrub.begin : msg->u.gc.begin;
    int status = CAIRN_E_BUSY;
    if (!begins) {
        return ask_state(cli, msg, ret, diag);
    }
    for (unsigned i = 0; i < FOLLOWS_MAX && status == CAIRN_E_BUSY && went; i++) {
        struct diag why = DIAG_INIT;
        *ret = (struct source_request){.call = {.request = *msg, .busy_ends = true}};
        status = source_call(cli->connection, ret, &why);
        if (status != CAIRN_E_BUSY) {
            return status == 0 ? 0 : diag_copy(diag, &why);
        }
        engine_call_fini(&ret->call);
        *ret = (struct source_request){.done = false};
        int followed = follow(cli, msg->type == MSG_SCRUB, true, &went, diag);
        if (followed != 0) {
            return followed;
        }
    }
    if (status == CAIRN_E_BUSY) { /* a pass is running there: its end is waited for */
        *ret = (struct source_request){.call.request = *msg};
        status = source_call(cli->connection, ret, diag);
    }
    return status;
}

int maintenance_sleep(struct cli *cli, struct source_request *request, struct diag *diag)
{
    engine_call_fini(&request->call);
    *request = (struct source_request){.done = false};
    return condition_pause(cli, SLEEP_MS, diag);
}
