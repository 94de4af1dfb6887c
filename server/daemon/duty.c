/* SPDX-License-Identifier: Apache-2.0
 *
 * duty: see duty.h. READS reads the store's record, and the entry decides whether an update
 * follows, which is guarded by what was read:
 *
 *     IDLE ──► ALONE
 *       │      ours, or absent, or unchanged for expire_ms
 *       └────► READS ──────────────────────────────► CLAIMS
 *                ▲ │ another daemon's                  │
 *                │ ▼                                   │
 *               RESTS ◄────────────────────────────────┘
 *
 * duty_stop() leads from each to STOPPED, through GIVES_BACK if the entry is ours. After an update
 * with an unknown outcome the next reading decides, as always: the entry says who holds the duty.
 * Invariant: only the last confirmed renewal lets this daemon believe that the duty is its own
 * (is_ours), and only until the timer `hold`. Loop's thread.
 */
#include "daemon/duty.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_BYTES = 16, STORE_DEADLINE_MS = 30000 };

static uint64_t hold_ms(const struct duty *duty)
{
    CHECK(duty->options.expire_ms > duty->options.renew_ms);
    return duty->options.expire_ms - duty->options.renew_ms;
}

/* --- believing that the duty is ours -------------------------------------------------------- */

/* Posts a call of `changed`, which comes from the loop and tells what holds at that time. */
static void believe(struct duty *duty, bool is_ours)
{
    duty->is_ours = is_ours;
    if (is_ours != duty->told_ours) {
        loop_post(duty->options.loop, &duty->post);
    }
}

static void lose(struct duty *duty)
{
    timer_stop(&duty->hold);
    believe(duty, false);
}

static void on_hold_over(struct timer *timer)
{
    lose(container_of(timer, struct duty,
                      hold)); /* the store does not answer: another daemon may take over */
}

/* Called when the claim was written: the duty is ours, from the time of the question on. */
static void win(struct duty *duty)
{
    uint64_t now = loop_now_ms(duty->options.loop);
    CHECK(duty->asked_ms <= now);
    CHECK(!duty->stopped);
    duty->held_until_ms = duty->asked_ms + hold_ms(duty);
    if (now >= duty->held_until_ms) { /* the answer came too late to be of use */
        lose(duty);
        return;
    }
    timer_start(&duty->hold, duty->held_until_ms - now);
    believe(duty, true);
}

/* --- the entry ------------------------------------------------------------------------------ */

static void on_answered(struct store_req *req)
{
    struct duty *duty = container_of(req, struct duty, req);
    CHECK(duty->busy);
    duty->busy = false;
    sm_run(&duty->sm);
}

static void submit(struct duty *duty, enum store_op op)
{
    CHECK(!duty->busy);
    CHECK(duty->options.store->caps.shared); /* without others there is no entry */
    duty->busy = true;
    duty->req = (struct store_req){
        .op = op, .update = &duty->update, .deadline_ms = STORE_DEADLINE_MS, .done = on_answered};
    store_submit(duty->options.store, &duty->req);
}

/* Writes the entry, guarded by the entry as it was seen; removes it if bytes is 0. */
static void put(struct duty *duty, size_t bytes)
{
    CHECK(bytes <= DUTY_VALUE_MAX);
    CHECK(duty->has_seen);
    struct record_value seen = {duty->seen_bytes, duty->seen}, will = {bytes, duty->will};
    duty->guards[0] =
        (struct record_guard){.key = duty->key, .absent = duty->seen_bytes == 0, .value = seen};
    duty->changes[0] =
        (struct record_change){.key = duty->key, .remove = bytes == 0, .value = will};
    duty->guards[1] =
        (struct record_guard){.key = duty->drop_key, .value = {duty->drop_bytes, duty->drop}};
    duty->changes[1] = (struct record_change){.key = duty->drop_key, .remove = true};
    size_t count = duty->drop_key[0] != '\0' ? 2 : 1;
    duty->update = (struct record_update){.guard_count = count,
                                          .change_count = count,
                                          .guards = duty->guards,
                                          .changes = duty->changes};
    duty->will_bytes = bytes;
    submit(duty, STORE_RECORD_UPDATE);
}

