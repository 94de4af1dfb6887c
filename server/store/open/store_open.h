/* SPDX-License-Identifier: Apache-2.0
 *
 * store_open: from a store's URL to an open store, for the daemon and for `cairn --store`:
 *
 *   dir:/path
 *   rados:POOL[/NAMESPACE][?conf=/path&user=NAME&keyring=/path&data-pool=NAME&timeout=SECONDS]
 *
 * NAMESPACE ("cairn") is the RADOS namespace of the store, and how those of its projects begin.
 */
#ifndef CAIRN_STORE_OPEN_H
#define CAIRN_STORE_OPEN_H

#include "env/work.h"
#include "store/store.h"

enum { STORE_URL_MAX = 512 };

struct store_open_options {
    struct loop *loop;
    struct work_pool *pool; /* of store_url_threads_min() threads or more */
    const char *url;
    bool create; /* make the store where there is none */
    /* What NO_STORE advises: how to make one. NULL: whoever opens it makes none, so the name is
     * wrong, and NO_STORE says to look at that. */
    const char *remedy;
    bool read_only; /* write nothing at all */
    bool force_fs;  /* dir: accept tmpfs and network file systems */
    const struct uuid *expected_uuid;
    uint64_t reserve_bytes; /* dir: free space that objects may not use */
    /* For salvage: a store record that is lost is made again (read_only: as it would
     * be, in memory), and this says what was wrong. NULL: such a store does not open. */
    struct diag *salvaged;
};

/* CONFIG: what is wrong with the text, and the grammar. Touches nothing. */
int MUST_USE store_url_check(const char *url, struct diag *diag);
/* The URL as it can be typed into a shell anywhere on this host, for the texts of remedies: with
 * an absolute path, and in quotes where a shell needs them. "" where it does not fit. */
void store_url_typed(const char *url, size_t size, char *ret);
/* Of a cluster, which may be out of reach for a while; else of this host. */
bool store_url_is_cluster(const char *url);
/* The pool needs so many threads at least: those of a cluster wait for the network. */
unsigned store_url_threads_min(const char *url);
/* Blocks. What store_dir_new and store_rados_new say. */
int MUST_USE store_open(const struct store_open_options *options, struct store **ret,
                        struct diag *diag);

#endif
