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
    struct work_pool *pool; /* of at least store_url_threads_min() threads */
    const char *url;
    bool create; /* make the store if there is none */
    /* How to make a store, as the advice of NO_STORE. NULL for a caller that makes none: the name
     * is wrong then, and NO_STORE says to check it. */
    const char *remedy;
    bool read_only; /* write nothing at all */
    bool force_fs;  /* dir: accept tmpfs and network file systems */
    const struct uuid *expected_uuid;
    uint64_t reserve_bytes; /* dir: free space that objects may not use */
    /* Not NULL for salvage: a lost store record is made again, and the diag says what was wrong.
     * With read_only it is made in memory alone. With NULL such a store does not open. */
    struct diag *salvaged;
};

/* Checks the text of a URL. Returns CONFIG, with what is wrong and the grammar. Touches nothing. */
int MUST_USE store_url_check(const char *url, struct diag *diag);
/* Writes the URL as it can be typed into a shell anywhere on this host, for remedies: with an
 * absolute path, and in quotes if a shell needs them. Writes "" if it does not fit. */
void store_url_typed(const char *url, size_t size, char *ret);
/* Returns true for a store on a cluster, which may be out of reach for a while. */
bool store_url_is_cluster(const char *url);
/* Returns the least number of threads that the pool needs. Those of a cluster wait for the
 * network. */
unsigned store_url_threads_min(const char *url);
/* Opens the store that the URL names. Blocks. Returns the errors of store_dir_new() and
 * store_rados_new(). */
int MUST_USE store_open(const struct store_open_options *options, struct store **ret,
                        struct diag *diag);

#endif
