/* SPDX-License-Identifier: Apache-2.0
 *
 * Watches the answers of a store from outside, to learn whether it works or refuses. Requests pass
 * through unchanged. A refusal is an error of the store, not an answer about the thing that was
 * asked for (NOT_FOUND, EXISTS, CONFLICT and DAMAGED are answers). The row of refusals ends with
 *
 *   - a success of the operation that was refused last, or
 *   - a probe (STORE_PROBE) that succeeds, unless the refusal was of a kind that one small thing
 *     does not disprove (no room, no right). Such a refusal is believed until it is old; one for
 *     lack of room until as many bytes were removed as there was no room for.
 *
 * So one unreadable object does not condemn a store, and a store that nobody uses is found to be
 * ill, and to be well again, without anybody's help. A probe is sent after each refusal, often
 * while it lasts, and from time to time when nothing was written. A probe that does not come back
 * tells something too: the store does not answer.
 */
#include "store_wrap.h"

#include "base/check.h"
#include "wrap_frame.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    IDLE_MS = 10000,   /* a probe is sent when nothing was written for this long */
    ILL_MS = 2000,     /* between two probes while the store refuses */
    SILENT_MS = 20000, /* a probe that takes longer, while nothing else succeeds, means no answer */
    RECENT_MS = 60000, /* for this long a store that works again counts as recovered */
    BELIEVE_MS = 300000 /* how long a refusal that a probe does not disprove is believed */
};

struct watch_store {
    struct wrap_store wrap;
    struct store_watch_options options;
    struct timer timer; /* for the next probe */
    struct store_req probe;
    bool probing, ill, told_ill, closing;
    uint64_t probe_ms, wrote_ms,
        /* When the probe began; the last success of a change (0 if none); the last success of
         * anything. */
        well_ms;
    enum store_op op; /* the operation that was refused last */
    struct diag refusal;
    uint64_t first_ms, last_ms, recovered_ms, refusals, refusals_total;
    /* After a lack of room: how much was asked for, and how much was removed since. */
    uint64_t wanted_bytes, removed_bytes;
    void (*close_done)(void *user);
    void *close_user;
};

static struct watch_store *watch_of(const struct store *base)
{
    return container_of(base, struct watch_store, wrap.base);
}

static uint64_t now_ms(const struct watch_store *watch) { return loop_now_ms(watch->wrap.loop); }

/* Returns true if the error says that the store does not serve at present. Other errors are about
 * the request alone. */
static bool is_refusal(int status)
{
    static const int refusals[] = {CAIRN_E_TIMED_OUT,
                                   CAIRN_E_OUTCOME_UNKNOWN,
                                   CAIRN_E_UNREACHABLE,
                                   CAIRN_E_CONNECTION_LOST,
                                   CAIRN_E_AUTH,
                                   CAIRN_E_DENIED,
                                   CAIRN_E_NO_SPACE,
                                   CAIRN_E_QUOTA,
                                   CAIRN_E_IO,
                                   CAIRN_E_READ_ONLY,
                                   CAIRN_E_NO_STORE,
                                   CAIRN_E_STORE_LOCKED,
                                   CAIRN_E_UNSUPPORTED,
                                   CAIRN_E_CONFIG,
                                   CAIRN_E_STORE_FEATURES,
                                   CAIRN_E_STORE_MISMATCH};
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        if (status == refusals[i]) {
            return true;
        }
    }
    return false;
}

/* Returns true for a refusal that a probe does not disprove: a small thing in the store's own place
 * says nothing about a large one in another place. */
static bool is_lasting(int status)
{
    return status == CAIRN_E_NO_SPACE || status == CAIRN_E_QUOTA || status == CAIRN_E_DENIED ||
           status == CAIRN_E_READ_ONLY;
}

static bool makes_something(enum store_op op)
{
    return op == STORE_CREATE || op == STORE_WRITE || op == STORE_SEAL || op == STORE_PUBLISH ||
           op == STORE_RECORD_UPDATE || op == STORE_PROBE;
}

