/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are gone while others of their attempt are connected. A rank that has not come back
 * within the grace will not seal, so the open saves of its attempt are aborted with MISSING_RANKS,
 * naming it, and the others need not wait for the save's deadline. A rank that had sealed, or has
 * handed its part over, is not missed. This is done only if this daemon is the only one of its
 * store, because otherwise the rank may have moved to another daemon. Loop's thread.
 *
 * The record does not say which ranks were connected, and a restarted daemon does not know it. So
 * when the first rank of an attempt that has saved before joins, all ranks that do not follow
 * within the grace count as gone. One struct absent stands for them (`unseen`) until each of them
 * has joined or has an entry of its own.
 *
 *   here --connection ends--> gone --grace--> LOOK (each RECHECK_MS, while others are here)
 *     ^------ joins again -----+                 an open save without its seal: ABORT, LOOK again
 */
#include "session/session_private.h"

#include "base/check.h"
#include "base/log.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECHECK_MS = 1000 };

struct absent {
    struct list link; /* server->absents */
    struct server *server;
    struct run *run; /* a reference */
    struct token token;
    uint32_t rank, world_size;
    bool unseen; /* it stands for all ranks that never joined; its rank does not count */
    bool known;  /* if unseen: the record has the attempt */
    char label[SESSION_LABEL_BYTES]; /* the rank's label, or the address that it came from */
    uint64_t since_ms;
    struct timer timer;
    struct run_snapshot_req snapshot;
    struct run_req abort;
    char reason[ENTRY_REASON_BYTES];
};

void session_clip_label(const char *text, char ret[SESSION_LABEL_BYTES])
{
    size_t bytes = strlen(text);
    if (bytes >= SESSION_LABEL_BYTES) {
        bytes = utf8_trim(SESSION_LABEL_BYTES - 1, text);
    }
    CHECK(bytes < SESSION_LABEL_BYTES);
    memcpy(ret, text, bytes);
    ret[bytes] = '\0';
}

static bool is_of(const struct absent *absent, const struct session *session)
{
    return absent->run == session->run && token_equal(&absent->token, &session->join.token);
}

static void absent_free(struct absent *absent)
{
    list_remove(&absent->link);
    timer_stop(&absent->timer);
    run_snapshot_cancel(&absent->snapshot);
    run_cancel(&absent->abort);
    catalog_release(absent->run);
    free(absent);
}

/* --- the grace is over ------------------------------------------------------------- */

static void on_aborted(struct run_req *req)
{
    struct absent *absent = container_of(req, struct absent, abort);
    if (req->status == 0 && verdict_save(&req->verdict)->state == SAVE_ABORTED) {
        LOG(LOG_WARN, "session", "save aborted: a rank is gone", lu("term", req->event.id.term),
            lu("step", req->event.id.step), lu("rank", absent->rank), ls("err", absent->reason));
    }
    timer_start(&absent->timer, RECHECK_MS);
}

/* Returns true if the rank has sealed its part of the open save. */
static bool has_sealed(const struct run_state *state, struct ckpt_id id, uint32_t rank)
{
    for (size_t i = 0; i < state->seal_count; i++) {
        const struct state_seal *seal = &state->seals[i];
        if (!seal->orphan && seal->rank == rank && ckpt_id_equal(seal->id, id)) {
            return true;
        }
    }
    return false;
}

/* Returns an open save of the attempt that waits for this rank, perhaps among others, or NULL. */
static const struct state_open *missed_by(const struct absent *absent,
                                          const struct run_state *state)
{
    for (size_t i = 0; i < state->open_count; i++) {
        const struct state_open *open = &state->opens[i];
        bool newest = open->id.term == state->newest_term && open->id.term >= 1;
        if (newest && absent->rank < open->world_size &&
            token_equal(&state->terms[open->id.term - 1].entry.token, &absent->token) &&
            !has_sealed(state, open->id, absent->rank) &&
            !run_is_handed(absent->run, open->id, open->entry.open_id, absent->rank)) {
            return open;
        }
    }
    return NULL;
}

