/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to the answer of a verdict. A caller that asks for an answer which events of that kind do
 * not have is a bug, and ends in a CHECK. Pure.
 */
#include "core/event.h"

#include "base/check.h"

static const enum verdict_answer answers[] = {
#define EVENT(name, transition, answer) [EVENT_##name] = ANSWER_##answer,
#include "core/events.def"
};

_Static_assert(sizeof((struct event){0}.u) == sizeof(struct event_adopt), "adopt is the largest");
_Static_assert(sizeof((struct verdict){0}.u) == sizeof(struct verdict_save), "save is the largest");

struct verdict verdict_of(enum event_kind kind)
{
    CHECK((size_t)kind < ARRAY_LEN(answers));
    return (struct verdict){.answer = answers[kind]};
}

const struct verdict_save *verdict_save(const struct verdict *verdict)
{
    CHECK(verdict->answer == ANSWER_SAVE);
    return &verdict->u.save;
}

const struct verdict_marks *verdict_marks(const struct verdict *verdict)
{
    CHECK(verdict->answer == ANSWER_MARKS);
    return &verdict->u.marks;
}

const struct verdict_restore *verdict_restore(const struct verdict *verdict)
{
    CHECK(verdict->answer == ANSWER_RESTORE);
    return &verdict->u.restore;
}

const struct verdict_gc_cycle *verdict_gc_cycle(const struct verdict *verdict)
{
    CHECK(verdict->answer == ANSWER_GC_CYCLE);
    return &verdict->u.gc_cycle;
}
