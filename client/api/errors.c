/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of errors and of element types as cairn.h shows them, and the way from a diag to a
 * cairn_error. Pure; any thread.
 */
#include "api_private.h"

#include "base/err.h"
#include "format/ids.h"

#include <stdio.h>
#include <string.h>

const char *cairn_err_name(int code) { return err_name(code); }
const char *cairn_strerror(int code) { return err_text(code); }
int cairn_err_retry(int code) { return (int)err_retry(code); }
const char *cairn_version(void) { return CAIRN_VERSION; }

const char *cairn_dtype_name(int dtype) { return dtype_name((uint32_t)dtype); }
int cairn_dtype_bits(int dtype) { return (int)dtype_bits((uint32_t)dtype); }

_Static_assert(sizeof(((struct cairn_error *)0)->text) >= DIAG_TEXT_MAX, "a diag's text fits");

int error_fill(struct cairn_error *err, int code, const struct diag *diag)
{
    if (err != NULL) {
        const char *text = code == 0 ? "" : diag_text(diag, code);
        err->code = code;
        memset(err->text, 0, sizeof err->text);
        memcpy(err->text, text, strnlen(text, sizeof err->text - 1));
    }
    return code;
}

const char *error_remedy(int code)
{
    switch (code) {
    case CAIRN_E_UNREACHABLE:
    case CAIRN_E_CONNECTION_LOST:
    case CAIRN_E_TIMED_OUT:
        return "is cairnd running there? check the URL or CAIRN_SERVER";
    case CAIRN_E_AUTH:
        return "check cert_file, key_file and ca_file against the server's";
    case CAIRN_E_VERSION:
        return "upgrade the older of client and server";
    case CAIRN_E_DUPLICATE_RANK:
        return "give each process its own rank, or wait until the old process is gone";
    case CAIRN_E_WORLD_MISMATCH:
        return "give all ranks of an attempt the same world_size";
    default:
        return NULL;
    }
}
