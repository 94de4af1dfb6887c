/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles, futures, callbacks, closing and fork do what cairn.h promises, whatever the engine does.
 * Method: the shell over a fake engine that plays a script (fake_engine.h); there is no server, and
 * the tests wait for posts only.
 */
#include "api_handle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

static const char token[] = "00112233445566778899aabbccddeeff";

static cairn_op_t *save(cairn_t *cairn, uint64_t step)
{
    cairn_op_t *op = NULL;
    struct cairn_error err;
    int rc = cairn_save(cairn, step, NULL, &op, &err);
    if (rc != 0) {
        fail_msg("save: %s", err.text);
    }
    return op;
}

/* --- opening
 * -------------------------------------------------------------------------------------- */

static void refused(const char *bad_url, const struct cairn_options *options, int code,
                    const char *text)
{
    cairn_t *cairn = (void *)0x1;
    struct cairn_error err;
    assert_int_equal(cairn_open(bad_url, options, &cairn, &err), code);
    assert_int_equal(err.code, code);
    if (strstr(err.text, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    }
    assert_ptr_equal(cairn, (void *)0x1);
    assert_int_equal(cairn_open(bad_url, options, &cairn, NULL), code);
}

FIXED_TEST(test_bad_urls_are_refused_with_what_is_wrong)
{
    unsetenv("CAIRN_SERVER");
    refused(NULL, NULL, CAIRN_E_INVALID, "url is NULL");
    refused("http://a/b/c", NULL, CAIRN_E_INVALID, "http://a/b/c");
    refused("cairn:///demo/run1", NULL, CAIRN_E_INVALID, "set it to unix:/path");
    refused("cairn://demo/run1", NULL, CAIRN_E_INVALID, "the server \"demo\" and no run");
    refused("cairn://host/demo/run1/step-5", NULL, CAIRN_E_INVALID, "a run is project/run");
    refused("cairn://host:7421", NULL, CAIRN_E_INVALID, "names no run");
    refused("cairn://host:70000/demo/run1", NULL, CAIRN_E_INVALID, "70000");
    refused("cairn://host:7421/de&mo/run1", NULL, CAIRN_E_INVALID, "&");
    refused("cairn+unix://relative?run=demo/run1", NULL, CAIRN_E_INVALID, "absolute");
}

FIXED_TEST(test_the_server_comes_from_the_environment)
{
    cairn_t *cairn = NULL;
    setenv("CAIRN_SERVER", "unix:/run/cairn.sock", 1);
    assert_int_equal(cairn_open("cairn:///demo/run1", NULL, &cairn, NULL), 0);
    close_well(cairn);
    setenv("CAIRN_SERVER", "/run/cairn.sock", 1);
    refused("cairn:///demo/run1", NULL, CAIRN_E_INVALID, "for a Unix socket unix:/path");
    unsetenv("CAIRN_SERVER");
}

static struct cairn_options of_world(int32_t rank, int32_t world_size)
{
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    options.attempt = token;
    return options;
}

FIXED_TEST(test_bad_options_are_refused_with_the_remedy)
{
    struct cairn_options options = of_world(2, 2);
    unsetenv("CAIRN_ATTEMPT");
    refused(url, &options, CAIRN_E_INVALID, "options.rank is 2");
    options = of_world(-1, 2);
    refused(url, &options, CAIRN_E_INVALID, "options.rank is -1");
    options = of_world(0, 70000);
    refused(url, &options, CAIRN_E_INVALID, "world_size is 70000");
    options = of_world(0, 2);
    options.attempt = NULL;
    refused(url, &options, CAIRN_E_INVALID, "cairn_new_attempt()");
    options.attempt = "xyz";
    refused(url, &options, CAIRN_E_INVALID, "32 hex digits");
    setenv("CAIRN_ATTEMPT", "short", 1);
    options.attempt = NULL;
    refused(url, &options, CAIRN_E_INVALID, "CAIRN_ATTEMPT is not an attempt token");
    options = of_world(0, 1);
    options.attempt = NULL; /* a world of one draws its own */
    options.threads = 1000;
    refused(url, &options, CAIRN_E_INVALID, "options.threads is 1000");
    unsetenv("CAIRN_ATTEMPT");
    options = of_world(0, 1);
    options.cert_file = "a.pem";
    refused(url, &options, CAIRN_E_INVALID, "key_file");
    options.key_file = "a.key";
    refused(url, &options, CAIRN_E_INVALID, "ca_file");
    options = of_world(0, 1);
    options.io_deadline_ms = -5;
    refused(url, &options, CAIRN_E_INVALID, "negative");
}

FIXED_TEST(test_structs_may_grow_but_not_shrink)
{
    struct {
        struct cairn_options known;
        uint64_t unknown;
    } newer = {of_world(0, 1), 0};
    cairn_t *cairn = NULL;
    newer.known.size = 3;
    refused(url, &newer.known, CAIRN_E_INVALID, "cairn_options.size is 3");
    newer.known.size = sizeof newer;
    newer.unknown = 1;
    refused(url, &newer.known, CAIRN_E_UNSUPPORTED, "install a newer libcairn");
    newer.unknown = 0;
    assert_int_equal(cairn_open(url, &newer.known, &cairn, NULL), 0);
    close_well(cairn);
}

FIXED_TEST(test_a_server_that_refuses_is_named)
{
    fake_script.ready = CAIRN_E_UNREACHABLE;
    refused(url, NULL, CAIRN_E_UNREACHABLE, "127.0.0.1:7421"); /* the engine tells the remedy */
    fake_script.ready = CAIRN_E_CONNECTION_LOST;
    refused(url, NULL, CAIRN_E_CONNECTION_LOST, "check that cairnd is running");
    fake_script.ready = CAIRN_E_DUPLICATE_RANK;
    refused(url, NULL, CAIRN_E_DUPLICATE_RANK, "its own rank");
}

FIXED_TEST(test_tokens_differ)
{
    char a[33], b[33];
    assert_int_equal(cairn_new_attempt(a), 0);
    assert_int_equal(cairn_new_attempt(b), 0);
    assert_int_equal(strlen(a), 32);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    assert_string_not_equal(a, b);
}

/* --- registering
 * ---------------------------------------------------------------------------------- */

static void set_refused(cairn_t *cairn, const struct cairn_tensor *tensor, const char *text)
{
    struct cairn_error err;
    assert_int_equal(cairn_set_tensors(cairn, tensor, 1, &err), CAIRN_E_INVALID);
    if (strstr(err.text, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    }
}

HANDLE_TEST(test_bad_tensors_are_refused_by_name)
{
    static float data[6];
    const int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1}, negative[2] = {2, -3},
                  outside[2] = {1, 1};
    const int64_t length[2] = {2, 3};
    const int32_t group[2] = {0, -1};
    struct cairn_box box = {outside, length, NULL, data};
    struct cairn_tensor good = CAIRN_TENSOR_INIT, bad;
    good.name = "w", good.dtype = CAIRN_F32, good.ndim = 2, good.shape = shape, good.data = data;
    assert_int_equal(cairn_set_tensors(cairn, &good, 1, NULL), 0);
    bad = good, bad.name = NULL, set_refused(cairn, &bad, "needs a name");
    bad = good, bad.dtype = 0, set_refused(cairn, &bad, "\"w\"");
    bad = good, bad.dtype = 99, set_refused(cairn, &bad, "w");
    bad = good, bad.ndim = 9, set_refused(cairn, &bad, "8 dimensions");
    bad = good, bad.shape = NULL, set_refused(cairn, &bad, "shape is NULL");
    bad = good, bad.shape = negative, set_refused(cairn, &bad, "negative");
    bad = good, bad.data = NULL, set_refused(cairn, &bad, "NULL");
    bad = good, bad.box_count = 1, set_refused(cairn, &bad, "boxes is NULL");
    bad = good, bad.box_count = 1, bad.boxes = &box, set_refused(cairn, &bad, "w");
    bad = good, bad.group = group, bad.group_count = 2, set_refused(cairn, &bad, "negative rank");
    bad = good, bad.placement = 9, set_refused(cairn, &bad, "placement");
    bad = good, bad.size = 8, set_refused(cairn, &bad, "[0].size is 8");
}

HANDLE_TEST(test_blobs_and_tensors_are_replaced_apart)
{
    static double data;
    struct cairn_tensor tensor = CAIRN_TENSOR_INIT;
    struct cairn_blob blobs[2] = {CAIRN_BLOB_INIT, CAIRN_BLOB_INIT};
    struct cairn_error err;
    tensor.name = "loss", tensor.dtype = CAIRN_F64, tensor.data = &data;
    blobs[0].name = "b", blobs[0].data = "xyz", blobs[0].data_bytes = 3;
    blobs[1].name = "a", blobs[1].placement = CAIRN_LOCAL;
    assert_int_equal(cairn_set_blobs(cairn, blobs, 2, &err), 0);
    assert_int_equal(cairn_set_tensors(cairn, &tensor, 1, &err), 0);
    blobs[1].name = "b", blobs[1].placement = 0;
    assert_int_equal(cairn_set_blobs(cairn, blobs, 2, &err), CAIRN_E_INVALID); /* twice the same */
    assert_non_null(strstr(err.text, "b"));
    blobs[0].kind = CAIRN_TREE;
    assert_int_equal(cairn_set_blobs(cairn, blobs, 1, &err), CAIRN_E_FORMAT);
    assert_non_null(strstr(err.text, "blob \"b\""));
    assert_int_equal(cairn_set_blobs(cairn, NULL, 1, &err), CAIRN_E_INVALID);
    assert_int_equal(cairn_set_blobs(cairn, NULL, 0, &err), 0);
}

/* --- futures
 * -------------------------------------------------------------------------------------- */

struct seen {
    atomic_int calls, drops, code, stage_order;
};

static void note(void *user, int code)
{
    struct seen *seen = user;
    seen->code = code;
    atomic_fetch_add(&seen->calls, 1);
}

static void drop(void *user)
{
    struct seen *seen = user;
    assert_int_equal(atomic_load(&seen->calls), 1); /* after the callback */
    atomic_fetch_add(&seen->drops, 1);
}

static void drop_only(void *user) { atomic_fetch_add(&((struct seen *)user)->drops, 1); }

HANDLE_TEST(test_a_save_is_staged_then_done)
{
    struct cairn_result result = CAIRN_RESULT_INIT;
    struct cairn_progress progress = CAIRN_PROGRESS_INIT;
    struct cairn_error err;
    fake_script.never_ends = true;
    cairn_op_t *op = save(cairn, 7);
    assert_int_equal(cairn_op_wait(op, CAIRN_STAGED, 0, NULL), 0);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, 0, &err), CAIRN_E_AGAIN);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, 5, &err), CAIRN_E_AGAIN);
    assert_int_equal(cairn_op_result(op, &result, NULL), CAIRN_E_AGAIN);
    assert_int_equal(cairn_op_wait(op, (enum cairn_stage)9, 0, &err), CAIRN_E_INVALID);
    fake_release();
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), 0);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, 0, &err), 0);
    assert_int_equal(cairn_op_result(op, &result, &err), 0);
    assert_int_equal(result.term, 1);
    assert_int_equal(result.step, 7);
    assert_int_equal(result.plain_bytes, 4096);
    assert_true(result.blocked_ns > 0);
    cairn_op_progress(op, &progress);
    assert_int_equal(progress.total_bytes, 4096);
    cairn_op_free(op);
}

