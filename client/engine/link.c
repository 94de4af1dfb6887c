/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of the connection. Loop's thread.
 *
 *   DIAL ---> HELLO ---> JOIN ---> UP
 *    ^          |          |        |          (a viewer without a run skips JOIN)
 *    |          +----------+--------+ lost or refused, and it may get better
 *    +-- BACKOFF <---------+
 *   any --> FINAL   refused for good (AUTH, DUPLICATE_RANK ...), or the first connect is late
 *   any --> STOPPED by link_stop
 *
 * HELLO and JOIN wait for their replies, at most LINK_ATTEMPT_MS; BACKOFF for its timer; UP for the
 * end of the connection.
 */
#include "engine/link.h"

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_private.h"
#include "wire/negotiate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINK_DIAL, LINK_HELLO, LINK_JOIN, LINK_UP, LINK_BACKOFF, LINK_FINAL, LINK_STOPPED };
enum { LINK_STREAM_HELLO = 1, LINK_STREAM_JOIN = 2 };
/* With one server a slow answer is better than none. With several, the next one is tried, so that a
 * rank leaves a server that does not answer within 5 s. */
enum {
    LINK_ATTEMPT_MS = 10000,
    LINK_ATTEMPT_MANY_MS = 3000,
    LINK_BEAT_MS = 1000,
    LINK_DEAD_MS = 3500,
    LINK_AWAY_MS = 500 /* without a connection to the only server */
};

static enum sm_result on_dial(struct sm *sm);
static enum sm_result on_backoff(struct sm *sm);
static enum sm_result on_final(struct sm *sm);

#define LINK_FAIL (SM_TO(LINK_BACKOFF) | SM_TO(LINK_FINAL) | SM_TO(LINK_STOPPED))
static const struct sm_state link_table[] = {
    [LINK_DIAL] = {"dial", on_dial, SM_TO(LINK_HELLO) | LINK_FAIL, 0},
    [LINK_HELLO] = {"hello", NULL, SM_TO(LINK_JOIN) | SM_TO(LINK_UP) | LINK_FAIL, 0},
    [LINK_JOIN] = {"join", NULL, SM_TO(LINK_UP) | LINK_FAIL, 0},
    [LINK_UP] = {"up", NULL, LINK_FAIL, 0},
    [LINK_BACKOFF] = {"backoff", on_backoff, SM_TO(LINK_DIAL) | SM_TO(LINK_STOPPED), 0},
    [LINK_FINAL] = {"final", on_final, SM_TO(LINK_STOPPED), 0},
    [LINK_STOPPED] = {"stopped", NULL, 0, SM_FINAL},
};

/* CHECKs the invariant of a link that has just moved: the states HELLO, JOIN and UP have a
 * connection, the others have none, and a reply is received only over a connection. */
static void check_link(const struct sm *sm)
{
    const struct link *link = container_of(sm, struct link, sm);
    bool has_conn = sm->state == LINK_HELLO || sm->state == LINK_JOIN || sm->state == LINK_UP;
    CHECK(has_conn == (link->conn != NULL));
    CHECK(has_conn || link->receiving == NULL);
    CHECK(link->stopped == (sm->state == LINK_STOPPED));
    CHECK(sm->state != LINK_FINAL || link->status != 0);
}

static const struct conn_handler link_conn_handler;

/* --- life ------------------------------------------------------------------------ */

static void on_timer(struct timer *timer);

void link_init(struct link *link, struct engine *engine)
{
    link->engine = engine;
    for (unsigned i = 0; i < LINK_BUCKETS; i++) {
        list_init(&link->buckets[i]);
    }
    timer_init(&link->timer, engine->options.loop, on_timer);
    sm_init(&link->sm, link_table, LINK_DIAL, "link", engine->options.rank);
    link->sm.invariant = check_link;
}

static size_t server_count(const struct link *link)
{
    return link->engine->options.dial ? 1 : link->engine->options.url.server_count;
}

