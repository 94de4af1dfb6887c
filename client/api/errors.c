/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of errors and element types and the boxes of flat ranges as cairn.h shows them, and
 * the way from a diag to a cairn_error. Pure; any thread.
 */
#include "api_private.h"

#include "base/err.h"
#include "format/box.h"

#include <string.h>

const char *cairn_err_name(int code) { return err_name(code); }
const char *cairn_strerror(int code) { return err_text(code); }
int cairn_err_retry(int code) { return (int)err_retry(code); }
const char *cairn_version(void) { return CAIRN_VERSION; }

const char *cairn_dtype_name(int dtype) { return dtype_name((uint32_t)dtype); }
int cairn_dtype_bits(int dtype) { return (int)dtype_bits((uint32_t)dtype); }

_Static_assert((int)CAIRN_FLAT_BOXES == (int)BOX_FLAT_MAX, "cairn.h and box.h differ");

int cairn_flat_boxes(uint32_t ndim, const int64_t *shape, uint64_t first, uint64_t end,
                     struct cairn_flat_box ret[CAIRN_FLAT_BOXES])
{
    struct shape of = {.ndim = ndim};
    struct box boxes[BOX_FLAT_MAX];
    uint64_t bytes, at = 0;
    if (ndim > LIMIT_NDIM || (ndim > 0 && !shape) || !ret || first > end) {
        return CAIRN_E_INVALID;
    }
    memcpy(of.length, shape, ndim * sizeof *shape);
    if (shape_check(&of, CAIRN_U8, &bytes, NULL) != 0 || end > bytes) {
        return CAIRN_E_INVALID; /* an element of u8 is a byte */
    }
    uint32_t count = box_flat(&of, first, end, boxes);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(ret[i].offset, boxes[i].offset, sizeof ret[i].offset);
        memcpy(ret[i].length, boxes[i].length, sizeof ret[i].length);
        ret[i].at = at;
        at += box_elements(&boxes[i]);
    }
    return (int)count;
}

int cairn_flat_part(uint64_t start, uint64_t count, uint64_t first, uint64_t end,
                    uint64_t ret_range[2])
{
    return ret_range && box_flat_part(start, count, first, end, ret_range) ? 1 : 0;
}

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
    case CAIRN_E_CONNECTION_LOST:
    case CAIRN_E_TIMED_OUT:
        return "check that cairnd is running there, and check the URL or CAIRN_SERVER";
    case CAIRN_E_AUTH:
        return "check that cert_file, key_file and ca_file fit the server's certificates";
    case CAIRN_E_VERSION:
        return "upgrade the older of the client and the server";
    case CAIRN_E_DUPLICATE_RANK:
        return "give each process its own rank, or wait until the old process has ended";
    case CAIRN_E_WORLD_MISMATCH:
        return "give all ranks of an attempt the same world_size";
    default:
        return NULL;
    }
}
