/* SPDX-License-Identifier: Apache-2.0
 *
 * agreed_group: the memory of what was agreed on one group; for agreement.c.
 */
#ifndef CAIRN_SHARE_AGREED_GROUP_H
#define CAIRN_SHARE_AGREED_GROUP_H

#include "share/agreement.h"

/* Makes a group that is pending and empty, and adds it to the end of the agreement's groups.
 * Returns NULL if memory is short. */
struct agreed_group *agreed_group_new(struct agreement *agreement, const struct held_group *group,
                                      uint64_t save);
/* Frees the group and takes it out of its agreement. */
void agreed_group_free(struct agreed_group *group);

#endif
