/* SPDX-License-Identifier: Apache-2.0
 *
 * peers: the daemons of a store that several use. Each keeps an entry of its own in the store's
 * record, with its name, its addresses and the time of its last sign of life, as a duty (duty.h)
 * for which nobody competes; so it ends with the daemon, or one that is there removes it a day
 * later. The server tells clients of them. On a store of one daemon there are none. Loop's thread.
 */
#ifndef CAIRN_DAEMON_PEERS_H
#define CAIRN_DAEMON_PEERS_H

#include "daemon/duty.h"
#include "session/server.h"

enum { PEERS_NAME_MAX = 64, PEERS_MAX = MSG_DAEMONS_MAX };

struct peers_options {
    struct loop *loop;
    struct store *store;
    struct server *server; /* it is told of the daemons */
    const char *name;      /* host:pid, of fewer than PEERS_NAME_MAX bytes; copied */
    const char *addresses; /* with spaces between; copied */
};

struct peers { /* in the caller's memory; its fields are for peers.c */
    struct duty duty;
    struct server *server; /* NULL once it ends */
    char name[PEERS_NAME_MAX];
    size_t count;
    struct duty_entry entries[PEERS_MAX];
    struct server_peer list[PEERS_MAX];
    void (*stopped)(struct peers *peers);
};

/* Enters this daemon into the store's record, and begins to tell the server of all daemons. */
void peers_start(struct peers *peers, const struct peers_options *options);
/* From now on the server, which is about to end, is told nothing any more. */
void peers_hide(struct peers *peers);
/* Removes the entry of this daemon, and calls stopped when that was done or failed. */
void peers_stop(struct peers *peers, void (*stopped)(struct peers *peers));

#endif