/* Returns the server to begin with: ranks go round the servers, and a viewer begins anywhere. */
static size_t home_of(const struct link *link)
{
    const struct engine_options *options = &link->engine->options;
    size_t count = server_count(link);
    uint64_t at = options->viewer ? link->draw : options->rank;
    return count > 0 ? (size_t)(at % count) : 0;
}

void link_start(struct link *link)
{
    link->began_ms = link->turned_ms = loop_now_ms(link->engine->options.loop);
    loop_random(link->engine->options.loop, sizeof link->draw, &link->draw);
    link->server_idx = home_of(link);
    timer_start(&link->timer, 0);
}

/* Closes the connection, if there is one, and forgets its credits. If the link was up, the owner of
 * each request in the table is told. */
static void drop_conn(struct link *link, bool flush)
{
    bool was_up = sm_is(&link->sm, LINK_UP);
    timer_stop(&link->timer);
    if (link->conn) {
        conn_close(link->conn, flush);
        link->conn = NULL;
    }
    link->receiving = NULL;
    link->credits = link->credits_asked = 0;
    if (was_up) {
        link_lose_requests(link);
    }
}

void link_stop(struct link *link)
{
    if (link->stopped) {
        return;
    }
    link->stopped = true;
    if (link->conn && sm_is(&link->sm, LINK_UP) && !link->cut) {
        struct msg bye = {.type = MSG_BYE};
        conn_send_always(link->conn, 0, &bye);
    }
    drop_conn(link, true);
    sm_move(&link->sm, LINK_STOPPED);
    free(link->trash);
    link->trash = NULL;
}

void link_say_why(const struct link *link, size_t bytes, char *ret)
{
    bool tried = link->diag.code != 0, one = strcmp(link->first.text, link->diag.text) == 0;
    snprintf(ret, bytes, "%.200s%s%.200s",
             tried ? link->first.text : "the connection is still being made",
             tried && !one ? "; last: " : "", tried && !one ? link->diag.text : "");
}

/* Returns false already while the requests of a lost connection are told, though the state changes
 * only afterwards. */
bool link_is_up(const struct link *link) { return link->conn != NULL && sm_is(&link->sm, LINK_UP); }

bool link_is_away(struct link *link)
{
    uint64_t down_ms = loop_now_ms(link->engine->options.loop) - link->turned_ms;
    if (link_is_up(link)) {
        return conn_silent_ms(link->conn) >= LINK_DEAD_MS;
    }
    return down_ms >= (server_count(link) > 1 ? LINK_DEAD_MS : LINK_AWAY_MS);
}

/* Returns whether the caller of engine_new still waits for the first connection. */
static bool is_first(const struct link *link)
{
    return !link->joined_once && !link->engine->ready_told;
}

/* Returns whether this is a refusal that another try, or another server, cannot change. */
static bool is_final(int status)
{
    static const int codes[] = {
        CAIRN_E_AUTH,           CAIRN_E_DENIED,         CAIRN_E_VERSION,
        CAIRN_E_DUPLICATE_RANK, CAIRN_E_WORLD_MISMATCH, CAIRN_E_TOKEN_MISMATCH,
        CAIRN_E_FENCED,         CAIRN_E_INVALID,        CAIRN_E_UNSUPPORTED,
        CAIRN_E_CONFIG,         CAIRN_E_STORE_MISMATCH, CAIRN_E_DAMAGED,
        CAIRN_E_FORMAT,         CAIRN_E_STORE_FEATURES};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        if (codes[i] == status) {
            return true;
        }
    }
    return false;
}

/* Returns the next time to wait: the bound doubles from try to try, and the time is drawn from its
 * upper half, so that the ranks of a run do not all come back at once. */
static uint32_t draw_backoff(struct link *link)
{
    const struct engine_options *options = &link->engine->options;
    uint32_t draw;
    loop_random(options->loop, sizeof draw, &draw);
    link->backoff_ms = link->backoff_ms == 0 ? options->reconnect_ms_min
                                             : (uint32_t)min_u64((uint64_t)link->backoff_ms * 2,
                                                                 options->reconnect_ms_max);
    CHECK(link->backoff_ms > 0);
    return link->backoff_ms / 2 + draw % (link->backoff_ms / 2 + 1);
}

