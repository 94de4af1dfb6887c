/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client of this host reads comes into its memory where it asked for it, and nothing that it
 * says makes the server write elsewhere, or into memory that it let go of. Method: a scripted
 * viewer with a memfd of its own against the server on the simulator, whose Unix sockets pass
 * descriptors; the rig checks at the end that no mapping and no request is left.
 */
#include "session_rig.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/unit_test.h"
#include "wire/negotiate.h"

enum { CHUNKS = 40, BYTES = 32 * RIG_CHUNK, SEALS = F_SEAL_SHRINK | F_SEAL_GROW, ID = 5 };

static struct rig rig;
static struct peer writer, reader;
static uint8_t *memory; /* of the landing, mapped by the client */
static int landing_fd;

static int make_fd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test-landing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void setup(void)
{
    rig_init(&rig, 31);
    rig.local = true;
    rig_start(&rig);
    peer_init(&rig, &writer, 0, 1);
    peer_init(&rig, &reader, 0, 1);
    reader.features = WIRE_FEATURE_LANDING;
    landing_fd = make_fd(BYTES, SEALS);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, landing_fd, 0);
    assert_true(memory != MAP_FAILED);
    memset(memory, 0xee, BYTES);
    assert_true(peer_save(&writer, 10, 77, CHUNKS));
    assert_int_equal(peer_outcome(&writer)->msg.u.outcome.state, SAVE_COMMITTED);
}

static void teardown(void)
{
    peer_fini(&writer);
    peer_fini(&reader);
    rig_fini(&rig);
    assert_int_equal(munmap(memory, BYTES), 0);
    assert_int_equal(close(landing_fd), 0);
}

static const struct peer_reply *offer(int fd, uint64_t bytes)
{
    struct msg msg = {.type = MSG_LANDING, .u.landing = {.landing_id = ID, .bytes = bytes}};
    uint32_t stream = reader.next_stream++;
    if (fd >= 0) {
        conn_send_fd(reader.conn, stream, &msg, fd);
    } else {
        conn_send_always(reader.conn, stream, &msg);
    }
    return peer_await(&reader, stream);
}

static void begin(void)
{
    assert_true(peer_viewer(&reader));
    const struct peer_reply *reply = offer(fcntl(landing_fd, F_DUPFD_CLOEXEC, 0), BYTES);
    assert_int_equal(reply->type, MSG_LANDING);
    assert_int_equal(reply->msg.u.landing.landing_id, ID);
}

/* `chunks` chunks from `first` on, to the landing's byte `at`. */
static struct msg read_msg(uint32_t first, uint32_t chunks, uint64_t at)
{
    return (struct msg){.type = MSG_READ,
                        .u.read = {.object = {.term = 1, .step = 10, .writer = 100},
                                   .offset = (uint64_t)first * RIG_CHUNK,
                                   .bytes = chunks * RIG_CHUNK,
                                   .landing_id = ID,
                                   .landing_offset = at}};
}

static void assert_chunk(uint32_t chunk, const uint8_t *data)
{
    for (unsigned i = 0; i < RIG_CHUNK; i++) {
        assert_int_equal(data[i], (uint8_t)(i * 7 + chunk * 31));
    }
}

/* --- what is read ----------------------------------------------------------------------------- */

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_what_is_read_lies_where_it_was_asked_for)
{
    begin();
    const struct peer_reply *reply = peer_ask(&reader, read_msg(3, 2, 4 * RIG_CHUNK));
    assert_int_equal(reply->type, MSG_LANDED);
    assert_int_equal(reply->payload_bytes, 0);
    assert_int_equal(reply->msg.u.landed.bytes, 2 * RIG_CHUNK);
    assert_chunk(3, memory + 4 * RIG_CHUNK);
    assert_chunk(4, memory + 5 * RIG_CHUNK);
    assert_int_equal(memory[4 * RIG_CHUNK - 1], 0xee);
    assert_int_equal(memory[6 * RIG_CHUNK], 0xee);
    reply = peer_ask(&reader, read_msg(0, 1, BYTES - RIG_CHUNK)); /* its very end */
    assert_int_equal(reply->type, MSG_LANDED);
    assert_chunk(0, memory + BYTES - RIG_CHUNK);
}

