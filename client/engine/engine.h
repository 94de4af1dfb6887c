/* SPDX-License-Identifier: Apache-2.0
 *
 * engine: the event-driven client of one rank, or of a viewer. It owns the link (connect, join,
 * reconnect), and runs saves, restores and small requests over it. The engine never blocks and
 * knows no threads: the blocking shell in client/api posts to its loop, and the simulator runs it
 * unchanged. All calls and callbacks are made on the engine's loop; a callback never runs inside
 * the call that asked for it. */
#ifndef CAIRN_ENGINE_ENGINE_H
#define CAIRN_ENGINE_ENGINE_H

#include "arena/arena.h"
#include "env/net.h"
#include "env/work.h"
#include "net/stream.h"
#include "pipeline/adapt.h"
#include "share/registered.h"
#include "wire/msg.h"
#include "wire/plan.h"

struct engine;

/* How the bytes of a save reach the daemon. */
enum engine_transport {
    TRANSPORT_AUTO,   /* hands over the arena if that is possible, else uses the socket */
    TRANSPORT_SOCKET, /* always sends through the socket */
    TRANSPORT_MEMFD   /* hands over the arena; a save that cannot do so fails */
};

/* What becomes of a save that would make its caller wait while no server can be reached. */
enum when_down {
    WHEN_DOWN_WAIT, /* it waits, within its deadline */
    WHEN_DOWN_SKIP, /* it ends with SKIPPED, on all ranks */
    WHEN_DOWN_TRAIN /* the same, and the engine is ready even if no server answers */
};

/* How an engine works. It is copied by engine_new; what it points to is borrowed until engine_close
 * is done, unless a comment says otherwise. */
struct engine_options {
    struct loop *loop;
    struct net *net;
    struct work_pool *pool;  /* runs copies and digests */
    struct tls_context *tls; /* borrowed; NULL means a plain connection */
    const char *tls_name;    /* must be in the server's certificate; NULL means the host dialled */
    struct url url;          /* the servers and the run; copied */
    bool viewer;             /* a viewer has no rank and no token */
    struct token token;
    uint32_t rank, world_size;
    /* Identifies this client process in object names. Random, and the same for the life of the
     * handle. */
    uint64_t writer;
    struct arena *arena;     /* borrowed; NULL for a viewer */
    uint64_t io_deadline_ms; /* for small requests and for the first connect */
    /* How long the first connect is retried when it fails by more than silence, that is when nobody
     * listens at the address or the server says why it refuses. 0 means io_deadline_ms. */
    uint64_t refused_ms;
    uint64_t agree_wait_ms; /* how long to wait for the verdict on a new list; 0 means 5,000 */
    /* The number of saves with the same lists after which ranks leave the first server. 0 means
     * 8. */
    uint32_t spread_after;
    uint32_t reconnect_ms_min, reconnect_ms_max; /* 0 means 50 and 5,000; jittered */
    const char *label;
    /* By which encodings saves store fewer bytes: none (ENCODE_NEVER, 0), those that keep up with
     * the sink, or the densest. */
    enum encode_mode encoding;
    enum engine_transport transport;
    enum when_down when_down;
    /* Replaces connecting: returns a connected socket (offline mode, tests). NULL makes the engine
     * connect to url.servers in turn. */
    int (*dial)(void *user, struct sock **ret, struct diag *diag);
    void *dial_user;
};

/* Starts an engine, which connects in the background. ready is called once: with 0 when the rank
 * has joined, and with WHEN_DOWN_TRAIN also when the first try has failed for the moment; else with
 * the reason why it has not joined (UNREACHABLE, AUTH, VERSION, DUPLICATE_RANK, WORLD_MISMATCH
 * ...). A connection that is lost later is replaced by reconnecting, for as long as operations
 * wait. */
int MUST_USE engine_new(const struct engine_options *options,
                        void (*ready)(void *user, int status, const struct diag *diag), void *user,
                        struct engine **ret, struct diag *diag);
