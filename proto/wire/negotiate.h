/* SPDX-License-Identifier: Apache-2.0
 *
 * negotiate: which protocol version and which features a connection uses, from what both ends said
 * in HELLO. Rules for changes: PROTOCOL.md 8. Pure.
 */
#ifndef CAIRN_WIRE_NEGOTIATE_H
#define CAIRN_WIRE_NEGOTIATE_H

#include "msg.h"

/* The feature bits that this version knows. PROTOCOL.md 8 names a bit before it is used. */
enum {
    WIRE_FEATURE_HAND_OVER = 1 << 0, /* on plain Unix sockets: ARENA, DESCRIBE, COMPLETE */
    WIRE_FEATURE_AGREE = 1 << 2,     /* AGREE, LISTS, DIGESTS and their replies */
    WIRE_FEATURE_HAND_PACK = 1 << 3, /* what is described may be encoded, and may refer to a base */
    WIRE_FEATURE_LANDING = 1 << 4,   /* on plain Unix sockets: LANDING, LANDED */
    WIRE_FEATURE_RECORD = 1 << 5,    /* REPAIR of a run's record */
    WIRE_FEATURE_CAPITALS = 1 << 6,  /* names of runs may have capitals */
    WIRE_FEATURES_KNOWN = WIRE_FEATURE_HAND_OVER | WIRE_FEATURE_AGREE | WIRE_FEATURE_HAND_PACK |
                          WIRE_FEATURE_LANDING | WIRE_FEATURE_RECORD | WIRE_FEATURE_CAPITALS
};

/* On the server: chooses the newest version that both ends speak, and the features of both. VERSION
 * says which end is old. */
int MUST_USE wire_negotiate(const struct msg_hello *hello, uint32_t *ret_version,
                            uint64_t *ret_features, struct diag *diag);
/* On the client: checks that the server chose something that we offered. Returns VERSION or
 * PROTOCOL. */
int MUST_USE wire_check_welcome(const struct msg_hello *sent, const struct msg_welcome *welcome,
                                struct diag *diag);

#endif
