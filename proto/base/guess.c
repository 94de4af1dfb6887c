/* SPDX-License-Identifier: Apache-2.0
 *
 * Names are compared by the letters that they share at both ends, which is where typing errors
 * leave them as they are.
 */
#include "base/guess.h"

#include "base/check.h"

#include <string.h>

void guess_consider(struct guess *guess, const char *name)
{
    size_t typed = strlen(guess->typed), length = strlen(name), head = 0, tail = 0;
    size_t least = typed < length ? typed : length;
    while (head < least && guess->typed[head] == name[head]) {
        head++;
    }
    while (tail < least - head && guess->typed[typed - 1 - tail] == name[length - 1 - tail]) {
        tail++;
    }
    CHECK(head + tail <= least);
    if (head + tail > guess->alike && 2 * (head + tail) > (typed > length ? typed : length)) {
        guess->alike = head + tail;
        guess->name = name;
    }
}
