/* SPDX-License-Identifier: Apache-2.0
 *
 * entries: the meaning of the keys of a run's record: keys and values of info, terms, opens, seals,
 * the chain (commit, forget ... entries), dead saves, health, restore sessions. Each value starts
 * with a version byte. Bytes: FORMAT.md 9. Pure.
 *
 *   info                                 the run: uuid, chunk size, when created
 *   head                                 newest chain sequence and the hash of that entry
 *   gc                                   how many cycles garbage collection has begun
 *   chain/<seq>                          permanent, chained by hash: commit, forget, undelete,
 *                                        reclaim, pin, unpin
 *   term/<term>                          token, ordinal, world size, parent
 *   owner/<term>                         who was granted the term, for `cairn log`
 *   left/<term>                          its attempt ended in order, for `cairn advise`
 *   open/<term>/<step>                   a save in progress
 *   seal/<term>/<step>/<rank>            a rank's part is durable
 *   dead/<term>/<step>                   the last save of this step in this term was aborted, and
 *                                        why
 *   health/<seq>                         suspect or damaged, set by restores and scrub
 *   note/<seq>                           tags and metrics of a committed checkpoint (note.h)
 *   day/<day>                            what was restored and aborted on one day
 *   restore/<token>/<ordinal>            a restore session; .../<rank>: that rank's report on a try
 *   ended/<number>                       a restore session that has ended, for `cairn log`
 *   (numbers are 16 or, for ranks and ordinals, 8 lower-case hex digits: key order is number order)
 */
#ifndef CAIRN_FORMAT_ENTRIES_H
#define CAIRN_FORMAT_ENTRIES_H

#include "hash/hash.h"
#include "ids.h"
#include "record.h"

enum {
    ENTRY_KEY_MAX = LIMIT_RECORD_KEY_BYTES,
    ENTRY_REASON_BYTES = 256,
    ENTRY_ACTOR_BYTES = 65,
    CHAIN_IDS_MAX = 4000 /* checkpoints that one chain entry may be about */
};

/* The structs of entries.def: entry_info, entry_head, entry_gc, entry_term, entry_seal, entry_dead,
 * entry_health, entry_day, entry_restore, entry_report, entry_ended, entry_owner, entry_use,
 * entry_left. */
#define ENTRY(name, version, newest) struct entry_##name {
#define U32(f)                       uint32_t f;
#define S32(f)                       int32_t f;
#define U64(f)                       uint64_t f;
#define S64(f)                       int64_t f;
#define BYTES(type, f)               type f;
#define ID(f)                        struct ckpt_id f;
#define REASON(f)                    char f[ENTRY_REASON_BYTES];
#define END \
    }       \
    ;
#include "entries.def"

/* `open/<term>/<step>`: a save in progress. Its metadata, tags and metrics go into the manifest. */
struct entry_open {
    /* Random; tells this opening of (term, step) from an earlier one that was aborted. */
    uint64_t open_id;
    uint64_t deadline_ms; /* a duration, which each daemon counts on its own monotonic clock */
    struct ckpt_id base;  /* the incremental base, which it protects; term 0 means none */
    uint32_t metadata_bytes, tag_count, metric_count;
    const uint8_t *metadata;
    const char **tags;
    const char **metric_names;
    double *metric_values;
};

/* A new kind changes take_chain() in entries.c, mark_fits() in server/core/run_state.c, and
 * log_action_name() in proto/wire/info_json.c, which names it for `cairn log`. A program that does
 * not know a kind answers UNSUPPORTED for the whole record. */
