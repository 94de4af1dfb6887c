/* SPDX-License-Identifier: Apache-2.0
 *
 * ANNOTATE changes the tags and metrics of a committed checkpoint. MARK forgets, undeletes, pins
 * and unpins, by name or by a policy; REMOVE removes the run. Ranks and viewers may do both: an
 * evaluation or an operator is no rank, and the bytes of a checkpoint do not change. The meaning of
 * a name is looked up first; the core then decides on the present record, so that nothing is
 * forgotten that a commit or a pin has changed meanwhile. The chain records the actor: the identity
 * that the connection proves, and the one that the client claims.
 */
#include "base/check.h"
#include "core/retention.h"
#include "gc/gc.h"
#include "session/handlers.h"

#include <stdio.h>
#include <string.h>

static void cancel_mark(struct request *request)
{
    run_cancel(&request->step);
    run_snapshot_cancel(&request->info);
    request_free(request);
}

static void fail(struct request *request, int status, const struct diag *diag)
{
    request_error(request, status, diag);
    request_free(request);
}

/* Copies the marks of the newest MSG_MARK_RECORDS_MAX checkpoints, which come first in a policy's
 * list. */
static int copy_marks(struct request *request, const struct verdict_marks *marks,
                      struct msg_marked *ret)
{
    CHECK(marks->done_count <= marks->count);
    size_t count = min_u64(marks->count, MSG_MARK_RECORDS_MAX);
    ret->records = scratch_array(&request->scratch, count + 1, sizeof(*ret->records));
    if (!ret->records) {
        return CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mark *mark = &marks->items[i];
        ret->records[i] = (struct msg_mark_record){.id = mark->id,
                                                   .wall_ns = mark->wall_ns,
                                                   .reasons = mark->reasons,
                                                   .outcome = (uint32_t)mark->outcome};
    }
    ret->record_count = (uint32_t)count;
    ret->total_count = (uint32_t)marks->count;
    ret->done_count = (uint32_t)marks->done_count;
    ret->refused_count = (uint32_t)marks->refused_count;
    ret->head_seq = marks->head_seq;
    ret->bytes = marks->done_bytes;
    ret->removed = marks->removed;
    ret->why = marks->why ? marks->why : "";
    return 0;
}

/* Fills in what is forgotten in the run now, and for how long its space stays in use. A dry run
 * counts what would be forgotten. */
static void tell_forgotten(const struct session *session, const struct run_req *req,
                           struct msg_marked *ret)
{
    struct forgotten_total totals;
    run_forgotten(session->run, &totals);
    const struct verdict_marks *marks = verdict_marks(&req->verdict);
    bool forgets = req->event.kind == EVENT_FORGET || req->event.kind == EVENT_REMOVE;
    if (req->dry_run && forgets && marks->done_count > 0) {
        totals.count += marks->done_count;
        totals.bytes += marks->done_bytes;
        totals.cycles_min = 0;
    }
    ret->forgotten = totals.count;
    ret->forgotten_bytes = totals.bytes;
    if (session->server->gc) {
        gc_waits(session->server->gc, &totals, &ret->first_wall_ns, &ret->last_wall_ns);
    }
}

/* Answers MARK with the outcome for each checkpoint. */
static void on_marked(struct run_req *req)
{
    struct request *request = container_of(req, struct request, step);
    struct msg reply = {.type = MSG_MARKED};
    int status = req->status;
    if (status == 0) {
        status = copy_marks(request, verdict_marks(&req->verdict), &reply.u.marked);
    }
    if (status != 0) {
        fail(request, status, &req->diag);
        return;
    }
    tell_forgotten(request->session, req, &reply.u.marked);
    request_reply(request, &reply);
    request_free(request);
}

/* Returns the newest forgotten checkpoint of a step, or NULL. */
static const struct state_commit *forgotten_step(const struct run_state *state, uint64_t step)
{
    for (size_t i = state->commit_count; i-- > 0;) {
        const struct state_commit *commit = &state->commits[i];
        if (commit->entry.id.step == step && commit->forgotten && !commit->reclaimed) {
            return commit;
        }
    }
    return NULL;
}

/* Finds the checkpoint that a selector means. For an undelete, a step means its newest forgotten
 * checkpoint. */
static int resolve(const struct run_state *state, uint32_t kind, const struct selector *selector,
                   struct ckpt_id *ret, struct diag *diag)
{
    const struct state_commit *commit = NULL;
    if (selector->kind == SELECT_EXACT) { /* the core decides what it is */
        *ret = selector->id;
        return 0;
    }
    if (kind == MSG_MARK_UNDELETE && selector->kind == SELECT_STEP) {
        commit = forgotten_step(state, selector->id.step);
        if (!commit) {
            return diag_set(diag, CAIRN_E_NOT_FOUND,
                            "no forgotten checkpoint of step %llu can be brought back; `cairn "
                            "undelete RUN` lists those that can",
                            (unsigned long long)selector->id.step);
        }
    } else {
        int status = state_select(state, selector, &commit, diag);
        if (status != 0) {
            return status;
        }
    }
    *ret = commit->entry.id;
    return 0;
}