HANDLE_TEST(test_results_fit_into_the_callers_struct)
{
    struct {
        struct cairn_result result;
        uint64_t guard;
    } io = {CAIRN_RESULT_INIT, 42};
    cairn_op_t *op = save(cairn, 7);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, NULL), 0);
    io.result.size = sizeof io;
    assert_int_equal(cairn_op_result(op, &io.result, NULL), 0);
    assert_int_equal(io.result.size, sizeof io);
    assert_int_equal(io.guard, 42);
    io.result = (struct cairn_result)CAIRN_RESULT_INIT;
    io.result.size = offsetof(struct cairn_result, step);
    assert_int_equal(cairn_op_result(op, &io.result, NULL), 0);
    assert_int_equal(io.result.term, 1);
    assert_int_equal(io.result.step, 0);
    cairn_op_free(op);
}

FIXED_TEST(test_callbacks_and_drops_come_once)
{
    struct seen staged = {0}, done = {0}, late = {0}, refused_one = {0};
    cairn_t *cairn = open_default();
    fake_script.never_ends = true;
    fake_script.done_status = CAIRN_E_NO_SPACE;
    cairn_op_t *op = save(cairn, 1);
    assert_int_equal(cairn_op_notify(op, CAIRN_DONE, note, &done, drop), 0);
    assert_int_equal(cairn_op_notify(op, CAIRN_STAGED, note, &staged, drop), 0); /* is so already */
    assert_int_equal(staged.calls, 1);
    assert_int_equal(staged.code, 0);
    assert_int_equal(cairn_op_notify(op, CAIRN_DONE, NULL, &refused_one, drop_only),
                     CAIRN_E_INVALID);
    assert_int_equal(cairn_op_notify(NULL, CAIRN_DONE, note, &refused_one, drop_only),
                     CAIRN_E_INVALID);
    assert_int_equal(refused_one.calls, 0);
    assert_int_equal(refused_one.drops, 2);
    assert_int_equal(done.calls, 0);
    fake_release();
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, NULL), CAIRN_E_NO_SPACE);
    assert_int_equal(cairn_op_notify(op, CAIRN_DONE, note, &late, drop), 0);
    assert_int_equal(late.code, CAIRN_E_NO_SPACE);
    assert_int_equal(cairn_op_wait(op, CAIRN_STAGED, 0, NULL), 0); /* that was reached before */
    cairn_op_free(op);
    assert_int_equal(cairn_close(cairn, 0, NULL), 0);
    assert_int_equal(done.calls, 1);
    assert_int_equal(done.drops, 1);
    assert_int_equal(done.code, CAIRN_E_NO_SPACE);
    assert_int_equal(staged.drops, 1);
    assert_int_equal(late.drops, 1);
}

