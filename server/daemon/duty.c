/* SPDX-License-Identifier: Apache-2.0
 *
 * duty: see duty.h. A look reads the store's record, and the entry decides whether an update
 * follows:
 *
 *      look --> ours, or absent, or unchanged for expire_ms --> update (guarded by what was read)
 *       ^         else                                              |
 *       +--- timer, renew_ms ---------------------------------------+
 *
 * After an update with an unknown outcome the next look decides, as always: the entry says who
 * holds the duty. Loop's thread.
 */
#include "daemon/duty.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_BYTES = 16, STORE_DEADLINE_MS = 30000 };

static void on_timer(struct timer *timer);
static void on_hold_over(struct timer *timer);
static void on_post(struct post *post);
static void on_looked(struct store_req *req);
static void on_updated(struct store_req *req);

static uint64_t hold_ms(const struct duty *duty)
{
    CHECK(duty->options.expire_ms > duty->options.renew_ms);
    return duty->options.expire_ms - duty->options.renew_ms;
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
}

/* Posts a call of `changed`, which comes from the loop and tells the state at that time. */
static void tell(struct duty *duty)
{
    if ((duty->state == DUTY_OURS) != (duty->told == DUTY_OURS)) {
        loop_post(duty->options.loop, &duty->post);
    }
}

/* Tells the owner that the duty was won or lost, or that it has stopped. */
static void on_post(struct post *post)
{
    struct duty *duty = container_of(post, struct duty, post);
    if (duty->stopping) {
        if (!duty->busy && duty->stopped) {
            void (*stopped)(struct duty * duty) = duty->stopped;
            duty->stopped = NULL;
            stopped(duty);
        }
        return;
    }
    CHECK(duty->state != DUTY_IDLE);
    bool is_ours = duty->state == DUTY_OURS;
    if (is_ours != (duty->told == DUTY_OURS)) {
        duty->told = duty->state;
        duty->options.changed(duty, is_ours);
    }
}

void duty_start(struct duty *duty)
{
    CHECK(duty->state == DUTY_IDLE);
    CHECK(!duty->stopping);
    if (!duty->options.store->caps.shared) {
        duty->state = DUTY_OURS; /* the store's lock protects the duty */
        tell(duty);
        return;
    }
    duty->state = DUTY_WAITING;
    timer_start(&duty->timer, 0);
}

bool duty_is_ours(const struct duty *duty)
{
    if (duty->state != DUTY_OURS || duty->stopping) {
        return false;
    }
    return !duty->options.store->caps.shared ||
           loop_now_ms(duty->options.loop) < duty->held_until_ms;
}

const char *duty_holder(const struct duty *duty)
{
    if (duty->state == DUTY_OURS) {
        return duty->label;
    }
    return duty->has_seen && duty->seen_bytes > HEAD_BYTES ? (const char *)duty->seen + HEAD_BYTES
                                                           : "";
}

/* --- believing that the duty is ours -------------------------------------------------------- */

static void lose(struct duty *duty)
{
    timer_stop(&duty->hold);
    if (duty->state == DUTY_OURS) {
        duty->state = DUTY_WAITING;
        tell(duty);
    }
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
    CHECK(!duty->stopping);
    duty->held_until_ms = duty->asked_ms + hold_ms(duty);
    if (now >= duty->held_until_ms) { /* the answer came too late to be of use */
        lose(duty);
        return;
    }
    timer_start(&duty->hold, duty->held_until_ms - now);
    duty->state = DUTY_OURS;
    tell(duty);
}

/* --- the entry ------------------------------------------------------------------------------ */

static void submit(struct duty *duty, enum store_op op, void (*done)(struct store_req *req))
{
    CHECK(!duty->busy);
    CHECK(duty->options.store->caps.shared); /* without others there is no entry */
    duty->busy = true;
    duty->req = (struct store_req){
        .op = op, .update = &duty->update, .deadline_ms = STORE_DEADLINE_MS, .done = done};
    store_submit(duty->options.store, &duty->req);
}

