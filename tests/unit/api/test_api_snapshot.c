/* SPDX-License-Identifier: Apache-2.0
 *
 * A save through cairn.h is lazy, refused or skipped as its options say, structs of older programs
 * get the default, and a restore tells which checkpoint it took. Method: the shell over the fake
 * engine.
 */
#include "api_handle.h"
#include "pipeline/adapt.h"

#include <stdbool.h>

#include "standin_cuda.h"

/* Goal: a lazy save returns before it is staged, keeps the tensors borrowed, and is hurried by who
 * waits for STAGED. */
HANDLE_TEST(test_a_lazy_save_returns_at_once)
{
    struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_error err;
    cairn_op_t *op = NULL;
    fake_script.copies_when_hurried = true;
    options.mode = CAIRN_LAZY, options.verify_staged = CAIRN_VERIFY_FULL;
    options.when_full = CAIRN_FULL_SKIP;
    assert_int_equal(cairn_save(cairn, 5, &options, &op, &err), 0);
    assert_true(fake_seen.lazy);
    assert_int_equal(fake_seen.watch, CAIRN_VERIFY_FULL);
    assert_int_equal(fake_seen.when_full, CAIRN_FULL_SKIP - 1);                /* engine.h's */
    assert_int_equal(cairn_op_wait(op, CAIRN_STAGED, 0, &err), CAIRN_E_AGAIN); /* polls only */
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, &err), CAIRN_E_BUSY);
    assert_int_equal(cairn_op_wait(op, CAIRN_STAGED, CAIRN_FOREVER, &err), 0);
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, &err), 0);
    end_well(op);
}

/* Goal: a save without room fails its call at once although the others are still being told, and
 * closing well is not spoiled by it. */
HANDLE_TEST(test_a_skipped_save_fails_its_call_only)
{
    struct cairn_error err;
    cairn_op_t *op = NULL;
    fake_script.never_ends = fake_script.refuses = true;
    fake_script.stage_status = fake_script.done_status = CAIRN_E_SKIPPED;
    assert_int_equal(cairn_save(cairn, 5, NULL, &op, &err), CAIRN_E_SKIPPED);
    assert_null(op);
    assert_non_null(strstr(err.text, "no room"));
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, &err), 0); /* nothing is borrowed */
    fake_release();
}

FIXED_TEST(test_older_structs_are_taken)
{
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn_save_options older = CAIRN_SAVE_OPTIONS_INIT;
    struct cairn_error err;
    cairn_t *cairn = NULL;
    cairn_op_t *op = NULL;
    options.size = offsetof(struct cairn_options, snapshots);
    options.snapshots = -1; /* behind the end of what the caller knew */
    assert_int_equal(cairn_open(url, &options, &cairn, &err), 0);
    older.size = offsetof(struct cairn_save_options, mode);
    older.mode = 77;
    assert_int_equal(cairn_save(cairn, 1, &older, &op, &err), 0);
    end_well(op);
    close_well(cairn);
}

/* Goal: device tensors are checked when they are registered: no driver, other memory, no device. */
HANDLE_TEST(test_device_tensors_are_checked)
{
    struct cairn_tensor tensor = CAIRN_TENSOR_INIT;
    const int64_t shape[1] = {16};
    float here[16] = {0};
    struct cairn_error err;
    setenv("CAIRN_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    tensor.name = "w", tensor.dtype = CAIRN_F32, tensor.ndim = 1, tensor.shape = shape;
    tensor.data = here, tensor.device = 1;
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "CUDA driver cannot be loaded"));
    assert_non_null(strstr(err.text, "\"w\""));
    setenv("CAIRN_LIBCUDA", STANDIN_CUDA, 1);
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), CAIRN_E_INVALID);
    assert_non_null(strstr(err.text, "is not device memory"));
    tensor.data = standin_alloc(0, sizeof here);
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), 0);
    tensor.device = 2;
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), CAIRN_E_INVALID);
    tensor.device = 9;
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), CAIRN_E_UNSUPPORTED);
    tensor.device = -1;
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), CAIRN_E_INVALID);
}

/* Goal: check_replicas and the event of the training's stream reach the engine as they were given,
 * and a comparison that does not go with the mode is refused. */
HANDLE_TEST(test_replicas_are_checked_when_asked)
{
    static const int checks[] = {0, CAIRN_CHECK_WARN, CAIRN_CHECK_FAIL};
    static const struct {
        int mode, check;
        const char *text;
    } bad[] = {{CAIRN_COPY, 3, "check_replicas is 3"},
               {CAIRN_COPY, -1, "check_replicas is -1"},
               {CAIRN_LAZY, CAIRN_CHECK_WARN, "use it with CAIRN_COPY"}};
    struct cairn_error err;
    int event;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
        cairn_op_t *op = NULL;
        options.check_replicas = checks[i], options.cuda_event = &event;
        assert_int_equal(cairn_save(cairn, i, &options, &op, &err), 0);
        assert_int_equal(fake_seen.check_replicas, checks[i]);
        assert_ptr_equal(fake_seen.after, &event);
        assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), 0);
        assert_null(cairn_op_warning(op));
        cairn_op_free(op);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
        cairn_op_t *op = NULL;
        options.mode = bad[i].mode, options.check_replicas = bad[i].check;
        assert_int_equal(cairn_save(cairn, 9, &options, &op, &err), CAIRN_E_INVALID);
        assert_non_null(strstr(err.text, bad[i].text));
    }
}