static void free_it(void *user, int code) { cairn_op_free(user); }

HANDLE_TEST(test_a_callback_may_free_its_op)
{
    fake_script.never_ends = true;
    cairn_op_t *op = save(cairn, 1);
    assert_int_equal(cairn_op_notify(op, CAIRN_DONE, free_it, op, NULL), 0);
    fake_release();
}

struct on_loop {
    cairn_t *cairn;
    cairn_op_t *op;
    int save_rc, close_rc, wait_rc;
};

static void call_back_in(void *user, int code)
{
    struct on_loop *it = user;
    cairn_op_t *op = NULL;
    it->save_rc = cairn_save(it->cairn, 9, NULL, &op, NULL);
    it->wait_rc = cairn_op_wait(it->op, CAIRN_DONE, CAIRN_FOREVER, NULL);
    it->close_rc = cairn_close(it->cairn, 0, NULL);
}

FIXED_TEST(test_a_callback_that_would_block_is_refused)
{
    struct on_loop it = {.cairn = open_default()};
    fake_script.never_ends = true;
    cairn_op_t *first = save(it.cairn, 1);
    it.op = first;
    assert_int_equal(cairn_op_notify(first, CAIRN_DONE, call_back_in, &it, NULL), 0);
    fake_release();
    close_well(it.cairn);
    assert_int_equal(it.save_rc, CAIRN_E_INVALID);
    assert_int_equal(it.close_rc, CAIRN_E_INVALID);
    assert_int_equal(it.wait_rc, 0);
    cairn_op_free(first);
}

