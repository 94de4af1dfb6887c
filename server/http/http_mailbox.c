/* SPDX-License-Identifier: Apache-2.0
 *
 * http_mailbox: see http_mailbox.h. A question goes from HTTP's thread into `asked`, and from there
 * to the loop's thread, which alone takes questions out and makes answers; so a burst of equal
 * requests costs the loop one computation.
 */
#include "http/http_mailbox.h"

#include "base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_MAX = 64, REPLY_BYTES_MAX = 2 << 20 };

struct question {
    struct list link, waits; /* waits: http_wait.link */
    struct http_request request;
};

/* An answer that is kept for those who ask the same within its time. */
struct kept {
    struct http_request request;
    struct http_answer *answer; /* NULL in a free place */
    uint64_t until_ms;
};

struct http_mailbox {
    struct http_mailbox_options options;
    pthread_mutex_t lock; /* guards the fields up to kept */
    struct list asked;
    bool is_stopped;
    struct kept kept[KEPT_MAX];
    struct post post;
    void (*closed)(void *user); /* set when the end has begun */
    void *closed_user;
};

static bool is_same(const struct http_request *a, const struct http_request *b)
{
    return a->is_trusted == b->is_trusted && a->has_safe_host == b->has_safe_host &&
           a->wants_openmetrics == b->wants_openmetrics && strcmp(a->target, b->target) == 0;
}

/* Keeps an answer for a moment, in a place that is free or whose answer is the oldest. */
static void keep(struct http_mailbox *mailbox, const struct http_request *request,
                 struct http_answer *answer, uint64_t fresh_ms)
{
    struct kept *place = &mailbox->kept[0];
    for (size_t i = 0; i < KEPT_MAX; i++) {
        struct kept *kept = &mailbox->kept[i];
        if (!kept->answer || is_same(&kept->request, request)) {
            place = kept;
            break;
        }
        place = kept->until_ms < place->until_ms ? kept : place;
    }
    CHECK(!mailbox->is_stopped);
    http_answer_unref(place->answer);
    atomic_fetch_add(&answer->refs, 1);
    *place = (struct kept){.request = *request,
                           .answer = answer,
                           .until_ms = loop_now_ms(mailbox->options.loop) + fresh_ms};
}

/* Gives one question to its handler, and the answer to all that wait for it. */
static void answer(struct http_mailbox *mailbox, struct question *question)
{
    struct http_reply reply = {.status = 500, .content_type = "text/plain; charset=utf-8"};
    struct http_answer *made = NULL;
    struct list *node;
    CHECK(!list_is_empty(&question->waits)); /* somebody has asked it */
    buf_init(&reply.body, REPLY_BYTES_MAX);
    mailbox->options.answer(mailbox->options.user, &question->request, &reply);
    if (buf_status(&reply.body) == 0) {
        made = http_answer_new(mailbox->options.http, &reply);
    }
    buf_fini(&reply.body);
    if (made && reply.fresh_ms > 0) {
        pthread_mutex_lock(&mailbox->lock);
        keep(mailbox, &question->request, made, reply.fresh_ms);
        pthread_mutex_unlock(&mailbox->lock);
    }
    while ((node = list_pop(&question->waits))) {
        struct http_wait *wait = list_item(node, struct http_wait, link);
        if (made) {
            atomic_fetch_add(&made->refs, 1);
        }
        CHECK(!wait->answer);
        wait->answer = made;
        mailbox->options.ready(wait);
    }
    http_answer_unref(made);
    free(question);
}

void http_mailbox_clear(struct http_mailbox *mailbox)
{
    CHECK(mailbox->is_stopped);
    for (size_t i = 0; i < KEPT_MAX; i++) {
        http_answer_unref(mailbox->kept[i].answer);
        mailbox->kept[i].answer = NULL;
    }
}

static void mailbox_free(struct http_mailbox *mailbox)
{
    CHECK(mailbox->is_stopped);
    CHECK(list_is_empty(&mailbox->asked));
    pthread_mutex_destroy(&mailbox->lock);
    free(mailbox);
}

