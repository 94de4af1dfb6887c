/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_restore posts the restore to the handle's thread and returns at once; the registered
 * tensors are borrowed until it is done. on_done and start run on the handle's thread, the rest on
 * the caller's.
 */
#include "api_private.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <string.h>

enum { ONLY_MAX = 4096 };

static void on_done(struct engine_restore *restore, int status)
{
    struct cairn_op *op = container_of(restore, struct cairn_op, u.restore);
    if (status == 0 && restore->fell_back) {
        LOG(LOG_WARN, "api", "newer checkpoints are damaged, so an older one was restored",
            lu("term", restore->id.term), lu("step", restore->id.step));
    }
    op_finish(op, status, &restore->diag);
}

static void start(struct post *post)
{
    struct cairn_op *op = container_of(post, struct cairn_op, start);
    CHECK(FAILPOINT("api.start") == 0);
    op->u.restore.set = op->set;
    engine_restore_start(op->cairn->engine, &op->u.restore);
}

struct restore_call {
    struct cairn *cairn;
    const struct cairn_restore_options *options;
    struct cairn_op **ret;
};

/* Checks the options that contradict each other or are out of range. */
static int check_options(const struct cairn_restore_options *options, struct diag *diag)
{
    if (options->deadline_ms < 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.deadline_ms is negative; use 0 for the default");
    }
    if (options->step == CAIRN_LATEST && options->term != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "options.term is %llu, but options.step is not set; the latest checkpoint "
                        "is chosen whatever its term is, so set both or neither",
                        (unsigned long long)options->term);
    }
    return 0;
}

/* Copies the patterns into the op's scratch, so that they live as long as the op. */
static int copy_only(const struct cairn_restore_options *options, struct scratch *scratch,
                     struct engine_restore *restore, struct diag *diag)
{
    const char **only;
    if (options->only_count > ONLY_MAX || (options->only_count > 0 && options->only == NULL)) {
        return diag_set(diag, options->only ? CAIRN_E_TOO_LARGE : CAIRN_E_INVALID,
                        "options.only has %zu patterns%s; at most %d are allowed",
                        options->only_count, options->only ? "" : " at NULL", ONLY_MAX);
    }
    only = scratch_array(scratch, options->only_count + 1, sizeof *only);
    for (size_t i = 0; only != NULL && i < options->only_count; i++) {
        const char *text = options->only[i];
        if (text == NULL || !text_is_valid(strlen(text), text, LIMIT_NAME_BYTES)) {
            return diag_set(
                diag, CAIRN_E_INVALID,
                "options.only[%zu] is not valid: a pattern must be 1 to %d bytes of UTF-8", i,
                LIMIT_NAME_BYTES);
        }
        only[i] = scratch_string(scratch, strlen(text), text);
        if (only[i] == NULL) {
            return diag_no_memory(diag, "the restore's options");
        }
    }
    restore->only = only;
    restore->only_count = options->only_count;
    return only != NULL ? 0 : diag_no_memory(diag, "the restore");
}

static struct selector make_selector(const struct cairn_restore_options *options)
{
    struct selector selector = {.kind = SELECT_LATEST};
    if (options->step != CAIRN_LATEST) {
        selector.kind = options->term != 0 ? SELECT_EXACT : SELECT_STEP;
        selector.id = (struct ckpt_id){.term = options->term, .step = options->step};
    }
    return selector;
}

/* Makes the op, copies the options into it, and starts it. */
static int run(void *arg, struct diag *diag)
{
    const struct restore_call *call = arg;
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    uint64_t begin_ns = args_now_ns();
    struct cairn_op *op = NULL;
    int rc = guard_check(call->cairn, diag);
    if (rc != 0) {
        return rc;
    }
    if (call->ret == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "the argument ret is NULL");
    }
    rc = args_copy("cairn_restore_options", sizeof options, call->options, &options, diag);
    if (rc == 0) {
        rc = check_options(&options, diag);
    }
    if (rc == 0) {
        rc = op_new(call->cairn, false, &op, diag);
    }
    if (rc == 0) {
        rc = copy_only(&options, &op->scratch, &op->u.restore, diag);
    }
    if (rc != 0) {
        goto out;
    }
    struct engine_restore *restore = &op->u.restore;
    restore->selector = make_selector(&options);
    restore->allow_older = options.allow_older < 0 ? restore->selector.kind == SELECT_LATEST
                                                   : options.allow_older != 0;
    restore->strict = options.strict != 0;
    restore->all_local = options.all_local != 0;
    restore->deadline_ms = args_deadline_ms(options.deadline_ms, API_SAVE_DEADLINE_MS);
    restore->on_done = on_done;
    op->blocked_ns = args_now_ns() - begin_ns; /* before the loop may finish it */
    rc = op_start(op, start, diag);
out:
    if (rc != 0) {
        op_unref(op);
        return rc;
    }
    *call->ret = op;
    return 0;
}

int cairn_restore(cairn_t *cairn, const struct cairn_restore_options *options, cairn_op_t **ret,
                  struct cairn_error *err)
{
    struct restore_call call = {cairn, options, ret};
    return guard_call(cairn, run, &call, err);
}
