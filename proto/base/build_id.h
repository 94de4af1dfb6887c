/* SPDX-License-Identifier: Apache-2.0
 *
 * build_id: which sources a program was built from. The text is in build_id.c, which
 * tools/source-id makes in the build folder.
 */
#ifndef CAIRN_BASE_BUILD_ID_H
#define CAIRN_BASE_BUILD_ID_H

/* The commit in 40 hex digits, with "-dirty" behind it if a file was changed; without git
 * "content-" and 40 hex digits. */
extern const char build_id[];

#endif
