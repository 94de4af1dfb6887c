/* SPDX-License-Identifier: Apache-2.0
 *
 * /runs/PROJECT/NAME: one run with its terms, its days and the durations of its saves; its
 * checkpoints and its log in pages.
 */
#include "rest/rest_private.h"

#include "base/check.h"
#include "run/run_info.h"

enum { TERMS_MAX = 500, DAYS_MAX = 60, SCRATCH_MAX = 16 << 20 };

/* Writes the newest terms: which checkpoint each continued, and whether it is on the lineage. */
static void write_terms(struct json *json, const struct run_state *state)
{
    size_t first = state->term_count > TERMS_MAX ? state->term_count - TERMS_MAX : 0;
    json_open(json, "terms", '[');
    for (size_t i = first; i < state->term_count; i++) {
        const struct state_term *term = &state->terms[i];
        json_open(json, NULL, '{');
        json_u64(json, "term", term->term);
        json_u64(json, "parent_term", term->entry.parent.term);
        json_u64(json, "parent_step", term->entry.parent.step);
        json_bool(json, "has_commit", term->entered);
        json_bool(json, "on_lineage", term->on_lineage);
        json_bool(json, "planned", state_term_is_planned(state, term->term));
        json_close(json, '}');
    }
    json_close(json, ']');
}

/* Writes the figures of the newest days, which the record keeps. */
static void write_days(struct json *json, const struct run_state *state)
{
    size_t first = state->day_count > DAYS_MAX ? state->day_count - DAYS_MAX : 0;
    json_open(json, "days", '[');
    for (size_t i = first; i < state->day_count; i++) {
        const struct entry_day *day = &state->days[i].entry;
        json_open(json, NULL, '{');
        json_wall(json, "day", (int64_t)state->days[i].day * DAY_NS);
        json_u64(json, "timed_saves", day->timed_saves);
        json_u64(json, "blocked_ms", day->blocked_ms);
        json_u64(json, "persist_ms", day->persist_ms);
        json_u64(json, "saves_aborted", day->saves_aborted);
        json_u64(json, "restores", day->restores);
        json_u64(json, "restores_failed", day->restores_failed);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void ms_or_null(struct json *json, const char *name, bool is_known, uint64_t ms)
{
    if (is_known) {
        json_u64(json, name, ms);
    } else {
        json_str(json, name, NULL);
    }
}

/* Writes the durations of the saves that this daemon has seen. */
static void write_times(struct json *json, const struct run_overview *run)
{
    CHECK(run->time_count <= RUN_TIMES_MAX);
    json_open(json, "saves", '[');
    for (size_t i = 0; i < run->time_count; i++) {
        const struct run_time *time = &run->times[i];
        json_open(json, NULL, '{');
        json_ckpt_id(json, time->id);
        ms_or_null(json, "took_ms", time->took_ms != 0, time->took_ms);
        ms_or_null(json, "blocked_ms", time->is_reported, time->blocked_ms);
        ms_or_null(json, "persist_ms", time->is_reported, time->persist_ms);
        json_close(json, '}');
    }
    json_close(json, ']');
}

int rest_run(struct rest_call *call, struct diag *diag)
{
    struct run_overview run;
    int status = rest_find_run(call, &run, diag);
    if (status == 0) {
        CHECK(run.state != NULL);
        rest_json_run(call->json, &run, 0);
        write_terms(call->json, run.state);
        write_times(call->json, &run);
        write_days(call->json, run.state);
    }
    return status;
}

/* Gives the arguments that both lists have. */
static int page_of(const struct rest_call *call, uint64_t *ret_before, uint64_t *ret_limit,
                   struct diag *diag)
{
    int status = rest_limit(call, 100, ret_limit, diag);
    return status != 0 ? status
                       : rest_arg_u64(call->request, "before",
                                      (struct rest_range){0, 0, UINT64_MAX}, ret_before, diag);
}

/* Writes how the next page is asked for: with before=`next`. */
static void write_next(struct json *json, bool more, uint64_t next)
{
    json_close(json, ']');
    json_bool(json, "more", more);
    if (more) {
        json_u64(json, "next", next);
    } else {
        json_str(json, "next", NULL);
    }
}

int rest_checkpoints(struct rest_call *call, struct diag *diag)
{
    struct run_overview run;
    struct msg_list ask = {.before_seq = 0};
    struct msg_list_reply reply = {0};
    struct scratch scratch;
    uint64_t limit = 0, forgotten = 0, next = 0;
    int status = page_of(call, &ask.before_seq, &limit, diag);
    if (status == 0) {
        status = rest_arg_u64(call->request, "forgotten", (struct rest_range){0, 0, 1}, &forgotten,
                              diag);
    }
    status = status != 0 ? status : rest_find_run(call, &run, diag);
    if (status != 0) {
        return status;
    }
    /* Open saves have no sequence to go on from, so they come beside the first page. */
    bool has_opens = ask.before_seq == 0 && forgotten == 0;
    ask.limit = (uint32_t)(limit + (has_opens ? run.state->open_count : 0));
    ask.forgotten = forgotten != 0;
    scratch_init(&scratch, SCRATCH_MAX);
    status = run_info_list(run.state, &ask, &scratch, &reply);
    CHECK(status != 0 || reply.count <= ask.limit);
    json_open(call->json, "checkpoints", '[');
    for (uint32_t i = 0; status == 0 && i < reply.count; i++) {
        if (call->json->buf.bytes >= REST_PAGE_BYTES && next != 0) {
            reply.more = true;
            break;
        }
        json_info(call->json, NULL, &reply.entries[i]);
        next = reply.entries[i].seq;
    }
    write_next(call->json, reply.more, next);
    scratch_fini(&scratch);
    return status != 0 ? diag_no_memory(diag, "a list of checkpoints") : 0;
}

int rest_log(struct rest_call *call, struct diag *diag)
{
    struct run_overview run;
    struct msg_log ask = {.before_seq = 0};
    struct msg_log_reply reply = {0};
    struct scratch scratch;
    uint64_t limit = 0, next = 0;
    int status = page_of(call, &ask.before_seq, &limit, diag);
    status = status != 0 ? status : rest_find_run(call, &run, diag);
    if (status != 0) {
        return status;
    }
    ask.limit = (uint32_t)limit;
    struct run_name_text name = run_name_text(run.name);
    scratch_init(&scratch, SCRATCH_MAX);
    status = run_info_log(run.state, &ask, &scratch, &reply, diag); /* with all ended restores */
    CHECK(status != 0 || reply.count <= limit + run.state->ended_count);
    json_open(call->json, "log", '[');
    for (uint32_t i = 0; status == 0 && i < reply.count; i++) {
        if (call->json->buf.bytes >= REST_PAGE_BYTES && next != 0) {
            reply.more = true;
            break;
        }
        json_log_row(call->json, name.at, log_action_name(reply.rows[i].kind), &reply.rows[i]);
        next = reply.rows[i].seq != 0 ? reply.rows[i].seq : next;
    }
    write_next(call->json, reply.more, next);
    scratch_fini(&scratch);
    return status;
}
