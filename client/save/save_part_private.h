/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of this rank: a worker makes it once all objects are durable or described, and it is
 * sent in frames before SEAL. Loop's thread.
 */
#ifndef CAIRN_SAVE_SAVE_PART_PRIVATE_H
#define CAIRN_SAVE_SAVE_PART_PRIVATE_H

#include "save/save_send_private.h"

/* The work reads layout, set and envelopes, which are final by then, and writes buf, sha256, diag
 * and status. */
struct save_part {
    struct save_send *send;
    struct work work;
    struct buf buf;
    struct sha256 sha256;
    struct diag diag;
    int status;
    uint32_t round; /* the round of the objects that it was made for; 0 if there is none */
    bool running;
    /* Another part was sealed before this one, so it is not known which of them the server took. */
    bool doubtful;
    uint64_t sent; /* bytes given to the connection, on the stream of the SEAL */
};

/* Starts a worker, which wakes the save at its end. */
void save_part_make(struct save_part *part);
/* Returns whether the part is there, and says what the objects are now. */
bool save_part_is_made(const struct save_part *part);
/* Sends as much of the part as there are slots, on the stream of the request. Returns true when the
 * connection has the last frame. */
bool save_part_send(struct save_part *part, struct request *request);
/* Called when the save is committed by this part: keeps it as a base, if it is what the server
 * has, and what comparing has brought. */
void save_part_keep(const struct save_part *part);
void save_part_fini(struct save_part *part);

#endif
