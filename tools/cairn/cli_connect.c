/* SPDX-License-Identifier: Apache-2.0
 *
 * From the command line to a viewer's connection on the right run, and the two questions that every
 * command asks: which checkpoint, and which are there.
 */
#include "cli.h"

#include "exit_status.h"

#include "env/net.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_SCRATCH_MAX = 1 << 30 };

/* Sets the URL of a server that is named as in --server. */
static void use_server(struct cli *cli, const char *server)
{
    if (strstr(server, "://")) {
        cli->source.url = server;
    } else if (strncmp(server, "unix:", 5) == 0) {
        snprintf(cli->url_text, sizeof(cli->url_text), "cairn+unix://%s", server + 5);
        cli->source.url = cli->url_text;
    } else {
        snprintf(cli->url_text, sizeof(cli->url_text), "cairn://%s/", server);
        cli->source.url = cli->url_text;
    }
}

/* RUN is "project/run" or a whole URL. The server is the URL's; of a URL that names none, and
 * without a URL, it is --server or CAIRN_SERVER. */
static int understand_run(struct cli *cli, struct diag *diag)
{
    static const char no_server[] = "cairn:///";
    const char *text = cli->run_text;
    const char *server = cli->source.url ? cli->source.url : getenv("CAIRN_SERVER");
    if (text && strncmp(text, no_server, sizeof no_server - 1) == 0) {
        text += sizeof no_server - 1;
        text = text[0] != '\0' ? text : NULL;
    }
    if (text && strstr(text, "://")) {
        struct url url;
        int status = url_parse(text, server, true, &url, diag);
        if (status != 0) {
            return status;
        }
        cli->source.url = text;
        cli->run = url.run;
        cli->has_run = url.has_run;
        return 0;
    }
    if (text) {
        int status = run_name_parse(text, &cli->run, diag);
        if (status != 0) {
            return status;
        }
        cli->has_run = true;
    }
    if (cli->source.store) {
        return 0;
    }
    if (!server) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no server is named: give --server HOST:PORT (or unix:/path), set "
                        "CAIRN_SERVER, or read a store with --store dir:/path");
    }
    if (server[0] == '/') {
        return diag_set(diag, CAIRN_E_INVALID, "the server %s is a path; write unix:%s", server,
                        server);
    }
    use_server(cli, server);
    return 0;
}

/* With exactly one run there is no question which one is meant. */
static int only_run(struct cli *cli, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = source_runs(cli->connection, false, &names, &count, diag);
    if (status == 0 && count == 1) {
        cli->run = names[0];
        cli->has_run = true;
    } else if (status == 0) {
        status = count == 0
                     ? diag_set(diag, CAIRN_E_NOT_FOUND, "the store has no run yet")
                     : diag_set(diag, CAIRN_E_INVALID,
                                "there are %zu runs, so name one; `cairn ls` lists them", count);
    }
    free(names);
    return status;
}

static int make_source(struct cli *cli, struct diag *diag)
{
    int status = understand_run(cli, diag);
    return status != 0 ? status : source_new(&cli->source, &cli->connection, diag);
}

int cli_connect_server(struct cli *cli, struct diag *diag)
{
    int status = make_source(cli, diag);
    return status != 0 ? status : source_use_server(cli->connection, diag);
}

/* Ends the connection and makes one to `server`. `tls_name` is that of struct source_options. */
static int reconnect(struct cli *cli, const char *server, const char *tls_name, struct diag *diag)
{
    source_free(cli->connection);
    cli->connection = NULL;
    use_server(cli, server);
    cli->source.tls_name = tls_name;
    int status = source_new(&cli->source, &cli->connection, diag);
    return status != 0 ? status : source_use(cli->connection, NULL, diag);
}

int cli_reconnect(struct cli *cli, const char *server, struct diag *diag)
{
    int status = CAIRN_E_AUTH;
    if (cli->asked.server_count == 0) {
        cli->asked = *source_url(cli->connection);
    }
    for (size_t i = 0; i < cli->asked.server_count && status == CAIRN_E_AUTH; i++) {
        struct net_addr addr;
        if (net_addr_parse(cli->asked.servers[i], CAIRN_DEFAULT_PORT, &addr, NULL) == 0 &&
            addr.family == NET_TCP) {
            snprintf(cli->tls_name, sizeof(cli->tls_name), "%s", addr.host);
            diag_clear(diag);
            status = reconnect(cli, server, cli->tls_name, diag);
        }
    }
    if (status == CAIRN_E_AUTH) {
        diag_clear(diag);
        status = reconnect(cli, server, NULL, diag);
    }
    return status;
}

