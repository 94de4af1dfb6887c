/* SPDX-License-Identifier: Apache-2.0
 *
 * Error codes: 0 or one negative CAIRN_E_*. The table is err.def. Codes of errno, libuv, librados
 * and OpenSSL are translated once, in the file that makes the foreign call.
 */
#ifndef CAIRN_BASE_ERR_H
#define CAIRN_BASE_ERR_H

#include <stdbool.h>

/* cairn.h declares the same names for users; a file may include both headers. */
#ifndef CAIRN_H
enum cairn_err {
    CAIRN_OK = 0,
#define CAIRN_ERR(name, value, text, retry, status) CAIRN_E_##name = (value),
#include "err.def"
#undef CAIRN_ERR
};
#endif

/* What helps: nothing, the same call again, a change first, or asking what has happened. */
enum err_retry { ERR_RETRY_NEVER, ERR_RETRY_RETRY, ERR_RETRY_LATER, ERR_RETRY_RESOLVE };

#define MUST_USE          __attribute__((warn_unused_result))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Return the name without prefix ("NO_SPACE"), the text, the retry class and the exit status of a
 * code. A number that is not in the table, as a peer may send, gives "UNKNOWN", "unknown error",
 * NEVER and 1.
 */
const char *err_name(int code);
const char *err_text(int code);
enum err_retry err_retry(int code);
int err_exit_status(int code);
bool err_is_known(int code);
/* Returns the code of a name as err_name() gives it, or 0 if there is none. */
int err_from_name(const char *name);

/* Returns the code for an errno value of a file or memory call: ENOSPC, EFBIG, EDQUOT, EROFS,
 * ENOENT, EEXIST, ENOTEMPTY, ENOMEM, EACCES/EPERM and ETIMEDOUT have their own; every other value
 * is IO. */
int err_from_errno(int errnum);

/* Says in code that a result is ignored on purpose. The reason stands beside the call. */
static inline void err_ignore(int code) { (void)code; }

#endif
