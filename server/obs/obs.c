/* SPDX-License-Identifier: Apache-2.0
 *
 * obs: see obs.h. Each scrape asks the store for its usage, at most one request at a time, and
 * waits no longer than OBS_PATIENCE_MS: a store that hangs must not take its monitoring along.
 */
#include "obs/obs.h"

#include "base/check.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBS_PATIENCE_MS = 2000 };

struct obs {
    struct obs_options options;
    struct http *http;
    struct list calls; /* http_call.link: calls that wait for the store */
    struct timer patience;
    struct store_req req;
    bool asking, closing;
    uint64_t begun_ms;
    struct post closed_post;
    void (*closed)(void *user);
    void *closed_user;
};

static const char plain[] = "text/plain; charset=utf-8";

static void answer_text(struct http_call *call, unsigned status, const char *text)
{
    http_answer(call, status, plain, strlen(text), text);
}

/* Answers /healthz. The status is 503 if saves are refused. */
static void answer_health(struct http_call *call, const struct health_word *health)
{
    char text[HEALTH_TEXT_BYTES + HEALTH_REMEDY_BYTES + 64];
    bool red = health->word == SERVER_RED;
    if (health->word == SERVER_GREEN) {
        snprintf(text, sizeof(text), "ok\n");
    } else {
        snprintf(text, sizeof(text), "%s%s: %s\nremedy: %s\n", red ? "" : "ok\n",
                 red ? "red" : "yellow", health->text, health->remedy);
    }
    answer_text(call, red ? 503 : 200, text);
}

static void answer_metrics(struct obs *obs, struct http_call *call,
                           const struct metrics_usage *usage)
{
    struct expose expose;
    expose_init(&expose, call->request.wants_openmetrics);
    metrics_write(&obs->options.source, usage, &expose);
    if (expose_end(&expose) == 0) {
        http_answer(call, 200, expose_content_type(expose.openmetrics), expose.buf.bytes,
                    expose.buf.data);
    } else {
        answer_text(call, 500, "there is not enough memory for the metrics\n");
    }
    expose_fini(&expose);
}

static void set_red(struct health_word *ret, int code, const char *text, const char *remedy)
{
    *ret = (struct health_word){.word = SERVER_RED, .code = code};
    snprintf(ret->text, sizeof(ret->text), "%s", text);
    snprintf(ret->remedy, sizeof(ret->remedy), "%s", remedy);
}

/* Determines the health. It is the server's word, except that a store that gives no answer now is
 * red before the server knows. */
static void judge(struct obs *obs, struct metrics_usage *io, const struct diag *diag)
{
    CHECK(obs->options.source.server || io->status != 0);
    struct server *server = obs->options.source.server;
    char text[DIAG_TEXT_MAX + 64];
    if (!server) {
        set_red(&io->health, io->status, "the store is being opened",
                "none is needed unless this lasts; then look at the daemon's log");
        return;
    }
    server_health(server, io->status == 0 ? &io->usage : NULL, &io->health);
    if (io->status != 0 && io->health.word != SERVER_RED) {
        snprintf(text, sizeof(text), "the store does not answer: %s", diag_text(diag, io->status));
        set_red(&io->health, io->status, text, "check the disk, or the cluster and its network");
    }
}

/* Answers all waiting calls with the result of the store's USAGE, or with the error instead of
 * it. */
static void answer_all(struct obs *obs, int status, const struct diag *diag)
{
    struct metrics_usage usage = {.status = status};
    struct list *node;
    if (status == 0) {
        usage.usage = obs->req.ret_usage;
    }
    if (!obs->options.source.catalog) {
        usage.waits_ms = loop_now_ms(obs->options.source.loop) - obs->begun_ms;
    }
    CHECK(!obs->closing);
    judge(obs, &usage, diag);
    timer_stop(&obs->patience);
    while ((node = list_pop(&obs->calls))) {
        struct http_call *call = list_item(node, struct http_call, link);
        if (strcmp(call->request.path, "/healthz") == 0) {
            answer_health(call, &usage.health);
        } else {
            answer_metrics(obs, call, &usage);
        }
    }
}