/* Ends everything in flight at once with CLOSED, frees the engine, then calls done. A caller that
 * wants an orderly end waits for its operations first. */
void engine_close(struct engine *engine, void (*done)(void *user), void *user);
/* The close will not tell the server that the job ends in order. */
void engine_cut(struct engine *engine);

/* Makes room in the arena for saves of this set, in the background; a save that starts in the
 * meantime waits for it. May be repeated, and then the newest set counts. */
void engine_prepare(struct engine *engine, struct registered *set);

/* --- restore --------------------------------------------------------------------- */
/* A restore, embedded in the caller's operation. The fields down to on_done are inputs, the others
 * are results. */
struct engine_restore {
    struct selector selector;
    bool allow_older, strict;
    bool all_local; /* take the blobs of all coordinates, not only of this rank's */
    /* Patterns (base/glob.h). Registered tensors and stored blobs whose names match none of them
     * are left as they are. A count of 0 restores everything. Borrowed until on_done. */
    size_t only_count;
    const char *const *only;
    uint64_t deadline_ms;
    struct registered *set; /* the destination; a reference is held until on_done */
    void (*on_done)(struct engine_restore *restore, int status);
    struct diag diag;
    struct ckpt_id id;
    /* empty: the server has proven that the run has no checkpoint; the status is then NOT_FOUND.
     * fell_back: the restored checkpoint is older than the one asked for. */
    bool empty, fell_back;
    struct ckpt_info info;
    struct manifest manifest; /* of the restored checkpoint; its memory is in `scratch` */
    struct restored_blobs {
        size_t count;
        struct restored_blob {
            const char *name, *coordinate;
            uint32_t kind;
            size_t bytes;
            uint8_t *data;
        } * items;
    } blobs;
    size_t missing_count, unexpected_count;
    const char **missing, **unexpected;
    size_t local_count;
    struct index_entry *locals; /* everything in the checkpoint that belongs to a coordinate */
    size_t entry_count;
    const struct index_entry *entries; /* everything in the checkpoint */
    struct scratch scratch;            /* owns the results until engine_restore_fini */
    _Atomic uint64_t total_bytes, done_bytes;
    struct restore *impl;
    struct post no_memory; /* delivers NO_MEMORY if even impl cannot be allocated */
};
/* Starts a restore; on_done comes later, once. abort asks for the end and on_done still comes; fini
 * frees the results after on_done. */
void engine_restore_start(struct engine *engine, struct engine_restore *restore);
void engine_restore_abort(struct engine_restore *restore);
void engine_restore_fini(struct engine_restore *restore);

/* --- one request and its reply: list, status, runs, fetch, plan, read, resolve ---
 *
 * A call is sent again after a reconnect, until its deadline. Replies in several frames (BYTES,
 * PLAN_REPLY) are put together. */
struct engine_call {
    struct msg request;   /* borrowed until done */
    uint64_t deadline_ms; /* 0 means the engine's io_deadline_ms */
    /* WIRE_FEATURE_* bits. A server that lacks one of them is not asked, and the call ends with
     * UNSUPPORTED. */
    uint64_t features;
    bool busy_ends; /* an answer of BUSY ends the call; else it is asked again until the deadline */
    void *payload;
    /* Where the payload of the reply goes (READ). If payload is NULL, the engine allocates it, and
     * the caller frees it. */
    size_t payload_max;
    void (*done)(struct engine_call *call, int status);
    struct diag diag;
    struct msg reply; /* its memory is in `scratch` */
    size_t payload_bytes;
    struct scratch scratch; /* freed by engine_call_fini */
    struct call *impl;
    struct post no_memory; /* delivers NO_MEMORY if even impl cannot be allocated */
};
void engine_call_start(struct engine *engine, struct engine_call *call);
void engine_call_cancel(struct engine_call *call); /* done comes with CANCELLED */
void engine_call_fini(struct engine_call *call);

#endif
