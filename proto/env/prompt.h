/* SPDX-License-Identifier: Apache-2.0
 *
 * prompt: threads that do little at a time and that others wait for. On a machine whose processors
 * are all busy copying and digesting, each hop between two threads would otherwise wait for a time
 * slice to end, some milliseconds, and a save is many hops.
 */
#ifndef CAIRN_ENV_PROMPT_H
#define CAIRN_ENV_PROMPT_H

/* Asks the scheduler to let the calling thread run soon after it wakes up, in return for short
 * slices: no more of the processor, no privilege needed. Threads that it makes later are ordinary
 * ones. Does nothing where the kernel knows no such wish (before Linux 6.12) or a filter forbids
 * it, or where somebody has given the thread another policy than the usual one. */
void thread_be_prompt(void);

#endif
