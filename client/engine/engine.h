/* SPDX-License-Identifier: Apache-2.0
 *
 * engine: the event-driven client of one rank (or of a viewer): link (connect, join, reconnect),
 * saves, restores, small requests. Never blocks, knows no threads: the API's blocking shell
 * (client/api) posts to its loop, the simulator runs it as it is. All calls and callbacks on the
 * engine's loop, callbacks never inside the call.
 */
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

/* How a save's bytes reach the daemon. */
enum engine_transport {
    TRANSPORT_AUTO,   /* by handing over the arena where that is possible */
    TRANSPORT_SOCKET, /* through the socket */
    TRANSPORT_MEMFD   /* by handing over; a save that cannot fails */
};

struct engine_options {
    struct loop *loop;
    struct net *net;
    struct work_pool *pool;  /* copies and digests */
    struct tls_context *tls; /* borrowed; NULL: plain */
    struct url url;          /* servers and run; copied */
    bool viewer;             /* no rank, no token */
    struct token token;
    uint32_t rank, world_size;
    uint64_t writer;         /* random, the same for the life of the process's handle */
    struct arena *arena;     /* borrowed; NULL for viewers */
    uint64_t io_deadline_ms; /* of small requests, and of the first connect */
    /* The first connect: tried again for so long when it fails by more than silence (nobody listens
     * there, the server says why); 0: io_deadline_ms. */
    uint64_t refused_ms;
    uint64_t agree_wait_ms; /* for the verdict on a list that is new; 0: 5,000 */
    uint32_t spread_after;  /* saves with the same lists until ranks leave the first server; 0: 8 */
    uint32_t reconnect_ms_min, reconnect_ms_max; /* 0: 50 and 5,000; jittered */
    const char *label;
    /* What saves try to store fewer bytes with: nothing (ENCODE_NEVER, 0), what keeps up with the
     * sink, or what is densest. */
    enum encode_mode encoding;
    enum engine_transport transport;
    /* In place of connecting: gives a connected socket (offline mode, tests). NULL: net connect to
     * url.servers in turn. */
    int (*dial)(void *user, struct sock **ret, struct diag *diag);
    void *dial_user;
};

/* ready: once: 0 when joined, else why not (UNREACHABLE, AUTH, VERSION, DUPLICATE_RANK,
 * WORLD_MISMATCH ...). Later losses of the connection are repaired by reconnecting for as long as
 * operations wait. */
int MUST_USE engine_new(const struct engine_options *options,
                        void (*ready)(void *user, int status, const struct diag *diag), void *user,
                        struct engine **ret, struct diag *diag);
/* Ends everything in flight at once with CLOSED (an orderly drain is the caller's, before), frees,
 * then done. */
void engine_close(struct engine *engine, void (*done)(void *user), void *user);

/* Makes room in the arena for saves of this set, in the background; a save in the meantime waits
 * for it. Repeatable: the newest counts. */
void engine_prepare(struct engine *engine, struct registered *set);

/* --- restore --------------------------------------------------------------------- */
struct engine_restore {
    struct selector selector;
    bool allow_older, strict;
    bool
        all_local; /* blobs that belong to a coordinate come from all of them, not from ours only */
    /* Patterns (base/glob.h); none: all. Registered tensors and stored blobs whose names match none
     * are left as they are. Borrowed until on_done. */
    size_t only_count;
    const char *const *only;
    uint64_t deadline_ms;
    struct registered *set; /* destination; a reference is held until on_done */
    void (*on_done)(struct engine_restore *restore, int status);
    struct diag diag;
    struct ckpt_id id;
    bool empty, fell_back; /* empty: proven; status is NOT_FOUND then */
    struct ckpt_info info;
    struct manifest manifest; /* of the restored checkpoint; memory from `scratch` */
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
    struct index_entry *locals; /* all that belongs to a coordinate in the checkpoint */
    size_t entry_count;
    const struct index_entry *entries; /* everything in the checkpoint */
    struct scratch scratch; /* owns the results; the caller ends it with engine_restore_fini */
    _Atomic uint64_t total_bytes, done_bytes;
    struct restore *impl;
    struct post no_memory; /* tells of it when there is none even for impl */
};
void engine_restore_start(struct engine *engine, struct engine_restore *restore);
void engine_restore_abort(struct engine_restore *restore);
void engine_restore_fini(struct engine_restore *restore);

/* --- one request, one reply: list, status, runs, fetch, plan, read, resolve
 * ------------------------------------- Retried over reconnects until the deadline. Replies in
 * several frames (BYTES, PLAN_REPLY) are put together. */
struct engine_call {
    struct msg request;   /* borrowed until done */
    uint64_t deadline_ms; /* 0: the engine's io_deadline_ms */
    uint64_t features;    /* WIRE_FEATURE_*: a server that lacks one of them is not asked, and the
                             call ends with UNSUPPORTED */
    void *payload;
    size_t payload_max; /* where the reply's payload goes (READ); NULL: malloc'ed into payload, the
                           caller frees */
    void (*done)(struct engine_call *call, int status);
    struct diag diag;
    struct msg reply; /* memory from scratch */
    size_t payload_bytes;
    struct scratch scratch; /* engine_call_fini */
    struct call *impl;
    struct post no_memory; /* tells of it when there is none even for impl */
};
void engine_call_start(struct engine *engine, struct engine_call *call);
void engine_call_cancel(struct engine_call *call); /* done comes with CANCELLED */
void engine_call_fini(struct engine_call *call);

#endif
