/* SPDX-License-Identifier: Apache-2.0
 *
 * AGREE, LISTS and DIGESTS: a rank's statement goes to the agreement of its opening. The answer is
 * sent when the other ranks have spoken, or when the save has ended.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"

enum { ANSWER_SCRATCH_MAX = 1 << 20 };

/* --- waiting --------------------------------------------------------------------- */

static struct request *request_of(struct agree_wait *wait)
{
    return container_of(wait, struct request, u.agree.wait);
}

/* Ends a wait and frees its request. */
static void free_wait(struct request *request)
{
    struct agree *agree = request->u.agree.agree;
    request_free(request);
    agree_drop(agree);
}

static void on_over(struct agree_wait *wait, int code, const char *why)
{
    struct request *request = request_of(wait);
    struct diag diag = DIAG_INIT;
    int status = code != 0 ? code : CAIRN_E_ABORTED;
    diag_set(&diag, status, "%s", why[0] != '\0' ? why : "the save has already ended");
    request_error(request, status, &diag);
    free_wait(request);
}

static void cancel_wait(struct request *request)
{
    CHECK(!list_is_empty(&request->u.agree.wait.link));
    list_remove(&request->u.agree.wait.link);
    free_wait(request);
}

static void start_wait(struct request *request, struct agree *agree,
                       bool (*is_ready)(struct agree_wait *), void (*ready)(struct agree_wait *))
{
    request->cancel = cancel_wait;
    request->u.agree.agree = agree_ref(agree);
    request->u.agree.wait =
        (struct agree_wait){.is_ready = is_ready, .ready = ready, .over = on_over};
    agree_wait(agree, &request->u.agree.wait);
    agree_poll(agree);
}

/* Returns the agreement of an open save, and makes it if necessary. Returns NULL if the save is
 * over or unknown, or there is no memory; an ERROR was sent then. */
static struct agree *agree_of(struct session *session, uint32_t stream, struct ckpt_id id,
                              uint64_t open_id)
{
    struct session_save *save = session_find_save(session, id);
    if (!save || save->open_id != open_id || writer_is_over(save->writer)) {
        conn_send_error(session->conn, stream, CAIRN_E_ABORTED,
                        "the save is not open on this server; save again");
        return NULL;
    }
    if (!save->agree) {
        CHECK(session->state == SESSION_JOINED);
        struct agree_key key = {.run = session->run,
                                .id = id,
                                .open_id = open_id,
                                .world_size = session->join.world_size};
        if (agree_hold(&session->server->agrees, &key, &save->agree) != 0) {
            conn_send_error(
                session->conn, stream, CAIRN_E_NO_MEMORY,
                "the server has not enough memory for comparing the ranks' lists; try again");
            return NULL;
        }
    }
    return save->agree;
}

/* --- AGREE ----------------------------------------------------------------------- */

/* Returns true if each group of the request has a verdict. */
static bool is_agreed(struct agree_wait *wait)
{
    const struct request *request = request_of(wait);
    const struct msg_agree *msg = &request->msg.u.agree;
    for (uint32_t i = 0; i < msg->count; i++) {
        if (agree_verdict(request->u.agree.agree, msg->groups[i].group) == 0) {
            return false;
        }
    }
    return true;
}

/* Logs the groups whose members do not have the same lists. */
static void log_verdicts(const struct request *request, const uint32_t *verdicts)
{
    const struct msg_agree *msg = &request->msg.u.agree;
    for (uint32_t i = 0; i < msg->count; i++) {
        /* Logged once for each group, by its first member. */
        if (msg->groups[i].member == 0 && verdicts[i] >= AGREE_ANEW) {
            LOG(LOG_INFO, "session",
                verdicts[i] == AGREE_UNKNOWN ? "the lists of a group of ranks are too long for the "
                                               "memory that is set aside for them"
                                             : "the lists of a group of ranks differ",
                lu("term", msg->id.term), lu("step", msg->id.step),
                lu("members", msg->groups[i].members));
        }
    }
}

