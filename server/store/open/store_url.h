/* SPDX-License-Identifier: Apache-2.0
 *
 * store_url: parses the texts that name stores (store_open.h). Pure.
 */
#ifndef CAIRN_STORE_OPEN_STORE_URL_H
#define CAIRN_STORE_OPEN_STORE_URL_H

#include "store/rados/cluster.h"
#include "store_open.h"

/* Of a cluster. Its texts point into `text`, so it must not be copied; a part that was left out is
 * NULL. */
struct store_url {
    char text[STORE_URL_MAX];
    struct cluster_rados_options cluster;
    const char *space;
};

/* Returns the path of a directory store, or NULL if the URL names none. */
const char *store_url_path(const char *url);
/* Parses "rados:...". Returns CONFIG. */
int MUST_USE store_url_parse(const char *url, struct store_url *ret, struct diag *diag);

#endif