/* Returns an array with one byte for each rank: 1 if the rank is connected, or is missed by an
 * entry of its own. It is malloc'ed; NULL if there is no memory. */
static uint8_t *seen_ranks(const struct absent *unseen)
{
    const struct server *server = unseen->server;
    uint8_t *seen = calloc(unseen->world_size, 1);
    if (seen == NULL) {
        return NULL; /* the timer looks again */
    }
    list_each (node, &server->sessions) {
        const struct session *session = list_item(node, struct session, link);
        if (session->state == SESSION_JOINED && !session->viewer && is_of(unseen, session)) {
            CHECK(session->join.rank <
                  unseen->world_size); /* one world in an attempt: check_ranks() */
            seen[session->join.rank] = 1;
        }
    }
    list_each (node, &server->absents) {
        const struct absent *other = list_item(node, struct absent, link);
        if (!other->unseen && other->run == unseen->run &&
            token_equal(&other->token, &unseen->token)) {
            CHECK(other->rank < unseen->world_size);
            seen[other->rank] = 1;
        }
    }
    return seen;
}

/* Returns an open save that waits for a rank that never joined, or NULL; the first such rank
 * becomes the entry's rank. *ret_left says whether some ranks have not joined yet. */
static const struct state_open *missed_by_unseen(struct absent *unseen,
                                                 const struct run_state *state, bool *ret_left)
{
    const struct state_open *missed = NULL;
    uint8_t *seen = seen_ranks(unseen);
    *ret_left = seen == NULL;
    for (uint32_t rank = 0; seen != NULL && missed == NULL && rank < unseen->world_size; rank++) {
        if (seen[rank] == 0) {
            *ret_left = true;
            unseen->rank = rank;
            missed = missed_by(unseen, state);
        }
    }
    free(seen);
    return missed;
}

static bool has_attempt(const struct run_state *state, const struct token *token)
{
    return state->newest_term >= 1 &&
           token_equal(&state->terms[state->newest_term - 1].entry.token, token);
}

/* Makes the reason with which the save of a rank that is gone is aborted. */
static void say_gone(struct absent *absent, const struct state_open *open)
{
    uint64_t gone_ms = loop_now_ms(absent->server->options.loop) - absent->since_ms;
    char who[SESSION_LABEL_BYTES + 3] = "";
    if (!absent->unseen) {
        snprintf(who, sizeof(who), " (%s)", absent->label);
    }
    snprintf(absent->reason, sizeof(absent->reason),
             "rank %u of %u%s has been gone for %" PRIu64 " s and had not sealed its part: %s",
             absent->rank, open->world_size, who, gone_ms / 1000,
             absent->unseen
                 ? "it has not reconnected to this daemon, as other ranks of its job have"
                 : "its connection ended, and it did not reconnect");
}

/* Called with the state of the run. Aborts an open save that a gone rank holds up, or looks again
 * later. An absence ends when all its ranks have joined, or when the attempt begins with this
 * connection. */
static void on_state(struct run_snapshot_req *req)
{
    struct absent *absent = container_of(req, struct absent, snapshot);
    const struct run_state *state = req->status == 0 ? req->state : NULL;
    const struct state_open *open = NULL;
    bool left = true;
    if (state && absent->unseen && !absent->known) {
        absent->known = has_attempt(state, &absent->token);
        if (absent->known) {
            timer_start(&absent->timer, absent->server->options.rank_grace_ms);
        } else {
            absent_free(absent); /* the attempt begins here: a rank may take its time to come */
        }
        return;
    }
    if (state) {
        open = absent->unseen ? missed_by_unseen(absent, state, &left) : missed_by(absent, state);
    }
    if (!left) {
        absent_free(absent);
        return;
    }
    if (open == NULL) {
        timer_start(&absent->timer, RECHECK_MS);
        return;
    }
    CHECK(!absent->abort.submitted);
    say_gone(absent, open);
    absent->abort = (struct run_req){.done = on_aborted};
    absent->abort.event = (struct event){.kind = EVENT_ABORT,
                                         .id = open->id,
                                         .u.abort = {.token = absent->token,
                                                     .open_id = open->entry.open_id,
                                                     .code = CAIRN_E_MISSING_RANKS,
                                                     .reason = absent->reason}};
    run_submit(absent->run, &absent->abort);
}