HANDLE_TEST(test_a_save_that_cannot_be_staged_fails_at_once)
{
    struct cairn_error err;
    cairn_op_t *op = NULL;
    fake_script.stage_status = CAIRN_E_ARENA_TOO_SMALL;
    assert_int_equal(cairn_save(cairn, 1, NULL, &op, &err), CAIRN_E_ARENA_TOO_SMALL);
    assert_non_null(strstr(err.text, "save step 1"));
    assert_null(op);
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, NULL), 0); /* nothing is borrowed any more */
}

HANDLE_TEST(test_a_fenced_handle_refuses_saves_until_it_restores)
{
    struct cairn_error err;
    cairn_op_t *op = NULL;
    fake_script.done_status = CAIRN_E_FENCED;
    cairn_op_t *fenced = save(cairn, 1);
    assert_int_equal(cairn_op_wait(fenced, CAIRN_DONE, CAIRN_FOREVER, NULL), CAIRN_E_FENCED);
    cairn_op_free(fenced);
    fake_script.done_status = 0;
    assert_int_equal(cairn_save(cairn, 2, NULL, &op, &err), CAIRN_E_FENCED);
    assert_int_equal(cairn_restore(cairn, NULL, &op, &err), 0);
    end_well(op);
    cairn_op_free(save(cairn, 3));
}