FIXED_TEST(test_the_socket_still_works_beside_it)
{
    begin();
    struct msg msg = read_msg(2, 1, 0);
    msg.u.read.landing_id = 0;
    const struct peer_reply *reply = peer_ask(&reader, msg);
    assert_int_equal(reply->type, MSG_READ_REPLY);
    assert_chunk(2, reply->payload);
    assert_int_equal(memory[0], 0xee);
}

FIXED_TEST(test_what_cannot_be_read_is_an_error_of_that_read)
{
    begin();
    struct msg msg = read_msg(0, 1, 0);
    msg.u.read.object.sequence = 9;
    assert_int_equal(peer_ask(&reader, msg)->type, MSG_ERROR);
    assert_int_equal(peer_ask(&reader, read_msg(CHUNKS + 60, 1, 0))->type, MSG_ERROR);
    assert_int_equal(peer_ask(&reader, read_msg(1, 1, 0))->type, MSG_LANDED);
    assert_chunk(1, memory);
}

FIXED_TEST(test_sixteen_reads_at_once)
{
    uint32_t streams[16];
    begin();
    for (uint32_t i = 0; i < 16; i++) {
        streams[i] = peer_send(&reader, read_msg(i, 1, (uint64_t)i * RIG_CHUNK));
    }
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(peer_await(&reader, streams[i])->type, MSG_LANDED);
        assert_chunk(i, memory + (size_t)i * RIG_CHUNK);
    }
    for (uint32_t i = 0; i < 17; i++) {
        peer_send(&reader, read_msg(i, 1, (uint64_t)i * RIG_CHUNK));
    }
    peer_expect_end(&reader, CAIRN_E_PROTOCOL, "at once");
}

/* --- what is refused -------------------------------------------------------------------------- */

static void bad_read(struct msg msg, const char *text)
{
    begin();
    peer_send(&reader, msg);
    peer_expect_end(&reader, CAIRN_E_PROTOCOL, text);
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(memory[i], 0xee);
    }
}

FIXED_TEST(test_places_outside_the_landing)
{
    bad_read(read_msg(0, 1, BYTES), "is too short for it");
    bad_read(read_msg(0, 2, BYTES - RIG_CHUNK), "is too short for it");
    bad_read(read_msg(0, 1, UINT64_MAX - 4095), "is too short for it");
    bad_read(read_msg(0, 1, 100), "multiple of 4096");
    struct msg msg = read_msg(0, 1, 0);
    msg.u.read.bytes = 100;
    bad_read(msg, "multiple of 4096");
    msg = read_msg(0, 1, 0);
    msg.u.read.landing_id = ID + 1;
    bad_read(msg, "this server does not have");
    assert_int_equal(
        fallocate(landing_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, RIG_CHUNK), 0);
    begin();
    peer_send(&reader, read_msg(0, 1, 0));
    peer_expect_end(&reader, CAIRN_E_PROTOCOL, "hole");
}

static void refused_memory(int fd, uint64_t bytes, const char *why)
{
    peer_expect_error(offer(fd, bytes), CAIRN_E_INVALID, why);
}

FIXED_TEST(test_bad_memory_is_refused_by_name)
{
    int ends[2];
    begin();
    refused_memory(-1, BYTES, "no descriptor");
    refused_memory(make_fd(BYTES, 0), BYTES, "not sealed");
    refused_memory(make_fd(BYTES, F_SEAL_GROW), BYTES, "not sealed");
    refused_memory(make_fd(BYTES, SEALS), BYTES * 2, "were announced");
    assert_int_equal(pipe(ends), 0);
    refused_memory(ends[0], BYTES, "memfd");
    close(ends[1]);
    assert_int_equal(peer_ask(&reader, read_msg(1, 1, 0))->type, MSG_LANDED); /* the first one */
    assert_chunk(1, memory);
}

