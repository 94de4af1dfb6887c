/* SPDX-License-Identifier: Apache-2.0
 *
 * duty: chooses the daemon of a shared store that does a job which only one should do at a time
 * (gc, scrub). The choice is an entry in the store's own record, taken and renewed by guarded
 * updates, so that at any moment one daemon is named. It is a hint that saves work and noise, and
 * no more: a daemon that is paused between the check and the work does its work beside the next
 * holder. Nothing may be unsafe because two daemons believe that they hold the duty; what must not
 * happen twice is guarded in the record that it concerns.
 *
 * No clocks are compared. A waiting daemon takes over when it has seen the entry unchanged for
 * expire_ms of its own monotonic clock. The holder stops believing that it holds the duty hold_ms
 * after the last confirmed renewal, counted from before it asked for that renewal; hold_ms is a
 * renew_ms less than expire_ms. On a store that is not shared the duty is ours from the start,
 * without an entry.
 *
 *      duty_init(&gc->duty, &options);       options: loop, store, "gc", on_duty
 *      duty_start(&gc->duty);                on_duty(duty, true) when it is ours, (false) when lost
 *      ... between any two steps of the work: if (!duty_is_ours(&gc->duty)) { pause; }
 *      duty_stop(&gc->duty, on_stopped);     gives it back, so that the next need not wait
 *
 * Loop's thread. Callbacks come from a turn of the loop, never inside a call.
 */
#ifndef CAIRN_DAEMON_DUTY_H
#define CAIRN_DAEMON_DUTY_H

#include "base/sm.h"
#include "env/loop.h"
#include "store/store.h"

/* Older daemons take labels of at most 64 bytes; only entries that they do not read have longer
 * ones. */
enum { DUTY_NAME_MAX = 16, DUTY_LABEL_MAX = 240, DUTY_VALUE_MAX = 16 + DUTY_LABEL_MAX };
enum { DUTY_RENEW_MS = 10000 };

struct duty;

struct duty_options {
    struct loop *loop;
    struct store *store;
    const char *name;  /* [a-z]{1,15}; copied */
    const char *label; /* names this daemon (host:pid); cut at DUTY_LABEL_MAX; NULL means "" */
    uint64_t renew_ms; /* 0 means DUTY_RENEW_MS */
    /* At least 3 renew_ms; 0 means four times renew_ms. */
    uint64_t expire_ms;
    void (*changed)(struct duty *duty, bool is_ours);
    /* Called with the store's record each time it was read; may be NULL. It may call
     * duty_drop(). */
    void (*on_record)(struct duty *duty, const struct record *record);
};

struct duty_entry { /* what an entry of the record says */
    uint64_t holder, beat;
    char label[DUTY_LABEL_MAX + 1];
};
/* Returns false if the value is no entry of a duty. */
bool duty_read(const struct record_value *value, struct duty_entry *ret);

enum duty_state {
    DUTY_IDLE,       /* not started */
    DUTY_ALONE,      /* the store is not shared: ours, without an entry */
    DUTY_READS,      /* the store's record is being read */
    DUTY_RESTS,      /* until the next reading */
    DUTY_CLAIMS,     /* the entry is being written */
    DUTY_GIVES_BACK, /* the entry is being removed */
    DUTY_STOPPED
};

struct duty { /* in the caller's memory; its fields are for duty.c */
    struct duty_options options;
    char key[DUTY_NAME_MAX + 8], label[DUTY_LABEL_MAX + 1];
    uint64_t holder, beat;
    struct sm sm; /* enum duty_state */
    bool is_ours, told_ours;
    struct timer timer; /* for the next reading of the entry */
    struct timer hold;  /* ends the belief that the duty is ours */
    struct post post;
    struct store_req req;
    bool busy; /* req is at the store */
    uint64_t asked_ms, held_until_ms;
    uint8_t seen[DUTY_VALUE_MAX + 1]; /* the entry as it was read last */
    uint8_t will[DUTY_VALUE_MAX];     /* the entry as it is to be */
    size_t seen_bytes, will_bytes;    /* 0 if absent */
    uint64_t seen_ms;                 /* since when the entry has been as `seen` */
    bool has_seen;
    char drop_key[DUTY_NAME_MAX + 8]; /* "" means none */
    uint8_t drop[DUTY_VALUE_MAX];
    size_t drop_bytes;
    struct record_guard guards[2]; /* of the entry, and of the one that is dropped */
    struct record_change changes[2];
    struct record_update update;
    void (*stopped)(struct duty *duty); /* set once duty_stop() was called */
};

void duty_init(struct duty *duty, const struct duty_options *options);
/* Asks for the duty now and every renew_ms; asks again after a failure of the store. Called once.
 */
void duty_start(struct duty *duty);
/* Returns true while the last confirmed renewal is young enough. To be called before each step of
 * the work. */
bool duty_is_ours(const struct duty *duty);
/* Removes another entry with the next renewal, if it still has this value then. One at a time: a
 * later call replaces an earlier one. */
void duty_drop(struct duty *duty, const char *key, const struct record_value *value);
/* Returns the label of the holder, or "" if it is not known. Valid until the next turn of the loop.
 */
const char *duty_holder(const struct duty *duty);
/* Stops renewing and gives the duty back if it is ours. Calls stopped when the store was told, or
 * could not be told. `changed` is not called any more. */
void duty_stop(struct duty *duty, void (*stopped)(struct duty *duty));

#endif
