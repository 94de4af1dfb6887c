/* SPDX-License-Identifier: Apache-2.0
 *
 * See estimate.h. Everything is a double: an estimate needs no exact bytes, and a product that is
 * too large for any store is seen at the end, instead of an overflow at every step.
 */
#include "estimate.h"

#include "base/check.h"

#include <math.h>

static const double MOST_BYTES = 0x1p60, MONTH_S = 3600.0 * ESTIMATE_HOURS_PER_MONTH, TIB = 0x1p40;

static int check_input(const struct estimate_input *input, struct diag *diag)
{
    const struct {
        const char *name;
        double value;
        bool may_be_zero;
    } fields[] = {{"--params", input->params, false},
                  {"--bytes-per-param", input->bytes_per_param, false},
                  {"--stored-ratio", input->stored_ratio, false},
                  {"--copy-rate", input->copy_rate, false},
                  {"--price-per-tib", input->price_per_tib, true},
                  {"--restart", input->restart_s, true},
                  {"--mtbf", input->mtbf_s / 3600, true},
                  {"--overhead-max", input->overhead_max * 100, false}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        bool good = fields[i].value > 0 || (fields[i].value == 0 && fields[i].may_be_zero);
        if (!good || !isfinite(fields[i].value)) {
            return diag_set(diag, CAIRN_E_INVALID, "%s %g is not possible; it must be %s",
                            fields[i].name, fields[i].value,
                            fields[i].may_be_zero ? "0 or more" : "above 0");
        }
    }
    if (input->stored_ratio > 1) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--stored-ratio %g is not possible; it is a share "
                        "of the bytes, at most 1 (`cairn stats` shows both)",
                        input->stored_ratio);
    }
    if (input->overhead_max >= 1) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--overhead-max %g is not possible; it is a "
                        "percentage below 100",
                        input->overhead_max * 100);
    }
    if (input->free_share >= 1) {
        return diag_set(diag, CAIRN_E_INVALID, "[gc] pressure = %g leaves no room for checkpoints",
                        input->free_share * 100);
    }
    return 0;
}

/* Returns the ranks of a node that is full; the others need less. */
static double ranks_of_node(const struct estimate_input *input)
{
    return (double)min_u64(input->ranks, input->ranks_per_node);
}

static void size_state(const struct estimate_input *input, struct estimate *io)
{
    io->checkpoint_bytes = ceil(input->params * input->bytes_per_param);
    io->stored_bytes = ceil(io->checkpoint_bytes * input->stored_ratio);
    io->rank_bytes = ceil(io->checkpoint_bytes / (double)input->ranks);
    io->arena_bytes = io->rank_bytes * (double)input->snapshots;
    io->arena_node_bytes = ceil(io->arena_bytes * ranks_of_node(input));
}

static int choose_interval(const struct estimate_input *input, struct estimate *io,
                           struct diag *diag)
{
    io->input = (struct interval_input){
        .blocked_s = io->rank_bytes / input->copy_rate,
        .persist_s = input->write_rate > 0 ? io->stored_bytes / input->write_rate : 0,
        .restart_s = input->restart_s,
        .prior_mtbf_s = input->mtbf_s,
        .ranks = (uint32_t)input->ranks,
        .in_flight = (uint32_t)input->snapshots,
        .overhead_max = input->overhead_max};
    int status = interval_advise(&io->input, &io->advice, diag);
    if (status != 0) {
        return status;
    }
    io->interval_s = input->interval_s > 0 ? input->interval_s : io->advice.durable_s;
    struct interval_input given = io->input;
    if (input->write_rate == 0) { /* durable just before the next save begins */
        given.persist_s = io->interval_s;
    }
    io->at = io->advice;
    io->at.durable_s = io->interval_s;
    interval_cost(&given, &io->at);
    io->failures_per_month = MONTH_S / io->at.mtbf_s;
    io->lost_rank_hours_per_month = io->at.waste * (double)input->ranks * ESTIMATE_HOURS_PER_MONTH;
    return 0;
}

static void size_store(const struct estimate_input *input, struct estimate *io)
{
    io->write_rate = io->stored_bytes / io->interval_s;
    io->network_rate = io->checkpoint_bytes / io->interval_s;
    io->network_node_rate = io->network_rate / (double)input->ranks * ranks_of_node(input);
    io->is_durable_in_time = input->write_rate == 0 || input->write_rate >= io->write_rate;
    io->unforgotten = ceil(input->forget_s / io->interval_s);
    io->waiting = ceil(input->wait_s / io->interval_s);
    /* The 1 is the save in flight. */
    double count = (double)input->keep + io->unforgotten + 1 + io->waiting;
    io->disk_bytes =
        ceil((io->stored_bytes * count + input->reserve_bytes) / (1 - input->free_share));
    io->price = io->disk_bytes / TIB * input->price_per_tib;
}

int estimate_make(const struct estimate_input *input, struct estimate *ret, struct diag *diag)
{
    struct estimate plan = {.interval_s = 0};
    CHECK(input->ranks > 0 && input->ranks_per_node > 0 && input->snapshots > 0);
    int status = check_input(input, diag);
    if (status == 0) {
        size_state(input, &plan);
        bool fits = plan.checkpoint_bytes >= 1 && plan.checkpoint_bytes <= MOST_BYTES &&
                    plan.arena_node_bytes <= MOST_BYTES;
        status = fits ? choose_interval(input, &plan, diag)
                      : diag_set(diag, CAIRN_E_INVALID,
                                 "--params %g of %g bytes is not possible; a checkpoint has 1 "
                                 "byte to 1 EiB",
                                 input->params, input->bytes_per_param);
    }
    if (status == 0) {
        size_store(input, &plan);
        if (!(plan.disk_bytes <= MOST_BYTES && plan.network_rate <= MOST_BYTES)) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the disk needs %g bytes and takes %g a second, more than 1 EiB; "
                            "keep less, or save less often",
                            plan.disk_bytes, plan.write_rate);
        }
        *ret = plan;
    }
    return status;
}
