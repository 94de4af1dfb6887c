/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of errors, built from err.def. Invariants: there is one row for each code, and any int
 * may be asked for, because codes from a peer may be unknown. Pure; any thread.
 */
#include "base/err.h"

#include "base/check.h"

#include <errno.h>
#include <string.h>

struct err_row {
    const char *name, *text;
    enum err_retry retry;
    int exit_status;
};

/* Indexed by the negated code. Two rows with the same value do not compile (-Woverride-init). */
static const struct err_row err_rows[] = {
    [0] = {"OK", "success", ERR_RETRY_NEVER, 0},
#define CAIRN_ERR(name, value, text, retry, status) \
    [-(value)] = {#name, text, ERR_RETRY_##retry, status},
#include "base/err.def"
#undef CAIRN_ERR
};

static const struct err_row err_unknown = {"UNKNOWN", "unknown error", ERR_RETRY_NEVER, 1};

static const struct err_row *err_row(int code)
{
    if (!err_is_known(code)) {
        return &err_unknown;
    }
    return &err_rows[-code];
}

bool err_is_known(int code)
{
    /* A hole is a row that was removed from err.def; its value is never used again. */
    return code <= 0 && code > -(int)ARRAY_LEN(err_rows) && err_rows[-code].name != NULL;
}

const char *err_name(int code) { return err_row(code)->name; }
const char *err_text(int code) { return err_row(code)->text; }
enum err_retry err_retry(int code) { return err_row(code)->retry; }
int err_exit_status(int code) { return err_row(code)->exit_status; }

int err_from_name(const char *name)
{
    for (int code = -1; code > -(int)ARRAY_LEN(err_rows); code--) {
        if (err_is_known(code) && strcmp(err_name(code), name) == 0) {
            return code;
        }
    }
    return 0;
}

int err_from_errno(int errnum)
{
    static const struct {
        int errnum, code;
    } rows[] = {
        {ENOSPC, CAIRN_E_NO_SPACE},     {EFBIG, CAIRN_E_NO_SPACE},      {EDQUOT, CAIRN_E_QUOTA},
        {EROFS, CAIRN_E_READ_ONLY},     {ENOENT, CAIRN_E_NOT_FOUND},    {EEXIST, CAIRN_E_EXISTS},
        {ENOTEMPTY, CAIRN_E_NOT_EMPTY}, {ENOMEM, CAIRN_E_NO_MEMORY},    {EACCES, CAIRN_E_DENIED},
        {EPERM, CAIRN_E_DENIED},        {ETIMEDOUT, CAIRN_E_TIMED_OUT},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].errnum == errnum) {
            return rows[i].code;
        }
    }
    return CAIRN_E_IO;
}