static void on_patience(struct timer *timer)
{
    struct obs *obs = container_of(timer, struct obs, patience);
    struct diag diag = DIAG_INIT;
    int status = diag_set(&diag, CAIRN_E_TIMED_OUT, "the store did not answer within %d ms",
                          OBS_PATIENCE_MS);
    answer_all(obs, status, &diag);
}

static void on_closed(struct post *post)
{
    struct obs *obs = container_of(post, struct obs, closed_post);
    void (*closed)(void *user) = obs->closed;
    void *user = obs->closed_user;
    CHECK(obs->closing);
    CHECK(!obs->asking);
    free(obs);
    closed(user);
}

/* Called when the store has said how full it is. Answers all scrapes that wait for it. */
static void on_usage(struct store_req *req)
{
    struct obs *obs = container_of(req, struct obs, req);
    CHECK(obs->asking);
    obs->asking = false;
    if (obs->closing) {
        loop_post(obs->options.source.loop, &obs->closed_post);
        return;
    }
    answer_all(obs, req->status, &req->diag);
}

/* Called for each request: it waits for the store's usage, which one request to the store gives to
 * all that wait. */
static void on_call(void *user, struct http_call *call)
{
    struct obs *obs = user;
    const char *path = call->request.path;
    if (strcmp(path, "/metrics") != 0 && strcmp(path, "/healthz") != 0) {
        answer_text(call, 404, "this address serves only /metrics and /healthz\n");
        return;
    }
    list_add_tail(&obs->calls, &call->link);
    CHECK(!obs->closing);
    if (!obs->options.source.catalog) {
        struct diag diag = DIAG_INIT;
        int status =
            diag_set(&diag, CAIRN_E_UNREACHABLE, "the daemon has not opened its store yet");
        answer_all(obs, status, &diag);
        return;
    }
    if (!timer_is_active(&obs->patience)) {
        timer_start(&obs->patience, OBS_PATIENCE_MS);
    }
    if (!obs->asking) {
        obs->asking = true;
        obs->req = (struct store_req){.op = STORE_USAGE, .done = on_usage};
        store_submit(catalog_store(obs->options.source.catalog), &obs->req);
    }
}

int obs_new(const struct obs_options *options, struct obs **ret, struct diag *diag)
{
    struct obs *obs = calloc(1, sizeof(*obs));
    struct net_addr bound;
    char text[320];
    if (!obs) {
        return diag_no_memory(diag, "[metrics]");
    }
    obs->options = *options;
    obs->begun_ms = loop_now_ms(options->source.loop);
    obs->closed_post.cb = on_closed;
    list_init(&obs->calls);
    timer_init(&obs->patience, options->source.loop, on_patience);
    struct http_options http = {.loop = options->source.loop,
                                .net = options->net,
                                .addr = options->addr,
                                .handle = on_call,
                                .user = obs};
    int status = http_new(&http, &obs->http, &bound, diag);
    if (status != 0) {
        free(obs);
        return status;
    }
    net_addr_format(&bound, sizeof(text), text);
    LOG(LOG_INFO, "metrics", "listening", ls("addr", text));
    *ret = obs;
    return 0;
}

void obs_look_at(struct obs *obs, const struct metrics_source *source)
{
    CHECK(source->loop != NULL);
    CHECK(source->catalog == NULL || source->store != NULL);
    obs->options.source = *source;
}

void obs_close(struct obs *obs, void (*done)(void *user), void *user)
{
    CHECK(!obs->closing);
    CHECK(done != NULL);
    obs->closing = true;
    obs->closed = done;
    obs->closed_user = user;
    timer_stop(&obs->patience);
    list_init(&obs->calls); /* their connections end with the listener */
    http_free(obs->http);
    if (!obs->asking) {
        loop_post(obs->options.source.loop, &obs->closed_post);
    }
}
