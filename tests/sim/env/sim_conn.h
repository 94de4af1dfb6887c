/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated connection: two ends and, for each direction, a pipe of bytes under way (sim_conn.c).
 * sim_net.c puts struct net on top of it. One thread.
 */
#ifndef CAIRN_SIM_CONN_H
#define CAIRN_SIM_CONN_H

#include "sim_private.h"

enum { SEGMENTS_MAX = 16 };

enum segment_kind { SEGMENT_DATA, SEGMENT_FIN, SEGMENT_RESET };

struct segment {
    enum segment_kind kind;
    uint64_t upto; /* DATA: pipe.arrived after it */
    uint64_t due_ns;
};

struct pipe {
    uint8_t *ring; /* of cap bytes, from the first write on */
    size_t cap;
    uint64_t written, arrived, consumed; /* positions since the beginning */
    struct segment segment[SEGMENTS_MAX];
    size_t segment_count;
    struct timer arrival;
    bool is_stalled; /* a segment was due while the way was cut */
    bool is_silent;  /* for ever */
    bool has_ended;  /* FIN has arrived */
    /* Descriptors under way: each with the position of its byte. */
    struct pipe_fd {
        int fd;
        uint64_t at;
    } fd[NET_FDS_MAX * 2];
    size_t fd_count;
};

enum end_state { END_NONE, END_CONNECTING, END_OPEN, END_FAILED };

struct end {
    struct sock base;
    struct conn *conn;
    struct sim_host *host;
    enum end_state state;
    bool is_closed; /* by its owner, or nobody ever had it */
    bool is_lost;   /* reset, or its host is dead */
    bool is_spurious;
    unsigned wants;
    const struct sock_handler *handler;
    void *user;
    struct timer ready;
    unsigned fds_most; /* that may wait to be taken */
};

struct conn {
    struct list link; /* in sim.conns, then in sim.graveyard */
    struct sim *sim;
    struct end end[2];   /* who connected, who accepted */
    struct pipe pipe[2]; /* pipe[i]: from end[i] to end[1 - i] */
    struct net_addr addr;
    struct timer connect;
    bool is_accepted, is_buried;
    bool passes_fds; /* for its whole life */
};

struct conn *sim_conn_new(struct sim_host *host, const struct net_addr *addr);
void sim_conn_accept(struct conn *conn, struct sim_host *host); /* opens end[1] */
void sim_conn_fail(struct conn *conn);                          /* end[0]: refused */
void sim_conn_bury_if_done(struct conn *conn);
void sim_conn_free(struct conn *conn);
/* Resets the direction from end[idx]. If is_dropped, the bytes under way are lost. */
void sim_conn_reset(struct conn *conn, int idx, bool is_dropped, uint64_t delay_ns);
void sim_conn_finish(struct conn *conn, int idx); /* an orderly end after the bytes under way */
void sim_conn_kick(struct conn *conn);            /* goes on with what a partition held up */
void end_check(struct end *end);                  /* tells its owner when a wanted event is there */
int end_idx(const struct end *end);
uint64_t sim_conn_latency_ns(struct sim *sim);
bool net_is_blocked(const struct sim *sim, const struct sim_host *from, const struct sim_host *to);
/* Takes up to bytes from, or puts them into, the pipe; returns how many. */
size_t pipe_read(struct conn *conn, int idx, size_t bytes, void *ret);
size_t pipe_space(const struct pipe *pipe);
size_t pipe_unread(const struct pipe *pipe);
void pipe_write(struct conn *conn, int idx, size_t bytes, const void *data);
/* Sends a copy of fd with the next byte that is written. Returns false if too many descriptors are
 * under way. */
bool pipe_write_fd(struct conn *conn, int idx, int fd);
/* Takes the oldest descriptor whose byte has been read. Returns -1 if there is none. */
int pipe_take_fd(struct conn *conn, int idx);
/* Closes the descriptors beyond the first `most` whose byte has been read. */
void pipe_limit_fds(struct conn *conn, int idx, unsigned most);
void pipe_send(struct conn *conn, int idx); /* sends off what was written */

#endif