HANDLE_TEST(test_bad_save_options_are_refused)
{
    struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
    const char *tags[1] = {""};
    struct cairn_metric metric = {NULL, 1};
    static uint8_t metadata[(16 << 10) + 1];
    cairn_op_t *op = NULL;
    assert_int_equal(cairn_save(cairn, CAIRN_LATEST, NULL, &op, NULL), CAIRN_E_INVALID);
    assert_int_equal(cairn_save(cairn, 1, NULL, NULL, NULL), CAIRN_E_INVALID);
    assert_int_equal(cairn_save(NULL, 1, NULL, &op, NULL), CAIRN_E_INVALID);
    options.tags = tags, options.tag_count = 1;
    assert_int_equal(cairn_save(cairn, 1, &options, &op, NULL), CAIRN_E_INVALID);
    tags[0] = "nightly", options.metrics = &metric, options.metric_count = 1;
    assert_int_equal(cairn_save(cairn, 1, &options, &op, NULL), CAIRN_E_INVALID);
    metric.name = "loss", options.metadata = metadata, options.metadata_bytes = sizeof metadata;
    assert_int_equal(cairn_save(cairn, 1, &options, &op, NULL), CAIRN_E_TOO_LARGE);
    options.metadata_bytes--;
    assert_int_equal(cairn_save(cairn, 1, &options, &op, NULL), 0);
    cairn_op_free(op);
}

/* --- restores
 * ------------------------------------------------------------------------------------- */