/* Finds the checkpoints of all selectors for the event, each only once. */
static int resolve_all(struct request *request, const struct run_state *state, struct diag *diag)
{
    const struct msg_mark *mark = &request->msg.u.mark;
    struct event_mark *event = &request->step.event.u.mark;
    struct ckpt_id *ids = scratch_array(&request->scratch, mark->selector_count + 1u, sizeof(*ids));
    int status = ids ? 0 : diag_no_memory(diag, "the checkpoints");
    for (uint32_t i = 0; status == 0 && i < mark->selector_count; i++) {
        status = resolve(state, mark->kind, &mark->selectors[i], &ids[i], diag);
        for (size_t j = 0; status == 0 && j < event->id_count; j++) {
            if (ckpt_id_equal(ids[j], ids[i])) { /* two names for one checkpoint */
                event->id_count--;
                ids[j] = ids[event->id_count];
                break;
            }
        }
        if (status == 0) {
            ids[event->id_count++] = ids[i];
        }
    }
    CHECK(event->id_count <= mark->selector_count);
    event->ids = ids;
    return status;
}

/* Called when the state of the run is known: resolves the names and submits the event. */
static void on_state(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, info);
    struct diag diag = req->diag;
    int status = req->status;
    if (status == 0 && !req->state->exists) {
        /* A run whose record is lost still exists. */
        status = state_unrecorded_check(req->state, &diag);
        status = status != 0 ? status
                             : diag_set(&diag, CAIRN_E_NOT_FOUND,
                                        "there is no such run; `cairn ls` lists the runs");
    }
    if (status == 0) {
        status = resolve_all(request, req->state, &diag);
    }
    if (status != 0) {
        fail(request, status, &diag);
        return;
    }
    run_submit(request->session->run, &request->step);
}

/* Makes the policy from its options. *ret is NULL if there are none. */
static int take_policy(struct request *request, const struct retention_policy **ret,
                       struct diag *diag)
{
    const struct msg_mark *mark = &request->msg.u.mark;
    struct retention_policy *policy = scratch_array(&request->scratch, 1, sizeof(*policy));
    int status = policy ? 0 : diag_no_memory(diag, "a policy");
    for (uint32_t i = 0; status == 0 && i < mark->option_count; i++) {
        status = retention_policy_set(policy, mark->options[i].name, mark->options[i].value,
                                      &request->scratch, diag);
    }
    if (status == 0 && mark->option_count > 0) {
        status = retention_policy_check(policy, diag);
    }
    *ret = mark->option_count > 0 ? policy : NULL;
    return status;
}

enum { CLAIM_LEAST = 4, PROVEN_BYTES = 96 };

void session_actor(const struct session *session, const char *claimed, size_t size, char *ret)
{
    CHECK(size > 0);
    static const char says[] = " claimed=";
    char proven[PROVEN_BYTES];
    conn_proven(session->conn, sizeof(proven), proven);
    int used = snprintf(ret, size, "%s", proven[0] != '\0' ? proven : "unverified");
    size_t at = min_u64((uint64_t)used, size - 1);
    CHECK(used >= 0);
    size_t left = size - at, bytes;
    if (claimed && claimed[0] != '\0' && sizeof(says) + CLAIM_LEAST < left) {
        size_t wanted = (size_t)snprintf(ret + at, left, "%s%s", says, claimed);
        bytes = strlen(ret);
        while (wanted >= left && ((unsigned char)ret[bytes - 1] & 0x80) != 0) {
            bytes--; /* drops a character that was cut */
        }
        ret[bytes] = '\0';
    }
}

const char *session_actor_copy(struct request *request, const char *claimed)
{
    char actor[ENTRY_ACTOR_BYTES];
    session_actor(request->session, claimed, sizeof(actor), actor);
    return scratch_string(&request->scratch, strlen(actor), actor);
}

/* Checks that the message makes sense: forgetting needs either a policy or names, and every other
 * mark needs names. */
static int check(const struct msg_mark *mark, struct diag *diag)
{
    bool forget = mark->kind == MSG_MARK_FORGET;
    if (mark->option_count > 0 && (!forget || mark->selector_count > 0)) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "a policy can only forget, and cannot be combined with checkpoints by name");
    }
    if (mark->option_count == 0 && forget && mark->selector_count == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no policy is given, so nothing is forgotten. Give at least one keep rule, "
                        "or name checkpoints");
    }
    bool list = mark->kind == MSG_MARK_UNDELETE && (mark->dry_run || mark->all);
    if (mark->selector_count == 0 && !forget && !list) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the request names no checkpoint; name at least one");
    }
    return 0;
}