/* Goal: what belongs to a coordinate is asked for when told, and a restore without any says so. */
HANDLE_TEST(test_local_state_of_all_is_asked_for)
{
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_local local = CAIRN_LOCAL_INIT;
    struct cairn_error err;
    cairn_op_t *op = NULL;
    for (int all = 0; all < 2; all++) {
        options.all_local = all;
        assert_int_equal(cairn_restore(cairn, &options, &op, &err), 0);
        assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), 0);
        assert_int_equal(fake_seen.all_local, all);
        assert_int_equal(cairn_op_local(op, 0, &local), CAIRN_E_NOT_FOUND);
        assert_int_equal(cairn_op_local(op, 0, NULL), CAIRN_E_INVALID);
        assert_int_equal(cairn_op_entry(op, 0, &local), CAIRN_E_NOT_FOUND);
        assert_int_equal(cairn_op_entry(op, 0, NULL), CAIRN_E_INVALID);
        cairn_op_free(op);
    }
    cairn_op_t *saved = NULL;
    assert_int_equal(cairn_save(cairn, 1, NULL, &saved, &err), 0);
    assert_int_equal(cairn_op_wait(saved, CAIRN_DONE, CAIRN_FOREVER, &err), 0);
    assert_int_equal(cairn_op_local(saved, 0, &local), CAIRN_E_INVALID);
    assert_int_equal(cairn_op_entry(saved, 0, &local), CAIRN_E_INVALID);
    cairn_op_free(saved);
}

static int is_proven_empty(int done_status, bool empty)
{
    struct cairn_error err;
    cairn_op_t *op = NULL;
    cairn_t *cairn = open_default();
    fake_script.never_ends = true;
    assert_int_equal(cairn_restore(cairn, NULL, &op, &err), 0);
    assert_int_equal(cairn_op_run_is_empty(op), 0); /* while it runs nothing is known */
    fake_script.done_status = done_status;
    fake_script.empty = empty;
    fake_release();
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), done_status);
    int proven = cairn_op_run_is_empty(op);
    fake_script.done_status = 0;
    cairn_op_free(op);
    close_well(cairn);
    fake_reset();
    return proven;
}

/* Goal: only a server's proof makes NOT_FOUND an empty run. */
FIXED_TEST(test_an_empty_run_is_proven)
{
    assert_int_equal(is_proven_empty(CAIRN_E_NOT_FOUND, true), 1);
    assert_int_equal(is_proven_empty(CAIRN_E_NOT_FOUND, false), 0);
    assert_int_equal(is_proven_empty(CAIRN_E_CONNECTION_LOST, true), 0);
    assert_int_equal(is_proven_empty(0, true), 0);
    assert_int_equal(cairn_op_run_is_empty(NULL), 0);
}

HANDLE_TEST(test_bad_snapshot_options_are_refused)
{
    const struct {
        int mode, verify, when_full;
        const char *text;
    } bad[] = {{3, 0, 0, "mode is 3"},
               {CAIRN_COPY, CAIRN_VERIFY_FULL, 0, "verify_staged is set without CAIRN_LAZY"},
               {CAIRN_LAZY, 9, 0, "verify_staged is 9"},
               {0, 0, 4, "when_full is 4"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
        struct cairn_error err;
        cairn_op_t *op = NULL;
        options.mode = bad[i].mode, options.verify_staged = bad[i].verify;
        options.when_full = bad[i].when_full;
        assert_int_equal(cairn_save(cairn, 1, &options, &op, &err), CAIRN_E_INVALID);
        assert_non_null(strstr(err.text, bad[i].text));
    }
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn_error err;
    cairn_t *none = NULL;
    options.snapshots = 65;
    assert_int_equal(cairn_open(url, &options, &none, &err), CAIRN_E_INVALID);
    assert_non_null(strstr(err.text, "snapshots is 65"));
    options.snapshots = 0, options.when_full = -1;
    assert_int_equal(cairn_open(url, &options, &none, &err), CAIRN_E_INVALID);
}

/* Goal: options and environment choose the encoding, in this order; other words are refused. */
FIXED_TEST(test_the_encoding_is_chosen)
{
    const struct {
        int option;
        const char *text;
        int seen; /* < 0: refused */
    } cases[] = {{0, NULL, ENCODE_ADAPTIVE},
                 {0, "", ENCODE_ADAPTIVE},
                 {0, "raw", ENCODE_NEVER},
                 {0, "dense", ENCODE_DENSEST},
                 {CAIRN_ENCODE_AUTO, "dense", ENCODE_ADAPTIVE},
                 {CAIRN_ENCODE_RAW, "dense", ENCODE_NEVER},
                 {CAIRN_ENCODE_DENSE, NULL, ENCODE_DENSEST},
                 {0, "zip", -1},
                 {4, NULL, -1},
                 {-1, NULL, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cairn_options options = CAIRN_OPTIONS_INIT;
        struct cairn_error err;
        cairn_t *cairn = NULL;
        if (cases[i].text != NULL) {
            assert_int_equal(setenv("CAIRN_ENCODING", cases[i].text, 1), 0);
        }
        options.encoding = cases[i].option;
        int rc = cairn_open(url, &options, &cairn, &err);
        assert_int_equal(unsetenv("CAIRN_ENCODING"), 0);
        assert_int_equal(rc, cases[i].seen < 0 ? CAIRN_E_INVALID : 0);
        if (rc == 0) {
            assert_int_equal(fake_seen.encoding, cases[i].seen);
            close_well(cairn);
        } else {
            assert_non_null(strstr(err.text, cases[i].text != NULL ? "'zip'" : "encoding is"));
        }
    }
}