/* Writes the entry, guarded by the entry as it was seen; removes it if bytes is 0. */
static void put(struct duty *duty, size_t bytes)
{
    CHECK(bytes <= DUTY_VALUE_MAX);
    CHECK(duty->has_seen);
    struct record_value seen = {duty->seen_bytes, duty->seen}, will = {bytes, duty->will};
    duty->guard =
        (struct record_guard){.key = duty->key, .absent = duty->seen_bytes == 0, .value = seen};
    duty->change = (struct record_change){.key = duty->key, .remove = bytes == 0, .value = will};
    duty->update = (struct record_update){
        .guard_count = 1, .change_count = 1, .guards = &duty->guard, .changes = &duty->change};
    duty->will_bytes = bytes;
    submit(duty, STORE_RECORD_UPDATE, on_updated);
}

static void claim(struct duty *duty)
{
    size_t label = strlen(duty->label);
    CHECK(label <= DUTY_LABEL_MAX);
    CHECK(!duty->stopping);
    store_u64(duty->will, duty->holder);
    store_u64(duty->will + 8, ++duty->beat);
    memcpy(duty->will + HEAD_BYTES, duty->label, label);
    put(duty, HEAD_BYTES + label);
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

static void end_step(struct duty *duty)
{
    if (duty->stopping) {
        loop_post(duty->options.loop, &duty->post);
    } else {
        timer_start(&duty->timer, duty->options.renew_ms);
    }
}

/* Called when the entry is known: decides what follows. */
static void decide(struct duty *duty)
{
    CHECK(duty->has_seen);
    uint64_t unchanged_ms = loop_now_ms(duty->options.loop) - duty->seen_ms;
    if (duty->stopping) {
        if (is_own(duty)) {
            put(duty, 0);
            return;
        }
    } else if (is_own(duty) || duty->seen_bytes == 0 || unchanged_ms >= duty->options.expire_ms) {
        claim(duty);
        return;
    } else {
        lose(duty);
    }
    end_step(duty);
}

static void on_timer(struct timer *timer)
{
    struct duty *duty = container_of(timer, struct duty, timer);
    if (!duty->busy) {
        duty->asked_ms = loop_now_ms(duty->options.loop);
        submit(duty, STORE_RECORD_GET, on_looked);
    }
}

/* Called with the store's record. A store that fails is asked again with the next look. */
static void on_looked(struct store_req *req)
{
    struct duty *duty = container_of(req, struct duty, req);
    struct record_value value = {0};
    CHECK(duty->busy);
    duty->busy = false;
    if (req->status != 0) {
        record_free(req->ret_record);
        end_step(duty);
        return;
    }
    if (!record_get(req->ret_record, duty->key, &value)) {
        value = (struct record_value){0};
    }
    see(duty, &value);
    record_free(req->ret_record);
    decide(duty);
}

/* Called when the entry was written, or could not be. */
static void on_updated(struct store_req *req)
{
    struct duty *duty = container_of(req, struct duty, req);
    CHECK(duty->busy);
    duty->busy = false;
    if (req->status == 0) {
        see(duty, &(struct record_value){duty->will_bytes, duty->will});
        if (duty->stopping && duty->seen_bytes > 0) {
            put(duty, 0); /* the stop came during a renewal */
            return;
        }
        if (!duty->stopping) {
            win(duty);
        }
    } else if (req->status == CAIRN_E_CONFLICT) {
        lose(duty); /* another daemon was faster; the next look says which */
    }
    end_step(duty); /* otherwise unknown or not done; the belief ends at its time */
}

void duty_stop(struct duty *duty, void (*stopped)(struct duty *duty))
{
    bool was_started = duty->state != DUTY_IDLE;
    CHECK(!duty->stopping);
    CHECK(stopped != NULL);
    duty->stopping = true;
    duty->stopped = stopped;
    timer_stop(&duty->hold);
    timer_stop(&duty->timer);
    duty->state = DUTY_IDLE;
    if (duty->busy) {
        return; /* the request in flight ends first; an entry that it leaves expires */
    }
    if (was_started && duty->options.store->caps.shared && is_own(duty)) {
        put(duty, 0);
    } else {
        loop_post(duty->options.loop, &duty->post);
    }
}