static void on_timer(struct timer *timer)
{
    struct absent *absent = container_of(timer, struct absent, timer);
    absent->snapshot = (struct run_snapshot_req){.done = on_state};
    run_snapshot(absent->run, &absent->snapshot);
}

/* --- who goes and comes ------------------------------------------------------------ */

static void drop_attempt(struct server *server, const struct session *session)
{
    list_each_safe (node, &server->absents) {
        struct absent *absent = list_item(node, struct absent, link);
        if (is_of(absent, session)) {
            absent_free(absent);
        }
    }
}

/* Starts to miss a rank, or all unseen ranks of an attempt. The grace of a rank begins now; for
 * unseen ranks the record is looked at first, to learn whether the attempt has saved before. */
static void add(struct session *session, bool unseen)
{
    struct server *server = session->server;
    struct absent *absent = calloc(1, sizeof(*absent));
    struct run *run =
        absent ? catalog_run(server->options.catalog, run_name_of(session->run)) : NULL;
    if (!run) {
        free(absent);
        return; /* the deadline of the save remains */
    }
    *absent = (struct absent){.server = server,
                              .run = run,
                              .token = session->join.token,
                              .rank = session->join.rank,
                              .world_size = session->join.world_size,
                              .unseen = unseen,
                              .since_ms = loop_now_ms(server->options.loop)};
    session_clip_label(session->label[0] ? session->label : session->peer, absent->label);
    list_init(&absent->link);
    list_add_tail(&server->absents, &absent->link);
    timer_init(&absent->timer, server->options.loop, on_timer);
    timer_start(&absent->timer, unseen ? 0 : server->options.rank_grace_ms);
}

static bool misses_ranks(const struct server *server)
{
    return server->options.rank_grace_ms != 0 && !server->closing &&
           catalog_options_of(server->options.catalog)->poll_ms == 0;
}

void absent_left(struct session *session)
{
    struct server *server = session->server;
    bool others = false, replaced = false;
    if (session->state != SESSION_JOINED || session->viewer || !misses_ranks(server)) {
        return;
    }
    list_each (node, &server->sessions) {
        const struct session *other = list_item(node, struct session, link);
        if (other != session && other->state == SESSION_JOINED && !other->viewer &&
            other->run == session->run && token_equal(&other->join.token, &session->join.token)) {
            others = true;
            replaced = replaced || other->join.rank == session->join.rank;
        }
    }
    if (!others) {
        drop_attempt(server, session); /* nobody is left to wait */
    } else if (!replaced) {
        add(session, false);
    }
}

void absent_joined(struct session *session)
{
    CHECK(session->state == SESSION_JOINED);
    CHECK(!session->viewer);
    struct server *server = session->server;
    bool first = true;
    list_each (node, &server->sessions) {
        const struct session *other = list_item(node, struct session, link);
        first = first && (other == session || other->state != SESSION_JOINED || other->viewer ||
                          other->run != session->run ||
                          !token_equal(&other->join.token, &session->join.token));
    }
    list_each_safe (node, &server->absents) {
        struct absent *absent = list_item(node, struct absent, link);
        if (is_of(absent, session) && !absent->unseen && absent->rank == session->join.rank) {
            absent_free(absent);
        }
    }
    if (first && session->join.world_size > 1 && misses_ranks(server)) {
        drop_attempt(server, session);
        add(session, true);
    }
}

void absent_end(struct server *server)
{
    list_each_safe (node, &server->absents) {
        absent_free(list_item(node, struct absent, link));
    }
}
