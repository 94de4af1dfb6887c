/* SPDX-License-Identifier: Apache-2.0
 *
 * Named places where tests make a program fail or die: FAILPOINT("dir.rename") returns 0 or the
 * error code to return instead of going on. Off unless CAIRN_FAILPOINTS is set in the environment
 * of a build with CAIRN_TESTING (release packages compile it to 0): "name=error:IO;other=kill@3"
 * fails, or ends the process with SIGKILL, at the 3rd time the place is reached ("=stop" raises
 * SIGSTOP, "=delay:20" goes on 20 ms later: a slow disk).
 */
#ifndef CAIRN_BASE_FAILPOINT_H
#define CAIRN_BASE_FAILPOINT_H

#ifdef CAIRN_TESTING
int failpoint_hit(const char *name);
#define FAILPOINT(name) failpoint_hit(name)
#else
#define FAILPOINT(name) 0
#endif

#endif
