/* SPDX-License-Identifier: Apache-2.0
 *
 * agreed_group: the memory of what was agreed on one group; for agreement.c.
 */
#ifndef CAIRN_SHARE_AGREED_GROUP_H
#define CAIRN_SHARE_AGREED_GROUP_H

#include "share/agreement.h"

/* Pending, empty, the last of the agreement's groups. NULL: out of memory. */
struct agreed_group *agreed_group_new(struct agreement *agreement, const struct held_group *group,
                                      uint64_t save);
/* Takes it out of its agreement, too. */
void agreed_group_free(struct agreed_group *group);

#endif