static void tell(struct watch_store *watch)
{
    if (watch->told_ill != watch->ill && watch->options.changed) {
        watch->options.changed(watch->options.user, watch->ill, &watch->refusal);
    }
    watch->told_ill = watch->ill;
}

static bool is_room(int status) { return status == CAIRN_E_NO_SPACE || status == CAIRN_E_QUOTA; }

/* Returns true if as much was removed as there was no room for. A small thing that can be written
 * then shows that there is room, and the next large one shows whether it is enough. */
static bool has_made_room(const struct watch_store *watch)
{
    return is_room(watch->refusal.code) && watch->removed_bytes > 0 &&
           watch->removed_bytes >= watch->wanted_bytes;
}

/* Notes that the store has served. The refusal is over once the refused operation succeeds, or a
 * probe does and nothing speaks against it. */
static void note_success(struct watch_store *watch, const struct store_req *req)
{
    uint64_t now = now_ms(watch);
    enum store_op op = req->op;
    if (op == STORE_DELETE_OBJECT) {
        watch->removed_bytes += req->bytes;
    }
    watch->well_ms = now;
    if (makes_something(op)) {
        watch->wrote_ms = now;
    }
    bool is_disproved = !is_lasting(watch->refusal.code) || has_made_room(watch) ||
                        now - watch->last_ms >= BELIEVE_MS;
    bool is_over = op == watch->op || (op == STORE_PROBE && is_disproved);
    if (watch->ill && is_over) {
        watch->ill = false;
        watch->recovered_ms = now;
        tell(watch);
    }
}

/* Notes that the store has refused an operation, with the reason and, for want of room, the bytes
 * that were wanted. */
static void note_refusal(struct watch_store *watch, const struct store_req *req)
{
    uint64_t now = now_ms(watch);
    if (!watch->ill) {
        watch->first_ms = now;
        watch->refusals = 0;
    }
    watch->ill = true;
    watch->op = req->op;
    watch->last_ms = now;
    watch->refusals++;
    watch->refusals_total++;
    if (req->op != STORE_PROBE || !is_room(watch->refusal.code)) { /* a probe asks for no room */
        watch->wanted_bytes = req->op == STORE_CREATE ? req->bytes : 0;
        watch->removed_bytes = 0;
    }
    watch->refusal = req->diag;
    if (watch->refusal.code == 0) {
        watch->refusal = DIAG_INIT;
        err_ignore(diag_set(&watch->refusal, req->status, "%s", err_text(req->status)));
    }
    tell(watch);
}

static void note(struct watch_store *watch, const struct store_req *req)
{
    if (req->status == 0) {
        note_success(watch, req);
    } else if (is_refusal(req->status)) {
        note_refusal(watch, req);
    }
}

/* --- probes ----------------------------------------------------------------------------------- */

static void close_now(struct watch_store *watch)
{
    wrap_close(&watch->wrap.base, watch->close_done, watch->close_user);
}

/* Called when a probe has ended. While the store refuses, the next probe comes sooner. */
static void on_probed(struct store_req *req)
{
    struct watch_store *watch = container_of(req, struct watch_store, probe);
    watch->probing = false;
    note(watch, req);
    if (watch->closing) {
        close_now(watch);
    } else {
        timer_start(&watch->timer, watch->ill ? ILL_MS : IDLE_MS);
    }
}

static void send_probe(struct watch_store *watch)
{
    CHECK(!watch->probing);
    watch->probing = true;
    watch->probe_ms = now_ms(watch);
    watch->probe = (struct store_req){.op = STORE_PROBE, .done = on_probed};
    store_submit(watch->wrap.inner, &watch->probe);
}

/* Called when a probe is due. A save that was written a moment ago shows as much, so the probe
 * waits. */
static void on_timer(struct timer *timer)
{
    struct watch_store *watch = container_of(timer, struct watch_store, timer);
    uint64_t quiet_ms = now_ms(watch) - watch->wrote_ms;
    if (!watch->ill && watch->wrote_ms > 0 && quiet_ms < IDLE_MS) {
        timer_start(timer, IDLE_MS - quiet_ms); /* the write has shown as much */
    } else {
        send_probe(watch);
    }
}