/* Returns whether the server is only full or stopping, and so may take the connection in a
 * moment. */
static bool is_momentary(int code)
{
    return code == CAIRN_E_BUSY || code == CAIRN_E_SHUTTING_DOWN || code == CAIRN_E_AGAIN;
}

/* Returns whether the first connect has taken as long as its caller allows. */
static bool is_late(const struct link *link, int code)
{
    const struct engine_options *options = &link->engine->options;
    uint64_t waited_ms = loop_now_ms(options->loop) - link->began_ms;
    bool refused =
        options->refused_ms != 0 && waited_ms >= options->refused_ms && !is_momentary(code);
    return is_first(link) && options->when_down != WHEN_DOWN_TRAIN &&
           (refused || waited_ms >= options->io_deadline_ms);
}

static const char *server_name(const struct link *link)
{
    const struct engine_options *options = &link->engine->options;
    size_t count = options->url.server_count;
    return count > 0 && !options->dial ? options->url.servers[link->server_idx % count]
                                       : "the server";
}

/* Puts the last cause into the failure, and the first one if that is different. */
static void say_late(struct link *link, int code)
{
    struct diag last = link->diag;
    uint64_t waited_ms = loop_now_ms(link->engine->options.loop) - link->began_ms;
    bool same = strcmp(last.text, link->first.text) == 0;
    diag_clear(&link->diag);
    if (link->server_said) {
        diag_set(&link->diag, code, "%s refuses new connections: %s", server_name(link), last.text);
        return;
    }
    diag_set(&link->diag, code, "no connection to %s could be made within %.1f s: %.250s%s%.200s%s",
             server_name(link), (double)waited_ms / 1000, last.text,
             same ? "" : "; the first attempt failed with: ", same ? "" : link->first.text,
             code == CAIRN_E_UNREACHABLE
                 ? "; check that cairnd is running there, and that the address is right"
                 : "");
}

/* Called when the connection, or an attempt at one, has ended. */
static void link_failed(struct link *link, int status, const struct diag *diag)
{
    struct engine *engine = link->engine;
    bool was_up = link_is_up(link);
    if (link->stopped || link->status != 0) {
        return;
    }
    /* ENDED means that the server stopped in order. For waiting operations this is a lost
     * connection like any other. */
    CHECK(status != 0);
    int code =
        status == CAIRN_E_ENDED || status == CAIRN_E_CLOSED ? CAIRN_E_CONNECTION_LOST : status;
    diag_clear(&link->diag);
    diag_set(&link->diag, code, "%s", diag_text(diag, code));
    if (link->first.code == 0) {
        link->first = link->diag;
    }
    LOG(was_up && !link->moving ? LOG_WARN : LOG_DEBUG, "link",
        link->moving ? "moving to another server"
        : was_up     ? "connection lost"
                     : "cannot connect",
        lu("rank", engine->options.rank), ls("err", link->diag.text));
    drop_conn(link, false);
    link->turned_ms = was_up ? loop_now_ms(engine->options.loop) : link->turned_ms;
    bool late = is_late(link, code);
    if (is_final(code) || late) {
        link->status = code;
        if (!is_final(code)) {
            say_late(link, code);
        }
        sm_move(&link->sm, LINK_FINAL);
    } else {
        link->server_idx++;
        sm_move(&link->sm, LINK_BACKOFF);
        if (is_first(link) && engine->options.when_down == WHEN_DOWN_TRAIN) {
            engine_on_unmet(engine);
        }
    }
    if (was_up) {
        engine_on_down(engine);
    }
    sm_run(&link->sm);
}

/* Goes to that server. Saves do not prevent this, because they resume there what they have in
 * flight. */