/* Answers AGREE with the verdict of each group in the message, once all are decided. */
static void reply_agreed(struct agree_wait *wait)
{
    struct request *request = request_of(wait);
    const struct msg_agree *msg = &request->msg.u.agree;
    uint32_t *verdicts = scratch_array(&request->scratch, msg->count + 1, sizeof(*verdicts));
    if (!verdicts) {
        request_error(request, CAIRN_E_NO_MEMORY, NULL);
        free_wait(request);
        return;
    }
    for (uint32_t i = 0; i < msg->count; i++) {
        verdicts[i] = agree_verdict(request->u.agree.agree, msg->groups[i].group);
    }
    log_verdicts(request, verdicts);
    struct msg reply = {.type = MSG_AGREED,
                        .u.agreed = {.count = msg->count, .verdicts = verdicts}};
    request_reply(request, &reply);
    free_wait(request);
}

/* Handles AGREE: notes the groups of the rank and answers when they are decided. */
int session_on_agree(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    const struct msg_agree *said = &msg->u.agree;
    struct agree *agree = agree_of(session, stream, said->id, said->open_id);
    if (!agree) {
        return 0;
    }
    int status = agree_join(agree, session->join.rank, said, diag);
    if (status != 0) {
        return status;
    }
    struct request *request = request_new(session, stream, msg);
    if (request) {
        start_wait(request, agree, is_agreed, reply_agreed);
    }
    return 0;
}

/* --- LISTS and DIGESTS ----------------------------------------------------------- */

static bool has_all(struct agree_wait *wait)
{
    const struct request *request = request_of(wait);
    const struct agree *agree = request->u.agree.agree;
    return request->u.agree.type == MSG_LISTS ? agree_has_lists(agree, request->u.agree.group)
                                              : agree_has_digests(agree, request->u.agree.group);
}

/* Answers LISTS with HOLDERS, or DIGESTS with COMPARED, in as many frames as it takes. */
static void send_sets(struct agree_wait *wait)
{
    struct request *request = request_of(wait);
    const struct agree *agree = request->u.agree.agree;
    const struct xxh128 group = request->u.agree.group;
    bool lists = request->u.agree.type == MSG_LISTS, last = false;
    uint32_t at = 0;
    while (!last) {
        struct scratch scratch;
        struct msg reply = {.type = lists ? MSG_HOLDERS : MSG_COMPARED};
        struct msg_sets *sets = lists ? &reply.u.holders : &reply.u.compared;
        scratch_init(&scratch, ANSWER_SCRATCH_MAX);
        int status = lists ? agree_holders(agree, group, &at, &scratch, sets)
                           : agree_compared(agree, group, &at, &scratch, sets);
        last = status != 0 || sets->last;
        if (status != 0) {
            request_error(request, status, NULL);
        } else {
            request_reply(request, &reply);
        }
        scratch_fini(&scratch);
    }
    free_wait(request);
}

/* Waits until the agreement has the lists or the digests of all members of the group. */
static void wait_for_sets(struct session *session, uint32_t stream, enum msg_type type,
                          struct xxh128 group, struct agree *agree)
{
    struct request *request = request_new(session, stream, NULL);
    if (request) {
        request->u.agree.type = type;
        request->u.agree.group = group;
        start_wait(request, agree, has_all, send_sets);
    }
}

/* Handles LISTS. The answer comes when all members of the group have sent theirs. */
int session_on_lists(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    const struct msg_lists *lists = &msg->u.lists;
    struct agree *agree = agree_of(session, stream, lists->id, lists->open_id);
    if (!agree) {
        return 0;
    }
    int status = agree_list(agree, session->join.rank, lists, diag);
    if (status == 0 && lists->first + lists->count == lists->total) {
        wait_for_sets(session, stream, MSG_LISTS, lists->group, agree);
    }
    return status;
}

/* Handles DIGESTS. The answer comes when all members of the group have sent theirs. */
int session_on_digests(struct session *session, uint32_t stream, const struct msg *msg,
                       struct diag *diag)
{
    const struct msg_digests *digests = &msg->u.digests;
    struct agree *agree = agree_of(session, stream, digests->id, digests->open_id);
    if (!agree) {
        return 0;
    }
    int status = agree_digests(agree, session->join.rank, digests, diag);
    if (status == 0 && digests->first + digests->count == digests->total) {
        wait_for_sets(session, stream, MSG_DIGESTS, digests->group, agree);
    }
    return status;
}
