/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies go both ways, host memory is told from device memory, a machine without a driver says so,
 * and every call of the driver may fail once. Method: the stand-in driver.
 */
#include "gpu/gpu.h"

#include "standin_cuda.h"
#include "support/unit_test.h"

TEST(a_machine_without_a_driver_is_normal)
{
    struct gpu *gpu = NULL;
    struct diag diag = DIAG_INIT;
    setenv("CAIRN_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    assert_int_equal(gpu_open(&gpu, &diag), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(diag.text, "/nowhere/libcuda.so.1"));
    assert_null(gpu);
    setenv("CAIRN_LIBCUDA", "libm.so.6", 1); /* a library, but no driver */
    struct diag other = DIAG_INIT;
    assert_int_equal(gpu_open(&gpu, &other), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(other.text, "cuInit"));
    gpu_close(NULL);
    setenv("CAIRN_LIBCUDA", STANDIN_CUDA, 1);
}

TEST(bytes_go_both_ways)
{
    struct gpu *gpu;
    uint8_t host[3000], back[3000] = {0};
    assert_int_equal(gpu_open(&gpu, NULL), 0);
    for (int d = 0; d < 2; d++) {
        void *device = standin_alloc(d, sizeof host);
        memset(host, 'a' + d, sizeof host);
        struct gpu_copy in = {.ordinal = (uint32_t)d,
                              .bytes = sizeof host,
                              .host = host,
                              .device = (uintptr_t)device};
        assert_int_equal(gpu_copy_in(gpu, &in, NULL), 0);
        assert_memory_equal(standin_shadow(device), host, sizeof host);
        struct gpu_copy out = in;
        out.host = back;
        assert_int_equal(gpu_copy_out(gpu, &out, NULL), 0);
        assert_memory_equal(back, host, sizeof host);
        assert_int_equal(standin_context_depth(), 0);
    }
    assert_int_equal(standin_streams(), 2); /* one a device is used again */
    gpu_close(gpu);
    assert_int_equal(standin_streams(), 0);
}

/* Goal: a copy sees what the training's stream still had to do. Method: an event whose work is done
 * when somebody waits for it; the same copy without it has the bytes from before. */
TEST(a_copy_waits_for_the_event)
{
    struct gpu *gpu;
    uint8_t host[100];
    struct diag diag = DIAG_INIT;
    assert_int_equal(gpu_open(&gpu, NULL), 0);
    void *device = standin_alloc(0, sizeof host);
    memset(standin_shadow(device), 'a', sizeof host);
    void *event = standin_event(device, sizeof host, 'b');
    struct gpu_copy copy = {.bytes = sizeof host, .host = host, .device = (uintptr_t)device};
    assert_int_equal(gpu_copy_out(gpu, &copy, NULL), 0);
    assert_int_equal(host[99], 'a');
    copy.after = event;
    assert_int_equal(gpu_copy_out(gpu, &copy, NULL), 0);
    assert_int_equal(host[99], 'b');
    standin_fail_at(1); /* behind the push of the context */
    assert_int_equal(gpu_copy_out(gpu, &copy, &diag), CAIRN_E_IO);
    assert_non_null(strstr(diag.text, "cuStreamWaitEvent"));
    standin_fail_at(-1);
    assert_int_equal(standin_context_depth(), 0);
    gpu_close(gpu);
}

TEST(other_memory_is_refused)
{
    struct gpu *gpu;
    int here;
    assert_int_equal(gpu_open(&gpu, NULL), 0);
    void *device = standin_alloc(1, 100);
    struct diag diag[4] = {DIAG_INIT, DIAG_INIT, DIAG_INIT, DIAG_INIT};
    assert_int_equal(gpu_check(gpu, 1, device, &diag[0]), 0);
    assert_int_equal(gpu_check(gpu, 0, device, &diag[1]), CAIRN_E_INVALID);
    assert_non_null(strstr(diag[1].text, "of CUDA device 1, but device 0 was given"));
    assert_int_equal(gpu_check(gpu, 0, &here, &diag[2]), CAIRN_E_INVALID);
    assert_non_null(strstr(diag[2].text, "not device memory"));
    assert_int_equal(gpu_check(gpu, 7, device, &diag[3]), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(diag[3].text, "CUDA device 7"));
    gpu_close(gpu);
}

/* Goal: whatever call fails, the error has a name, nothing is left behind and the next try works.
 */
TEST(every_call_may_fail)
{
    uint8_t host[512];
    unsigned failures = 0;
    void *device = standin_alloc(0, sizeof host);
    for (int call = 0; call < 16; call++) {
        struct gpu *gpu = NULL;
        struct diag diag = DIAG_INIT;
        struct gpu_copy copy = {
            .ordinal = 0, .bytes = sizeof host, .host = host, .device = (uintptr_t)device};
        standin_fail_at(call);
        int rc = gpu_open(&gpu, &diag);
        rc = rc != 0 ? rc : gpu_check(gpu, 0, device, &diag);
        rc = rc != 0 ? rc : gpu_copy_out(gpu, &copy, &diag);
        rc = rc != 0 ? rc : gpu_copy_in(gpu, &copy, &diag);
        standin_fail_at(-1);
        failures += rc != 0;
        assert_true(rc == 0 || strlen(diag.text) > 0);
        assert_int_equal(standin_context_depth(), 0);
        if (gpu) {
            assert_int_equal(gpu_copy_out(gpu, &copy, NULL), 0);
        }
        gpu_close(gpu);
        assert_int_equal(standin_streams(), 0);
    }
    assert_true(failures >= 8);
}

/* Goal: a thread of ours, which has no context, can lock memory once a device is in use (the
 * stand-in asks for a context, as the driver does); a driver that refuses is no failure. */
TEST(pinning_is_not_needed)
{
    struct gpu *gpu;
    static uint8_t memory[4096];
    assert_int_equal(gpu_open(&gpu, NULL), 0);
    assert_false(gpu_pin(gpu, sizeof memory, memory)); /* no device yet */
    assert_int_equal(gpu_check(gpu, 1, standin_alloc(1, 100), NULL), 0);
    for (int call = 0; call < 2; call++) {
        standin_fail_at(call);
        assert_false(gpu_pin(gpu, sizeof memory, memory));
        standin_fail_at(-1);
        assert_int_equal(standin_context_depth(), 0);
    }
    assert_int_equal(standin_registered(), 0);
    assert_true(gpu_pin(gpu, sizeof memory, memory));
    assert_int_equal(standin_registered(), 1);
    gpu_unpin(gpu, memory);
    assert_int_equal(standin_registered(), 0);
    gpu_close(gpu);
}
