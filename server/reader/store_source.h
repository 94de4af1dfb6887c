/* SPDX-License-Identifier: Apache-2.0
 *
 * store_source: the reader's source on a daemon: a store on the loop, asked from a thread. What may
 * pass is asked again: an error of the medium, or a store that does not answer.
 */
#ifndef CAIRN_READER_STORE_SOURCE_H
#define CAIRN_READER_STORE_SOURCE_H

#include "reader/ask.h"
#include "reader/reader.h"

struct store_source {
    struct reader_source reader;
    struct ask *ask;
    struct store *store;
    struct run_name run;
    unsigned tries; /* how often a read is tried, at least once */
    uint64_t pause_ms;
    bool blames; /* an error that never passes (DENIED, for instance) is told as DAMAGED */
    /* Called before each try. An error ends the read. If it is NULL, only its owner ends it. */
    int (*check)(struct store_source *source, struct diag *diag);
    /* Called after each try, with the bytes that were read. */
    void (*tried)(struct store_source *source, int status, uint64_t bytes);
};

/* Sets reader.fetch, reader.fetch_range and reader.read; the caller sets the rest. */
void store_source_init(struct store_source *source);
/* reader.fetch: for callers that have something to do before it. */
int MUST_USE store_source_fetch(struct reader_source *source, const struct doc_key *document,
                                struct reader_bytes *ret, struct diag *diag);

#endif