static void move_to(struct link *link, size_t server_idx, const char *why)
{
    size_t count = server_count(link);
    if (sm_is(&link->sm, LINK_BACKOFF) || sm_is(&link->sm, LINK_DIAL)) {
        link->server_idx = server_idx;
    }
    if (count < 2 || !link_is_up(link) || link->server_idx % count == server_idx % count) {
        return;
    }
    CHECK(server_idx < count);
    link->server_idx = server_idx + count - 1; /* link_reset goes on to the next server */
    link->moving = true;
    link_reset(link, CAIRN_E_CONNECTION_LOST, why);
    link->moving = false;
}

void link_gather(struct link *link)
{
    link->gathered = true; /* set again, because the first server may have been away before */
    move_to(link, 0, "the ranks connect to one server to agree on which rank writes what");
}

void link_spread(struct link *link)
{
    if (link->gathered) {
        link->gathered = false;
        move_to(link, home_of(link), "the ranks have agreed and spread over the servers again");
    }
}

void link_reset(struct link *link, int status, const char *why)
{
    struct diag diag = DIAG_INIT;
    if (link->conn) {
        diag_set(&diag, status, "%s", why);
        link_failed(link, status, &diag);
    }
}

/* Cuts a wait before the first JOIN to the caller's deadline. */
static uint64_t cut_wait(const struct link *link, uint64_t ms)
{
    uint64_t end_ms = link->began_ms + link->engine->options.io_deadline_ms;
    return is_first(link) ? min_u64(ms, engine_ms_left(link->engine, end_ms)) : ms;
}

/* Returns the next wait. If the caller allows only a short time for refusals, the last try comes at
 * the end of that time, not after it. */
static uint64_t backoff_of(struct link *link)
{
    uint64_t end_ms = link->began_ms + link->engine->options.refused_ms;
    uint64_t ms = cut_wait(link, draw_backoff(link)),
             left_ms = engine_ms_left(link->engine, end_ms);
    return !is_first(link) || left_ms == 0 ? ms : min_u64(ms, left_ms);
}

static enum sm_result on_backoff(struct sm *sm)
{
    struct link *link = container_of(sm, struct link, sm);
    if (!timer_is_active(&link->timer)) {
        timer_start(&link->timer, backoff_of(link));
    }
    return SM_WAIT;
}

void link_hurry(struct link *link)
{
    if (sm_is(&link->sm, LINK_BACKOFF)) {
        link->backoff_ms = 0;
        timer_start(&link->timer, backoff_of(link));
    }
}

static enum sm_result on_final(struct sm *sm)
{
    struct link *link = container_of(sm, struct link, sm);
    if (!link->answered) {
        link->answered = true;
        engine_on_final(link->engine, link->status, &link->diag);
    }
    return SM_WAIT;
}

/* Ends an attempt that got no answer. If the deadline cut it short, its error says less than the
 * one before, which is kept. */
static void fail_silent(struct link *link)
{
    uint64_t tried_ms = loop_now_ms(link->engine->options.loop) - link->dialed_ms;
    struct diag diag = DIAG_INIT;
    if (tried_ms < LINK_ATTEMPT_MANY_MS && link->diag.code != 0) {
        diag = link->diag;
    } else {
        diag_set(&diag, CAIRN_E_UNREACHABLE, "%s has not answered the request %s for %.1f s%s",
                 server_name(link), sm_is(&link->sm, LINK_JOIN) ? "JOIN" : "HELLO",
                 (double)tried_ms / 1000,
                 sm_is(&link->sm, LINK_JOIN)
                     ? "; look at `cairn status`, because its store may not answer"
                     : "");
    }
    link_failed(link, diag.code, &diag);
}

/* The back-off is over, or the server has not answered in time. */
static void on_timer(struct timer *timer)
{
    struct link *link = container_of(timer, struct link, timer);
    if (sm_is(&link->sm, LINK_BACKOFF)) {
        sm_move(&link->sm, LINK_DIAL);
        sm_run(&link->sm);
    } else if (sm_is(&link->sm, LINK_DIAL)) {
        sm_run(&link->sm);
    } else {
        fail_silent(link);
    }
}

