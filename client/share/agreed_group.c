/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates and frees agreed groups; agreed_group.h describes them. Loop's thread.
 */
#include "share/agreed_group.h"

#include <stdlib.h>

#define AGREED_BYTES_MAX ((size_t)4 << 30)

struct agreed_group *agreed_group_new(struct agreement *agreement, const struct held_group *group,
                                      uint64_t save)
{
    struct agreed_group *agreed = calloc(1, sizeof *agreed);
    if (!agreed) {
        return NULL;
    }
    agreed->key = group->key;
    agreed->list_hash = group->list_hash;
    agreed->state = AGREED_PENDING;
    agreed->save = save;
    scratch_init(&agreed->scratch, AGREED_BYTES_MAX);
    list_add_tail(&agreement->groups, &agreed->link);
    return agreed;
}

void agreed_group_free(struct agreed_group *group)
{
    list_remove(&group->link);
    scratch_fini(&group->scratch);
    free(group);
}
