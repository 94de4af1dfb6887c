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
HANDLER(open);
HANDLER(want);
HANDLER(object_end);
HANDLER(have);
HANDLER(seal);
HANDLER(wait);
HANDLER(abort);
HANDLER(arena);
HANDLER(describe);
HANDLER(complete);
HANDLER(agree);
HANDLER(lists);
HANDLER(digests);
HANDLER(status);
HANDLER(list);
HANDLER(log);
HANDLER(runs);
HANDLER(usage);
HANDLER(progress);
HANDLER(annotate);
HANDLER(mark);
HANDLER(remove);
HANDLER(policy);
HANDLER(scrub);
HANDLER(gc);
HANDLER(repair);
HANDLER(server);
HANDLER(restore);
HANDLER(report);
HANDLER(fetch);
HANDLER(plan);
HANDLER(read);
HANDLER(landing);
#undef HANDLER

#endif
