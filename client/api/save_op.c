/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_save copies the arguments, posts the save to the handle's thread, and returns when the
 * state is copied or, in lazy mode, when everything is copied that may change at once. If the save
 * fails before that, the call itself fails. on_* and start run on the handle's thread, the rest on
 * the caller's.
 */
#include "api_private.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <string.h>

static void on_released(struct engine_save *save)
{
    op_release(container_of(save, struct cairn_op, u.save), !save->lazy);
}

static void on_staged(struct engine_save *save, int status)
{
    struct cairn_op *op = container_of(save, struct cairn_op, u.save);
    if (status == 0) {
        op_stage(op);
    } else if (save->refused && save->refusal.code != 0) {
        op_release(op, true); /* the caller has refused, and knows */
    } else if (save->refused) {
        op_refuse(op, status, &save->diag);
    }
}

static void on_handed(struct engine_save *save)
{
    op_hand(container_of(save, struct cairn_op, u.save));
}

static void on_done(struct engine_save *save, int status)
{
    struct cairn_op *op = container_of(save, struct cairn_op, u.save);
    if (status == 0 && save->new_lineage) {
        LOG(LOG_WARN, "api",
            "this run has checkpoints that this attempt did not restore, so a new lineage begins "
            "beside them",
            lu("term", save->id.term), lu("step", save->id.step));
    }
    op_finish(op, status, &save->diag);
}

static void start(struct post *post)
{
    struct cairn_op *op = container_of(post, struct cairn_op, start);
    CHECK(FAILPOINT("api.start") == 0);
    op->u.save.set = op->set;
    engine_save_start(op->cairn->engine, &op->u.save);
}

/* --- arguments ---------------------------------------------------------------------------- */

static int bad_label(const char *what, size_t idx, const char *text, struct diag *diag)
{
    if (text != NULL && text_is_valid(strlen(text), text, LABEL_BYTES_MAX)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_INVALID, "%s %zu: 1 to %d bytes of UTF-8 are allowed", what, idx,
                    LABEL_BYTES_MAX);
}

/* Checks numbers and sizes of tags, metrics and metadata. */
static int check_counts(const struct cairn_save_options *options, struct diag *diag)
{
    if (options->tag_count > LIMIT_TAGS || options->metric_count > LIMIT_METRICS) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "%zu tags and %zu metrics are given; at most %d and %d are allowed",
                        options->tag_count, options->metric_count, LIMIT_TAGS, LIMIT_METRICS);
    }
    if (options->metadata_bytes > LIMIT_METADATA_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the metadata has %zu bytes, but at most %d are allowed; save more data as "
                        "a tensor or a blob",
                        options->metadata_bytes, LIMIT_METADATA_BYTES);
    }
    if ((options->tag_count > 0 && options->tags == NULL) ||
        (options->metric_count > 0 && options->metrics == NULL) ||
        (options->metadata_bytes > 0 && options->metadata == NULL)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "tags, metrics or metadata is NULL, but its count is not 0");
    }
    return 0;
}

/* Copies tags, metrics and metadata into the op's scratch, so that they outlive the call. */
static int copy_options(const struct cairn_save_options *options, struct scratch *scratch,
                        struct engine_save *save, struct diag *diag)
{
    int rc = check_counts(options, diag);
    save->tags = scratch_array(scratch, options->tag_count + 1, sizeof *save->tags);
    save->metrics = scratch_array(scratch, options->metric_count + 1, sizeof *save->metrics);
    bool fits = save->tags != NULL && save->metrics != NULL;
    for (size_t i = 0; rc == 0 && fits && i < options->tag_count; i++) {
        rc = bad_label("tag", i, options->tags[i], diag);
        save->tags[i] =
            rc == 0 ? scratch_string(scratch, strlen(options->tags[i]), options->tags[i]) : NULL;
        fits = rc != 0 || save->tags[i] != NULL;
    }
    for (size_t i = 0; rc == 0 && fits && i < options->metric_count; i++) {
        const struct cairn_metric *metric = &options->metrics[i];
        rc = bad_label("the name of metric", i, metric->name, diag);
        save->metrics[i].value = metric->value;
        save->metrics[i].name =
            rc == 0 ? scratch_string(scratch, strlen(metric->name), metric->name) : NULL;
        fits = rc != 0 || save->metrics[i].name != NULL;
    }
    if (rc == 0 && fits && options->metadata_bytes > 0) {
        save->metadata = scratch_copy(scratch, options->metadata_bytes, options->metadata);
        fits = save->metadata != NULL;
    }
    save->tag_count = (uint32_t)options->tag_count;
    save->metric_count = (uint32_t)options->metric_count;
    save->metadata_bytes = (uint32_t)options->metadata_bytes;
    return rc == 0 && !fits ? diag_no_memory(diag, "the save's options") : rc;
}

/* Adds the trace of this process's saves as a tag, if there is one and the tags leave room. */
static int add_trace(const struct cairn *cairn, struct scratch *scratch, struct engine_save *save,
                     struct diag *diag)
{
    if (cairn->trace[0] == '\0' || trace_of(save->tag_count, save->tags) != NULL) {
        return 0;
    }
    if (save->tag_count == LIMIT_TAGS) {
        LOG(LOG_DEBUG, "api", "the save is told no trace, because it has as many tags as it can",
            ls("tag", cairn->trace));
        return 0;
    }
    const char *tag = scratch_string(scratch, strlen(cairn->trace), cairn->trace);
    if (tag == NULL) {
        return diag_no_memory(diag, "the tag of the trace");
    }
    save->tags[save->tag_count++] = tag; /* copy_options() has left room for one more */
    return 0;
}

