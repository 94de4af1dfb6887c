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
#include "base/log.h"
#include "base/utf8.h"
#include "core/retention.h"
#include "gc/gc.h"
#include "run/run_counts.h"
#include "run/run_retain.h"
#include "session/handlers.h"
#include "store/store_record.h"

#include <stdio.h>
#include <string.h>

static void cancel_mark(struct request *request)
{
    run_cancel(&request->u.mark.run);
    run_snapshot_cancel(&request->u.mark.info);
    policies_cancel(&request->u.mark.policies);
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

/* Fills in the policy that was looked up for the request, if one was. */
static void tell_policy(const struct request *request, struct msg_marked *ret)
{
    ret->policy_source = request->u.mark.source;
    ret->policy_pattern = request->u.mark.pattern ? request->u.mark.pattern : "";
    ret->policy = request->u.mark.text ? request->u.mark.text : "";
}

/* Answers MARK with the outcome for each checkpoint. */
static void on_marked(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.mark.run);
    struct msg reply = {.type = MSG_MARKED};
    int status = req->status;
    if (status == 0) {
        status = copy_marks(request, verdict_marks(&req->verdict), &reply.u.marked);
    }
    if (status != 0) {
        request_end(request, status, NULL, &req->diag);
        return;
    }
    tell_forgotten(request->session, req, &reply.u.marked);
    tell_policy(request, &reply.u.marked);
    request_end(request, 0, &reply, NULL);
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
    struct event_mark *event = &request->u.mark.run.event.u.mark;
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
    struct request *request = container_of(req, struct request, u.mark.info);
    struct diag diag = req->diag;
    int status = req->status;
    if (status == 0 && !req->state->exists) {
        /* A run whose record is lost still exists. */
        status = state_unrecorded_check(req->state, &diag);
        if (status == 0) {
            status = diag_set(&diag, CAIRN_E_NOT_FOUND,
                              "there is no such run; `cairn ls` lists the runs");
        }
    }
    if (status == 0) {
        status = resolve_all(request, req->state, &diag);
    }
    if (status != 0) {
        request_end(request, status, NULL, &diag);
        return;
    }
    run_submit(request->session->run, &request->u.mark.run);
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
    size_t left = size - at;
    if (claimed && claimed[0] != '\0' && sizeof(says) + CLAIM_LEAST < left) {
        err_ignore(snprintf(ret + at, left, "%s%s", says, claimed)); /* cut if it is too long */
        ret[utf8_trim(strlen(ret), ret)] = '\0';
    }
}

const char *session_actor_copy(struct request *request, const char *claimed)
{
    char actor[ENTRY_ACTOR_BYTES];
    session_actor(request->session, claimed, sizeof(actor), actor);
    return scratch_string(&request->scratch, strlen(actor), actor);
}

