/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages about a server's maintenance of its store: scrub, garbage collection, repair, the
 * server's state. Part of msg.h, which has the rules; the fields' ranges are in PROTOCOL.md.
 */
#ifndef CAIRN_WIRE_MSG_CARE_H
#define CAIRN_WIRE_MSG_CARE_H

#include "format/ids.h"

enum { MSG_FINDINGS_MAX = 64 };

/* Begins a pass now, or only asks for the status. */
#define SCRUB_UNLIMITED UINT64_MAX
struct msg_scrub {
    bool begin;
    uint64_t rate; /* bytes a second from now on; 0 leaves it; SCRUB_UNLIMITED means none */
};
/* One finding of a scrub. */
struct scrub_finding_info {
    struct run_name run;
    struct ckpt_id id; /* term 0 means the run's record */
    uint32_t health;
    int64_t wall_ns;
    const char *text;
};
/* The numbers of a scrub's state, as X(type, name). */
#define SCRUB_INFO_FIELDS(X)    \
    X(bool, running)            \
    X(bool, yielding)           \
    X(bool, waiting)            \
    X(uint64_t, rate)           \
    X(uint64_t, every_ms)       \
    X(uint64_t, pass)           \
    X(int64_t, begun_wall_ns)   \
    X(int64_t, ended_wall_ns)   \
    X(uint64_t, bytes)          \
    X(uint64_t, ckpts)          \
    X(uint64_t, findings)       \
    X(uint64_t, bytes_total)    \
    X(uint64_t, chunks_total)   \
    X(uint64_t, ckpts_total)    \
    X(uint64_t, findings_total) \
    X(uint64_t, errors_total)   \
    X(uint64_t, healed_total)
/* The state of a server's scrub. */
struct scrub_info {
#define INFO_FIELD(type, name) type name;
    SCRUB_INFO_FIELDS(INFO_FIELD)
    struct run_name run; /* the run that the pass is at, or "" */
    struct ckpt_id id;
    uint32_t recent_count;
    struct scrub_finding_info *recent; /* the newest first */
};
/* The answer to SCRUB. */
struct msg_scrub_status {
    struct scrub_info info;
};

enum { MSG_GC_RUNS_MAX = 1000 };

/* Begins a pass now, or only asks for the report. dry_run removes nothing that the pass finds. now
 * reclaims what is forgotten however short it has waited, for good, of the named runs or of all. */
struct msg_gc {
    bool begin, dry_run, now;
    uint32_t run_count;    /* for `now` */
    struct run_name *runs; /* for `now` */
    const char *actor;     /* for `now`: "user@host", for the chain; else "" */
};
#define GC_INFO_FIELDS(X)        \
    X(bool, running)             \
    X(bool, waiting)             \
    X(bool, dry_run)             \
    X(uint64_t, every_ms)        \
    X(uint64_t, keep_cycles)     \
    X(uint64_t, pass)            \
    X(int64_t, begun_wall_ns)    \
    X(int64_t, ended_wall_ns)    \
    X(uint64_t, runs)            \
    X(uint64_t, ckpts)           \
    X(uint64_t, reclaimed)       \
    X(uint64_t, objects)         \
    X(uint64_t, smalls)          \
    X(uint64_t, bytes)           \
    X(uint64_t, bytes_read)      \
    X(uint64_t, kept)            \
    X(uint64_t, errors)          \
    X(uint64_t, objects_total)   \
    X(uint64_t, smalls_total)    \
    X(uint64_t, bytes_total)     \
    X(uint64_t, reclaimed_total) \
    X(uint64_t, errors_total)
/* Fields that an older server does not send; they are zero then.
 * now: true if this pass reclaims without waiting.
 * held: forgotten checkpoints that were not reclaimed because an open save or a restore uses them.
 * forgotten, forgotten_bytes: the forgotten checkpoints that are still stored.
 * first_wall_ns, last_wall_ns: when the first and the last of them will be reclaimed; 0 if this
 * server's schedule does not reclaim them.
 * pressure: see `[gc] pressure`; pressed: checkpoints that were reclaimed because of it. */
#define GC_INFO_MORE_FIELDS(X)       \
    X(bool, now)                     \
    X(uint64_t, held)                \
    X(uint64_t, forgotten)           \
    X(uint64_t, forgotten_bytes)     \
    X(int64_t, first_wall_ns)        \
    X(int64_t, last_wall_ns)         \
    X(uint64_t, pressure)            \
    X(uint64_t, pressed_total)       \
    X(uint64_t, pressed_bytes_total) \
    X(int64_t, pressed_wall_ns)
/* The state of a server's garbage collection. */
struct gc_info {
    GC_INFO_FIELDS(INFO_FIELD)
    GC_INFO_MORE_FIELDS(INFO_FIELD)
#undef INFO_FIELD
    struct run_name run; /* the run that the pass is at */
    /* The error that text tells of. 0 means that there is none, or that an older server does not
     * say. */
    int32_t code;
    const char *text; /* the last error, or "" */
};
/* The answer to GC. */
struct msg_gc_report {
    struct gc_info info;
};

/* How a server is. Red means that it cannot do its work, yellow that an operator should look,
 * unknown that the server is older than these words. */
enum server_health {
    SERVER_HEALTH_UNKNOWN,
    SERVER_GREEN,
    SERVER_YELLOW,
    SERVER_RED,
};
/* Returns "green" and so on, or "unknown" for any other value. */
const char *server_health_name(uint32_t health);

/* Begins a repair of the checkpoint, or only asks how the last one stands. */
struct msg_repair {
    struct ckpt_id id;   /* to begin, needed unless `run` is named */
    struct run_name run; /* whose record is to be repaired; "" means none */
    bool begin;
    const char *actor; /* for the chain: "user@host" */
};
/* One line of a repair's report. */
struct repair_line_info {
    bool mended;
    const char *text;
};
#define REPAIR_STATUS_FIELDS(X) \
    X(bool, running)            \
    X(bool, healed)             \
    X(int32_t, code)            \
    X(uint64_t, bytes_read)     \
    X(uint32_t, mended)         \
    X(uint32_t, left)
/* The answer to REPAIR: the last repair, or the one that runs. */
struct msg_repair_status {
#define STATUS_FIELD(type, name) type name;
    REPAIR_STATUS_FIELDS(STATUS_FIELD)
#undef STATUS_FIELD
    struct run_name run; /* "" if there was none yet */
    struct ckpt_id id;
    const char *text;
    uint32_t line_count;
    struct repair_line_info *lines;
};

/* The answer to SERVER. */
struct msg_server_status {
    const char *agent, *store, *detail; /* "cairnd 0.1.0"; "dir"; what the store says of itself */
    struct uuid store_uuid;
    uint64_t epoch, total_bytes, free_bytes, uptime_ms, bytes_in, bytes_out;
    uint64_t reserve_bytes; /* kept beyond free_bytes; 0 if nothing is kept, or it did not say */
    uint32_t sessions, saves_open, runs;
    bool read_only;
    bool has_scrub, has_gc; /* this server does them */
    struct scrub_info scrub;
    struct gc_info gc;
    uint32_t health;                         /* enum server_health */
    int32_t health_code;                     /* when red, the store's error; else 0 */
    const char *health_text, *health_remedy; /* "" when green */
    uint64_t health_ms;                      /* for how long; 0 means not known */
    int64_t wall_ns;                         /* the server's clock; 0 if it did not say */
};

#endif
