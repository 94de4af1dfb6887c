/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_interval: how often to save, from measured times. Pure; any thread.
 */
#include "api_private.h"

#include "base/interval.h"

_Static_assert(sizeof((struct cairn_interval){0}.text) >= INTERVAL_TEXT_BYTES, "the text fits");

int cairn_interval(struct cairn_interval *io, struct cairn_error *err)
{
    struct diag diag = DIAG_INIT;
    struct interval_advice advice;
    struct cairn_interval own = CAIRN_INTERVAL_INIT;
    int rc = io == NULL ? diag_set(&diag, CAIRN_E_INVALID, "the argument io is NULL")
                        : args_copy("cairn_interval", sizeof own, io, &own, &diag);
    const struct interval_input input = {
        .blocked_s = own.blocked_s,
        .persist_s = own.persist_s,
        .restart_s = own.restart_s,
        .observed_s = own.observed_s,
        .failures = own.failures,
        .prior_mtbf_s = own.prior_mtbf_s,
        .ranks = (uint32_t)(own.world_size > 0 ? own.world_size : 0),
        .in_flight = (uint32_t)(own.in_flight > 0 ? own.in_flight : 0),
        .overhead_max = own.overhead_max};
    rc = rc != 0 ? rc : interval_advise(&input, &advice, &diag);
    if (rc != 0) {
        return error_fill(err, rc, &diag);
    }
    own.mtbf_s = advice.mtbf_s;
    own.staged_s = advice.staged_s;
    own.durable_s = advice.durable_s;
    own.overhead = advice.overhead;
    own.lost_s = advice.lost_s;
    interval_explain(&input, &advice, own.text);
    args_give(sizeof own, &own, io);
    return 0;
}