/* --- connecting ------------------------------------------------------------------ */

/* Begins to connect to the server whose turn it is, or through the engine's own dial function.
 * Gives the address, because it decides on TLS. */
static int dial_sock(struct link *link, struct net_addr *ret_addr, struct sock **ret,
                     struct diag *diag)
{
    const struct engine_options *options = &link->engine->options;
    if (options->dial) {
        *ret_addr = (struct net_addr){.family = NET_UNIX};
        return options->dial(options->dial_user, ret, diag);
    }
    if (options->url.server_count == 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "no server is named; give host:port in the URL, or set CAIRN_SERVER");
    }
    const char *server = options->url.servers[link->server_idx % options->url.server_count];
    int rc = net_addr_parse(server, CAIRN_DEFAULT_PORT, ret_addr, diag);
    return rc != 0 ? rc : net_connect(options->net, ret_addr, ret, diag);
}

/* Makes the stream to the server: with TLS if the engine has a TLS context, but never over a Unix
 * socket. */
static int dial_stream(struct link *link, struct stream **ret, struct diag *diag)
{
    const struct engine_options *options = &link->engine->options;
    struct net_addr addr;
    struct sock *sock;
    struct stream *plain;
    int rc = dial_sock(link, &addr, &sock, diag);
    if (rc != 0) {
        return rc;
    }
    rc = stream_plain_new(sock, &plain, diag);
    if (rc != 0) {
        return rc;
    }
    if (!options->tls || addr.family == NET_UNIX) {
        *ret = plain;
        return 0;
    }
    return stream_tls_new(options->loop, options->tls, plain,
                          options->tls_name ? options->tls_name : addr.host, ret, diag);
}

/* Makes the connection to the server. */
static int dial_conn(struct link *link, struct diag *diag)
{
    struct stream *stream;
    struct conn_options options = {.message_max = LIMIT_MESSAGE_BYTES,
                                   .payload_max = LIMIT_CHUNK_BYTES,
                                   .queue_high_bytes = MIB(4),
                                   .queue_low_bytes = MIB(1)};
    int rc = dial_stream(link, &stream, diag);
    return rc != 0 ? rc
                   : conn_new(link->engine->options.loop, stream, &options, &link_conn_handler,
                              link, &link->conn, diag);
}

/* Offers landing if descriptors can pass, and hand-over if there is also an arena. */
static uint64_t offered_features(const struct link *link)
{
    const struct engine_options *options = &link->engine->options;
    bool lands = conn_passes_fds(link->conn) && options->transport != TRANSPORT_SOCKET;
    bool hands_over = lands && !options->viewer && options->arena;
    const uint64_t by_hand = WIRE_FEATURE_HAND_OVER | WIRE_FEATURE_HAND_PACK;
    uint64_t not_offered =
        (lands ? 0 : (uint64_t)WIRE_FEATURE_LANDING) | (hands_over ? 0 : by_hand);
    return WIRE_FEATURES_KNOWN & ~not_offered;
}

/* Connects and sends HELLO. The answer must come before the timer of the attempt ends. */
static enum sm_result on_dial(struct sm *sm)
{
    struct link *link = container_of(sm, struct link, sm);
    struct diag diag = DIAG_INIT;
    CHECK(link->conn == NULL);
    link->dialed_ms = loop_now_ms(link->engine->options.loop);
    link->server_said = false;
    int rc = dial_conn(link, &diag);
    if (rc != 0) {
        link_failed(link, rc, &diag);
        return SM_WAIT;
    }
    struct msg hello = {.type = MSG_HELLO,
                        .u.hello = {.version_min = WIRE_VERSION_MIN,
                                    .version_max = WIRE_VERSION_MAX,
                                    .features = offered_features(link),
                                    .agent = "libcairn " CAIRN_VERSION}};
    conn_send_always(link->conn, LINK_STREAM_HELLO, &hello);
    link->next_stream = LINK_STREAM_JOIN + 1;
    uint64_t attempt_ms = server_count(link) > 1 ? LINK_ATTEMPT_MANY_MS : LINK_ATTEMPT_MS;
    timer_start(&link->timer, cut_wait(link, attempt_ms));
    sm_move(&link->sm, LINK_HELLO);
    return SM_WAIT;
}

