/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster: see cluster.h. The functions that every implementation needs.
 */
#include "cluster.h"

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
