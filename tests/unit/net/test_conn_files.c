/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads that go from a file arrive as they are, from the file where that can be done and from
 * memory where not, each told to be done once, whatever is cut short, refused or gone. Method: the
 * file's bytes have a bit that those in memory lack, so that what arrived says which way it came;
 * memory payloads and bare messages in between.
 */
#include "net_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAYLOADS = 12, FILE_BIT = 0x80, BYTES_MOST = 3 << 20, ROOM_BYTES = 8 << 20 };

static const uint32_t SIZES[] = {1, 4095, 300000, 65536, BYTES_MOST, 70001};

struct parcel {
    struct conn_out out;
    struct mail *mail;
    bool is_done;
    int status;
};

struct mail {
    int file;
    uint8_t *memory;
    unsigned sent, came, done;
    size_t from_file, from_memory;
    struct parcel parcels[PAYLOADS];
};

static uint8_t pattern(uint64_t at) { return (uint8_t)((at * 2654435761U >> 11) & 0x7f); }

static uint32_t size_of(unsigned i) { return SIZES[i % ARRAY_LEN(SIZES)]; }
static uint64_t place_of(unsigned i) { return (uint64_t)i * 397; }
static bool is_plain(unsigned i) { return i % 4 == 3; } /* never from the file */

static void make(struct mail *mail, size_t file_bytes)
{
    *mail = (struct mail){.file = memfd_create("mail", MFD_CLOEXEC), .memory = malloc(ROOM_BYTES)};
    assert_true(mail->file >= 0);
    assert_non_null(mail->memory);
    for (size_t i = 0; i < ROOM_BYTES; i++) {
        mail->memory[i] = pattern(i) | FILE_BIT;
    }
    assert_int_equal(pwrite(mail->file, mail->memory, file_bytes, 0), file_bytes);
    for (size_t i = 0; i < ROOM_BYTES; i++) {
        mail->memory[i] = pattern(i);
    }
}

static void unmake(struct mail *mail)
{
    close(mail->file);
    free(mail->memory);
}

static void on_done(struct conn_out *out, int status)
{
    struct parcel *parcel = container_of(out, struct parcel, out);
    assert_false(parcel->is_done);
    parcel->is_done = true;
    parcel->status = status;
    parcel->mail->done++;
}

static void send_one(struct net_fixture *f, unsigned i)
{
    struct mail *mail = f->test;
    struct parcel *parcel = &mail->parcels[i];
    parcel->mail = mail;
    parcel->out = (struct conn_out){.iov_count = 1,
                                    .iov = {{mail->memory + place_of(i), size_of(i)}},
                                    .in_file = !is_plain(i),
                                    .file = mail->file,
                                    .file_at = place_of(i),
                                    .done = on_done};
    struct msg msg = {.type = MSG_BYTES,
                      .u.bytes = {.offset = place_of(i), .total_bytes = place_of(i) + size_of(i)}};
    conn_send_payload(f->client.conn, i + 1, &msg, &parcel->out);
    struct msg bare = {.type = MSG_LIST, .u.list = {.before_seq = i}};
    conn_send_always(f->client.conn, 100 + i, &bare);
    mail->sent++;
}

static int on_payload(struct side *side, const struct frame *frame, const struct msg *msg,
                      void *payload, struct diag *diag)
{
    struct mail *mail = side->f->test;
    const uint8_t *bytes = payload;
    unsigned i = frame->stream - 1;
    assert_int_equal(i, mail->came);
    assert_int_equal(frame->payload_bytes, size_of(i));
    for (size_t k = 0; k < frame->payload_bytes; k++) {
        if ((bytes[k] & 0x7f) != pattern(msg->u.bytes.offset + k)) {
            fail_msg("payload %u is wrong at %zu", i, k);
        }
        *(bytes[k] & FILE_BIT ? &mail->from_file : &mail->from_memory) += 1;
        if (is_plain(i)) {
            assert_int_equal(bytes[k] & FILE_BIT, 0);
        }
    }
    mail->came++;
    free(payload);
    return 0;
}

static bool all_came(struct net_fixture *f)
{
    const struct mail *mail = f->test;
    return mail->came == PAYLOADS && mail->done == PAYLOADS && f->server.messages == 2 * PAYLOADS;
}

static void deliver(struct net_fixture *f, struct mail *mail)
{
    f->test = mail;
    f->server.on_payload = on_payload;
    net_connect_conns(f);
    for (unsigned i = 0; i < PAYLOADS; i++) {
        send_one(f, i);
        assert_int_equal(mail->done, 0); /* never inside the call */
    }
    net_run(f, all_came);
    for (unsigned i = 0; i < PAYLOADS; i++) {
        assert_int_equal(mail->parcels[i].status, 0);
    }
}

static size_t bytes_of(bool plain_too)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < PAYLOADS; i++) {
        bytes += plain_too || !is_plain(i) ? size_of(i) : 0;
    }
    return bytes;
}

NET_TEST(test_all_goes_from_the_file_on_a_plain_socket)
{
    struct mail mail;
    make(&mail, ROOM_BYTES);
    deliver(f, &mail);
    assert_int_equal(mail.from_file, bytes_of(false));
    unmake(&mail);
}

