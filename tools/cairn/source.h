/* SPDX-License-Identifier: Apache-2.0
 *
 * source: where a command's answers come from: a server (cairn://…), or a store on this machine
 * (--store dir:/path) through the server's own core, read-only, in this process behind a socket
 * pair. Commands see one thing: a viewer's engine and blocking calls on it. One thread.
 */
#ifndef CAIRN_TOOLS_SOURCE_H
#define CAIRN_TOOLS_SOURCE_H

#include "engine/engine.h"

struct source;

struct source_options {
    const char *url;   /* cairn://…; NULL means what CAIRN_SERVER says */
    const char *store; /* "dir:/path"; then url is not used */
    const char *cert_file, *key_file, *ca_file;
    const char *tls_name; /* must be in the server's certificate; NULL means the host of the URL */
    uint64_t deadline_ms;
    uint64_t connect_ms; /* for the connection alone; 0 means deadline_ms */
    bool writable;       /* the store, under its lock; else it is only read */
    bool repairs;        /* the store: offline.h */
    const char *repair_from;
};

/* Prepares the way to the server or the store that the options name. Returns its error. */
int MUST_USE source_new(const struct source_options *options, struct source **ret,
                        struct diag *diag);
void source_free(struct source *source);

/* Connects as a viewer of the run, and ends an earlier connection. A NULL run is for source_runs(),
 * which needs none. */
int MUST_USE source_use(struct source *source, const struct run_name *run, struct diag *diag);
/* Connects to the server alone, whatever its store says: for questions about itself. */
int MUST_USE source_use_server(struct source *source, struct diag *diag);
struct engine *source_engine(struct source *source);
const struct url *source_url(const struct source *source);
struct loop *source_loop(struct source *source);
/* The wall clock's time so many milliseconds ago; 0 for 0. */
int64_t source_since_ns(struct source *source, uint64_t ms);
/* Runs the loop until *done is true, or until an interrupt (CANCELLED). */
int MUST_USE source_wait(struct source *source, const bool *done, struct diag *diag);
/* Waits until a call has set *done. After an interrupt (CANCELLED) the call has ended, too. */
int MUST_USE source_await(struct source *source, struct engine_call *call, const bool *done,
                          struct diag *diag);
/* Ends a source_wait from inside a callback. */
void source_wake(struct source *source);
/* One request and its answer: set call.request, read call.reply and call.payload, end it with
 * engine_call_fini(&call). */
struct source_request {
    struct engine_call call;
    struct source *source; /* source_call's */
    bool done;
    int status;
};
int MUST_USE source_call(struct source *source, struct source_request *request, struct diag *diag);
/* Calls offline_check_record() for a store. Returns UNSUPPORTED if a server is asked. */
int MUST_USE source_check_record(struct source *source, const struct run_name *run,
                                 bool *ret_salvage, struct diag *diag);
/* Sets *ret to the names of all runs, sorted and malloc'ed. With `removed` the removed runs are
 * among them. */
int MUST_USE source_runs(struct source *source, bool removed, struct run_name **ret,
                         size_t *ret_count, struct diag *diag);

#endif