int cli_connect(struct cli *cli, bool needs_run, struct diag *diag)
{
    int status = make_source(cli, diag);
    if (status == 0) {
        status = source_use(cli->connection, cli->has_run ? &cli->run : NULL, diag);
    }
    if (status != 0 || cli->has_run || !needs_run) {
        return status;
    }
    status = only_run(cli, diag);
    return status != 0 ? status : source_use(cli->connection, &cli->run, diag);
}

int cli_check_run(struct cli *cli, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    bool found = false;
    int status = source_runs(cli->connection, false, &names, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        found = found || (strcmp(names[i].project, cli->run.project) == 0 &&
                          strcmp(names[i].run, cli->run.run) == 0);
    }
    free(names);
    if (status == 0 && !found) {
        status = diag_set(diag, CAIRN_E_NOT_FOUND, "there is no run %s; `cairn ls` lists all runs",
                          run_name_text(&cli->run).at);
    }
    return status;
}

int cli_resolve(struct cli *cli, const struct selector *selector, struct scratch *scratch,
                struct ckpt_info *ret, struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_RESTORE, .u.restore = {.selector = *selector}}};
    int status = source_call(cli->connection, &request, diag);
    const struct msg_resolved *resolved = &request.call.reply.u.resolved;
    if (status == 0 && resolved->empty) {
        status = diag_set(diag, CAIRN_E_NOT_FOUND, "%s has no checkpoint yet",
                          run_name_text(&cli->run).at);
    }
    if (status == 0) {
        *ret = resolved->info;
        ret->text =
            scratch_string(scratch, ret->text ? strlen(ret->text) : 0, ret->text ? ret->text : "");
        status = cli_keep_note(ret, scratch, diag);
    }
    engine_call_fini(&request.call);
    return status;
}

void cli_say_mark(const struct cli *cli, const struct cli_list *list)
{
    struct shown room;
    if (list->mark[0] != 0) {
        fprintf(stderr, "cairn: the list of %s may lack checkpoints: %s\n",
                run_name_text(&cli->run).at, shown(&room, list->mark));
    }
}

int cli_passed_over(struct cli *cli, const struct selector *selector, const struct ckpt_info *than,
                    bool *ret, struct diag *diag)
{
    struct scratch scratch;
    struct cli_list list = {0};
    *ret = false;
    if (selector->kind != SELECT_LATEST) {
        return 0;
    }
    scratch_init(&scratch, LIST_SCRATCH_MAX);
    int status = cli_list(cli, &scratch, &list, diag);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        const struct ckpt_info *info = &list.items[i];
        *ret = *ret || (info->state == CKPT_COMMITTED && info->on_lineage &&
                        info->seq > than->seq && info->health == HEALTH_DAMAGED);
    }
    if (status == 0 && list.mark[0] != 0) { /* newer ones may be among what it has lost */
        cli_say_mark(cli, &list);
        *ret = true;
    }
    scratch_fini(&scratch);
    return status;
}

int cli_resolve_newest(struct cli *cli, const struct selector *selector, struct scratch *scratch,
                       struct ckpt_info *ret, struct diag *diag)
{
    bool passed_over = false;
    int status = cli_resolve(cli, selector, scratch, ret, diag);
    status = status != 0 ? status : cli_passed_over(cli, selector, ret, &passed_over, diag);
    if (status == 0 && passed_over) {
        status = diag_set(diag, CAIRN_E_DAMAGED,
                          "the newest checkpoint is damaged or lost (see `cairn status` and `cairn "
                          "ls`); to use the newest good one, name %s",
                          ckpt_id_text(ret->id).at);
    }
    return status;
}

