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
 *   open/<term>/<step>                   a save in progress
 *   seal/<term>/<step>/<rank>            a rank's part is durable
 *   dead/<term>/<step>                   the last save of this step in this term was aborted, and
 *                                        why
 *   health/<seq>                         suspect or damaged, set by restores and scrub
 *   note/<seq>                           tags and metrics of a committed checkpoint (note.h)
 *   day/<day>                            what was restored and aborted on one day
 *   restore/<token>/<ordinal>            a restore session; .../<rank>: that rank's report on a try
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

/* `info`: written once, when the run is created. */
struct entry_info {
    struct uuid run_uuid;
    uint64_t chunk_bytes;
    int64_t created_wall_ns;
};
/* `head`: the end of the chain. */
struct entry_head {
    uint64_t seq;
    struct sha256 sha256;
}; /* seq 0 means that there is none yet */

/* `term/<term>`: one attempt between two restores. */
struct entry_term {
    struct token token;
    /* How many restores the attempt had done. One term is granted to each (token, ordinal). */
    uint32_t ordinal;
    uint32_t world_size;
    struct ckpt_id parent; /* term 0 means that it starts a lineage of its own */
    uint64_t newest_seen;  /* the newest term when the attempt joined or restored */
};

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

/* `seal/<term>/<step>/<rank>`: the rank's part is durable and verified. */
struct entry_seal {
    uint64_t open_id, writer;
    uint64_t part_bytes;
    struct sha256 part_sha256;
};

enum chain_kind {
    CHAIN_COMMIT = 1,
    CHAIN_FORGET = 2,
    CHAIN_UNDELETE = 3,
    CHAIN_RECLAIM = 4,
    CHAIN_PIN = 5,
    CHAIN_UNPIN = 6,
    /* Stored bytes of it were replaced; the reason says which, and by what. */
    CHAIN_REPAIR = 7
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
    uint64_t cycle; /* in CHAIN_FORGET: the cycle of garbage collection when it was forgotten */
    uint32_t id_count;
    const struct ckpt_id *ids;
};

/* `gc`: the cycles of garbage collection. */
struct entry_gc {
    uint64_t cycle;  /* only grows */
    int64_t wall_ns; /* when it began; for display only */
};

/* `dead/<term>/<step>`: why the last save of this step was aborted. */
struct entry_dead {
    uint64_t open_id;
    int32_t code; /* CAIRN_E_* */
    char reason[ENTRY_REASON_BYTES];
};

enum health { HEALTH_VERIFIED = 0, HEALTH_SUSPECT = 1, HEALTH_DAMAGED = 2 };
/* `health/<seq>`: what a restore or scrub found. */
struct entry_health {
    uint32_t health;
    char reason[ENTRY_REASON_BYTES];
};

/* What happened to a run on one day (UTC) apart from its commits, which the chain keeps. Sessions
 * and dead entries are removed; these counts stay, for cost reports and for the advice on the save
 * interval. */
struct entry_day {
    uint64_t restores;        /* sessions of all ranks that ended well */
    uint64_t restores_failed; /* those that ended with an error */
    uint64_t saves_aborted;   /* openings that were not committed, with those that were fenced */
    /* The saves that told how long they took (none in version 1), and the sums of their durations:
     * how long training was blocked, and from the call until durable. */
    uint64_t timed_saves, blocked_ms, persist_ms;
};
/* Returns the day of a wall time, counted from 1970, or 0 for times before. */
uint64_t day_of(int64_t wall_ns);

/* `restore/<token>/<ordinal>`: one restore of all ranks of an attempt. */
struct entry_restore {
    uint32_t world_size;
    uint32_t allow_older;
    uint64_t newest_term; /* at the time when it was resolved */
    uint32_t try_count;   /* raised when the session moves to an older checkpoint */
    uint32_t state;       /* enum restore_state */
    struct ckpt_id id;    /* of the current try */
    struct ckpt_id first; /* what was resolved first */
    int32_t code;         /* in RESTORE_FAILED: why */
    char reason[ENTRY_REASON_BYTES];
    /* The cycle of garbage collection when this try began; a lease is counted from it. */
    uint64_t cycle;
};
enum restore_state { RESTORE_RUNNING = 1, RESTORE_OK = 2, RESTORE_FAILED = 3 };
/* `restore/<token>/<ordinal>/<rank>`: what one rank says of a try. */
struct entry_report {
    uint32_t try_count;
    int32_t code;
    char reason[ENTRY_REASON_BYTES];
}; /* code 0 means that the rank verified everything */

/* Write the key of each kind of entry, with its NUL. */
void key_info(char ret[ENTRY_KEY_MAX]);
void key_head(char ret[ENTRY_KEY_MAX]);
void key_gc(char ret[ENTRY_KEY_MAX]);
void key_chain(uint64_t seq, char ret[ENTRY_KEY_MAX]);
void key_term(uint64_t term, char ret[ENTRY_KEY_MAX]);
void key_open(struct ckpt_id id, char ret[ENTRY_KEY_MAX]);
void key_seal(struct ckpt_id id, uint32_t rank, char ret[ENTRY_KEY_MAX]);
void key_dead(struct ckpt_id id, char ret[ENTRY_KEY_MAX]);
/* The value is only the version. */
void key_past(struct ckpt_id id, uint64_t open_id, char ret[ENTRY_KEY_MAX]);
void key_health(uint64_t seq, char ret[ENTRY_KEY_MAX]);
void key_note(uint64_t seq, char ret[ENTRY_KEY_MAX]);
void key_day(uint64_t day, char ret[ENTRY_KEY_MAX]);
void key_restore(const struct token *token, uint32_t ordinal, char ret[ENTRY_KEY_MAX]);
void key_report(const struct token *token, uint32_t ordinal, uint32_t rank,
                char ret[ENTRY_KEY_MAX]);

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
    ENTRY_PAST,
    ENTRY_UNKNOWN
};
struct entry_key { /* a parsed key */
    enum entry_kind kind;
    struct ckpt_id id; /* only the term for ENTRY_TERM */
    /* In ENTRY_DAY the day, in ENTRY_PAST the opening. */
    uint64_t seq;
    uint32_t rank, ordinal;
    struct token token;
};
/* Parses a key. A key of a newer version gives ENTRY_UNKNOWN; it is kept and not touched. FORMAT
 * for a known key that is broken. */
int MUST_USE entry_key_parse(const char *key, struct entry_key *ret, struct diag *diag);

void entry_past_encode(struct buf *buf); /* has no decoder, because its key says everything */
/* One encoder and one decoder for each kind. Decoded pointers are from scratch. */
#define ENTRY_CODEC(name)                                                                  \
    void entry_##name##_encode(const struct entry_##name *entry, struct buf *buf);         \
    int MUST_USE entry_##name##_decode(struct record_value value, struct scratch *scratch, \
                                       struct entry_##name *ret, struct diag *diag);
ENTRY_CODEC(info)
ENTRY_CODEC(head)
ENTRY_CODEC(chain)
ENTRY_CODEC(term)
ENTRY_CODEC(open)
ENTRY_CODEC(seal)
ENTRY_CODEC(dead)
ENTRY_CODEC(health)
ENTRY_CODEC(day)
ENTRY_CODEC(restore)
ENTRY_CODEC(report)
ENTRY_CODEC(gc)
#undef ENTRY_CODEC

#endif