/* TLS, and a network that refuses now and then: nothing shows but the way. */
NET_TEST(test_memory_takes_over)
{
    struct mail mail;
    make(&mail, ROOM_BYTES);
    deliver(f, &mail);
    assert_int_equal(mail.from_file + mail.from_memory, bytes_of(true));
    if (f->form->tls) {
        assert_int_equal(mail.from_file, 0);
    }
    unmake(&mail);
}

/* The first payloads end before the file does, a later one in its middle: its rest, and all that
 * comes behind it, is taken from memory. */
NET_TEST(test_a_file_that_ends_early)
{
    struct mail mail;
    make(&mail, 400000);
    deliver(f, &mail);
    assert_true(mail.from_file > size_of(0) + size_of(1) + size_of(2));
    assert_true(mail.from_file <= 400000 + size_of(0) + size_of(1) + size_of(2));
    unmake(&mail);
}

NET_TEST(test_a_file_that_cannot_be_sent_from)
{
    struct mail mail;
    make(&mail, ROOM_BYTES);
    close(mail.file);
    mail.file = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(mail.file >= 0);
    deliver(f, &mail);
    assert_int_equal(mail.from_file, 0);
    unmake(&mail);
}

/* --- the peer goes ------------------------------------------------------------------- */

static bool some_came(struct net_fixture *f)
{
    const struct mail *mail = f->test;
    return mail->came == 2 && f->server.messages >= 3; /* in the middle of a large one */
}

static bool client_heard(struct net_fixture *f)
{
    const struct mail *mail = f->test;
    return f->client.closes == 1 && mail->done == mail->sent;
}

/* Stops reading after two payloads. */
static int take_two(struct side *side, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    const struct mail *mail = side->f->test;
    (void)msg, (void)diag;
    if (frame->payload_bytes > 0) {
        side->buffer = *ret_payload = malloc(frame->payload_bytes);
    }
    if (mail->came == 2) {
        conn_pause(side->conn);
    }
    return 0;
}

static void the_peer_goes(struct net_fixture *f, struct mail *mail)
{
    make(mail, ROOM_BYTES);
    f->test = mail;
    f->server.on_message = take_two;
    f->server.on_payload = on_payload;
    net_connect_conns(f);
    for (unsigned i = 0; i < PAYLOADS; i++) {
        send_one(f, i);
    }
    net_run(f, some_came);
    net_close_conn(&f->server);
    net_run(f, client_heard);
}

/* Killed by SIGPIPE would be the program; the signal keeps its default here. */
NET_TEST(test_a_peer_that_goes_in_the_middle)
{
    struct mail mail;
    sigset_t pending;
    assert_true(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    the_peer_goes(f, &mail);
    assert_int_not_equal(f->client.status, 0);
    unsigned lost = 0;
    for (unsigned i = 0; i < PAYLOADS; i++) {
        lost += mail.parcels[i].status != 0;
    }
    assert_true(lost > 0);
    assert_int_equal(sigpending(&pending), 0);
    assert_false(sigismember(&pending, SIGPIPE)); /* nothing is left behind in this thread */
    unmake(&mail);
}

/* A signal that was there before is not ours to take. */
NET_TEST(test_somebody_elses_signal_stays)
{
    struct mail mail;
    sigset_t pipe_only, before, pending;
    int sig;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    assert_int_equal(sigprocmask(SIG_BLOCK, &pipe_only, &before), 0);
    assert_int_equal(raise(SIGPIPE), 0);
    the_peer_goes(f, &mail);
    assert_int_equal(sigpending(&pending), 0);
    assert_true(sigismember(&pending, SIGPIPE));
    assert_int_equal(sigwait(&pipe_only, &sig), 0);
    assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
    unmake(&mail);
}

static const struct net_form LOCAL = {.name = "unix"}, TCP = {.name = "tcp", .tcp = true},
                             CHOPPED = {.name = "unix, chopped", .chop = 40000},
                             TLS = {.name = "tls over unix", .tls = true},
                             SIM = {.name = "sim", .sim_seed = 3};

NET_ROW(test_all_goes_from_the_file_on_a_plain_socket, LOCAL)
NET_ROW(test_all_goes_from_the_file_on_a_plain_socket, TCP)
NET_ROW(test_all_goes_from_the_file_on_a_plain_socket, CHOPPED)
NET_ROW(test_memory_takes_over, TLS)
NET_ROW(test_memory_takes_over, SIM)
NET_ROW(test_a_file_that_ends_early, LOCAL)
NET_ROW(test_a_file_that_ends_early, CHOPPED)
NET_ROW(test_a_file_that_cannot_be_sent_from, LOCAL)
NET_ROW(test_a_file_that_cannot_be_sent_from, TCP)
NET_ROW(test_a_peer_that_goes_in_the_middle, LOCAL)
NET_ROW(test_a_peer_that_goes_in_the_middle, TCP)
NET_ROW(test_a_peer_that_goes_in_the_middle, SIM)
NET_ROW(test_somebody_elses_signal_stays, LOCAL)
