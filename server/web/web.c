/* SPDX-License-Identifier: Apache-2.0
 *
 * web: see web.h. The store's usage is asked every USAGE_EVERY_MS, one request at a time; a store
 * that takes longer than USAGE_PATIENCE_MS counts as one that does not answer, until it does.
 */
#include "web/web.h"

#include "web/page_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"

enum { USAGE_EVERY_MS = 2000, USAGE_PATIENCE_MS = 2000, ADDRESSES_BYTES = 2048 };
/* How long /metrics and /healthz are given to others: anyone may ask for them back to back. */
enum { FRESH_MS = 500 };

struct web {
    struct web_options options; /* its texts are not used after web_new() */
    struct metrics_source source;
    struct http *http; /* NULL when it has ended */
    char addresses[ADDRESSES_BYTES];
    struct timer timer;
    struct store_req req;
    bool is_local;            /* only this host can connect */
    bool is_asking, is_asked; /* is_asked: there is a last answer */
    uint64_t begun_ms, asked_ms;
    int status; /* of the last answer */
    struct store_usage usage;
    struct diag diag;
    void (*closed)(void *user); /* set when the end has begun */
    void *closed_user;
};

static const char plain[] = "text/plain; charset=utf-8";

/* --- what the store says --- */

static void end_if_idle(struct web *web)
{
    if (web->closed && !web->http && !web->is_asking) {
        void (*closed)(void *user) = web->closed;
        void *user = web->closed_user;
        free(web);
        closed(user);
    }
}

static void on_usage(struct store_req *req)
{
    struct web *web = container_of(req, struct web, req);
    CHECK(web->is_asking);
    web->is_asking = false;
    web->is_asked = true;
    web->status = req->status;
    web->usage = req->status == 0 ? req->ret_usage : (struct store_usage){0};
    web->diag = req->diag;
    end_if_idle(web);
}

static void ask(struct web *web)
{
    if (web->source.catalog && !web->is_asking) {
        CHECK(!web->closed);
        web->is_asking = true;
        web->asked_ms = loop_now_ms(web->options.loop);
        web->req = (struct store_req){.op = STORE_USAGE, .done = on_usage};
        store_submit(catalog_store(web->source.catalog), &web->req);
    }
}

static void on_timer(struct timer *timer)
{
    struct web *web = container_of(timer, struct web, timer);
    ask(web);
    timer_start(timer, USAGE_EVERY_MS);
}

static void set_red(struct health_word *ret, int code, const char *text, const char *remedy)
{
    *ret = (struct health_word){.word = SERVER_RED, .code = code};
    snprintf(ret->text, sizeof(ret->text), "%s", text);
    snprintf(ret->remedy, sizeof(ret->remedy), "%s", remedy);
}

/* Determines the health. It is the server's word, except that a store that gives no answer is red
 * before the server knows. */
static void judge(const struct web *web, const struct diag *diag, struct metrics_usage *io)
{
    char text[DIAG_TEXT_MAX + 64];
    CHECK(web->source.server || io->status != 0);
    if (!web->source.server) {
        set_red(&io->health, io->status, "the store is being opened",
                "none is needed unless this lasts; then look at the daemon's log");
        return;
    }
    server_health(web->source.server, io->status == 0 ? &io->usage : NULL, &io->health);
    bool is_first = web->source.catalog && !web->is_asked; /* nothing is known against it */
    if (io->status != 0 && io->health.word != SERVER_RED &&
        !(is_first && io->status == CAIRN_E_AGAIN)) {
        snprintf(text, sizeof(text), "the store does not answer: %s", diag_text(diag, io->status));
        set_red(&io->health, io->status, text, "check the disk, or the cluster and its network");
    }
}

/* Gives what is known of the store now. */
static void usage_now(struct web *web, struct metrics_usage *ret)
{
    uint64_t now_ms = loop_now_ms(web->options.loop);
    struct diag diag = DIAG_INIT;
    CHECK(web->asked_ms <= now_ms);
    memset(ret, 0, sizeof(*ret));
    if (!web->source.catalog) {
        ret->waits_ms = now_ms - web->begun_ms;
        ret->status =
            diag_set(&diag, CAIRN_E_UNREACHABLE, "the daemon has not opened its store yet");
    } else if (web->is_asking && now_ms - web->asked_ms > USAGE_PATIENCE_MS) {
        ret->status = diag_set(&diag, CAIRN_E_TIMED_OUT, "the store did not answer within %d ms",
                               USAGE_PATIENCE_MS);
    } else if (!web->is_asked) {
        ret->status = diag_set(&diag, CAIRN_E_AGAIN, "the store has not been asked yet");
    } else {
        ret->status = web->status;
        ret->usage = web->usage;
        diag = web->diag;
    }
    judge(web, &diag, ret);
}

/* --- answers --- */

static void answer_text(struct http_reply *io, unsigned status, const char *text)
{
    io->status = status;
    io->content_type = plain;
    buf_put(&io->body, strlen(text), text);
}

/* Answers /healthz. The status is 503 if saves are refused. A peer that is not trusted learns only
 * the word, because the text may name a run. */
