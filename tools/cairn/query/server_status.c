/* SPDX-License-Identifier: Apache-2.0
 *
 * See server_status.h.
 */
#include "server_status.h"

#include "exit_status.h"

#include "base/digits.h"
#include "hash/hash.h"
#include "system/maintenance.h"

#include <inttypes.h>

static void show_health(const struct msg_server_status *status)
{
    struct shown room;
    printf("health     %s", server_health_name(status->health));
    if (status->health_ms > 0) {
        printf(" (%" PRIu64 " s)", status->health_ms / 1000);
    }
    printf("%s%s\n", status->health_text[0] != '\0' ? ": " : "", shown(&room, status->health_text));
    if (status->health_remedy[0] != '\0') {
        printf("           remedy: %s\n", shown(&room, status->health_remedy));
    }
}

/* Prints the daemons of a store that several use, with their duties. */
static void show_daemons(const struct msg_server_status *status)
{
    for (uint32_t i = 0; i < status->daemon_count; i++) {
        const struct daemon_info *daemon = &status->daemons[i];
        struct shown room[2];
        printf("%-10s %s%s%s%s%s%s%s", i == 0 ? "daemons" : "", shown(&room[0], daemon->name),
               daemon->addresses[0] != '\0' ? " at " : "", shown(&room[1], daemon->addresses),
               daemon->is_self ? ", this one" : "", daemon->scrubs ? ", scrubs" : "",
               daemon->collects ? ", collects garbage" : "",
               daemon->scrubs || daemon->collects || daemon->is_self ? "" : ", stands by");
        if (!daemon->is_self && daemon->seen_ms > 0) {
            printf("; last seen %" PRIu64 " s ago", daemon->seen_ms / 1000);
        }
        printf("\n");
    }
}

static void show(const struct msg_server_status *status)
{
    uint64_t minutes = status->uptime_ms / 60000;
    struct text in = bytes_text(status->bytes_in);
    struct text out = bytes_text(status->bytes_out);
    struct shown room;
    printf("server     %s, up %" PRIu64 "d %" PRIu64 "h %" PRIu64 "m\n",
           shown(&room, status->agent), minutes / 1440, minutes / 60 % 24, minutes % 60);
    show_health(status);
    struct text reserve = bytes_text(status->reserve_bytes);
    printf("store      %s, %s; %s free of %s%s%s\n", shown(&room, status->store),
           status->read_only ? "READ-ONLY" : "writable", bytes_text(status->free_bytes).at,
           bytes_text(status->total_bytes).at, status->reserve_bytes > 0 ? ", reserve " : "",
           status->reserve_bytes > 0 ? reserve.at : "");
    if (status->detail[0] != '\0') {
        printf("           %s\n", shown(&room, status->detail));
    }
    printf("sessions   %u, %u of them saving; %u run%s; %s in, %s out\n", status->sessions,
           status->saves_open, status->runs, plural(status->runs), in.at, out.at);
    show_daemons(status);
    if (status->has_scrub) {
        maintenance_show_scrub(&status->scrub);
    } else {
        printf("scrub      this server runs none\n");
    }
    if (status->has_gc) {
        maintenance_show_gc(&status->gc, true);
    } else {
        printf("gc         this server runs none\n");
    }
}

static int show_json(const struct msg_server_status *status)
{
    struct json json;
    char uuid[33];
    hex_encode(sizeof(status->store_uuid), &status->store_uuid, uuid);
    json_begin(&json);
    json_str(&json, "agent", status->agent);
    json_u64(&json, "uptime_ms", status->uptime_ms);
    json_str(&json, "store", status->store);
    json_str(&json, "store_uuid", uuid);
    json_u64(&json, "epoch", status->epoch);
    json_u64(&json, "total_bytes", status->total_bytes);
    json_u64(&json, "free_bytes", status->free_bytes);
    json_u64(&json, "reserve_bytes", status->reserve_bytes);
    json_u64(&json, "records_free_bytes", status->records_free_bytes);
    json_bool(&json, "read_only", status->read_only);
    json_str(&json, "detail", status->detail[0] != '\0' ? status->detail : NULL);
    json_str(&json, "health", server_health_name(status->health));
    json_str(&json, "health_error",
             status->health_code != 0 ? err_name(status->health_code) : NULL);
    json_str(&json, "health_text", status->health_text[0] != '\0' ? status->health_text : NULL);
    json_str(&json, "health_remedy",
             status->health_remedy[0] != '\0' ? status->health_remedy : NULL);
    json_u64(&json, "health_ms", status->health_ms);
    json_u64(&json, "wall_ns", (uint64_t)status->wall_ns);
    json_u64(&json, "sessions", status->sessions);
    json_u64(&json, "saves_open", status->saves_open);
    json_u64(&json, "runs", status->runs);
    json_u64(&json, "bytes_in", status->bytes_in);
    json_u64(&json, "bytes_out", status->bytes_out);
    json_open(&json, "daemons", '[');
    for (uint32_t i = 0; i < status->daemon_count; i++) {
        const struct daemon_info *daemon = &status->daemons[i];
        json_open(&json, NULL, '{');
        json_str(&json, "name", daemon->name);
        json_str(&json, "addresses", daemon->addresses);
        json_u64(&json, "seen_ms", daemon->seen_ms);
        json_bool(&json, "this", daemon->is_self);
        json_bool(&json, "scrubs", daemon->scrubs);
        json_bool(&json, "collects", daemon->collects);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    if (status->has_scrub) {
        maintenance_json_scrub(&json, "scrub", &status->scrub);
    }
    if (status->has_gc) {
        maintenance_json_gc(&json, "gc", &status->gc);
    }
    return json_end(&json);
}

int server_status(struct cli *cli, struct diag *diag)
{
    struct source_request request = {.call.request = {.type = MSG_SERVER}};
    int status = cli_connect_server(cli, diag);
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        const struct msg_server_status *reply = &request.call.reply.u.server_status;
        if (cli->json) {
            status = show_json(reply);
        } else {
            show(reply);
            status = out_flush();
        }
        if (status == 0 && reply->health == SERVER_RED) {
            status = EXIT_RED;
        }
    }
    engine_call_fini(&request.call);
    return status;
}