FIXED_TEST(test_memory_that_cannot_be_written_is_refused)
{
    assert_true(peer_viewer(&reader));
    int fd = make_fd(BYTES, SEALS | F_SEAL_WRITE);
    assert_int_equal(offer(fd, BYTES)->type, MSG_ERROR);
}

FIXED_TEST(test_nothing_of_it_without_the_feature)
{
    reader.features = 0;
    assert_true(peer_viewer(&reader));
    peer_send(&reader, (struct msg){.type = MSG_LANDING, .u.landing = {.landing_id = ID}});
    peer_expect_end(&reader, CAIRN_E_PROTOCOL, "did not agree on it");
    assert_true(peer_viewer(&reader));
    peer_send(&reader, read_msg(0, 1, 0));
    peer_expect_end(&reader, CAIRN_E_PROTOCOL, "this server does not have");
}

/* --- shared by several ------------------------------------------------------------------------ */

enum { SHARERS = 3, PIECE = 4 * RIG_CHUNK };

static struct peer sharer[SHARERS];
static int sharer_fd[SHARERS];
static uint8_t *sharer_memory[SHARERS];
static const struct store_ops *real_ops;
static unsigned store_reads;

static void count_submit(struct store *store, struct store_req *req)
{
    store_reads += req->op == STORE_READ ? 1 : 0;
    real_ops->submit(store, req);
}

static void count_close(struct store *store, void (*done)(void *user), void *user)
{
    store->ops = real_ops;
    real_ops->close(store, done, user);
}

/* SHARERS ranks of one attempt, each with memory of its own. */
static void begin_sharing(void)
{
    static const struct store_ops counting = {count_submit, count_close};
    if (rig.store->ops != &counting) {
        real_ops = rig.store->ops;
        rig.store->ops = &counting;
    }
    store_reads = 0;
    rig.token.bytes[0]++; /* an attempt of another size than the writer's */
    for (uint32_t i = 0; i < SHARERS; i++) {
        struct msg msg = {.type = MSG_LANDING, .u.landing = {.landing_id = ID, .bytes = BYTES}};
        peer_init(&rig, &sharer[i], i, SHARERS);
        sharer[i].features = WIRE_FEATURE_LANDING;
        sharer_fd[i] = make_fd(BYTES, SEALS);
        sharer_memory[i] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, sharer_fd[i], 0);
        assert_true(sharer_memory[i] != MAP_FAILED);
        memset(sharer_memory[i], 0xee, BYTES);
        assert_true(peer_login(&sharer[i]));
        uint32_t stream = sharer[i].next_stream++;
        conn_send_fd(sharer[i].conn, stream, &msg, fcntl(sharer_fd[i], F_DUPFD_CLOEXEC, 0));
        assert_int_equal(peer_await(&sharer[i], stream)->type, MSG_LANDING);
    }
}

static void end_sharing(void)
{
    for (uint32_t i = 0; i < SHARERS; i++) {
        peer_fini(&sharer[i]);
        assert_int_equal(munmap(sharer_memory[i], BYTES), 0);
        assert_int_equal(close(sharer_fd[i]), 0);
    }
}

static void assert_piece(uint32_t first, const uint8_t *data)
{
    for (uint32_t i = 0; i < PIECE / RIG_CHUNK; i++) {
        assert_chunk(first + i, data + (size_t)i * RIG_CHUNK);
    }
}

/* Each asks for the same pieces, to places of its own. */
FIXED_TEST(test_what_several_ranks_want_is_read_once)
{
    uint32_t streams[SHARERS][8];
    begin_sharing();
    for (uint32_t k = 0; k < 8; k++) {
        for (uint32_t i = 0; i < SHARERS; i++) {
            struct msg msg = read_msg(k * 4, PIECE / RIG_CHUNK, ((uint64_t)k + i) % 8 * PIECE);
            streams[i][k] = peer_send(&sharer[i], msg);
        }
    }
    for (uint32_t i = 0; i < SHARERS; i++) {
        for (uint32_t k = 0; k < 8; k++) {
            const struct peer_reply *reply = peer_await(&sharer[i], streams[i][k]);
            assert_int_equal(reply->type, MSG_LANDED);
            assert_int_equal(reply->msg.u.landed.bytes, PIECE);
            assert_piece(k * 4, sharer_memory[i] + (size_t)((k + i) % 8) * PIECE);
        }
    }
    assert_true(store_reads >= 8);
    assert_true(store_reads < 8 * SHARERS);
    end_sharing();
}

