/* SPDX-License-Identifier: Apache-2.0
 *
 * A save sends again what it must, in its turn, and seals no part that is void. Method: the parts
 * of a save that send, without an engine and a server around them, in the state in which it
 * matters.
 */

#include "save/save_private.h"
#include "support/unit_test.h"

/* A server cannot have an object whose end was never sent; one that says so is not believed. */
TEST(nothing_is_durable_that_was_not_ended)
{
    struct save_object object = {.has_sequence = true, .sequence = 7, .state = OBJECT_SENDING};
    struct save_send send = {.objects = &object, .object_count = 1};
    uint32_t sequences[] = {7};
    const struct msg_held held = {.count = 1, .sequences = sequences};
    struct diag diag = DIAG_INIT;
    assert_int_equal(save_objects_held(&send, &held, &diag), CAIRN_E_PROTOCOL);
    assert_non_null(strstr(diag.text, "object 7, whose end was never sent"));
    assert_int_equal(object.state, OBJECT_SENDING);
}

/* When the save falls back to the socket, nothing is durable any more, also not what the server
 * still holds: only the daemon that was handed it knows where its chunks are. */
TEST(what_was_handed_over_is_not_durable_by_the_socket)
{
    struct engine_save user = {0};
    struct save_common common = {.user = &user};
    struct save_object object = {
        .has_sequence = true, .sequence = 7, .state = OBJECT_DURABLE, .cut = true};
    struct save_send send = {
        .common = &common, .objects = &object, .object_count = 1, .durable_count = 1};
    uint32_t sequences[] = {7};
    const struct msg_held held = {.count = 1, .sequences = sequences};
    save_objects_restart(&send);
    assert_int_equal(save_objects_held(&send, &held, NULL), 0);
    assert_int_equal(object.state, OBJECT_IDLE);
    assert_int_equal(send.durable_count, 0);
}

static void submit_nothing(struct work_pool *pool, struct work *work) {}

/* A payload that gave its encode buffer back is made again before any new one, also if it is in a
 * later object than the one that is sent: new ones could take all buffers, and wait for it. */
TEST(a_payload_without_its_buffer_comes_before_new_ones)
{
    enum { PAYLOADS = 5 };
    static const struct work_ops ops = {.submit = submit_nothing};
    struct work_pool pool = {.ops = &ops};
    struct engine engine = {.options.pool = &pool};
    struct save_common common = {.engine = &engine, .reach = REACH_OPENED};
    struct layout_payload places[PAYLOADS] = {0};
    struct save_room room = {.layout = {.payloads = places, .payload_count = PAYLOADS}};
    struct snapshot snapshot = {.layout = &room.layout, .next_payload = PAYLOADS};
    struct save_base base = {.state = BASE_KNOWN};
    /* The first object is sent again: a worker has its first payload. */
    struct save_object object = {.state = OBJECT_SENDING, .cut = true, .payload_end = 2};
    struct save_payload payloads[PAYLOADS] = {
        {.state = PAYLOAD_BUSY}, {.state = PAYLOAD_READY}, {.state = PAYLOAD_IDLE}};
    struct save_send send = {.common = &common,
                             .room = &room,
                             .base = &base,
                             .snapshot = &snapshot,
                             .objects = &object,
                             .object_count = 1,
                             .assigned = 2,
                             .payloads = payloads,
                             .digest_next = 3};
    save_digest_init(&send);
    send.digests[0].busy = true;
    save_digest_start(&send);
    assert_int_equal(send.digests[1].payload, 2);
    assert_true(send.digests[1].again);
    assert_int_equal(send.digests[2].payload, 3);
    assert_false(send.digests[2].again);
}

/* An object that was only described fails while the part is being sent: the part is void, so it is
 * neither sent further nor sealed, and the save asks what the server has. */
TEST(a_part_that_becomes_void_is_not_sealed)
{
    static const struct sm_state table[] = {
        [SV_HAVE] = {"have", NULL, 0, 0},
        [SV_SEAL] = {"seal", save_on_seal, SM_TO(SV_HAVE), 0},
    };
    struct engine engine = {0};
    struct save *save = calloc(1, sizeof *save);
    assert_non_null(save);
    save->common.engine = &engine;
    save->common.reach = REACH_OPENED;
    save->send.common = &save->common;
    save->send.round = 2; /* the object has failed since the part was made */
    save->part.send = &save->send;
    save->part.round = 1;
    sm_init(&save->sm, table, SV_SEAL, "save", 1);
    assert_int_equal(save_on_seal(&save->sm), SM_AGAIN);
    assert_true(sm_is(&save->sm, SV_HAVE));
    assert_int_equal(save->common.reach, REACH_OPENED);
    free(save);
}
