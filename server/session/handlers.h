/* SPDX-License-Identifier: Apache-2.0
 *
 * handlers: the functions that answer messages, one for each type; dispatch.c has the table. Only
 * this folder uses them. Loop's thread.
 */
#ifndef CAIRN_SESSION_HANDLERS_H
#define CAIRN_SESSION_HANDLERS_H

#include "session/session_private.h"

/* A handler that returns an error closes the connection with that error. */
#define HANDLER(name)                                                        \
    int MUST_USE session_on_##name(struct session *session, uint32_t stream, \
                                   const struct msg *msg, struct diag *diag)
HANDLER(hello);
HANDLER(join);
HANDLER(want);
HANDLER(object_end);
HANDLER(seal);
HANDLER(arena);
HANDLER(describe);
HANDLER(complete);
HANDLER(agree);
HANDLER(lists);
HANDLER(digests);
HANDLER(progress);
HANDLER(scrub);
HANDLER(gc);
HANDLER(repair);
HANDLER(read);
HANDLER(landing);
#undef HANDLER

/* One that needs a request (request_private.h), which comes with a copy of the message. One that
 * returns an error leaves the request to be answered with it; after 0 the request is answered, or
 * has what answers it. */
#define ASK(name) int MUST_USE session_ask_##name(struct request *request, struct diag *why)
ASK(abort);
ASK(annotate);
ASK(fetch);
ASK(have);
ASK(list);
ASK(log);
ASK(mark);
ASK(open);
ASK(plan);
ASK(policy);
ASK(remove);
ASK(report);
ASK(restore);
ASK(runs);
ASK(server);
ASK(status);
ASK(usage);
ASK(wait);
#undef ASK

#endif
