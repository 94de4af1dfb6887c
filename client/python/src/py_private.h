/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the extension cairn._cairn share. abi3 from Python 3.11. Invariants: no call
 * into libcairn that may wait holds the GIL; a handle is closed only when no other thread is inside
 * it
 * (`calls`, guarded by the GIL); tensors that an operation borrows are referenced by its object.
 */
#ifndef CAIRN_PYTHON_PY_PRIVATE_H
#define CAIRN_PYTHON_PY_PRIVATE_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "cairn.h"

#include <stdbool.h>
#include <sys/types.h>

struct py_handle {
    PyObject_HEAD cairn_t *cairn; /* NULL once closed */
    pid_t pid;                    /* that opened it */
    unsigned calls;               /* threads inside a call on it */
    PyObject *keepalive;          /* of the registered tensors */
};

struct py_op {
    PyObject_HEAD cairn_op_t *op;
    pid_t pid;
    bool is_save;
    unsigned calls;
    PyObject *keepalive; /* of the tensors that a restore fills */
};

extern PyType_Spec py_handle_spec, py_op_spec;

struct py_state {
    PyTypeObject *handle_type, *op_type;
};

/* The module's state, made at import. */
struct py_state *py_state_get(void);

/* --- errors and small parts (py_args.c)
 * ------------------------------------------------------------ */

/* A str of a text for people, in which a long name may be cut within a character. */
PyObject *py_said(const char *text);
/* Sets the exception for err; always NULL. */
PyObject *py_raise(const struct cairn_error *err);
PyObject *py_raise_code(int code, const char *text);
/* A str's bytes, borrowed from it, or NULL for None. Returns false with an exception set. */
bool py_text(PyObject *object, const char **ret);
/* Seconds (None or negative: for ever) to milliseconds, rounded up. -1 with an exception set. */
int64_t py_deadline_ms(PyObject *seconds);

/* Memory that lives until py_scratch_free: arrays made while arguments are read. */
struct py_scratch {
    struct py_block *blocks;
};
/* Zeroed; NULL with MemoryError set. */
void *py_scratch_take(struct py_scratch *scratch, size_t count, size_t bytes);
void py_scratch_free(struct py_scratch *scratch);

/* A sequence of ints; count -1 leaves the length to the caller's *ret_count. NULL with an exception
 * set. */
int64_t *py_int64_array(struct py_scratch *scratch, PyObject *sequence, Py_ssize_t *io_count);

/* --- registering (py_register.c)
 * -------------------------------------------------------------------- */

PyObject *py_handle_set_tensors(PyObject *self, PyObject *args);
PyObject *py_handle_set_blobs(PyObject *self, PyObject *args);

/* --- handles and operations
 * -------------------------------------------------------------------------- */

/* Counts the caller in, or gives NULL with an exception (FORKED, CLOSED). */
cairn_t *py_handle_enter(struct py_handle *handle);
void py_handle_leave(struct py_handle *handle);
/* Takes op; keepalive is borrowed. NULL with an exception: op was freed. */
PyObject *py_op_new(cairn_op_t *op, bool is_save, PyObject *keepalive);

/* crc32c of data going on from crc (0 at first). */
uint32_t py_crc32c(uint32_t crc, size_t bytes, const void *data);

#endif
