/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments: structs that grow, deadlines, and locks that wait on the monotonic clock. Pure, except
 * for the clock; any thread.
 */
#include "api_private.h"

#include <string.h>
#include <time.h>

/* Ten years. No wait is longer, and the nanoseconds fit into 64 bits. */
#define DEADLINE_MS_MAX (INT64_C(10) * 366 * 24 * 3600 * 1000)

/* The sizes of the first version of each struct. A program that was built with it must go on
 * working. */
static const struct first_size {
    const char *what;
    size_t bytes;
} first_sizes[] = {
    {"cairn_options", 112},   {"cairn_save_options", 64}, {"cairn_restore_options", 40},
    {"cairn_checkpoint", 96}, {"cairn_annotation", 72},   {"cairn_tensor", 80},
    {"cairn_blob", 48},
};

size_t args_first_bytes(const char *what, size_t bytes)
{
    for (size_t i = 0; i < ARRAY_LEN(first_sizes); i++) {
        if (strcmp(first_sizes[i].what, what) == 0 && first_sizes[i].bytes < bytes) {
            return first_sizes[i].bytes;
        }
    }
    return bytes;
}

int args_copy(const char *what, size_t bytes, const void *from, void *ret, struct diag *diag)
{
    size_t given;
    if (from == NULL) {
        return 0;
    }
    memcpy(&given, from, sizeof given);
    if (given < args_first_bytes(what, bytes)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "%s.size is %zu, but must be %zu: initialise the struct with %s's INIT "
                        "macro of cairn.h",
                        what, given, bytes, what);
    }
    for (size_t i = bytes; i < given; i++) {
        if (((const uint8_t *)from)[i] != 0) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "%s has a field set (at byte %zu) that libcairn %s does not know; "
                            "install a newer libcairn",
                            what, i, CAIRN_VERSION);
        }
    }
    memcpy(ret, from, given < bytes ? given : bytes);
    return 0;
}

void args_give(size_t bytes, const void *from, void *io)
{
    size_t room;
    memcpy(&room, io, sizeof room);
    if (room > bytes) {
        room = bytes;
    }
    if (room > sizeof room) {
        memcpy((uint8_t *)io + sizeof(size_t), (const uint8_t *)from + sizeof(size_t),
               room - sizeof(size_t));
    }
}

uint64_t args_deadline_ms(int64_t deadline_ms, uint64_t default_ms)
{
    if (deadline_ms <= 0) {
        return default_ms;
    }
    return (uint64_t)(deadline_ms < DEADLINE_MS_MAX ? deadline_ms : DEADLINE_MS_MAX);
}

uint64_t args_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct timespec args_due(int64_t deadline_ms)
{
    uint64_t due_ns = args_now_ns() + args_deadline_ms(deadline_ms, 0) * 1000000;
    return (struct timespec){.tv_sec = (time_t)(due_ns / 1000000000),
                             .tv_nsec = (long)(due_ns % 1000000000)};
}

int args_lock_init(pthread_mutex_t *lock, pthread_cond_t *cond, struct diag *diag)
{
    pthread_condattr_t attr;
    int errnum = pthread_mutex_init(lock, NULL);
    if (errnum != 0) {
        return diag_errno(diag, errnum, "cannot create a lock");
    }
    errnum = pthread_condattr_init(&attr);
    if (errnum == 0) {
        CHECK(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
        errnum = pthread_cond_init(cond, &attr);
        pthread_condattr_destroy(&attr);
    }
    if (errnum != 0) {
        pthread_mutex_destroy(lock);
        return diag_errno(diag, errnum, "cannot create a condition variable");
    }
    return 0;
}

int args_check_when_full(int when_full, struct diag *diag)
{
    if (when_full >= 0 && when_full <= CAIRN_FULL_FAIL) {
        return 0;
    }
    return diag_set(
        diag, CAIRN_E_INVALID,
        "options.when_full is %d; it must be CAIRN_FULL_WAIT, CAIRN_FULL_SKIP or CAIRN_FULL_FAIL",
        when_full);
}

enum when_full args_when_full(int when_full)
{
    static const enum when_full table[] = {[0] = WHEN_FULL_WAIT,
                                           [CAIRN_FULL_WAIT] = WHEN_FULL_WAIT,
                                           [CAIRN_FULL_SKIP] = WHEN_FULL_SKIP,
                                           [CAIRN_FULL_FAIL] = WHEN_FULL_FAIL};
    CHECK(when_full >= 0 && (size_t)when_full < ARRAY_LEN(table));
    return table[when_full];
}
