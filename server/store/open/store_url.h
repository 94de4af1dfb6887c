/* SPDX-License-Identifier: Apache-2.0
 *
 * store_url: the texts that name stores (store_open.h), taken apart. Pure.
 */
#ifndef CAIRN_STORE_OPEN_STORE_URL_H
#define CAIRN_STORE_OPEN_STORE_URL_H

#include "store/rados/cluster.h"
#include "store_open.h"

struct store_url { /* of a cluster; texts point into `text`: not to be copied; NULL where left out
                    */
    char text[STORE_URL_MAX];
    struct cluster_rados_options cluster;
    const char *space;
};

/* The path of a directory store; NULL: it names none. */
const char *store_url_path(const char *url);
/* "rados:...". CONFIG. */
int MUST_USE store_url_parse(const char *url, struct store_url *ret, struct diag *diag);

#endif
