/* SPDX-License-Identifier: Apache-2.0
 *
 * STORE_PROBE: tries whether a save can be made now. It makes one small object in each pool, as a
 * save would: with a key in the pool of records, and in a project's namespace in the pool of
 * pieces. All daemons use the same name, so at most one object is ever left behind.
 */
#include "rados_private.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { PROBE_BYTES = 4096 };

/* Writes a small object to the pool and removes it. Returns 0 or a negative errno value. */
static int probe(struct rados_store *store, enum cluster_pool pool, const char *space)
{
    uint8_t page[PROBE_BYTES];
    memset(page, 0x5a, sizeof(page));
    struct cluster_step make[] = {{.kind = STEP_WRITE_FULL, .data = page, .bytes = sizeof(page)},
                                  {.kind = STEP_KEY_SET, .key = "probe", .data = page, .bytes = 8}};
    struct cluster_step gone = {.kind = STEP_REMOVE};
    struct cluster_call call = {.pool = pool,
                                .space = space,
                                .object = "probe",
                                .step_count = pool == CLUSTER_META ? ARRAY_LEN(make) : 1,
                                .steps = make};
    int rc = cluster_do(store->cluster, &call);
    if (rc == 0) {
        call.step_count = 1;
        call.steps = &gone;
        rc = cluster_do(store->cluster, &call);
        rc = rc == -ENOENT ? 0 : rc; /* another daemon's probe ran at the same time */
    } else if (rc == -ENOENT) {
        rc = -ENODEV; /* an object that was just made cannot be missing: its pool is */
    }
    return rc;
}

int rados_op_probe(struct rados_store *store, struct store_req *req)
{
    char space[CLUSTER_NAMESPACE_MAX];
    const char *what = "cannot write a test object to the pool of the records";
    int rc = probe(store, CLUSTER_META, store->space);
    if (rc == 0) {
        what = "cannot write a test object to the pool of the data";
        snprintf(space, sizeof(space), "%.200s/probe", store->space);
        rc = probe(store, CLUSTER_DATA, space);
    }
    if (rc == -ENODEV) {
        return diag_set(&req->diag, CAIRN_E_NO_STORE,
                        "%s: the pool no longer exists; look at `ceph osd pool ls`, and restart "
                        "the daemon when the pool is back",
                        what);
    }
    return rc == 0 ? 0 : rados_error(rc, false, what, &req->diag);
}