/* Handles MARK: checks it, makes its policy, and reads the record if names have to be resolved. */
int session_on_mark(struct session *session, uint32_t stream, const struct msg *msg,
                    struct diag *diag)
{
    static const enum event_kind kinds[] = {[MSG_MARK_FORGET] = EVENT_FORGET,
                                            [MSG_MARK_UNDELETE] = EVENT_UNDELETE,
                                            [MSG_MARK_PIN] = EVENT_PIN,
                                            [MSG_MARK_UNPIN] = EVENT_UNPIN};
    struct diag why = DIAG_INIT;
    (void)diag;
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    const struct msg_mark *mark = &request->msg.u.mark;
    const struct retention_policy *policy = NULL;
    int status = check(mark, &why);
    status = status != 0 ? status : take_policy(request, &policy, &why);
    const char *actor = session_actor_copy(request, mark->actor);
    if (status == 0 && !actor) {
        status = diag_no_memory(&why, "the name of the caller");
    }
    if (status != 0) {
        fail(request, status, &why);
        return 0;
    }
    request->cancel = cancel_mark;
    request->step = (struct run_req){.done = on_marked, .dry_run = mark->dry_run};
    CHECK(mark->kind < ARRAY_LEN(kinds)); /* the codec has compared it */
    request->step.event = (struct event){.kind = kinds[mark->kind],
                                         .u.mark = {.actor = actor, .reason = mark->reason}};
    if (mark->kind == MSG_MARK_FORGET) {
        request->step.event.u.mark.forget =
            (struct event_forget){.policy = policy, .keep_least = mark->keep_least};
        server_use_beside(session->server, run_name_of(session->run), session,
                          &request->step.event.u.mark.forget);
    }
    request->info = (struct run_snapshot_req){.done = on_state};
    run_snapshot(session->run, &request->info);
    return 0;
}

/* --- REMOVE --------------------------------------------------------------------------------- */

/* Returns DENIED if a rank of the session's run is connected to this server. */
static int check_living(const struct session *session, struct diag *diag)
{
    const struct session *rank = server_rank_of(session->server, run_name_of(session->run));
    return rank == NULL
               ? 0
               : diag_set(diag, CAIRN_E_DENIED,
                          "rank %u of a job of %u is connected to the run (%s%s%s), so the run is "
                          "not removed; stop the job first",
                          rank->join.rank, rank->join.world_size, rank->peer,
                          rank->label[0] != '\0' ? ", " : "", rank->label);
}

/* Handles REMOVE. A job that is connected keeps its run; the core looks at what the record tells of
 * jobs that other servers serve. */
int session_on_remove(struct session *session, uint32_t stream, const struct msg *msg,
                      struct diag *diag)
{
    struct diag why = DIAG_INIT;
    (void)diag;
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    const struct msg_remove *remove = &request->msg.u.remove;
    const char *actor = session_actor_copy(request, remove->actor);
    int status = actor ? check_living(session, &why) : diag_no_memory(&why, "the caller's name");
    if (status != 0) {
        fail(request, status, &why);
        return 0;
    }
    request->cancel = cancel_mark;
    request->step = (struct run_req){.done = on_marked, .dry_run = remove->dry_run};
    request->step.event =
        (struct event){.kind = EVENT_REMOVE, .u.mark = {.actor = actor, .reason = remove->reason}};
    run_submit(session->run, &request->step);
    return 0;
}

/* --- ANNOTATE ------------------------------------------------------------------------------- */

/* Answers ANNOTATE with the checkpoint as it is now. */
static void on_annotated_info(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, info);
    struct msg reply = {.type = MSG_ANNOTATED};
    int status = req->status;
    if (status == 0) {
        status = run_info_find(req->state, request->verdict.id, &request->scratch,
                               &reply.u.annotated.info);
    }
    if (status == 0) {
        request_reply(request, &reply);
    } else {
        request_error(request, status, &req->diag);
    }
    request_free(request);
}

/* Called when the note is in the record. The checkpoint is then read for the answer. */
static void on_annotated(struct run_req *req)
{
    struct request *request = container_of(req, struct request, step);
    if (req->status != 0) {
        request_error(request, req->status, &req->diag);
        request_free(request);
        return;
    }
    request->verdict = req->verdict;
    request->info = (struct run_snapshot_req){.done = on_annotated_info};
    run_snapshot(request->session->run, &request->info);
}

/* Handles ANNOTATE: submits the change of tags and metrics. */
int session_on_annotate(struct session *session, uint32_t stream, const struct msg *msg,
                        struct diag *diag)
{
    (void)diag;
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    const struct msg_annotate *annotate = &request->msg.u.annotate;
    request->cancel = cancel_mark;
    request->step = (struct run_req){.done = on_annotated};
    request->step.event =
        (struct event){.kind = EVENT_ANNOTATE,
                       .u.annotate.selector = annotate->selector,
                       .u.annotate.note = {.tag_count = annotate->tag_count,
                                           .tags = annotate->tags,
                                           .removed_count = annotate->removed_count,
                                           .removed = annotate->removed_tags,
                                           .metric_count = annotate->metric_count,
                                           .metrics = annotate->metrics}};
    run_submit(session->run, &request->step);
    return 0;
}