int cli_keep_note(struct ckpt_info *io, struct scratch *scratch, struct diag *diag)
{
    const char **tags = scratch_array(scratch, io->tag_count + 1u, sizeof(*tags));
    struct metric *metrics = scratch_array(scratch, io->metric_count + 1u, sizeof(*metrics));
    bool fits = tags && metrics;
    for (uint32_t i = 0; fits && i < io->tag_count; i++) {
        tags[i] = scratch_string(scratch, strlen(io->tags[i]), io->tags[i]);
        fits = tags[i] != NULL;
    }
    for (uint32_t i = 0; fits && i < io->metric_count; i++) {
        const char *name =
            scratch_string(scratch, strlen(io->metrics[i].name), io->metrics[i].name);
        metrics[i] = (struct metric){.name = name, .value = io->metrics[i].value};
        fits = name != NULL;
    }
    io->tags = tags;
    io->metrics = metrics;
    return fits ? 0 : diag_no_memory(diag, "tags and metrics");
}

struct listing {
    struct ckpt_info *items;
    size_t count, cap;
};

static int keep_page(struct listing *listing, const struct msg_list_reply *reply,
                     struct scratch *scratch, struct diag *diag)
{
    if (listing->count + reply->count > listing->cap) {
        size_t cap = (listing->count + reply->count) * 2;
        struct ckpt_info *grown = realloc(listing->items, cap * sizeof(*grown));
        if (!grown) {
            return diag_no_memory(diag, "the list of runs and checkpoints");
        }
        listing->items = grown;
        listing->cap = cap;
    }
    int status = 0;
    for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
        struct ckpt_info *info = &listing->items[listing->count++];
        *info = reply->entries[i];
        info->text = scratch_string(scratch, info->text ? strlen(info->text) : 0,
                                    info->text ? info->text : "");
        status = cli_keep_note(info, scratch, diag);
    }
    return status;
}

int cli_list(struct cli *cli, struct scratch *scratch, struct cli_list *io, struct diag *diag)
{
    struct listing listing = {0};
    uint64_t before = 0;
    bool more = true;
    int status = 0;
    while (status == 0 && more) {
        struct source_request request = {
            .call.request = {.type = MSG_LIST,
                             .u.list = {.before_seq = before, .forgotten = io->forgotten}}};
        status = source_call(cli->connection, &request, diag);
        if (status == 0) {
            const struct msg_list_reply *reply = &request.call.reply.u.list_reply;
            status = keep_page(&listing, reply, scratch, diag);
            if (status == 0) {
                status = msg_list_next(reply, &before, diag);
            }
            more = before != 0 && (io->limit == 0 || listing.count < io->limit);
            io->mark = scratch_string(scratch, strlen(reply->mark), reply->mark);
        }
        engine_call_fini(&request.call);
    }
    if (status == 0) {
        struct ckpt_info *items = scratch_array(scratch, listing.count + 1, sizeof(*items));
        if (items != NULL && listing.count > 0) {
            memcpy(items, listing.items, listing.count * sizeof(*items));
        }
        io->items = items;
        io->count = listing.count;
        status = items && io->mark ? 0 : diag_no_memory(diag, "the list of runs and checkpoints");
    }
    free(listing.items);
    return status;
}

int cli_each_run(struct cli *cli,
                 int (*each)(struct cli *cli, void *user, const struct run_name *run,
                             struct diag *diag),
                 void *user, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0, failed = 0;
    int status = cli->has_run ? 0 : source_runs(cli->connection, true, &names, &count, diag);
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct diag why = DIAG_INIT;
        int rc = source_use(cli->connection, &names[i], &why);
        if (rc == 0) {
            rc = each(cli, user, &names[i], &why);
        }
        if (rc == CAIRN_E_CANCELLED || rc == CAIRN_E_UNREACHABLE || rc == CAIRN_E_NO_MEMORY) {
            status = diag_copy(diag, &why);
        } else if (rc != 0) {
            diag_add(&why, "%s/%s", names[i].project, names[i].run);
            cli_error(cli, rc, err_exit_status(rc), diag_text(&why, rc));
            failed++;
        }
    }
    free(names);
    if (cli->has_run) {
        return each(cli, user, &cli->run, diag);
    }
    return status != 0 ? status : failed > 0 ? EXIT_PARTIAL : 0;
}