static bool is_own(const struct duty *duty)
{
    return duty->seen_bytes >= HEAD_BYTES && load_u64(duty->seen) == duty->holder;
}

/* Notes the entry as it is, and since when. */
static void see(struct duty *duty, const struct record_value *value)
{
    /* A longer entry is against the format. Its guard fails, so nobody takes it over. */
    size_t bytes = min_u64(value->bytes, DUTY_VALUE_MAX);
    if (!duty->has_seen || bytes != duty->seen_bytes ||
        (bytes > 0 && memcmp(value->data, duty->seen, bytes) != 0)) {
        duty->seen_ms = loop_now_ms(duty->options.loop);
    }
    duty->has_seen = true;
    duty->seen_bytes = bytes;
    if (bytes > 0) {
        memcpy(duty->seen, value->data, bytes);
    }
    CHECK(bytes < sizeof(duty->seen));
    duty->seen[bytes] = 0;
}

/* --- the states ------------------------------------------------------------------------------- */

static struct duty *of(struct sm *sm) { return container_of(sm, struct duty, sm); }

static enum sm_result to(struct duty *duty, enum duty_state state)
{
    sm_move(&duty->sm, state);
    return SM_AGAIN;
}

/* Called when it is to stop and nothing is under way. */
static enum sm_result end(struct duty *duty)
{
    CHECK(duty->stopped);
    return to(duty, duty->has_seen && is_own(duty) ? DUTY_GIVES_BACK : DUTY_STOPPED);
}

static enum sm_result at_idle(struct sm *sm)
{
    return of(sm)->stopped ? to(of(sm), DUTY_STOPPED) : SM_WAIT;
}

static void enter_reads(struct sm *sm)
{
    struct duty *duty = of(sm);
    duty->asked_ms = loop_now_ms(duty->options.loop);
    submit(duty, STORE_RECORD_GET);
}

/* Decides what follows from the entry. A store that fails is asked again the next time. */
static enum sm_result at_reads(struct sm *sm)
{
    struct duty *duty = of(sm);
    struct record_value value = {0};
    if (duty->busy) {
        return SM_WAIT;
    }
    bool is_known = duty->req.status == 0;
    if (is_known && !record_get(duty->req.ret_record, duty->key, &value)) {
        value = (struct record_value){0};
    }
    if (is_known) {
        see(duty, &value);
        duty->drop_key[0] = '\0';
    }
    if (is_known && duty->options.on_record && !duty->stopped) {
        duty->options.on_record(duty, duty->req.ret_record);
    }
    record_free(duty->req.ret_record);
    if (duty->stopped) {
        return is_known ? end(duty) : to(duty, DUTY_STOPPED);
    }
    if (!is_known) {
        return to(duty, DUTY_RESTS);
    }
    uint64_t unchanged_ms = loop_now_ms(duty->options.loop) - duty->seen_ms;
    if (is_own(duty) || duty->seen_bytes == 0 || unchanged_ms >= duty->options.expire_ms) {
        return to(duty, DUTY_CLAIMS);
    }
    lose(duty);
    return to(duty, DUTY_RESTS);
}

static void enter_rests(struct sm *sm)
{
    struct duty *duty = of(sm);
    timer_start(&duty->timer, duty->options.renew_ms);
}

static enum sm_result at_rests(struct sm *sm)
{
    struct duty *duty = of(sm);
    if (duty->stopped) {
        return end(duty);
    }
    return timer_is_active(&duty->timer) ? SM_WAIT : to(duty, DUTY_READS);
}