HANDLE_TEST(test_a_restore_borrows_the_tensors)
{
    struct cairn_result result = CAIRN_RESULT_INIT;
    struct cairn_error err;
    cairn_op_t *op = NULL, *other = NULL;
    const void *data;
    size_t bytes;
    fake_script.never_ends = true;
    assert_int_equal(cairn_restore(cairn, NULL, &op, &err), 0);
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, &err), CAIRN_E_BUSY);
    assert_int_equal(cairn_set_blobs(cairn, NULL, 0, &err), CAIRN_E_BUSY);
    assert_int_equal(cairn_save(cairn, 1, NULL, &other, &err), CAIRN_E_BUSY);
    assert_int_equal(cairn_restore(cairn, NULL, &other, &err), CAIRN_E_BUSY);
    assert_int_equal(cairn_op_blob(op, "a", NULL, &data, &bytes), CAIRN_E_AGAIN);
    assert_null(cairn_op_missing(op, 0));
    fake_release();
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), 0);
    assert_int_equal(cairn_op_result(op, &result, &err), 0);
    assert_int_equal(result.term, 3);
    assert_int_equal(cairn_op_blob(op, "a", NULL, &data, &bytes), CAIRN_E_NOT_FOUND);
    assert_int_equal(cairn_op_metadata(op, &data, &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_null(cairn_op_unexpected(op, 0));
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, &err), 0);
    cairn_op_free(op);
}

HANDLE_TEST(test_a_term_without_a_step_is_refused)
{
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    cairn_op_t *op = NULL;
    struct cairn_error err;
    options.term = 3;
    assert_int_equal(cairn_restore(cairn, &options, &op, &err), CAIRN_E_INVALID);
}

FIXED_TEST(test_a_viewer_cannot_save)
{
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    cairn_t *cairn = NULL;
    cairn_op_t *op = NULL;
    options.read_only = 1;
    assert_int_equal(cairn_open(url, &options, &cairn, NULL), 0);
    assert_int_equal(cairn_save(cairn, 1, NULL, &op, NULL), CAIRN_E_READ_ONLY);
    close_well(cairn);
}

/* --- list and status
 * ------------------------------------------------------------------------------ */

HANDLE_TEST(test_a_list_has_the_committed_ones_of_all_pages)
{
    struct cairn_checkpoint item = CAIRN_CHECKPOINT_INIT;
    cairn_list_t *list = NULL;
    assert_int_equal(cairn_list(cairn, 0, &list, NULL), 0);
    assert_int_equal(cairn_list_count(list), 5);
    cairn_list_get(list, 0, &item);
    assert_int_equal(item.step, 50);
    assert_true(item.latest);
    cairn_list_get(list, 3, &item);
    assert_int_equal(item.sequence, 2);
    assert_true(item.superseded);
    item.step = 77;
    cairn_list_get(list, 5, &item); /* past the end: nothing happens */
    assert_int_equal(item.step, 77);
    cairn_list_free(list);
    cairn_list_free(NULL);
    fake_script.done_status = CAIRN_E_CONNECTION_LOST;
    assert_int_equal(cairn_list(cairn, 100, &list, NULL), CAIRN_E_CONNECTION_LOST);
}

/* A request is sent again where its answer is lost, and a step alone would then mean the version
 * before: only the question which one it is may name the step alone. */
HANDLE_TEST(test_one_version_of_a_step_is_forgotten)
{
    assert_int_equal(cairn_forget(cairn, 30, 0, NULL, NULL), 0);
    assert_int_equal(fake_seen.marks, 2);
    assert_int_equal(fake_seen.dry_marks, 1);
    assert_int_equal(fake_seen.mark_term, 7);
    assert_int_equal(cairn_forget(cairn, 30, 4, "a reason", NULL), 0);
    assert_int_equal(fake_seen.marks, 3);
    assert_int_equal(fake_seen.mark_term, 4);
}

HANDLE_TEST(test_status_tells_what_the_server_knows)
{
    struct cairn_checkpoint item = CAIRN_CHECKPOINT_INIT;
    item.term = 2, item.step = 30;
    assert_int_equal(cairn_status(cairn, 1000, &item, NULL), 0);
    assert_int_equal(item.state, CAIRN_COMMITTED);
    assert_int_equal(item.health, CAIRN_DAMAGED);
    assert_int_equal(item.sequence, 3);
}

/* --- closing
 * -------------------------------------------------------------------------------------- */

