/* SPDX-License-Identifier: Apache-2.0
 *
 * prompt: threads that do little at a time and that others wait for. On a machine whose processors
 * are all busy copying and digesting, each hop between two threads would otherwise wait some
 * milliseconds for a time slice to end, and a save is many hops.
 */
#ifndef CAIRN_ENV_PROMPT_H
#define CAIRN_ENV_PROMPT_H

/* Asks the scheduler to run the calling thread soon after it wakes up, in return for short slices.
 * This gives it no more of the processor and needs no privilege. Threads that it makes later are
 * ordinary ones. Does nothing if the kernel does not know this wish (before Linux 6.12), if a
 * filter forbids it, or if the thread already has another policy than the usual one. */
void thread_be_prompt(void);

#endif