/* Reads the stored policies, or makes a change of them first. */
static int read_policies(struct request *request, struct policy_entry *change,
                         void (*done)(struct policies_req *req), struct diag *diag)
{
    request->u.mark.policies = (struct policies_req){.change = change, .done = done};
    return retain_ask(request->server->options.catalog, &request->u.mark.policies, diag);
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
    if (mark->by_policy && (!forget || mark->option_count > 0 || mark->selector_count > 0)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the policy of a run can only forget, and cannot be combined with keep "
                        "rules or with checkpoints by name");
    }
    if (mark->option_count == 0 && forget && mark->selector_count == 0 && !mark->by_policy) {
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

/* Submits the event of a MARK, when its policy is known. Returns NO_MEMORY. */
static int submit_mark(struct request *request, struct event_mark *mark, struct diag *diag)
{
    static const enum event_kind kinds[] = {[MSG_MARK_FORGET] = EVENT_FORGET,
                                            [MSG_MARK_UNDELETE] = EVENT_UNDELETE,
                                            [MSG_MARK_PIN] = EVENT_PIN,
                                            [MSG_MARK_UNPIN] = EVENT_UNPIN};
    const struct msg_mark *asked = &request->msg.u.mark;
    struct session *session = request->session;
    CHECK(asked->kind < ARRAY_LEN(kinds)); /* the codec has compared it */
    mark->actor = session_actor_copy(request, asked->actor);
    if (!mark->actor) {
        return diag_no_memory(diag, "the name of the caller");
    }
    request->u.mark.run = (struct run_req){.done = on_marked, .dry_run = asked->dry_run};
    if (asked->kind == MSG_MARK_FORGET) {
        mark->forget.keep_least = asked->keep_least;
        server_use_beside(session->server, run_name_of(session->run), session, &mark->forget);
    }
    request->u.mark.run.event = (struct event){.kind = kinds[asked->kind], .u.mark = *mark};
    request->u.mark.info = (struct run_snapshot_req){.done = on_state};
    run_snapshot(session->run, &request->u.mark.info);
    return 0;
}

/* Puts the policy that holds for the run into the event. Sets *ret_none if it has none. */
static int take_choice(struct request *request, struct event_mark *mark, bool *ret_none,
                       struct diag *diag)
{
    struct policies_req *read = &request->u.mark.policies;
    struct policy_choice choice;
    char text[DIAG_TEXT_MAX];
    int status = policy_choose(read->record, request->server->options.policies,
                               run_name_of(request->session->run), &choice, diag);
    *ret_none = status == 0 && choice.source == POLICY_NONE;
    if (status != 0 || *ret_none) {
        return status;
    }
    status = retain_event(&choice, &request->scratch, mark, diag);
    if (status != 0) {
        return status;
    }
    const char *pattern = choice.entry.row.pattern;
    retention_policy_text(mark->forget.policy, sizeof(text), text);
    request->u.mark.source = choice.source;
    request->u.mark.pattern = scratch_string(&request->scratch, strlen(pattern), pattern);
    request->u.mark.text = scratch_string(&request->scratch, strlen(text), text);
    bool room = request->u.mark.pattern && request->u.mark.text;
    return room ? 0 : diag_no_memory(diag, "a policy");
}

/* Called with the stored policies: MARK by the policy of the run goes on. */
static void on_policies(struct policies_req *read)
{
    struct request *request = container_of(read, struct request, u.mark.policies);
    const struct msg_mark *asked = &request->msg.u.mark;
    struct event_mark mark = {.reason = asked->reason};
    struct msg reply = {.type = MSG_MARKED,
                        .u.marked = {.why = "", .policy_pattern = "", .policy = ""}};
    bool none = false;
    int status = read->status;
    if (status == 0) {
        status = take_choice(request, &mark, &none, &read->diag);
    }
    if (status == 0 && none) {
        request_end(request, 0, &reply, NULL);
        return;
    }
    mark.reason = asked->reason && asked->reason[0] != '\0' ? asked->reason : mark.reason;
    if (status == 0) {
        status = submit_mark(request, &mark, &read->diag);
    }
    if (status != 0) {
        request_end(request, status, NULL, &read->diag);
    }
}

/* Handles MARK: checks it, makes its policy, and reads the record if names have to be resolved. */
int session_ask_mark(struct request *request, struct diag *why)
{
    const struct msg_mark *asked = &request->msg.u.mark;
    struct event_mark mark = {.reason = asked->reason};
    int status = check(asked, why);
    request->cancel = cancel_mark;
    if (status != 0) {
        return status;
    }
    if (asked->by_policy) {
        return read_policies(request, NULL, on_policies, why);
    }
    status = take_policy(request, &mark.forget.policy, why);
    return status != 0 ? status : submit_mark(request, &mark, why);
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
int session_ask_remove(struct request *request, struct diag *why)
{
    struct session *session = request->session;
    const struct msg_remove *remove = &request->msg.u.remove;
    const char *actor = session_actor_copy(request, remove->actor);
    int status = actor ? check_living(session, why) : diag_no_memory(why, "the caller's name");
    if (status != 0) {
        return status;
    }
    request->cancel = cancel_mark;
    request->u.mark.run = (struct run_req){.done = on_marked, .dry_run = remove->dry_run};
    request->u.mark.run.event =
        (struct event){.kind = EVENT_REMOVE, .u.mark = {.actor = actor, .reason = remove->reason}};
    run_submit(session->run, &request->u.mark.run);
    return 0;
}

/* --- POLICY --------------------------------------------------------------------------------- */

struct showing {
    struct request *request;
    const struct record *record;
    struct msg_policy_reply *reply;
    size_t cap;
};

/* Fills in the options of a row and what it says, or why it cannot be used. */
static int show_row(struct scratch *scratch, const struct policy_row *row,
                    struct msg_policy_row *io)
{
    struct retention_policy policy;
    struct diag why = DIAG_INIT;
    char text[DIAG_TEXT_MAX] = "";
    if (io->code == 0 && io->change != POLICY_REMOVE) {
        io->code = policy_make(row, scratch, &policy, &why);
        io->text = io->code != 0 ? scratch_string(scratch, strlen(why.text), why.text) : "";
    }
    if (io->code == 0 && io->change != POLICY_REMOVE) {
        retention_policy_text(&policy, sizeof(text), text);
    }
    io->options = scratch_array(scratch, row->option_count + 1, sizeof(*io->options));
    io->policy = scratch_string(scratch, strlen(text), text);
    io->pattern = scratch_string(scratch, strlen(row->pattern), row->pattern);
    bool room = io->options && io->policy && io->pattern && io->text;
    for (unsigned i = 0; room && i < row->option_count; i++) {
        const struct policy_option *option = &row->options[i];
        io->options[i] =
            (struct msg_mark_option){scratch_string(scratch, strlen(option->name), option->name),
                                     scratch_string(scratch, strlen(option->value), option->value)};
        room = io->options[i].name && io->options[i].value;
    }
    io->option_count = row->option_count;
    return room ? 0 : CAIRN_E_NO_MEMORY;
}

/* Adds a row that says that changes of the stored policies may be lost. */
static int show_doubt(struct showing *showing, int code, const struct diag *why)
{
    struct scratch *scratch = &showing->request->scratch;
    struct msg_policy_row row = {
        .source = POLICY_STORED, .change = POLICY_SET, .code = code, .actor = ""};
    row.text = scratch_string(scratch, strlen(why->text), why->text);
    int status = show_row(scratch, &(struct policy_row){.option_count = 0}, &row);
    CHECK(showing->reply->count < showing->cap);
    showing->reply->rows[showing->reply->count++] = row;
    return status;
}

/* Adds a change of the store. */
static int show_stored(struct showing *showing, const char *key, struct record_value value)
{
    struct scratch *scratch = &showing->request->scratch;
    struct policy_entry entry;
    struct diag why = DIAG_INIT;
    int code = policy_entry_decode(key, value, &entry, &why);
    struct msg_policy_row row = {.source = POLICY_STORED,
                                 .change = code == 0 ? entry.change : POLICY_SET,
                                 .number = entry.number,
                                 .wall_ns = code == 0 ? entry.wall_ns : 0,
                                 .code = code};
    bool broken = entry.row.pattern[0] == '\0';
    row.past = !broken && (!policy_is_last(showing->record, key) || row.change == POLICY_REMOVE);
    if (row.past && !showing->request->msg.u.policy.past) {
        return 0;
    }
    if (code != 0) {
        memset(entry.actor, 0, sizeof(entry.actor));
        entry.row.option_count = 0;
    }
    row.text = scratch_string(scratch, strlen(why.text), why.text);
    row.actor = scratch_string(scratch, strlen(entry.actor), entry.actor);
    int status = row.actor ? show_row(scratch, &entry.row, &row) : CAIRN_E_NO_MEMORY;
    CHECK(showing->reply->count < showing->cap);
    showing->reply->rows[showing->reply->count++] = row;
    return status;
}

/* Fills in which row holds for the run that was asked for. */
static void show_chosen(const struct showing *showing, const struct run_name *run)
{
    struct msg_policy_reply *reply = showing->reply;
    struct policy_choice choice;
    int status = policy_choose(showing->record, showing->request->server->options.policies, run,
                               &choice, NULL);
    for (uint32_t i = 0; i < reply->count && (status != 0 || choice.source != POLICY_NONE); i++) {
        const struct msg_policy_row *row = &reply->rows[i];
        bool stored = status != 0 || choice.source == POLICY_STORED;
        if (!row->past && (row->source == POLICY_STORED) == stored &&
            strcmp(row->pattern, choice.entry.row.pattern) == 0) {
            reply->chosen = i + 1;
            return;
        }
    }
}

static int show_all(struct showing *showing)
{
    const struct policy_table *table = showing->request->server->options.policies;
    struct msg_policy_reply *reply = showing->reply;
    struct record_value value;
    struct diag why = DIAG_INIT;
    const char *key;
    size_t at = 0;
    int doubt = policy_check_whole(showing->record, &why), status = 0;
    showing->cap = (table ? table->count : 0) + 2;
    while (policy_next(showing->record, &at, &value) != NULL) {
        showing->cap++;
    }
    reply->rows = scratch_array(&showing->request->scratch, showing->cap, sizeof(*reply->rows));
    status = reply->rows ? 0 : CAIRN_E_NO_MEMORY;
    at = 0;
    if (status == 0 && doubt != 0) {
        status = show_doubt(showing, doubt, &why);
    }
    while (status == 0 && (key = policy_next(showing->record, &at, &value)) != NULL) {
        bool says_lost = strcmp(key, STORE_RECORD_LOST) == 0; /* show_doubt() has said so */
        status = says_lost ? 0 : show_stored(showing, key, value);
    }
    for (size_t i = 0; status == 0 && table && i < table->count; i++) {
        struct msg_policy_row row = {.source = POLICY_CONFIGURED, .actor = "", .text = ""};
        status = show_row(&showing->request->scratch, &table->rows[i], &row);
        reply->rows[reply->count++] = row;
    }
    return status;
}

/* Answers POLICY with the policies as they are now. */
static void on_policy(struct policies_req *read)
{
    struct request *request = container_of(read, struct request, u.mark.policies);
    const struct msg_policy *asked = &request->msg.u.policy;
    const uint64_t *every_ms = request->server->options.policies_every_ms;
    struct msg reply = {.type = MSG_POLICY_REPLY,
                        .u.policy_reply.interval_ms = every_ms ? *every_ms : 0};
    struct showing showing = {
        .request = request, .record = read->record, .reply = &reply.u.policy_reply};
    int status = read->status != 0 ? read->status : show_all(&showing);
    if (status == 0 && asked->run.project[0] != '\0') {
        show_chosen(&showing, &asked->run);
    }
    request_end(request, status, &reply, &read->diag);
}

/* Makes the change that POLICY asks for. Returns INVALID for what is no policy. */
static int take_change(struct request *request, struct policy_entry *ret, struct diag *diag)
{
    const struct msg_policy *asked = &request->msg.u.policy;
    struct retention_policy policy;
    session_actor(request->session, asked->actor, sizeof(ret->actor), ret->actor);
    ret->change = asked->kind == MSG_POLICY_SET ? POLICY_SET : POLICY_REMOVE;
    ret->wall_ns = loop_wall_ns(request->server->options.loop);
    int status = policy_row_name(&ret->row, asked->pattern, diag);
    for (uint32_t i = 0; status == 0 && i < asked->option_count; i++) {
        status = policy_row_add(&ret->row, asked->options[i].name, asked->options[i].value, diag);
    }
    if (status == 0 && ret->change == POLICY_SET) {
        status = policy_make(&ret->row, &request->scratch, &policy, diag);
        diag_add(diag, "the policy for '%s' is not stored", ret->row.pattern);
    } else if (status == 0 && asked->option_count > 0) {
        status = diag_set(diag, CAIRN_E_INVALID, "a policy is removed whole, without options");
    }
    return status;
}

int session_ask_policy(struct request *request, struct diag *why)
{
    struct policy_entry *change = NULL;
    int status = 0;
    timer_stop(&request->session->login);
    if (request->msg.u.policy.kind != MSG_POLICY_SHOW) {
        change = scratch_array(&request->scratch, 1, sizeof(*change));
        status = change ? take_change(request, change, why) : diag_no_memory(why, "a policy");
    }
    request->cancel = cancel_mark;
    return status != 0 ? status : read_policies(request, change, on_policy, why);
}

/* --- ANNOTATE ------------------------------------------------------------------------------- */

/* Answers ANNOTATE with the checkpoint as it is now. */
static void on_annotated_info(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.mark.info);
    struct msg reply = {.type = MSG_ANNOTATED};
    int status = req->status;
    if (status == 0) {
        status = run_info_find(req->state, request->u.mark.run.verdict.id, &request->scratch,
                               &reply.u.annotated.info);
    }
    request_end(request, status, &reply, &req->diag);
}

/* Names a node that has given notice before, so that somebody drains it. */
static void log_notice(const struct request *request)
{
    const struct session *session = request->session;
    const struct node_notice *notice = catalog_notice(session->server->options.catalog,
                                                      &request->u.mark.run.event.u.annotate.note);
    if (notice && notice->notices > 1) {
        LOG(LOG_WARN, "session", "a node has given notice more than once, and is to be drained",
            ls("node", notice->node), lu("notices", notice->notices),
            ls("run", run_name_text(run_name_of(session->run)).at));
    }
}

/* Called when the note is in the record. The checkpoint is then read for the answer. */
static void on_annotated(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.mark.run);
    if (req->status != 0) {
        request_end(request, req->status, NULL, &req->diag);
        return;
    }
    log_notice(request);
    request->u.mark.info = (struct run_snapshot_req){.done = on_annotated_info};
    run_snapshot(request->session->run, &request->u.mark.info);
}

/* Handles ANNOTATE: submits the change of tags and metrics. */
int session_ask_annotate(struct request *request, struct diag *why)
{
    (void)why;
    const struct msg_annotate *annotate = &request->msg.u.annotate;
    request->cancel = cancel_mark;
    request->u.mark.run = (struct run_req){.done = on_annotated};
    request->u.mark.run.event =
        (struct event){.kind = EVENT_ANNOTATE,
                       .u.annotate.selector = annotate->selector,
                       .u.annotate.note = {.tag_count = annotate->tag_count,
                                           .tags = annotate->tags,
                                           .removed_count = annotate->removed_count,
                                           .removed = annotate->removed_tags,
                                           .metric_count = annotate->metric_count,
                                           .metrics = annotate->metrics}};
    run_submit(request->session->run, &request->u.mark.run);
    return 0;
}