static void link_now_up(struct link *link)
{
    CHECK(link->conn != NULL);
    CHECK(!link->stopped);
    CHECK(link->credits == 0);
    CHECK(link->credits_asked == 0);
    timer_stop(&link->timer);
    link->backoff_ms = 0;
    link->turned_ms = loop_now_ms(link->engine->options.loop);
    bool is_new = !link->joined_once;
    link->joined_once = true;
    diag_clear(&link->first);
    sm_move(&link->sm, LINK_UP);
    engine_on_up(link->engine, is_new);
}

/* With several servers, shortens the heartbeat, so that a silent server is left in time. It may be
 * alive and only busy; going on elsewhere is right all the same. */
static void set_heartbeat(struct link *link, const struct msg_welcome *welcome)
{
    bool many = server_count(link) > 1;
    uint64_t beat = many ? LINK_BEAT_MS : UINT64_MAX, dead = many ? LINK_DEAD_MS : UINT64_MAX;
    conn_set_heartbeat(link->conn, (uint32_t)min_u64(welcome->heartbeat_ms, beat),
                       (uint32_t)min_u64(welcome->dead_after_ms, dead));
}

/* Takes the answer to HELLO: the versions must match, and the store must be the one that was seen
 * before. Sends JOIN, unless the URL names no run. A code that is returned ends the connection. */
static int on_welcome(struct link *link, const struct msg_welcome *welcome, struct diag *diag)
{
    const struct engine_options *options = &link->engine->options;
    struct msg_hello hello = {.version_min = WIRE_VERSION_MIN,
                              .version_max = WIRE_VERSION_MAX,
                              .features = offered_features(link)};
    int rc = wire_check_welcome(&hello, welcome, diag);
    if (rc != 0) {
        return rc;
    }
    /* A server that has no store yet says so in its answer to JOIN. */
    static const struct uuid none;
    struct uuid store = link->welcome.store_uuid;
    bool knows = memcmp(&welcome->store_uuid, &none, sizeof none) != 0;
    if (link->joined_once && knows && memcmp(&store, &none, sizeof none) != 0 &&
        memcmp(&store, &welcome->store_uuid, sizeof store) != 0) {
        return diag_set(diag, CAIRN_E_STORE_MISMATCH,
                        "the server at this address now serves another store than before; open a "
                        "new handle if that is intended");
    }
    link->welcome = *welcome;
    link->welcome.store_uuid = knows ? welcome->store_uuid : store;
    link->welcome.agent = NULL;
    link->hands_over = (welcome->features & WIRE_FEATURE_HAND_OVER) != 0;
    link->hands_packed = link->hands_over && (welcome->features & WIRE_FEATURE_HAND_PACK) != 0;
    link->lands = (welcome->features & WIRE_FEATURE_LANDING) != 0;
    set_heartbeat(link, welcome);
    if (!options->url.has_run) {
        link_now_up(link);
        return 0;
    }
    struct msg join = {.type = MSG_JOIN,
                       .u.join = {.run = options->url.run,
                                  .viewer = options->viewer,
                                  .label = options->label ? options->label : ""}};
    if (!options->viewer) {
        join.u.join.token = options->token;
        join.u.join.rank = options->rank;
        join.u.join.world_size = options->world_size;
        join.u.join.writer = options->writer;
    }
    conn_send_always(link->conn, LINK_STREAM_JOIN, &join);
    sm_move(&link->sm, LINK_JOIN);
    return 0;
}

/* Takes the answer to JOIN: the link is up. Returns PROTOCOL if the size of a chunk cannot be
 * right. */