static void answer_health(const struct health_word *health, bool tells_all, struct http_reply *io)
{
    char text[HEALTH_TEXT_BYTES + HEALTH_REMEDY_BYTES + 64];
    bool red = health->word == SERVER_RED;
    if (health->word == SERVER_GREEN) {
        snprintf(text, sizeof(text), "ok\n");
    } else if (!tells_all) {
        snprintf(text, sizeof(text), "%s", red ? "red\n" : "ok\nyellow\n");
    } else {
        snprintf(text, sizeof(text), "%s%s: %s\nremedy: %s\n", red ? "" : "ok\n",
                 red ? "red" : "yellow", health->text, health->remedy);
    }
    answer_text(io, red ? 503 : 200, text);
    io->fresh_ms = FRESH_MS;
}

static void answer_metrics(struct web *web, const struct metrics_usage *usage, bool openmetrics,
                           struct http_reply *io)
{
    struct expose expose;
    expose_init(&expose, openmetrics);
    metrics_write(&web->source, usage, &expose);
    if (expose_end(&expose) == 0) {
        io->status = 200;
        io->fresh_ms = FRESH_MS;
        io->content_type = expose_content_type(openmetrics);
        buf_put(&io->body, expose.buf.bytes, expose.buf.data);
    } else {
        answer_text(io, 500, "there is not enough memory for the metrics\n");
    }
    expose_fini(&expose);
}

static bool is_api(const char *target)
{
    size_t bytes = strlen(REST_PREFIX);
    return strncmp(target, REST_PREFIX, bytes) == 0 &&
           (target[bytes] == '\0' || target[bytes] == '/' || target[bytes] == '?');
}

/* Returns true if /metrics and all of /healthz, which name runs, are for every peer: over plain
 * HTTP, as the operator has allowed. On loopback they are not for a browser that a foreign site's
 * page has led here by a name of its own. */
static bool is_open(const struct web *web, const struct http_request *request)
{
    return !web->options.tls_cert && !(web->is_local && !request->has_safe_host);
}

/* Called on the loop's thread for each question. */
static void on_question(void *user, const struct http_request *request, struct http_reply *io)
{
    struct web *web = user;
    struct metrics_usage usage;
    CHECK(!web->closed);
    /* The health is computed only where it is told: anyone may ask for what is not there. */
    if (strcmp(request->target, "/metrics") == 0) {
        usage_now(web, &usage);
        answer_metrics(web, &usage, request->wants_openmetrics, io);
    } else if (strcmp(request->target, "/healthz") == 0) {
        usage_now(web, &usage);
        answer_health(&usage.health, is_open(web, request) || request->is_trusted, io);
    } else if (strcmp(request->target, "/readyz") == 0) {
        bool ready = web->source.catalog != NULL;
        answer_text(io, ready ? 200 : 503,
                    ready ? "ok\n" : "the daemon has not opened its store yet\n");
    } else if (is_api(request->target)) {
        struct rest_source source = {.metrics = &web->source,
                                     .usage = &usage,
                                     .quotas = web->options.quotas,
                                     .addresses = web->addresses};
        usage_now(web, &usage);
        rest_answer(&source, request->target, io);
    } else {
        answer_text(io, 404, "this address serves /, /metrics, /healthz, /readyz and /api/v1/\n");
    }
}

/* Called on any thread. */
static bool is_private(void *user, const struct http_request *request)
{
    return is_api(request->target) ||
           (strcmp(request->target, "/metrics") == 0 && !is_open(user, request));
}

/* --- begin and end --- */

int web_new(const struct web_options *options, struct web **ret, struct diag *diag)
{
    struct web *web = calloc(1, sizeof(*web));
    struct net_addr bound;
    char text[320];
    if (!web) {
        return diag_no_memory(diag, "[http]");
    }
    web->options = *options;
    web->is_local = net_addr_is_local(options->addr);
    web->source =
        (struct metrics_source){.loop = options->loop, .begun_wall_ns = options->begun_wall_ns};
    web->begun_ms = loop_now_ms(options->loop);
    timer_init(&web->timer, options->loop, on_timer);
    struct http_options http = {.loop = options->loop,
                                .addr = options->addr,
                                .tls_cert = options->tls_cert,
                                .tls_key = options->tls_key,
                                .tls_ca = options->tls_ca,
                                .token = options->token,
                                .trusts_all = options->trusts_all,
                                .files = page_files,
                                .file_count = page_file_count,
                                .query_prefix = REST_PREFIX,
                                .is_private = is_private,
                                .answer = on_question,
                                .user = web};
    int status = http_new(&http, &web->http, &bound, diag);
    if (status != 0) {
        free(web);
        return status;
    }
    net_addr_format(&bound, sizeof(text), text);
    LOG(LOG_INFO, "http", "listening", ls("addr", text),
        ls("tls", options->tls_cert ? "yes" : "no"));
    *ret = web;
    return 0;
}

void web_set_source(struct web *web, const struct metrics_source *source, const char *addresses)
{
    CHECK(!web->closed);
    CHECK(source->loop != NULL);
    CHECK(source->catalog == NULL || source->store != NULL);
    bool is_new = !web->source.catalog && source->catalog;
    web->source = *source;
    snprintf(web->addresses, sizeof(web->addresses), "%s", addresses);
    if (is_new) {
        on_timer(&web->timer);
    }
}

static void on_http_closed(void *user)
{
    struct web *web = user;
    CHECK(web->closed != NULL);
    web->http = NULL;
    end_if_idle(web);
}

void web_close(struct web *web, void (*done)(void *user), void *user)
{
    CHECK(!web->closed);
    CHECK(done != NULL);
    web->closed = done;
    web->closed_user = user;
    timer_stop(&web->timer);
    http_close(web->http, on_http_closed, web);
}
