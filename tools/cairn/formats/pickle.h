/* SPDX-License-Identifier: Apache-2.0
 *
 * pickle: a restricted reader of pickles, written for what torch.save and
 * torch.distributed.checkpoint write. Nothing is executed or imported: opcodes become values, a
 * callable stays a name (from the caller's list, anything else is an error), and a call stays a
 * name with its arguments. Opcodes that are not needed are errors. Bounded: bytes, values, stack,
 * memo; what walks the values bounds depth and steps, for a pickle may refer to itself. Pure;
 * hostile bytes give a named error.
 */
#ifndef CAIRN_TOOLS_PICKLE_H
#define CAIRN_TOOLS_PICKLE_H

#include "base/diag.h"
#include "base/scratch.h"

#include <stdint.h>

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,  /* fits int64 */
    PICKLE_LONG, /* does not: text holds its two's complement, little-endian */
    PICKLE_FLOAT,
    PICKLE_STR,    /* text: UTF-8, unchecked */
    PICKLE_BYTES,  /* text */
    PICKLE_LIST,   /* items */
    PICKLE_TUPLE,  /* items */
    PICKLE_DICT,   /* items: key, value, key, value ... */
    PICKLE_GLOBAL, /* text: "module name" */
    PICKLE_CALL,   /* callable, items[0]: a tuple of arguments, state (or NULL) */
    PICKLE_STORAGE /* items[0]: the persistent id */
};

struct pickle_value {
    enum pickle_kind kind;
    bool ordered; /* a DICT that was an OrderedDict */
    union {
        int64_t number;
        double real;
    } u;
    size_t bytes; /* of text */
    const char *text;
    size_t count, cap;
    struct pickle_value **items;
    const struct pickle_value *callable, *state;
};

struct pickle_options {
    size_t bytes;
    const uint8_t *data;
    const char *const *globals; /* "module name", ended by NULL; "module *": all of that module */
    /* "module class name", ended by NULL: what getattr may be called for, where globals list it. */
    const char *const *members;
    uint32_t values_max;
};

/* The one object that the bytes hold, from scratch. FORMAT: broken, cut off, an opcode out of
 * place; UNSUPPORTED: an opcode or a global that is not read, by name; TOO_LARGE, NO_MEMORY. */
int MUST_USE pickle_read(const struct pickle_options *options, struct scratch *scratch,
                         const struct pickle_value **ret, struct diag *diag);
bool pickle_is_text(const struct pickle_value *value, const char *text); /* a STR of these bytes */
/* Value of a text key in a DICT; NULL. */
const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key);
/* A CALL of the global; "module name". */
bool pickle_is_call(const struct pickle_value *value, const char *global);
bool pickle_is_global(const struct pickle_value *value, const char *global);

#endif