static int on_joined(struct link *link, const struct msg_joined *joined, struct diag *diag)
{
    uint64_t chunk = joined->chunk_bytes;
    if (chunk < LIMIT_CHUNK_BYTES_MIN || chunk > LIMIT_CHUNK_BYTES ||
        chunk % LIMIT_ALIGN_BYTES != 0 || link->welcome.payload_max < chunk) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the server gives chunks of %llu bytes and payloads of at most %u bytes, "
                        "which is outside the limits",
                        (unsigned long long)chunk, link->welcome.payload_max);
    }
    link->joined = *joined;
    link_now_up(link);
    return 0;
}

/* --- messages -------------------------------------------------------------------- */

/* Takes credits, each for one payload that may be sent. Returns PROTOCOL if there are more than
 * were asked for. */
static int on_grant(struct link *link, const struct msg_grant *grant, struct diag *diag)
{
    if (grant->buffers > link->credits_asked) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the server granted %u buffers, but only %u were requested", grant->buffers,
                        link->credits_asked);
    }
    link->credits_asked -= grant->buffers;
    link->credits += grant->buffers;
    CHECK(link->credits + link->credits_asked <= ENGINE_WINDOW);
    engine_on_granted(link->engine);
    return 0;
}

static int on_error(struct link *link, const struct frame *frame, const struct msg_error *error,
                    struct diag *diag)
{
    /* Login was refused, or the server says why it is about to close the connection. */
    (void)frame;
    (void)link;
    int code = error->code < 0 && err_is_known(error->code) ? error->code : CAIRN_E_PROTOCOL;
    return diag_set(diag, code, "%s", error->text && error->text[0] ? error->text : err_text(code));
}

/* Called by the conn for each message. During login only the answers to HELLO and JOIN, an error
 * and BYE are allowed; a code that is returned ends the connection. */
static int link_on_message(void *user, const struct frame *frame, const struct msg *msg,
                           void **ret_payload, struct diag *diag)
{
    struct link *link = user;
    bool login = sm_is(&link->sm, LINK_HELLO) || sm_is(&link->sm, LINK_JOIN);
    if (msg->type == MSG_ERROR && (login || frame->stream == 0)) {
        int code = on_error(link, frame, &msg->u.error, diag);
        link->server_said = true;
        link_failed(link, code, diag); /* conn has not failed, so the server need not be told */
        return 0;
    }
    if (msg->type == MSG_BYE) {
        link_reset(link, CAIRN_E_CONNECTION_LOST, "the server ended the connection");
        return 0;
    }
    if (sm_is(&link->sm, LINK_HELLO) && msg->type == MSG_WELCOME) {
        return on_welcome(link, &msg->u.welcome, diag);
    }
    if (sm_is(&link->sm, LINK_JOIN) && msg->type == MSG_JOINED) {
        return on_joined(link, &msg->u.joined, diag);
    }
    if (login) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the server sent %s during login",
                        msg_name(msg->type));
    }
    if (msg->type == MSG_GRANT) {
        return on_grant(link, &msg->u.grant, diag);
    }
    return link_reply(link, frame, msg, ret_payload, diag);
}

static int link_on_payload(void *user, const struct frame *frame, const struct msg *msg,
                           void *payload, struct diag *diag)
{
    return link_payload(user, frame, msg, payload, diag);
}

/* Called when the connection has failed. If the server closed it before it answered HELLO, the
 * reason is likely TLS, and the text says so. */
static void link_on_close(void *user, int status, const struct diag *diag)
{
    struct link *link = user;
    struct diag silent = DIAG_INIT;
    if (status == CAIRN_E_ENDED && sm_is(&link->sm, LINK_HELLO)) {
        diag_set(&silent, CAIRN_E_CONNECTION_LOST,
                 "%s accepted the connection and closed it without answering HELLO: the program "
                 "there is not cairnd, or it expects TLS (ca_file, --ca-file)",
                 server_name(link));
        diag = &silent;
    }
    link_failed(link, status, diag);
}

static const struct conn_handler link_conn_handler = {
    .on_message = link_on_message, .on_payload = link_on_payload, .on_close = link_on_close};
