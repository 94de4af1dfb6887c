/* SPDX-License-Identifier: Apache-2.0
 *
 * See hand_rig.h.
 */
#include "hand_rig.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/unit_test.h"
#include "wire/negotiate.h"

struct rig rig;
struct peer peer, other;
uint8_t *memory;
int arena_fd;

int hand_make_fd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    for (uint64_t at = 0; at < bytes; at += LIMIT_ALIGN_BYTES) { /* every page, as an arena has */
        assert_int_equal(pwrite(fd, "", 1, (off_t)at), 1);
    }
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

void hand_setup(void)
{
    rig_init(&rig, 21);
    rig.local = rig.faulty = true;
    rig_start(&rig);
    peer_init(&rig, &peer, 0, 1);
    peer_init(&rig, &other, 0, 1);
    peer.features = other.features = WIRE_FEATURE_HAND_OVER;
    arena_fd = hand_make_fd(ARENA_BYTES, SEALS);
    memory = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd, 0);
    assert_true(memory != MAP_FAILED);
}

void hand_teardown(void)
{
    peer_fini(&peer);
    peer_fini(&other);
    rig_fini(&rig);
    assert_int_equal(munmap(memory, ARENA_BYTES), 0);
    assert_int_equal(close(arena_fd), 0);
}

/* --- what a client says ----------------------------------------------------------------------- */

const struct peer_reply *hand_offer(int fd, uint64_t id, uint64_t bytes)
{
    struct msg msg = {.type = MSG_ARENA, .u.arena = {.arena_id = id, .bytes = bytes}};
    uint32_t stream = peer.next_stream++;
    if (fd >= 0) {
        conn_send_fd(peer.conn, stream, &msg, fd);
    } else {
        conn_send_always(peer.conn, stream, &msg);
    }
    return peer_await(&peer, stream);
}

void hand_begin(uint64_t step, uint64_t open_id)
{
    peer_begin(&peer, step, open_id);
    const struct peer_reply *reply =
        hand_offer(fcntl(arena_fd, F_DUPFD_CLOEXEC, 0), 7, ARENA_BYTES);
    assert_int_equal(reply->type, MSG_ARENA);
    assert_int_equal(reply->msg.u.arena.arena_id, 7);
}

void fill_arena(uint8_t salt)
{
    for (size_t i = 0; i < ARENA_BYTES; i++) {
        memory[i] = (uint8_t)(i * 31 + i / 4096 + salt);
    }
}

struct object_id hand_object_id(uint32_t sequence)
{
    return (struct object_id){.term = peer.id.term,
                              .step = peer.id.step,
                              .writer = peer.writer,
                              .rank = peer.rank,
                              .sequence = sequence};
}

struct envelope hand_blank(uint32_t bytes)
{
    return (struct envelope){.stored_bytes = bytes,
                             .plain_bytes = bytes,
                             .encoding = ENCODING_RAW,
                             .digest_alg = DIGEST_XXH3_128,
                             .element_bytes = 1};
}

/* The chunk at `at` of the arena as the next one of the object. */
struct msg hand_description(uint32_t sequence, uint64_t at, struct envelope *envelope)
{
    struct msg msg = {.type = MSG_DESCRIBE,
                      .u.describe = {.data = {.object = hand_object_id(sequence),
                                              .offset = peer.next_offset,
                                              .envelope_count = 1,
                                              .envelopes = envelope},
                                     .arena_id = 7,
                                     .arena_offset = at,
                                     .bytes = RIG_CHUNK}};
    return msg;
}

void hand_describe(uint32_t sequence, uint64_t at)
{
    struct envelope envelope = hand_blank(RIG_CHUNK);
    peer_send(&peer, hand_description(sequence, at, &envelope));
    peer.envelopes[peer.chunk_count] = envelope;
    peer.envelopes[peer.chunk_count].offset = peer.next_offset;
    peer.in_object[peer.chunk_count++] = peer.object_count;
    peer.next_offset += RIG_CHUNK;
}

uint32_t hand_describe_object(uint32_t sequence, uint32_t chunks)
{
    for (uint32_t i = 0; i < chunks; i++) {
        hand_describe(sequence, (uint64_t)peer.chunk_count * RIG_CHUNK);
    }
    peer.objects[peer.object_count++] = (struct peer_object){sequence, chunks};
    return peer_end_object(&peer, sequence, chunks);
}

uint32_t hand_complete(void)
{
    size_t bytes;
    uint8_t *part = peer_part(&peer, &bytes);
    struct msg msg = {.type = MSG_COMPLETE,
                      .u.complete = {.id = peer.id, .open_id = peer.open_id, .part_bytes = bytes}};
    peer_send_part(&peer, bytes, part);
    free(part);
    return peer_send(&peer, msg);
}

void hand_over_and_leave(void)
{
    assert_int_equal(peer_await(&peer, hand_complete())->type, MSG_HANDED);
    peer_drop(&peer);
}

const struct peer_reply *hand_reply_at(uint32_t stream, unsigned idx)
{
    for (size_t i = 0; i < peer.reply_count; i++) {
        if (peer.replies[i].stream == stream && idx-- == 0) {
            return &peer.replies[i];
        }
    }
    return NULL;
}

const struct peer_reply *hand_then(uint32_t stream)
{
    const struct peer_reply *first = peer_await(&peer, stream);
    assert_non_null(first);
    assert_int_equal(first->type, MSG_HANDED);
    sim_run_for(rig.sim, 3000);
    return hand_reply_at(stream, 1);
}

/* What a reader gets of the object's first `bytes` bytes, after their digests were checked. */
void hand_assert_stored(uint32_t sequence, const uint8_t *expected, uint32_t bytes)
{
    struct msg msg = {.type = MSG_READ,
                      .u.read = {.object = hand_object_id(sequence), .bytes = bytes}};
    assert_true(peer_viewer(&other));
    const struct peer_reply *reply = peer_ask(&other, msg);
    assert_int_equal(reply->type, MSG_READ_REPLY);
    assert_int_equal(reply->payload_bytes, bytes);
    assert_memory_equal(reply->payload, expected, bytes);
}

enum ckpt_state hand_state_of(struct ckpt_id id)
{
    assert_true(peer_viewer(&other));
    const struct peer_reply *reply =
        peer_ask(&other, (struct msg){.type = MSG_STATUS, .u.status = {.id = id}});
    return reply->type == MSG_STATUS_REPLY ? (enum ckpt_state)reply->msg.u.status_reply.info.state
                                           : CKPT_NONE;
}