static void enter_claims(struct sm *sm)
{
    struct duty *duty = of(sm);
    size_t label = strlen(duty->label);
    CHECK(label <= DUTY_LABEL_MAX);
    store_u64(duty->will, duty->holder);
    /* For people, it says when; what counts is only that it differs from the one before. */
    uint64_t wall_ms = (uint64_t)(loop_wall_ns(duty->options.loop) / 1000000);
    duty->beat = wall_ms > duty->beat ? wall_ms : duty->beat + 1;
    store_u64(duty->will + 8, duty->beat);
    memcpy(duty->will + HEAD_BYTES, duty->label, label);
    put(duty, HEAD_BYTES + label);
}

/* An update with another error is unknown or not done; then the belief ends at its time. */
static enum sm_result at_claims(struct sm *sm)
{
    struct duty *duty = of(sm);
    if (duty->busy) {
        return SM_WAIT;
    }
    if (duty->req.status == 0) {
        see(duty, &(struct record_value){duty->will_bytes, duty->will});
    }
    if (duty->stopped) { /* during a renewal; an entry that is left expires */
        return duty->req.status == 0 ? end(duty) : to(duty, DUTY_STOPPED);
    }
    if (duty->req.status == 0) {
        win(duty);
    } else if (duty->req.status == CAIRN_E_CONFLICT) {
        lose(duty); /* another daemon was faster; the next reading says which */
    }
    return to(duty, DUTY_RESTS);
}

static void enter_gives_back(struct sm *sm) { put(of(sm), 0); }

static enum sm_result at_gives_back(struct sm *sm)
{
    return of(sm)->busy ? SM_WAIT : to(of(sm), DUTY_STOPPED);
}

static void enter_stopped(struct sm *sm)
{
    struct duty *duty = of(sm);
    loop_post(duty->options.loop, &duty->post);
}

static const struct sm_state duty_table[] = {
    [DUTY_IDLE] = {"idle", at_idle, SM_TO(DUTY_ALONE) | SM_TO(DUTY_READS) | SM_TO(DUTY_STOPPED)},
    [DUTY_ALONE] = {"alone", at_idle, SM_TO(DUTY_STOPPED)},
    [DUTY_READS] = {"reads", at_reads,
                    SM_TO(DUTY_RESTS) | SM_TO(DUTY_CLAIMS) | SM_TO(DUTY_GIVES_BACK) |
                        SM_TO(DUTY_STOPPED),
                    .enter = enter_reads},
    [DUTY_RESTS] = {"rests", at_rests,
                    SM_TO(DUTY_READS) | SM_TO(DUTY_GIVES_BACK) | SM_TO(DUTY_STOPPED),
                    .enter = enter_rests},
    [DUTY_CLAIMS] = {"claims", at_claims,
                     SM_TO(DUTY_RESTS) | SM_TO(DUTY_GIVES_BACK) | SM_TO(DUTY_STOPPED),
                     .enter = enter_claims},
    [DUTY_GIVES_BACK] = {"gives back", at_gives_back, SM_TO(DUTY_STOPPED),
                         .enter = enter_gives_back},
    [DUTY_STOPPED] = {"stopped", NULL, 0, .enter = enter_stopped},
};