enum chain_kind {
    CHAIN_COMMIT = 1,
    CHAIN_FORGET = 2,
    CHAIN_UNDELETE = 3,
    CHAIN_RECLAIM = 4,
    CHAIN_PIN = 5,
    CHAIN_UNPIN = 6,
    /* Stored bytes of it were replaced; the reason says which, and by what. */
    CHAIN_REPAIR = 7,
    /* The run was removed: the forgets before it, of the same update, are of all its checkpoints.
     * Its id is zero, and it names no others. */
    CHAIN_REMOVE = 8
};
/* `chain/<seq>`: one permanent entry. Which fields are used depends on the kind. */
struct entry_chain {
    uint32_t kind;
    uint64_t seq;
    struct sha256 previous; /* hash of the encoded entry before it; zero for the first */
    struct ckpt_id id;
    int64_t wall_ns; /* for display only */
    /* CHAIN_COMMIT */
    struct sha256 manifest_sha256;
    uint64_t manifest_bytes, plain_bytes, stored_bytes;
    uint32_t world_size;
    uint64_t open_id;
    struct ckpt_id base; /* chunks may refer to it; term 0 means that the checkpoint is full */
    /* In the other kinds: who, why, and all checkpoints that the entry is about, ascending; ids[0]
     * is id. id_count 0 means an entry of version 1, about id alone, whose author is not known. */
    const char *actor, *reason;
    /* In CHAIN_FORGET: the cycle of garbage collection when it was forgotten. In CHAIN_REMOVE: the
     * term of nobody that the removal granted, which fences all before it. */
    uint64_t cycle;
    uint32_t id_count;
    const struct ckpt_id *ids;
};

enum health { HEALTH_VERIFIED = 0, HEALTH_SUSPECT = 1, HEALTH_DAMAGED = 2 };
enum restore_state { RESTORE_RUNNING = 1, RESTORE_OK = 2, RESTORE_FAILED = 3 };
/* Returns the day of a wall time, counted from 1970, or 0 for times before. */
uint64_t day_of(int64_t wall_ns);

/* The key of each kind of entry, which lives in the expression that asks for it: key_gc().at. */
struct key_text {
    char at[ENTRY_KEY_MAX];
};
struct key_text key_info(void);
struct key_text key_head(void);
struct key_text key_gc(void);
struct key_text key_use(void);
struct key_text key_chain(uint64_t seq);
struct key_text key_term(uint64_t term);
struct key_text key_owner(uint64_t term);
struct key_text key_left(uint64_t term);
struct key_text key_open(struct ckpt_id id);
struct key_text key_seal(struct ckpt_id id, uint32_t rank);
struct key_text key_dead(struct ckpt_id id);
/* The value is only the version. */
struct key_text key_past(struct ckpt_id id, uint64_t open_id);
struct key_text key_health(uint64_t seq);
struct key_text key_note(uint64_t seq);
struct key_text key_day(uint64_t day);
struct key_text key_ended(uint64_t number);
struct key_text key_restore(const struct token *token, uint32_t ordinal);
struct key_text key_report(const struct token *token, uint32_t ordinal, uint32_t rank);

enum entry_kind {
    ENTRY_INFO = 1,
    ENTRY_HEAD,
    ENTRY_CHAIN,
    ENTRY_TERM,
    ENTRY_OPEN,
    ENTRY_SEAL,
    ENTRY_DEAD,
    ENTRY_HEALTH,
    ENTRY_RESTORE,
    ENTRY_REPORT,
    ENTRY_NOTE,
    ENTRY_DAY,
    ENTRY_GC,
    ENTRY_USE,
    ENTRY_PAST,
    ENTRY_ENDED,
    ENTRY_OWNER,
    ENTRY_LEFT,
    ENTRY_UNKNOWN
};
struct entry_key { /* a parsed key */
    enum entry_kind kind;
    struct ckpt_id id; /* only the term for ENTRY_TERM, ENTRY_OWNER and ENTRY_LEFT */
    /* In ENTRY_DAY the day, in ENTRY_PAST the opening, in ENTRY_ENDED the number. */
    uint64_t seq;
    uint32_t rank, ordinal;
    struct token token;
};
/* Parses a key. A key of a newer version gives ENTRY_UNKNOWN; it is kept and not touched. FORMAT
 * for a known key that is broken. */
int MUST_USE entry_key_parse(const char *key, struct entry_key *ret, struct diag *diag);

void entry_past_encode(struct buf *buf); /* has no decoder, because its key says everything */
/* One encoder and one decoder for each kind, also for those of entries.def. Decoded pointers are
 * from scratch. */
#define ENTRY_CODEC(name)                                                                  \
    void entry_##name##_encode(const struct entry_##name *entry, struct buf *buf);         \
    int MUST_USE entry_##name##_decode(struct record_value value, struct scratch *scratch, \
                                       struct entry_##name *ret, struct diag *diag);
ENTRY_CODEC(chain)
ENTRY_CODEC(open)
#define ENTRY(name, version, newest) ENTRY_CODEC(name)
#include "entries.def"
#undef ENTRY_CODEC

#endif
