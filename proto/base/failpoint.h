/* SPDX-License-Identifier: Apache-2.0
 *
 * Named places where tests make a program fail or die. FAILPOINT("dir.rename") returns 0, or the
 * error code to return instead of going on. They work only in a build with CAIRN_TESTING (release
 * packages compile them to 0), and only if CAIRN_FAILPOINTS is set: "name=error:IO;other=kill@3"
 * makes one fail each time, and ends the process with SIGKILL when the other is reached for the 3rd
 * time. "=stop" raises SIGSTOP, and "=delay:20" goes on 20 ms later, like a slow disk.
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
