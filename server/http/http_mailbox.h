/* SPDX-License-Identifier: Apache-2.0
 *
 * http_mailbox: where the thread of HTTP leaves its questions, and the loop leaves the answers.
 * Equal questions that wait at the same time become one, and an answer may be kept for a moment for
 * the peers that ask next. A mutex guards what both threads touch; nothing is computed under it.
 */
#ifndef CAIRN_HTTP_HTTP_MAILBOX_H
#define CAIRN_HTTP_HTTP_MAILBOX_H

#include "base/list.h"
#include "http/http.h"

#include <stdatomic.h>

struct MHD_Response;

/* An answer, which any number of connections may be sending at the same time. */
struct http_answer {
    atomic_uint refs;
    unsigned status;
    struct MHD_Response *response;
};
/* Makes an answer with one reference out of a reply, whose body it takes. Returns NULL if there is
 * no memory, or if too many bytes of answers are being sent. http.c has both functions. */
struct http_answer *http_answer_new(struct http *http, struct http_reply *reply);
void http_answer_unref(struct http_answer *answer); /* NULL is allowed */

/* A request that waits for the loop, embedded in the struct of the request. */
struct http_wait {
    struct list link;
    struct http_answer *answer; /* what ready() has brought; NULL means that there is no memory */
};

struct http_mailbox_options {
    struct loop *loop;
    struct http *http;
    void (*answer)(void *user, const struct http_request *request, struct http_reply *io);
    void *user;
    /* Called on the loop's thread when wait->answer is there. */
    void (*ready)(struct http_wait *wait);
};
struct http_mailbox;

/* Makes a mailbox. The options are copied. Returns NO_MEMORY. */
int MUST_USE http_mailbox_new(const struct http_mailbox_options *options,
                              struct http_mailbox **ret);
/* Gives an answer that is still fresh, with a reference for the caller, or NULL. HTTP's thread. */
struct http_answer *http_mailbox_find(struct http_mailbox *mailbox,
                                      const struct http_request *request);
/* Asks the loop; ready() follows. Returns false if there is no memory, or if the mailbox was
 * stopped; ready() does not come then. HTTP's thread. */
bool MUST_USE http_mailbox_ask(struct http_mailbox *mailbox, const struct http_request *request,
                               struct http_wait *wait);
/* Takes no more questions; ready() is called for those that wait, with no answer. Loop's thread. */
void http_mailbox_stop(struct http_mailbox *mailbox);
/* Called when HTTP's thread has ended: gives up the answers that are kept. */
void http_mailbox_clear(struct http_mailbox *mailbox);
/* Frees in a later turn of the loop, and then calls done; at once if done is NULL, which is for a
 * mailbox that nobody has asked. Loop's thread. */
void http_mailbox_close(struct http_mailbox *mailbox, void (*done)(void *user), void *user);

#endif
