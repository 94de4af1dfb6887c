/* SPDX-License-Identifier: Apache-2.0
 *
 * guess: which of some names may be meant by a mistyped one, for the text of an error.
 */
#ifndef CAIRN_BASE_GUESS_H
#define CAIRN_BASE_GUESS_H

#include <stddef.h>

struct guess {
    const char *typed, *name; /* borrowed; name: the best so far, NULL if none is like it */
    size_t alike;
};

/* Takes the name if it is more like the typed one than those before. A name counts only if it
 * shares more than half of its letters with it, at both ends. */
void guess_consider(struct guess *guess, const char *name);

#endif
