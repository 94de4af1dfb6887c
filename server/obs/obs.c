/* SPDX-License-Identifier: Apache-2.0
 *
 * See obs.h. The store is asked for its usage at each scrape, at most once at a time, and not
 * waited for longer than OBS_PATIENCE_MS: a store that hangs must not take its monitoring along.
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
    struct list calls; /* http_call.link: those that wait for the store */
    struct timer patience;
    struct store_req req;
    bool asking, closing;
    struct post closed_post;
    void (*closed)(void *user);
    void *closed_user;
};

static const char plain[] = "text/plain; charset=utf-8";

static void answer_text(struct http_call *call, unsigned status, const char *text)
{
    http_answer(call, status, plain, strlen(text), text);
}

static void answer_health(struct http_call *call, const struct metrics_usage *usage,
                          const char *why)
{
    char text[DIAG_TEXT_MAX + 64];
    if (usage->status != 0) {
        snprintf(text, sizeof(text), "the store gives no answer: %s\n", why);
    } else if (usage->usage.read_only) {
        snprintf(text, sizeof(text), "the store takes no saves: %s\n", usage->usage.detail);
    } else {
        snprintf(text, sizeof(text), "ok\n");
    }
    answer_text(call, usage->status != 0 || usage->usage.read_only ? 503 : 200, text);
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
        answer_text(call, 500, "no memory for the metrics\n");
    }
    expose_fini(&expose);
}

static void answer_all(struct obs *obs, int status, const struct diag *diag)
{
    struct metrics_usage usage = {.status = status};
    struct list *node;
    if (status == 0) {
        usage.usage = obs->req.ret_usage;
    }
    timer_stop(&obs->patience);
    while ((node = list_pop(&obs->calls))) {
        struct http_call *call = list_item(node, struct http_call, link);
        if (strcmp(call->request.path, "/healthz") == 0) {
            answer_health(call, &usage, diag_text(diag, status));
        } else {
            answer_metrics(obs, call, &usage);
        }
    }
}

static void on_patience(struct timer *timer)
{
    struct obs *obs = container_of(timer, struct obs, patience);
    struct diag diag = DIAG_INIT;
    int status = diag_set(&diag, CAIRN_E_TIMED_OUT, "not within %d ms", OBS_PATIENCE_MS);
    answer_all(obs, status, &diag);
}

static void on_closed(struct post *post)
{
    struct obs *obs = container_of(post, struct obs, closed_post);
    void (*closed)(void *user) = obs->closed;
    void *user = obs->closed_user;
    free(obs);
    closed(user);
}

static void on_usage(struct store_req *req)
{
    struct obs *obs = container_of(req, struct obs, req);
    obs->asking = false;
    if (obs->closing) {
        loop_post(obs->options.source.loop, &obs->closed_post);
        return;
    }
    answer_all(obs, req->status, &req->diag);
}

static void on_call(void *user, struct http_call *call)
{
    struct obs *obs = user;
    const char *path = call->request.path;
    if (strcmp(path, "/metrics") != 0 && strcmp(path, "/healthz") != 0) {
        answer_text(call, 404, "there are /metrics and /healthz\n");
        return;
    }
    list_add_tail(&obs->calls, &call->link);
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
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for [metrics]");
    }
    obs->options = *options;
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

void obs_close(struct obs *obs, void (*done)(void *user), void *user)
{
    CHECK(!obs->closing);
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