/* Takes the oldest question, or NULL. *ret_more says that others wait. */
static struct question *take(struct http_mailbox *mailbox, bool *ret_more)
{
    pthread_mutex_lock(&mailbox->lock);
    struct list *node = list_pop(&mailbox->asked);
    *ret_more = !list_is_empty(&mailbox->asked);
    pthread_mutex_unlock(&mailbox->lock);
    return node ? list_item(node, struct question, link) : NULL;
}

/* Called on the loop's thread when something was asked, or when the mailbox closes. Answers one
 * question a turn, so that many of them do not hold up a save. */
static void on_post(struct post *post)
{
    struct http_mailbox *mailbox = container_of(post, struct http_mailbox, post);
    bool more;
    struct question *question = take(mailbox, &more);
    if (question) {
        answer(mailbox, question);
    }
    if (more) {
        loop_post(mailbox->options.loop, &mailbox->post);
    } else if (mailbox->closed) {
        void (*closed)(void *user) = mailbox->closed;
        void *user = mailbox->closed_user;
        mailbox_free(mailbox);
        closed(user);
    }
}

int http_mailbox_new(const struct http_mailbox_options *options, struct http_mailbox **ret)
{
    struct http_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    if (!mailbox) {
        return CAIRN_E_NO_MEMORY;
    }
    mailbox->options = *options;
    mailbox->post.cb = on_post;
    list_init(&mailbox->asked);
    CHECK(pthread_mutex_init(&mailbox->lock, NULL) == 0); /* needs no resource but its memory */
    *ret = mailbox;
    return 0;
}

struct http_answer *http_mailbox_find(struct http_mailbox *mailbox,
                                      const struct http_request *request)
{
    struct http_answer *found = NULL;
    uint64_t now_ms = loop_now_ms(mailbox->options.loop);
    pthread_mutex_lock(&mailbox->lock);
    for (size_t i = 0; i < KEPT_MAX && !found; i++) {
        struct kept *kept = &mailbox->kept[i];
        if (kept->answer && kept->until_ms <= now_ms) {
            http_answer_unref(kept->answer);
            kept->answer = NULL;
        } else if (kept->answer && is_same(&kept->request, request)) {
            found = kept->answer;
            atomic_fetch_add(&found->refs, 1);
        }
    }
    pthread_mutex_unlock(&mailbox->lock);
    return found;
}

/* Returns the question of that request, made if nobody has asked it yet, or NULL if there is no
 * memory. */
static struct question *question_of(struct http_mailbox *mailbox,
                                    const struct http_request *request)
{
    list_each (node, &mailbox->asked) {
        struct question *question = list_item(node, struct question, link);
        if (is_same(&question->request, request)) {
            return question;
        }
    }
    struct question *question = calloc(1, sizeof(*question));
    if (question) {
        question->request = *request;
        list_init(&question->waits);
        list_add_tail(&mailbox->asked, &question->link);
    }
    return question;
}

bool http_mailbox_ask(struct http_mailbox *mailbox, const struct http_request *request,
                      struct http_wait *wait)
{
    pthread_mutex_lock(&mailbox->lock);
    struct question *question = mailbox->is_stopped ? NULL : question_of(mailbox, request);
    if (question) {
        list_add_tail(&question->waits, &wait->link);
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (question) {
        loop_post(mailbox->options.loop, &mailbox->post);
    }
    return question != NULL;
}

void http_mailbox_stop(struct http_mailbox *mailbox)
{
    struct list *node, *waiting;
    CHECK(!mailbox->is_stopped);
    pthread_mutex_lock(&mailbox->lock);
    mailbox->is_stopped = true;
    pthread_mutex_unlock(&mailbox->lock);
    while ((node = list_pop(&mailbox->asked))) {
        struct question *question = list_item(node, struct question, link);
        while ((waiting = list_pop(&question->waits))) {
            mailbox->options.ready(list_item(waiting, struct http_wait, link));
        }
        free(question);
    }
}

void http_mailbox_close(struct http_mailbox *mailbox, void (*done)(void *user), void *user)
{
    CHECK(mailbox->is_stopped);
    CHECK(!mailbox->closed);
    if (!done) { /* nothing was asked, and the loop may not run any more */
        mailbox_free(mailbox);
        return;
    }
    mailbox->closed = done;
    mailbox->closed_user = user;
    loop_post(mailbox->options.loop, &mailbox->post);
}