FIXED_TEST(test_close_aborts_what_is_left_and_says_so)
{
    struct cairn_error err;
    struct seen seen = {0};
    cairn_t *cairn = open_default();
    fake_script.never_ends = true;
    cairn_op_t *op = save(cairn, 1), *forgotten = save(cairn, 2);
    assert_int_equal(cairn_op_notify(op, CAIRN_DONE, note, &seen, drop), 0);
    cairn_op_free(forgotten); /* drops the op, not the work */
    assert_int_equal(cairn_close(cairn, 0, &err), CAIRN_E_ABORTED);
    assert_non_null(strstr(err.text, "durable"));
    assert_int_equal(seen.drops, 1);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, 0, &err), CAIRN_E_ABORTED);
    cairn_op_abort(op); /* after the end: nothing */
    cairn_op_free(op);
}

/* The time for refused saves is not spent on others. */
FIXED_TEST(test_close_takes_no_longer_than_its_deadline)
{
    enum { DEADLINE_MS = 2500 };
    struct cairn_error err;
    struct timespec begun, now;
    cairn_t *cairn = open_default();
    fake_script.never_ends = true;
    cairn_op_t *op = save(cairn, 1);
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &begun), 0);
    assert_int_equal(cairn_close(cairn, DEADLINE_MS, &err), CAIRN_E_ABORTED);
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    int64_t took_ms =
        (now.tv_sec - begun.tv_sec) * INT64_C(1000) + (now.tv_nsec - begun.tv_nsec) / 1000000;
    assert_in_range(took_ms, DEADLINE_MS - 1, 2 * DEADLINE_MS - 500);
    cairn_op_free(op);
}

FIXED_TEST(test_close_ends_what_cannot_be_aborted)
{
    struct cairn_error err;
    cairn_t *cairn = open_default();
    fake_script.never_ends = fake_script.ignores_abort = true;
    cairn_op_t *op = save(cairn, 1);
    assert_int_equal(cairn_close(cairn, 1, &err), CAIRN_E_CLOSED);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), CAIRN_E_CLOSED);
    cairn_op_free(op);
}

static void *let_go_later(void *arg)
{
    struct timespec wait = {.tv_nsec = 20000000};
    nanosleep(&wait, NULL); /* gives close the time to begin; the test holds without it */
    fake_release();
    return NULL;
}

FIXED_TEST(test_close_waits_for_what_is_in_flight)
{
    pthread_t thread;
    cairn_t *cairn = open_default();
    fake_script.never_ends = true;
    cairn_op_t *op = save(cairn, 1);
    assert_int_equal(pthread_create(&thread, NULL, let_go_later, NULL), 0);
    close_well(cairn);
    pthread_join(thread, NULL);
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, 0, NULL), 0);
    cairn_op_free(op);
    assert_int_equal(cairn_close(NULL, 0, NULL), 0);
}

HANDLE_TEST(test_an_abort_ends_a_restore)
{
    cairn_op_t *op = NULL;
    fake_script.never_ends = true;
    assert_int_equal(cairn_restore(cairn, NULL, &op, NULL), 0);
    cairn_op_abort(op);
    cairn_op_abort(op); /* asking twice is asking once */
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, NULL), CAIRN_E_CANCELLED);
    cairn_op_free(op);
}

/* --- fork
 * ----------------------------------------------------------------------------------------- */

/* A child may open a handle of its own; the script lets nothing of it end. */
static bool can_open_another(void)
{
#ifdef __SANITIZE_THREAD__
    return true; /* it cannot start threads in a forked child */
#else
    cairn_t *cairn = NULL;
    cairn_op_t *op = NULL;
    bool saved =
        cairn_open(url, NULL, &cairn, NULL) == 0 && cairn_save(cairn, 2, NULL, &op, NULL) == 0;
    cairn_op_free(op);
    return saved && cairn_close(cairn, 0, NULL) == CAIRN_E_ABORTED;
#endif
}