/* CHECKs the invariant of a duty that has just moved to another state. */
static void check(const struct sm *sm)
{
    const struct duty *duty = container_of(sm, struct duty, sm);
    bool is_shared = duty->options.store->caps.shared;
    CHECK(!duty->busy);
    CHECK(!timer_is_active(&duty->timer));
    CHECK(!is_shared || !sm_is(sm, DUTY_ALONE));
    CHECK(!is_shared || duty->is_ours == timer_is_active(&duty->hold));
    CHECK(is_shared || sm_is(sm, DUTY_ALONE) || sm_is(sm, DUTY_STOPPED));
    CHECK(!duty->stopped || !duty->is_ours);
    CHECK(!duty->stopped || sm_is(sm, DUTY_GIVES_BACK) || sm_is(sm, DUTY_STOPPED));
    if (sm_is(sm, DUTY_CLAIMS) || sm_is(sm, DUTY_GIVES_BACK)) {
        CHECK(duty->has_seen);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_timer(struct timer *timer) { sm_run(&container_of(timer, struct duty, timer)->sm); }

/* Tells the owner that the duty was won or lost, or that it has stopped. */
static void on_post(struct post *post)
{
    struct duty *duty = container_of(post, struct duty, post);
    if (sm_is(&duty->sm, DUTY_STOPPED)) {
        duty->stopped(duty);
    } else if (!duty->stopped && duty->is_ours != duty->told_ours) {
        duty->told_ours = duty->is_ours;
        duty->options.changed(duty, duty->is_ours);
    }
}

void duty_init(struct duty *duty, const struct duty_options *options)
{
    *duty = (struct duty){.options = *options};
    CHECK(options->changed);
    CHECK(strlen(options->name) > 0);
    CHECK(strlen(options->name) < DUTY_NAME_MAX);
    if (duty->options.renew_ms == 0) {
        duty->options.renew_ms = DUTY_RENEW_MS;
    }
    if (duty->options.expire_ms == 0) {
        duty->options.expire_ms = 4 * duty->options.renew_ms;
    }
    CHECK(duty->options.expire_ms >= 3 * duty->options.renew_ms);
    snprintf(duty->key, sizeof(duty->key), "duty/%s", options->name);
    snprintf(duty->label, sizeof(duty->label), "%s", options->label ? options->label : "");
    duty->options.name = duty->options.label = NULL; /* they belong to the caller */
    loop_random(options->loop, sizeof(duty->holder), &duty->holder);
    timer_init(&duty->timer, options->loop, on_timer);
    timer_init(&duty->hold, options->loop, on_hold_over);
    duty->post.cb = on_post;
    sm_init(&duty->sm, duty_table, DUTY_IDLE, "duty", 0);
    duty->sm.invariant = check;
}

void duty_start(struct duty *duty)
{
    CHECK(sm_is(&duty->sm, DUTY_IDLE));
    CHECK(!duty->stopped);
    bool is_shared = duty->options.store->caps.shared;
    sm_move(&duty->sm, is_shared ? DUTY_READS : DUTY_ALONE);
    believe(duty, !is_shared); /* the lock of a store that is not shared protects the duty */
}

bool duty_is_ours(const struct duty *duty)
{
    return duty->is_ours && (!duty->options.store->caps.shared ||
                             loop_now_ms(duty->options.loop) < duty->held_until_ms);
}

void duty_drop(struct duty *duty, const char *key, const struct record_value *value)
{
    CHECK(strcmp(key, duty->key) != 0);
    if (strlen(key) < sizeof(duty->drop_key) && value->bytes <= sizeof(duty->drop)) {
        snprintf(duty->drop_key, sizeof(duty->drop_key), "%s", key);
        memcpy(duty->drop, value->data, value->bytes);
        duty->drop_bytes = value->bytes;
    }
}

bool duty_read(const struct record_value *value, struct duty_entry *ret)
{
    if (value->bytes < HEAD_BYTES || value->bytes > DUTY_VALUE_MAX) {
        return false;
    }
    *ret = (struct duty_entry){.holder = load_u64(value->data), .beat = load_u64(value->data + 8)};
    memcpy(ret->label, value->data + HEAD_BYTES, value->bytes - HEAD_BYTES);
    return true;
}

const char *duty_holder(const struct duty *duty)
{
    if (duty->is_ours) {
        return duty->label;
    }
    return duty->has_seen && duty->seen_bytes > HEAD_BYTES ? (const char *)duty->seen + HEAD_BYTES
                                                           : "";
}

void duty_stop(struct duty *duty, void (*stopped)(struct duty *duty))
{
    CHECK(!duty->stopped);
    CHECK(stopped != NULL);
    duty->stopped = stopped;
    duty->is_ours = false;
    timer_stop(&duty->hold);
    timer_stop(&duty->timer);
    sm_run(&duty->sm); /* what is under way ends first */
}
