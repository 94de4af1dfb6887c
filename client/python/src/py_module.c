/* SPDX-License-Identifier: Apache-2.0
 *
 * The module cairn._cairn: functions without a handle, tables, the two types. One
 * interpreter per process; the state is made at import and never freed.
 */
#include "py_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct py_state state;

struct py_state *py_state_get(void) { return &state; }

static PyObject *new_attempt(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    char token[33];
    int rc = cairn_new_attempt(token);
    if (rc != 0) {
        return py_raise_code(rc, "cannot draw an attempt token");
    }
    return PyUnicode_FromString(token);
}

static PyObject *crc32c(PyObject *Py_UNUSED(self), PyObject *object)
{
    Py_buffer view;
    uint32_t crc;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    crc = py_crc32c(0, (size_t)view.len, view.buf);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

/* (name, text, retry class) of a code. */
static PyObject *error_row(PyObject *Py_UNUSED(self), PyObject *args)
{
    int code;
    if (!PyArg_ParseTuple(args, "i:error_row", &code)) {
        return NULL;
    }
    return Py_BuildValue("ssi", cairn_err_name(code), cairn_strerror(code), cairn_err_retry(code));
}

/* (name, bits) of an element type; bits 0: unknown. */
static PyObject *dtype_row(PyObject *Py_UNUSED(self), PyObject *args)
{
    int dtype;
    if (!PyArg_ParseTuple(args, "i:dtype_row", &dtype)) {
        return NULL;
    }
    return Py_BuildValue("si", cairn_dtype_name(dtype), cairn_dtype_bits(dtype));
}

/* interval(blocked, persist, restart, observed, failures, prior_mtbf, overhead_max, world_size,
 * in_flight)
 * -> (mtbf, staged, durable, overhead, lost, text) */
static PyObject *interval(PyObject *Py_UNUSED(self), PyObject *args)
{
    struct cairn_interval io = CAIRN_INTERVAL_INIT;
    struct cairn_error err;
    unsigned long long failures;
    int world_size, in_flight;
    if (!PyArg_ParseTuple(args, "ddddKddii:interval", &io.blocked_s, &io.persist_s, &io.restart_s,
                          &io.observed_s, &failures, &io.prior_mtbf_s, &io.overhead_max,
                          &world_size, &in_flight)) {
        return NULL;
    }
    io.failures = failures;
    io.world_size = world_size, io.in_flight = in_flight;
    if (cairn_interval(&io, &err) != 0) {
        return py_raise(&err);
    }
    return Py_BuildValue("ddddds", io.mtbf_s, io.staged_s, io.durable_s, io.overhead, io.lost_s,
                         io.text);
}

/* Runs after the interpreter's end, as the first of libc's own handlers. A status that says of a
 * failure already stays as it is. */
static void end_as_failed(int status, void *Py_UNUSED(arg))
{
    if (status == 0) {
        fflush(NULL);
        _exit(EXIT_FAILURE);
    }
}

static PyObject *fail_exit(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    if (on_exit(end_as_failed, NULL) != 0) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"fail_exit", fail_exit, METH_NOARGS, "Lets this process end with status 1 instead of 0."},
    {"interval", interval, METH_VARARGS,
     "interval(...) -> (mtbf, staged, durable, overhead, lost, text)"},
    {"new_attempt", new_attempt, METH_NOARGS, "A fresh attempt token: 32 hex digits."},
    {"crc32c", crc32c, METH_O, "crc32c(bytes) -> int"},
    {"error_row", error_row, METH_VARARGS, "error_row(code) -> (name, text, retry class)"},
    {"dtype_row", dtype_row, METH_VARARGS, "dtype_row(number) -> (name, bits)"},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    state.handle_type = (PyTypeObject *)PyType_FromSpec(&py_handle_spec);
    state.op_type = (PyTypeObject *)PyType_FromSpec(&py_op_spec);
    if (state.handle_type == NULL || state.op_type == NULL ||
        PyModule_AddType(module, state.handle_type) != 0 ||
        PyModule_AddType(module, state.op_type) != 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "version", cairn_version());
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cairn._cairn",
    .m_doc = "libcairn for Python, low level. Use cairn.Client and cairn.torch.Checkpointer.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__cairn(void);

PyMODINIT_FUNC PyInit__cairn(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && fill(module) != 0) {
        Py_CLEAR(module);
    }
    return module;
}
