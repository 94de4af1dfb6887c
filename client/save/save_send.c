/* SPDX-License-Identifier: Apache-2.0
 *
 * A save gives what it has: SEND until everything is durable or described, PART until the part is
 * made, SEAL until the server has the part. save_stream.c and save_hand.c send the bytes.
 * Invariant: before SEAL was sent the save cannot be committed. Loop's thread.
 */
#include "save/save_private.h"

/* Called on entering SEND: lets the bytes go. */
void save_enter_send(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save->common.status == 0 && !save->lost && save->send.word != WORD_OVER &&
        !save_way_has_ended(&save->send)) {
        engine_pump(save->common.engine);
    }
}

/* The state SEND: waits until everything is durable or described. */
enum sm_result save_on_send(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (save->send.word == WORD_OVER) {
        return save_move(save, SV_WAIT); /* OUTCOME says what became of it, and why */
    }
    if (!save_way_has_ended(&save->send)) {
        return SM_WAIT;
    }
    return save_move(save, SV_PART);
}

/* The state PART: makes the part once no worker and no socket uses the payloads. */
enum sm_result save_on_part(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (save->part.running || save->send.slots_busy > 0 || save->send.digests_running > 0 ||
        !save_check_is_over(&save->check)) {
        return SM_WAIT; /* after a resume a digest may be made that is not needed any more */
    }
    if (!save_way_has_ended(&save->send)) {
        return save_move(save, SV_SEND); /* an object that was described has failed */
    }
    if (!save_part_is_made(&save->part) && save->part.status == 0) {
        save_part_make(&save->part);
        return SM_WAIT;
    }
    if (save->part.status != 0) {
        save_fail(&save->common, save->part.status, &save->part.diag);
        return SM_AGAIN;
    }
    return save_move(save, SV_SEAL);
}

/* Asks for the end of the save, on the stream that had the part. */
static void send_seal(struct save *save)
{
    struct msg_seal seal = {.id = save->common.user->id,
                            .open_id = save->common.open_id,
                            .part_bytes = save->part.buf.bytes,
                            .part_sha256 = save->part.sha256};
    save->common.reach = REACH_SEALED;
    save->common.sealed_ms = loop_now_ms(save->common.engine->options.loop);
    save->answer.state = ANSWER_ASKED;
    save->send.way->complete(&save->send, &save->request, &seal);
}

/* Called on entering SEAL: the part is sent from its beginning. */
void save_enter_seal(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    save->part.sent = 0;
    link_add(&save->common.engine->link, &save->request);
}

/* The state SEAL: sends the part and then SEAL, and waits for SEALED. If the server lacks an
 * object, the save goes back to HAVE, a few times. */
enum sm_result save_on_seal(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (save->answer.state == ANSWER_NONE && !save_part_is_made(&save->part)) {
        /* An object that was only described has failed meanwhile. */
        link_forget(&save->common.engine->link, &save->request);
        return save_move(save, SV_HAVE);
    }
    if (save->answer.state == ANSWER_NONE && save_part_send(&save->part, &save->request)) {
        send_seal(save);
    }
    if (save->answer.state != ANSWER_COME) {
        return SM_WAIT;
    }
    int code = save->answer.code;
    if (code == 0) {
        save_tell_handed(&save->tell); /* a rank that has sealed is not missed */
        return save_move(save, SV_WAIT);
    }
    if (save_tries_again(save)) {
        /* Parts of other ranks fill the server's memory: ask again until the deadline. */
        return SM_AGAIN;
    }
    bool lacks = code == CAIRN_E_DIGEST_MISMATCH || code == CAIRN_E_INVALID;
    bool has_failed = !save_part_is_made(&save->part); /* an object of it, which counts that */
    if (lacks && (has_failed || save->seal_tries++ < SAVE_TRIES)) {
        return save_move(save, SV_HAVE); /* what the server lacks is sent again */
    }
    engine_drop_bases(save->common.engine); /* the next save fetches what the server has */
    return save_fail_with_answer(save, "seal");
}