/* A read of another range, by another attempt or by a viewer shares nothing. */
FIXED_TEST(test_others_share_nothing)
{
    begin();
    begin_sharing();
    uint32_t streams[3] = {peer_send(&sharer[0], read_msg(0, 4, 0)),
                           peer_send(&sharer[1], read_msg(0, 3, 0)),
                           peer_send(&reader, read_msg(0, 4, 0))};
    assert_int_equal(peer_await(&sharer[0], streams[0])->type, MSG_LANDED);
    assert_int_equal(peer_await(&sharer[1], streams[1])->type, MSG_LANDED);
    assert_int_equal(peer_await(&reader, streams[2])->type, MSG_LANDED);
    assert_piece(0, sharer_memory[0]);
    assert_chunk(2, sharer_memory[1] + 2 * RIG_CHUNK);
    assert_int_equal(sharer_memory[1][3 * RIG_CHUNK], 0xee);
    assert_piece(0, memory);
    assert_int_equal(store_reads, 3);
    end_sharing();
}

FIXED_TEST(test_what_fails_for_one_is_tried_for_each)
{
    uint32_t streams[SHARERS];
    begin_sharing();
    for (uint32_t i = 0; i < SHARERS; i++) {
        struct msg msg = read_msg(0, 1, 0);
        msg.u.read.object.sequence = 9;
        streams[i] = peer_send(&sharer[i], msg);
    }
    for (uint32_t i = 0; i < SHARERS; i++) {
        assert_int_equal(peer_await(&sharer[i], streams[i])->type, MSG_ERROR);
        assert_int_equal(peer_ask(&sharer[i], read_msg(1, 1, 0))->type, MSG_LANDED);
        assert_chunk(1, sharer_memory[i]);
    }
    assert_int_equal(store_reads, 2 * SHARERS);
    end_sharing();
}

/* Whoever goes, at whatever moment, the others get their bytes. */
FIXED_TEST(test_one_of_them_goes_in_the_middle)
{
    for (unsigned step = 0; step < 24; step++) {
        uint32_t goes = step % SHARERS, streams[SHARERS];
        begin_sharing();
        for (uint32_t i = 0; i < SHARERS; i++) {
            streams[i] = peer_send(&sharer[i], read_msg(8, PIECE / RIG_CHUNK, PIECE));
        }
        for (unsigned i = 0; i < step / SHARERS * 8; i++) {
            sim_run_for(rig.sim, 1);
        }
        peer_drop(&sharer[goes]);
        for (uint32_t i = 0; i < SHARERS; i++) {
            if (i != goes) {
                assert_int_equal(peer_await(&sharer[i], streams[i])->type, MSG_LANDED);
                assert_piece(8, sharer_memory[i] + PIECE);
            }
        }
        end_sharing();
        sim_run_for(rig.sim, 100);
    }
}

/* --- its end ---------------------------------------------------------------------------------- */

FIXED_TEST(test_taken_away_nothing_lands)
{
    begin();
    assert_int_equal(offer(-1, 0)->type, MSG_LANDING);
    peer_send(&reader, read_msg(0, 1, 0));
    peer_expect_end(&reader, CAIRN_E_PROTOCOL, "this server does not have");
    assert_int_equal(memory[0], 0xee);
}

FIXED_TEST(test_a_client_that_goes_in_the_middle)
{
    for (unsigned ms = 0; ms < 8; ms++) {
        begin();
        for (uint32_t i = 0; i < 8; i++) {
            peer_send(&reader, read_msg(i, 4, (uint64_t)i * 4 * RIG_CHUNK));
        }
        sim_run_for(rig.sim, ms);
        peer_drop(&reader);
    }
    sim_run_for(rig.sim, 1000); /* teardown: nothing is left */
}
