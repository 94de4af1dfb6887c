/* SPDX-License-Identifier: Apache-2.0
 *
 * Scripted clients that hand over an arena: what the tests of hand-over share. One server on the
 * simulator, a client `peer` with a memfd of its own, a viewer `other`.
 */
#ifndef CAIRN_HAND_RIG_H
#define CAIRN_HAND_RIG_H

#include "session_rig.h"

#include <fcntl.h>

enum { ARENA_BYTES = 32 * RIG_CHUNK, SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

extern struct rig rig;
extern struct peer peer, other;
extern uint8_t *memory; /* of the arena, mapped by the client */
extern int arena_fd;

int hand_make_fd(uint64_t bytes, int seals);
void hand_setup(void);
void hand_teardown(void);
const struct peer_reply *hand_offer(int fd, uint64_t id, uint64_t bytes);
void hand_begin(uint64_t step, uint64_t open_id);
void fill_arena(uint8_t salt);
struct object_id hand_object_id(uint32_t sequence);
struct envelope hand_blank(uint32_t bytes);
struct msg hand_description(uint32_t sequence, uint64_t at, struct envelope *envelope);
void hand_describe(uint32_t sequence, uint64_t at);
uint32_t hand_describe_object(uint32_t sequence, uint32_t chunks);
uint32_t hand_complete(void);
void hand_over_and_leave(void);
const struct peer_reply *hand_reply_at(uint32_t stream, unsigned idx);
const struct peer_reply *hand_then(uint32_t stream);
void hand_assert_stored(uint32_t sequence, const uint8_t *expected, uint32_t bytes);
enum ckpt_state hand_state_of(struct ckpt_id id);

#endif
