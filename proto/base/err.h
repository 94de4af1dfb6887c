/* SPDX-License-Identifier: Apache-2.0
 *
 * Error codes: 0 or one negative CAIRN_E_*. The table is err.def; errno, UV_*, librados and OpenSSL
 * codes are translated once, in the file that touches the foreign call.
 */
#ifndef CAIRN_BASE_ERR_H
#define CAIRN_BASE_ERR_H

#include <stdbool.h>

/* cairn.h declares the same names for users; both may be included in one file. */
#ifndef CAIRN_H
enum cairn_err {
    CAIRN_OK = 0,
#define CAIRN_ERR(name, value, text, retry, status) CAIRN_E_##name = (value),
#include "err.def"
#undef CAIRN_ERR
};
#endif

enum err_retry { ERR_RETRY_NEVER, ERR_RETRY_RETRY, ERR_RETRY_LATER, ERR_RETRY_RESOLVE };

#define MUST_USE          __attribute__((warn_unused_result))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Name without prefix ("NO_SPACE"), text, retry class and exit status of a code; a number that is
 * not in the table gives "UNKNOWN", "unknown error", NEVER and 1. Codes from a peer may be unknown.
 */
const char *err_name(int code);
const char *err_text(int code);
enum err_retry err_retry(int code);
int err_exit_status(int code);
bool err_is_known(int code);
/* The code of a name as err_name() gives it; 0 when there is none. */
int err_from_name(const char *name);

/* The code for an errno value of a file or memory call: ENOSPC, EFBIG, EDQUOT, EROFS, ENOENT,
 * EEXIST, ENOTEMPTY, ENOMEM, EACCES/EPERM, ETIMEDOUT; everything else is IO. */
int err_from_errno(int errnum);

/* Says in code that a result is ignored on purpose; the reason stands beside the call. */
static inline void err_ignore(int code) { (void)code; }

#endif
