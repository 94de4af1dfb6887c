/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn._cairn.Op: a save or restore in flight. Waits go in slices, so that a signal (Ctrl-C) ends
 * them. Memory that a restore fills is kept alive by the op: one that is dropped early is aborted
 * first, and if it does not end soon its tensors are leaked rather than freed under the writer.
 */
#include "py_private.h"

#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 100, DROP_MS = 10000 };

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

PyObject *py_op_new(cairn_op_t *op, bool is_save, PyObject *keepalive)
{
    PyTypeObject *type = py_state_get()->op_type;
    struct py_op *self = (struct py_op *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        /* Nobody could wait for it any more. */
        cairn_op_abort(op);
        int rc;
        Py_BEGIN_ALLOW_THREADS rc = cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, NULL);
        Py_END_ALLOW_THREADS(void) rc;
        cairn_op_free(op);
        return NULL;
    }
    self->op = op;
    self->pid = getpid();
    self->is_save = is_save;
    Py_XINCREF(keepalive);
    self->keepalive = keepalive;
    return (PyObject *)self;
}

static void op_dealloc(PyObject *object)
{
    struct py_op *self = (struct py_op *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->op != NULL && self->pid == getpid()) {
        int rc = 0;
        if (!self->is_save && cairn_op_wait(self->op, CAIRN_DONE, 0, NULL) == CAIRN_E_AGAIN) {
            cairn_op_abort(self->op);
            Py_BEGIN_ALLOW_THREADS rc = cairn_op_wait(self->op, CAIRN_DONE, DROP_MS, NULL);
            Py_END_ALLOW_THREADS
        }
        cairn_op_free(self->op);
        if (rc == CAIRN_E_AGAIN) {
            self->keepalive = NULL; /* leaked: still being written */
        }
    }
    Py_XDECREF(self->keepalive);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static bool op_check(const struct py_op *self)
{
    if (self->pid == getpid()) {
        return true;
    }
    py_raise_code(CAIRN_E_FORKED, "this operation was started before fork() and belongs to the "
                                  "parent process; wait for it there");
    return false;
}

/* True or False (the time passed), or the operation's error. */
static PyObject *op_wait(PyObject *object, PyObject *args)
{
    struct py_op *self = (struct py_op *)object;
    struct cairn_error err;
    PyObject *seconds = Py_None;
    int stage;
    if (!PyArg_ParseTuple(args, "i|O:wait", &stage, &seconds)) {
        return NULL;
    }
    int64_t deadline_ms = py_deadline_ms(seconds);
    if (deadline_ms < 0 || !op_check(self)) {
        return NULL;
    }
    int64_t start_ms = now_ms();
    for (;;) {
        int64_t left_ms =
            deadline_ms == CAIRN_FOREVER ? SLICE_MS : deadline_ms - (now_ms() - start_ms);
        int64_t slice_ms = left_ms < SLICE_MS ? left_ms : SLICE_MS;
        int rc;
        Py_BEGIN_ALLOW_THREADS rc =
            cairn_op_wait(self->op, (enum cairn_stage)stage, slice_ms > 0 ? slice_ms : 0, &err);
        Py_END_ALLOW_THREADS if (rc == 0)
        {
            if (stage == CAIRN_DONE) {
                Py_CLEAR(self->keepalive);
            }
            Py_RETURN_TRUE;
        }
        if (rc != CAIRN_E_AGAIN) {
            return py_raise(&err);
        }
        if (PyErr_CheckSignals() != 0) {
            return NULL;
        }
        if (deadline_ms != CAIRN_FOREVER && slice_ms >= left_ms) {
            Py_RETURN_FALSE;
        }
    }
}

static PyObject *op_result(PyObject *object, PyObject *Py_UNUSED(args))
{
    struct py_op *self = (struct py_op *)object;
    struct cairn_result result = CAIRN_RESULT_INIT;
    struct cairn_error err;
    if (!op_check(self)) {
        return NULL;
    }
    if (cairn_op_result(self->op, &result, &err) != 0) {
        return py_raise(&err);
    }
    return Py_BuildValue(
        "KKiiKKK", (unsigned long long)result.term, (unsigned long long)result.step,
        result.fell_back, result.new_lineage, (unsigned long long)result.plain_bytes,
        (unsigned long long)result.stored_bytes, (unsigned long long)result.blocked_ns);
}

static PyObject *op_run_is_empty(PyObject *object, PyObject *Py_UNUSED(args))
{
    struct py_op *self = (struct py_op *)object;
    return op_check(self) ? PyBool_FromLong(cairn_op_run_is_empty(self->op)) : NULL;
}

static PyObject *op_blob(PyObject *object, PyObject *args)
{
    struct py_op *self = (struct py_op *)object;
    const char *name, *coordinate = NULL;
    const void *data;
    size_t bytes;
    if (!PyArg_ParseTuple(args, "s|z:blob", &name, &coordinate) || !op_check(self)) {
        return NULL;
    }
    int rc = cairn_op_blob(self->op, name, coordinate, &data, &bytes);
    if (rc == CAIRN_E_NOT_FOUND) {
        Py_RETURN_NONE;
    }
    if (rc != 0) {
        return py_raise_code(rc, "cannot read a restored blob");
    }
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)bytes);
}

static PyObject *op_warning(PyObject *object, PyObject *Py_UNUSED(args))
{
    struct py_op *self = (struct py_op *)object;
    if (!op_check(self)) {
        return NULL;
    }
    const char *text = cairn_op_warning(self->op);
    return text ? py_said(text) : (Py_INCREF(Py_None), Py_None);
}

