/* SPDX-License-Identifier: Apache-2.0
 *
 * What the thread of a pass tells the loop, and asks it: findings, and whether it may go on. What
 * is called on the loop for it is named on_.
 */
#include "scrub_private.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

bool scrub_may_run(const struct scrub *scrub)
{
    return !scrub->options.may_run || scrub->options.may_run(scrub->options.user);
}

/* Wall time only chooses the moment: a clock that jumps makes a pass early or late, and has no
 * other effect. */
uint64_t scrub_due_in_ms(const struct scrub *scrub)
{
    int64_t ended = scrub->now.entry.ended_wall_ns, now = loop_wall_ns(scrub->options.loop);
    uint64_t every_ms = scrub->options.every_ms;
    if (scrub->asked || (every_ms > 0 && (ended == 0 || ended > now))) {
        return 0;
    }
    uint64_t passed_ms = (uint64_t)(now - ended) / 1000000;
    return every_ms == 0 ? UINT64_MAX : passed_ms >= every_ms ? 0 : every_ms - passed_ms;
}

void scrub_turn(struct scrub *scrub, bool running)
{
    if (scrub->running != running) {
        scrub->running = running;
        if (scrub->options.turned) {
            scrub->options.turned(scrub->options.user, running);
        }
    }
}

struct scrub_check {
    const struct scrub *scrub;
    struct scrub_moment moment;
    bool goes_on;
};

static void on_check(void *user)
{
    struct scrub_check *check = user;
    struct loop *loop = check->scrub->options.loop;
    check->moment = (struct scrub_moment){loop_now_ms(loop), loop_wall_ns(loop)};
    check->goes_on = !check->scrub->closing && scrub_may_run(check->scrub);
}

int scrub_ask(struct scrub *scrub, struct scrub_moment *ret)
{
    struct scrub_check check = {.scrub = scrub};
    ask_call(&scrub->ask, on_check, &check);
    *ret = check.moment;
    return check.goes_on ? 0 : CAIRN_E_CANCELLED;
}

void scrub_show(struct scrub *scrub)
{
    pthread_mutex_lock(&scrub->lock);
    scrub->shown = scrub->now;
    pthread_mutex_unlock(&scrub->lock);
}

/* --- findings --------------------------------------------------------------------------------- */

/* Returns which of the recent findings the news takes the place of: the same one of an earlier
 * pass; if there is no room, the oldest about a checkpoint, because its record has it too, while
 * damage of a record is reported nowhere else as long as the copy in memory is good. Otherwise it
 * returns the number of findings. */
static uint32_t place_of(const struct scrub *scrub, const struct run_name *run,
                         const struct scrub_news *news)
{
    uint32_t of_ckpt = SCRUB_RECENT - 1;
    for (uint32_t i = 0; i < scrub->recent_count; i++) {
        const struct scrub_finding *finding = &scrub->recent[i];
        if (run_name_equal(&finding->run, run) && ckpt_id_equal(finding->id, news->id) &&
            strncmp(finding->text, news->text, SCRUB_TEXT_MAX - 1) == 0) {
            return i;
        }
        of_ckpt = finding->id.term != 0 ? i : of_ckpt;
    }
    return scrub->recent_count < SCRUB_RECENT ? scrub->recent_count : of_ckpt;
}

/* Makes room at the front of the recent findings, and returns it. */
static struct scrub_finding *add_recent(struct scrub *scrub, const struct run_name *run,
                                        const struct scrub_news *news)
{
    uint32_t place = place_of(scrub, run, news);
    CHECK(place < SCRUB_RECENT);
    CHECK(place <= scrub->recent_count);
    scrub->recent_count += place == scrub->recent_count;
    memmove(&scrub->recent[1], &scrub->recent[0], place * sizeof(scrub->recent[0]));
    return &scrub->recent[0];
}

static void drop_record_findings(struct scrub *scrub, const struct run_name *run)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < scrub->recent_count; i++) {
        const struct scrub_finding *finding = &scrub->recent[i];
        if (finding->id.term != 0 || !run_name_equal(&finding->run, run)) {
            scrub->recent[kept++] = *finding;
        }
    }
    scrub->recent_count = kept;
}

struct telling {
    struct scrub *scrub;
    const struct scrub_news *news;
};

static void on_news(void *user)
{
    struct scrub *scrub = ((struct telling *)user)->scrub;
    const struct scrub_news *news = ((struct telling *)user)->news;
    const struct scrub_options *options = &scrub->options;
    const struct run_name *run = run_name_of(scrub->run);
    struct scrub_finding *finding;
    switch (news->kind) {
    case SCRUB_FOUND:
        finding = add_recent(scrub, run, news);
        *finding = (struct scrub_finding){.run = *run,
                                          .id = news->id,
                                          .health = news->health,
                                          .wall_ns = loop_wall_ns(options->loop)};
        snprintf(finding->text, sizeof(finding->text), "%s", news->text);
        if (options->found) {
            options->found(options->user, finding);
        }
        return;
    case SCRUB_LOOKED_AT_RECORD:
        drop_record_findings(scrub, run);
        return;
    case SCRUB_IS_DAMAGED:
        if (options->damaged) {
            options->damaged(options->user, run, news->id);
        }
        return;
    case SCRUB_HEALED:
        if (options->healed) {
            options->healed(options->user, run, news->id);
        }
        return;
    }
}

void scrub_tell(struct scrub *scrub, const struct scrub_news *news)
{
    struct telling telling = {scrub, news};
    CHECK(scrub->run);
    scrub->now.counters.findings_total += news->kind == SCRUB_FOUND;
    scrub->now.counters.healed_total += news->kind == SCRUB_HEALED;
    scrub_show(scrub);
    ask_call(&scrub->ask, on_news, &telling);
}
