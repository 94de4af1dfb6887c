/* SPDX-License-Identifier: Apache-2.0
 *
 * Which way the bytes of a save go: by hand-over where the daemon of this host takes it, else
 * through the socket. Once it is the socket it stays so; a hand-over may become the socket on a
 * later connection. Loop's thread.
 */
#include "save/save_send_private.h"

#include "base/check.h"

/* Returns whether the save must go through the socket. A daemon that stores what it is handed as it
 * lies gets saves that are to be encoded, or that refer to a base, through the socket. Without a
 * base CAIRN_ENCODE_AUTO is handed over in any case, because nothing costs less. If the socket is
 * ruled out (TRANSPORT_MEMFD), force_hand decides. */
static bool wants_socket(const struct save_send *send)
{
    const struct engine *engine = send->common->engine;
    return engine->options.transport == TRANSPORT_SOCKET ||
           (engine->options.transport == TRANSPORT_AUTO && !save_hand_packs(send) &&
            (engine->encode_pool.mode == ENCODE_DENSEST || send->base->part));
}

/* For TRANSPORT_MEMFD and a daemon that stores the save as it lies: drops the base, so that
 * everything is sent, which is always right. A dense encoding, which was asked for, is refused
 * rather than forgotten. */
static void force_hand(struct save_send *send)
{
    const struct engine *engine = send->common->engine;
    struct diag diag = DIAG_INIT;
    if (engine->options.transport != TRANSPORT_MEMFD || save_hand_packs(send)) {
        return;
    }
    if (engine->encode_pool.mode == ENCODE_DENSEST && engine->link.hands_over) {
        diag_set(&diag, CAIRN_E_UNSUPPORTED,
                 "CAIRN_TRANSPORT=memfd, and a dense encoding needs the socket here: %s",
                 engine->link.hands_packed
                     ? "the arena is smaller than the state (make it larger, or leave one of both)"
                     : "the daemon encodes nothing that it is handed: it is older, or its [memory] "
                       "encode is too small (make that larger, or leave one of both)");
        save_fail(send->common, CAIRN_E_UNSUPPORTED, &diag);
    } else {
        CHECK(send->digest_next == 0);
        save_base_leave(send->base);
    }
}

/* Called when the connection by which the save was handed over is gone, and the new one takes no
 * hand-over. What is durable stays, because the part may be published already and must not change;
 * all digests are now made here. */
static void digest_all(struct save_send *send)
{
    for (uint32_t i = 0; i < send->digest_next; i++) {
        send->payloads[i].state = PAYLOAD_IDLE;
    }
    send->digest_next = 0;
    send->round++;
}

static void take_socket(struct save_send *send)
{
    send->way = &save_way_socket;
    send->is_counted = true; /* this process finds out what the base has */
}

/* Changes to the socket, because the daemon takes no hand-over. Fails the save if the transport
 * forbids the socket, or if bytes that must be sent again were given up. */
static void fall_back(struct save_send *send)
{
    struct diag diag = DIAG_INIT;
    if (send->way) {
        digest_all(send);
    }
    if (send->packed) {
        send->packed = false;
        save_objects_restart(send); /* only the daemon knows where the durable objects are */
    }
    take_socket(send);
    if (send->room->lent && send->room->waves) {
        diag_set(&diag, CAIRN_E_UNSUPPORTED,
                 "the daemon does not take the arena any more, which is smaller than the save and "
                 "had to give up bytes that it took before: save again");
        save_fail(send->common, CAIRN_E_UNSUPPORTED, &diag);
    } else if (send->common->engine->options.transport == TRANSPORT_MEMFD) {
        const struct hand *hand = &send->common->engine->hand;
        diag_set(&diag, CAIRN_E_UNSUPPORTED,
                 "CAIRN_TRANSPORT=memfd, and the arena cannot be handed over: %s",
                 hand->refused
                     ? hand->why.text
                     : "the connection is no Unix socket, or the daemon does not know how");
        save_fail(send->common, CAIRN_E_UNSUPPORTED, &diag);
    } else {
        save_wake(send->common);
    }
}

bool save_way_choose(struct save_send *send)
{
    const struct engine *engine = send->common->engine;
    if (send->way == &save_way_socket) {
        return true;
    }
    if (send->base->state != BASE_KNOWN || !link_is_up(&engine->link)) {
        return false;
    }
    if (!send->way && wants_socket(send)) {
        take_socket(send);
        save_wake(send->common);
        return true;
    }
    if (!send->way) {
        force_hand(send);
    }
    if (send->common->status != 0) {
        return false;
    }
    bool nothing = send->room->layout.payload_count == 0 && engine->link.hands_over;
    enum hand_answer answer = nothing ? HAND_YES : hand_over(send->common->engine);
    if (answer == HAND_NO) {
        fall_back(send);
    } else if (answer == HAND_YES) {
        send->way = &save_way_hand;
    }
    return answer != HAND_WAIT && send->common->status == 0;
}

void save_way_prepare(struct save_send *send)
{
    if (send->way && send->base->state == BASE_KNOWN && !save_is_over(send->common)) {
        send->way->prepare(send);
    }
}

bool save_way_has_ended(const struct save_send *send)
{
    return send->way && send->way->ended(send);
}

/* If the daemon itself cannot compare, saves that do go through the socket. */
bool save_way_compares(const struct save_send *send)
{
    const struct engine *engine = send->common->engine;
    if (!save_hand_may(send)) {
        return true;
    }
    return (save_hand_packs(send) || engine->options.transport != TRANSPORT_MEMFD) &&
           save_base_is_worth_comparing(send->common->engine);
}
