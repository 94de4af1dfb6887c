/* SPDX-License-Identifier: Apache-2.0
 *
 * mark: what forget, undelete, pin and unpin share: one MARK to the source's run, who asks, and how
 * the answer is shown. One thread.
 */
#ifndef CAIRN_TOOLS_MARK_H
#define CAIRN_TOOLS_MARK_H

#include "cli.h"

enum { MARK_ACTOR_BYTES = 65 };

/* "user@host", for the audit in the run's record. */
void mark_actor(char ret[MARK_ACTOR_BYTES]);
/* Connects, for writing where --store is given: under the store's lock. STORE_LOCKED: a daemon has
 * it. */
int MUST_USE mark_connect(struct cli *cli, bool writes, struct diag *diag);
/* Sends a MARK. Names such as a step are resolved first, by a dry run: a request whose answer is
 * lost is sent again, and the step of a forgotten checkpoint then means the version before. The end
 * frees the answer with engine_call_fini(&request->call), also after an error. */
int MUST_USE mark_call(struct cli *cli, const struct msg_mark *mark, struct source_request *request,
                       struct diag *diag);
/* "forget", "keep", "refused", "unchanged" for what became of one; done: the word for what is done.
 */
const char *mark_action(const struct msg_mark_record *record, const char *done);
/* Writes the members of a run's object: <done>, refused, total, checkpoints. `why` is the reason of
 * the checkpoints that were done; if it is NULL, the policy's reasons are written. */
void mark_json(struct json *json, const struct msg_marked *marked, const char *done,
               const char *why);
/* Writes a line to stderr for each checkpoint that was refused. Returns the exit status: 3 if there
 * was one, or 0. */
int mark_refusals(const struct run_name *run, const struct msg_marked *marked);
/* The words in which undelete, pin and unpin differ. */
struct mark_words {
    enum msg_mark_kind kind;
    const char *done; /* "pinned": what JSON calls it */
    const char *said; /* the text's word where it is another one (a dry run), or NULL */
    const char *reason;
    bool dry_run, all;
};
/* Runs the whole command. */
int MUST_USE mark_run(struct cli *cli, const struct mark_words *words, struct diag *diag);

#endif