/* --- the store -------------------------------------------------------------------------------- */

/* Called when a request has ended. The first refusal is followed by a probe at once. */
static void watch_done(struct store_req *req)
{
    struct wrap_frame *frame = req->wrap;
    struct watch_store *watch = container_of(frame->store, struct watch_store, wrap);
    bool was_ill = watch->ill;
    note(watch, req);
    if (watch->ill && !was_ill && !watch->probing && !watch->closing &&
        !watch->wrap.inner->caps.read_only) {
        /* The probe shows whether it is the store, or one thing in it. */
        timer_start(&watch->timer, 0);
    }
    wrap_answer(frame);
}

static void watch_submit(struct store *base, struct store_req *req)
{
    struct watch_store *watch = watch_of(base);
    struct wrap_frame *frame = wrap_push(&watch->wrap, req, sizeof(*frame), watch_done);
    if (frame != NULL) {
        wrap_forward(frame);
    }
}

static void watch_close(struct store *base, void (*done)(void *user), void *user)
{
    struct watch_store *watch = watch_of(base);
    CHECK(!watch->closing);
    watch->closing = true;
    watch->close_done = done;
    watch->close_user = user;
    timer_stop(&watch->timer);
    if (!watch->probing) {
        close_now(watch);
    }
}

static const struct store_ops watch_ops = {.submit = watch_submit, .close = watch_close};

int store_watch_new(struct loop *loop, struct store *inner,
                    const struct store_watch_options *options, struct store **ret)
{
    struct watch_store *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    wrap_store_init(&watch->wrap, loop, inner, &watch_ops);
    watch->options = *options;
    watch->well_ms = now_ms(watch); /* it was just opened */
    timer_init(&watch->timer, loop, on_timer);
    if (inner->caps.read_only) {
        watch->ill = watch->told_ill = true;
        watch->op = STORE_PROBE;
        watch->first_ms = watch->last_ms = now_ms(watch);
        watch->refusals = 1;
        err_ignore(diag_set(&watch->refusal, CAIRN_E_READ_ONLY, "the store is read-only: %s",
                            inner->caps.read_only_why[0] != 0 ? inner->caps.read_only_why
                                                              : "it was opened for reading only"));
    } else {
        timer_start(&watch->timer, 0); /* so that the first state comes from a probe */
    }
    *ret = &watch->wrap.base;
    return 0;
}

void store_watch_state(const struct store *store, struct store_state *ret)
{
    const struct watch_store *watch = watch_of(store);
    uint64_t now = now_ms(watch);
    CHECK(store->ops == &watch_ops);
    *ret = (struct store_state){.word = STORE_WELL};
    bool is_silent =
        watch->probing && now - watch->probe_ms >= SILENT_MS && now - watch->well_ms >= SILENT_MS;
    bool is_recent = watch->recovered_ms > 0 && now - watch->recovered_ms < RECENT_MS;
    if (watch->ill || is_recent) {
        *ret = (struct store_state){.word = watch->ill ? STORE_REFUSING : STORE_RECOVERED,
                                    .refusal = watch->refusal,
                                    .since_ms = now - watch->first_ms,
                                    .last_ms = now - watch->last_ms,
                                    .refusals = watch->refusals,
                                    .refusals_total = watch->refusals_total,
                                    .wanted_bytes = watch->ill ? watch->wanted_bytes : 0};
    }
    if (is_silent && !watch->ill) {
        *ret = (struct store_state){.word = STORE_REFUSING,
                                    .since_ms = now - watch->probe_ms,
                                    .last_ms = now - watch->probe_ms,
                                    .refusals = 1};
        err_ignore(diag_set(&ret->refusal, CAIRN_E_TIMED_OUT,
                            "the store has not answered for %" PRIu64
                            " s; check the kernel's log and the disk, or the cluster",
                            (now - watch->probe_ms) / 1000));
    }
}