/* --- the call ----------------------------------------------------------------------------- */

struct save_call {
    struct cairn *cairn;
    uint64_t step;
    const struct cairn_save_options *options;
    struct cairn_op **ret;
};

/* Checks that this handle can save. */
static int check_call(const struct save_call *call, struct diag *diag)
{
    int rc = guard_check_may_block(call->cairn, diag);
    if (rc != 0) {
        return rc;
    }
    if (call->ret == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "the argument ret is NULL");
    }
    if (call->cairn->viewer) {
        return diag_set(
            diag, CAIRN_E_READ_ONLY,
            "the handle was opened with read_only, so it cannot save; open another one without it");
    }
    if (call->step == CAIRN_LATEST) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "the step is CAIRN_LATEST, which cannot be saved; give the number of the step");
    }
    CHECK(FAILPOINT("api.call") == 0);
    return 0;
}

/* Checks the options about the copy: mode, verify_staged, when_full, check_replicas. */
static int check_snapshot(const struct cairn_save_options *options, struct diag *diag)
{
    if (options->mode < 0 || options->mode > CAIRN_LAZY) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.mode is %d; it must be CAIRN_COPY or CAIRN_LAZY", options->mode);
    }
    if (options->verify_staged < 0 || options->verify_staged > CAIRN_VERIFY_FULL) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "options.verify_staged is %d; it must be 0, CAIRN_VERIFY_SAMPLED or CAIRN_VERIFY_FULL",
            options->verify_staged);
    }
    if (options->verify_staged != 0 && options->mode != CAIRN_LAZY) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.verify_staged is set without CAIRN_LAZY; in copy mode nothing is "
                        "left to verify when the call returns, so leave it 0");
    }
    if (options->check_replicas < 0 || options->check_replicas > CAIRN_CHECK_FAIL) {
        return diag_set(
            diag, CAIRN_E_INVALID,
            "options.check_replicas is %d; it must be 0, CAIRN_CHECK_WARN or CAIRN_CHECK_FAIL",
            options->check_replicas);
    }
    if (options->check_replicas != 0 && options->mode == CAIRN_LAZY) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.check_replicas is set with CAIRN_LAZY, but it reads the whole "
                        "state before the call returns; use it with CAIRN_COPY");
    }
    if (options->refusal_code > 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.refusal_code is %d; it must be a CAIRN_E_* code, or 0",
                        options->refusal_code);
    }
    return args_check_when_full(options->when_full, diag);
}

/* Makes the op of a save from the caller's options. */
static int make_op(const struct save_call *call, struct cairn_op **ret, struct diag *diag)
{
    struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_op *op = NULL;
    int rc = args_copy("cairn_save_options", sizeof options, call->options, &options, diag);
    if (rc != 0) {
        return rc;
    }
    if (options.deadline_ms < 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.deadline_ms is negative; use 0 for the default");
    }
    rc = check_snapshot(&options, diag);
    if (rc == 0) {
        rc = op_new(call->cairn, true, &op, diag);
    }
    if (rc == 0) {
        rc = copy_options(&options, &op->scratch, &op->u.save, diag);
    }
    if (rc == 0) {
        rc = add_trace(call->cairn, &op->scratch, &op->u.save, diag);
    }
    if (rc != 0) {
        op_unref(op);
        return rc;
    }
    op->u.save.step = call->step;
    op->u.save.deadline_ms = args_deadline_ms(options.deadline_ms, call->cairn->save_deadline_ms);
    op->u.save.lazy = options.mode == CAIRN_LAZY;
    op->u.save.check_replicas = (uint32_t)options.check_replicas;
    op->u.save.watch = (enum watch_kind)options.verify_staged;
    op->u.save.full = options.full != 0;
    op->u.save.after = options.cuda_event;
    op->u.save.when_full =
        options.when_full != 0 ? args_when_full(options.when_full) : call->cairn->when_full;
    if (options.refusal != NULL) {
        int code = options.refusal_code != 0 ? options.refusal_code : CAIRN_E_ABORTED;
        diag_set(&op->u.save.refusal, code, "%s", options.refusal);
    }
    op->u.save.on_released = on_released;
    op->u.save.on_staged = on_staged;
    op->u.save.on_handed = on_handed;
    op->u.save.on_done = on_done;
    *ret = op;
    return 0;
}

/* Starts the save and waits until it is released: the state is copied, or what may change at once
 * is. */
static int run(void *arg, struct diag *diag)
{
    const struct save_call *call = arg;
    uint64_t begin_ns = args_now_ns();
    struct cairn_op *op = NULL;
    int rc = check_call(call, diag);
    rc = rc != 0 ? rc : make_op(call, &op, diag);
    if (rc != 0) {
        return rc;
    }
    rc = op_start(op, start, diag);
    if (rc == 0) {
        rc = op_wait(op, OP_RELEASED, CAIRN_FOREVER,
                     diag); /* the engine watches the save's own deadline */
    }
    if (rc != 0) {
        diag_add(diag, "cannot save step %llu", (unsigned long long)call->step);
        op_unref(op);
        return rc;
    }
    op->blocked_ns = args_now_ns() - begin_ns;
    *call->ret = op;
    return 0;
}

int cairn_save(cairn_t *cairn, uint64_t step, const struct cairn_save_options *options,
               cairn_op_t **ret, struct cairn_error *err)
{
    struct save_call call = {cairn, step, options, ret};
    return guard_call(cairn, run, &call, err);
}