static PyObject *op_metadata(PyObject *object, PyObject *Py_UNUSED(args))
{
    struct py_op *self = (struct py_op *)object;
    const void *data;
    size_t bytes;
    if (!op_check(self)) {
        return NULL;
    }
    int rc = cairn_op_metadata(self->op, &data, &bytes);
    if (rc != 0) {
        return py_raise_code(rc, "cannot read the metadata of the restored checkpoint");
    }
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)bytes);
}

static PyObject *name_list(struct py_op *self, const char *(*get)(cairn_op_t *op, size_t idx))
{
    const char *name;
    if (!op_check(self)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && (name = get(self->op, i)) != NULL; i++) {
        PyObject *item = PyUnicode_FromString(name);
        if (item == NULL || PyList_Append(list, item) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *op_missing(PyObject *self, PyObject *Py_UNUSED(args))
{
    return name_list((struct py_op *)self, cairn_op_missing);
}

static PyObject *op_unexpected(PyObject *self, PyObject *Py_UNUSED(args))
{
    return name_list((struct py_op *)self, cairn_op_unexpected);
}

/* (name, coordinate, kind, dtype, shape, bytes) of each entry that `get` gives. */
static PyObject *entry_list(struct py_op *self,
                            int (*get)(cairn_op_t *op, size_t idx, struct cairn_local *io))
{
    struct cairn_local local = CAIRN_LOCAL_INIT;
    int rc = 0;
    if (!op_check(self)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL; i++) {
        rc = get(self->op, i, &local);
        if (rc != 0) {
            break;
        }
        PyObject *shape = PyTuple_New((Py_ssize_t)local.ndim);
        for (uint32_t d = 0; shape != NULL && d < local.ndim; d++) {
            PyTuple_SetItem(shape, (Py_ssize_t)d, PyLong_FromLongLong(local.shape[d]));
        }
        PyObject *item = shape == NULL
                             ? NULL
                             : Py_BuildValue("ssisNK", local.name, local.coordinate, local.kind,
                                             local.kind == 0 ? cairn_dtype_name(local.dtype) : "",
                                             shape, (unsigned long long)local.plain_bytes);
        if (item == NULL || PyList_Append(list, item) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    if (list != NULL && rc != CAIRN_E_NOT_FOUND) {
        Py_DECREF(list);
        return py_raise_code(rc, "cannot list the contents of the checkpoint");
    }
    return list;
}

static PyObject *op_locals(PyObject *self, PyObject *Py_UNUSED(args))
{
    return entry_list((struct py_op *)self, cairn_op_local);
}

static PyObject *op_entries(PyObject *self, PyObject *Py_UNUSED(args))
{
    return entry_list((struct py_op *)self, cairn_op_entry);
}

static PyObject *op_progress(PyObject *object, PyObject *Py_UNUSED(args))
{
    struct py_op *self = (struct py_op *)object;
    struct cairn_progress progress = CAIRN_PROGRESS_INIT;
    if (!op_check(self)) {
        return NULL;
    }
    cairn_op_progress(self->op, &progress);
    return Py_BuildValue(
        "KKKK", (unsigned long long)progress.total_bytes, (unsigned long long)progress.staged_bytes,
        (unsigned long long)progress.sent_bytes, (unsigned long long)progress.durable_bytes);
}

static PyObject *op_abort(PyObject *object, PyObject *Py_UNUSED(args))
{
    struct py_op *self = (struct py_op *)object;
    if (!op_check(self)) {
        return NULL;
    }
    cairn_op_abort(self->op);
    Py_RETURN_NONE;
}

static PyMethodDef op_methods[] = {
    {"wait", op_wait, METH_VARARGS,
     "wait(stage, seconds=None) -> bool; raises the operation's error"},
    {"result", op_result, METH_NOARGS,
     "(term, step, fell_back, new_lineage, plain_bytes, stored_bytes, blocked_ns)"},
    {"run_is_empty", op_run_is_empty, METH_NOARGS, "of a restore that ended: proven so?"},
    {"blob", op_blob, METH_VARARGS, "blob(name, coordinate=None) -> bytes or None"},
    {"warning", op_warning, METH_NOARGS, "of a finished save: what was noticed, or None"},
    {"metadata", op_metadata, METH_NOARGS, "bytes given at save"},
    {"missing", op_missing, METH_NOARGS, "names registered but not stored"},
    {"unexpected", op_unexpected, METH_NOARGS, "names stored but not registered"},
    {"locals", op_locals, METH_NOARGS, "[(name, coordinate, kind, dtype, shape, bytes)]"},
    {"entries", op_entries, METH_NOARGS, "as locals, of everything in the checkpoint"},
    {"progress", op_progress, METH_NOARGS, "(total, staged, sent, durable) bytes"},
    {"abort", op_abort, METH_NOARGS, "asks the operation to end; waiting tells the truth"},
    {NULL, NULL, 0, NULL},
};

static char op_doc[] =
    "One save or restore in flight. Made by Handle."; /* slots want it writable */

static PyType_Slot op_slots[] = {
    {Py_tp_dealloc, op_dealloc},
    {Py_tp_methods, op_methods},
    {Py_tp_doc, op_doc},
    {0, NULL},
};

PyType_Spec py_op_spec = {
    .name = "cairn._cairn.Op",
    .basicsize = sizeof(struct py_op),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = op_slots,
};
