/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster: see cluster.h. The functions that every implementation needs.
 */
#include "cluster.h"

#include "base/check.h"
#include "base/json_view.h"

#include <stdlib.h>
#include <string.h>

void cluster_map_fini(struct cluster_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        free(map->pairs[i].key);
        free(map->pairs[i].data);
    }
    free(map->pairs);
    *map = (struct cluster_map){0};
}

int cluster_map_add(struct cluster_map *map, const char *key, size_t bytes, const void *data)
{
    if ((map->count & (map->count + 1)) == 0) { /* the array is full at 0, 1, 3, 7 and so on */
        struct cluster_pair *grown = realloc(map->pairs, (2 * map->count + 1) * sizeof(*grown));
        if (grown == NULL) {
            return CAIRN_E_NO_MEMORY;
        }
        map->pairs = grown;
    }
    struct cluster_pair pair = {.key = strdup(key), .bytes = bytes, .data = malloc(bytes + 1)};
    if (pair.key == NULL || pair.data == NULL) {
        free(pair.key);
        free(pair.data);
        return CAIRN_E_NO_MEMORY;
    }
    if (bytes > 0) {
        memcpy(pair.data, data, bytes);
    }
    pair.data[bytes] = 0;
    map->pairs[map->count++] = pair;
    return 0;
}

/* What a pool leaves to its clients. max_avail counts out copies and parity, and the space that the
 * full ratio keeps; it knows no quota. */
static bool pool_room(struct json_view df, const char *pool, uint64_t *ret_free,
                      uint64_t *ret_stored)
{
    struct json_view row = json_view_named(json_view_member(df, "pools"), "name", pool);
    struct json_view stats = json_view_member(row, "stats");
    uint64_t room = 0, stored = json_view_count(stats, "stored");
    uint64_t quota = json_view_count(stats, "quota_bytes");
    uint64_t most = json_view_count(stats, "quota_objects");
    if (!json_view_u64(json_view_member(stats, "max_avail"), &room)) {
        return false;
    }
    if (quota > 0) {
        room = min_u64(room, quota > stored ? quota - stored : 0);
    }
    if (most > 0 && json_view_count(stats, "objects") >= most) {
        room = 0;
    }
    *ret_free = room;
    *ret_stored = stored;
    return true;
}

bool cluster_usage_read(size_t bytes, const char *df, const char *const pools[CLUSTER_POOLS],
                        struct cluster_usage *ret)
{
    struct json_view view = json_view_of(bytes, df);
    struct cluster_usage usage = {.is_raw = false};
    uint64_t stored = 0, ignored = 0;
    if (!pool_room(view, pools[CLUSTER_META], &usage.records_free_bytes, &ignored) ||
        !pool_room(view, pools[CLUSTER_DATA], &usage.free_bytes, &stored)) {
        return false;
    }
    /* A save needs both pools, but of that of the records next to nothing. */
    usage.free_bytes = usage.records_free_bytes == 0 ? 0 : usage.free_bytes;
    usage.total_bytes = usage.free_bytes + stored;
    *ret = usage;
    return true;
}

int cluster_release_check(int release, struct diag *diag)
{
    return release >= CLUSTER_RELEASE_MIN
               ? 0
               : diag_set(
                     diag, CAIRN_E_UNSUPPORTED,
                     "the Ceph cluster allows OSDs of release %d, but Cairn needs %d (nautilus): "
                     "upgrade the cluster, then run `ceph osd require-osd-release`",
                     release, CLUSTER_RELEASE_MIN);
}