/* Counts what was right; the first that was wrong ends the child with its number. */
static void child_wants(int *io_number, bool right)
{
    ++*io_number;
    if (!right) {
        _exit(*io_number);
    }
}

static _Noreturn void in_child(cairn_t *cairn, cairn_op_t *op, struct seen *seen)
{
    struct cairn_result result = CAIRN_RESULT_INIT;
    cairn_op_t *other = NULL;
    cairn_list_t *list = NULL;
    struct cairn_error err;
    int n = 0;
    child_wants(&n, cairn_save(cairn, 2, NULL, &other, &err) == CAIRN_E_FORKED);
    child_wants(&n, strstr(err.text, "parent process") != NULL);
    child_wants(&n, cairn_restore(cairn, NULL, &other, NULL) == CAIRN_E_FORKED);
    child_wants(&n, cairn_list(cairn, 0, &list, NULL) == CAIRN_E_FORKED);
    child_wants(&n, cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, NULL) == CAIRN_E_FORKED);
    child_wants(&n, cairn_op_result(op, &result, NULL) == CAIRN_E_FORKED);
    child_wants(&n, cairn_op_notify(op, CAIRN_DONE, note, seen, drop_only) == CAIRN_E_FORKED);
    child_wants(&n, seen->drops == 1 && seen->calls == 0);
    cairn_op_abort(op);
    cairn_op_free(op);
    child_wants(&n, cairn_close(cairn, CAIRN_FOREVER, NULL) == CAIRN_E_FORKED);
    child_wants(&n, can_open_another());
    _exit(0);
}

HANDLE_TEST(test_a_childs_handles_are_dead_and_the_parents_go_on)
{
    struct seen seen = {0};
    int status = 0;
    fake_script.never_ends = true;
    cairn_op_t *op = save(cairn, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        in_child(cairn, op, &seen);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fake_release();
    end_well(op);
}

/* --- many threads
 * --------------------------------------------------------------------------------- */

enum { SAVERS = 4, SAVES_EACH = 50 };

static void *save_often(void *arg)
{
    for (uint64_t i = 0; i < SAVES_EACH; i++) {
        cairn_op_t *op = NULL;
        if (cairn_save(arg, i, NULL, &op, NULL) != 0) {
            return arg;
        }
        int rc = i % 2 == 0 ? cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, NULL) : 0;
        cairn_op_free(op);
        if (rc != 0) {
            return arg;
        }
    }
    return NULL;
}

HANDLE_TEST(test_any_thread_may_save)
{
    pthread_t threads[SAVERS];
    for (int i = 0; i < SAVERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, save_often, cairn), 0);
    }
    for (int i = 0; i < SAVERS; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}

/* --- tables
 * --------------------------------------------------------------------------------------- */

FIXED_TEST(test_codes_and_dtypes_have_names)
{
    assert_string_equal(cairn_err_name(CAIRN_E_NO_SPACE), "NO_SPACE");
    assert_string_equal(cairn_err_name(-9999), "UNKNOWN");
    assert_string_equal(cairn_strerror(CAIRN_E_NO_SPACE), "no space left in the store");
    assert_int_equal(cairn_err_retry(CAIRN_E_INVALID), 0);
    assert_int_equal(cairn_err_retry(CAIRN_E_UNREACHABLE), 1);
    assert_int_equal(cairn_err_retry(CAIRN_E_NO_SPACE), 2);
    assert_int_equal(cairn_err_retry(CAIRN_E_OUTCOME_UNKNOWN), 3);
    assert_string_equal(cairn_dtype_name(CAIRN_BF16), "bfloat16");
    assert_string_equal(cairn_dtype_name(-1), "unknown");
    assert_int_equal(cairn_dtype_bits(CAIRN_C128), 128);
    assert_int_equal(cairn_dtype_bits(1000), 0);
    assert_string_equal(cairn_version(), CAIRN_VERSION);
}
