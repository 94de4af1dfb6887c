/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors to exceptions, Python's numbers to C's, memory for arguments. All with the GIL held.
 */
#include "py_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct py_block {
    struct py_block *next;
    max_align_t data[];
};

PyObject *py_said(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *py_raise_code(int code, const char *text)
{
    /* Not at import: cairn.errors itself reads the table of errors from this module. */
    PyObject *errors = PyImport_ImportModule("cairn.errors");
    PyObject *said = py_said(text);
    PyObject *error = errors != NULL && said != NULL
                          ? PyObject_CallMethod(errors, "from_code", "iO", code, said)
                          : NULL;
    Py_XDECREF(said);
    Py_XDECREF(errors);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

PyObject *py_raise(const struct cairn_error *err) { return py_raise_code(err->code, err->text); }

bool py_text(PyObject *object, const char **ret)
{
    if (object == Py_None) {
        *ret = NULL;
        return true;
    }
    Py_ssize_t bytes;
    const char *text = PyUnicode_AsUTF8AndSize(object, &bytes);
    if (text == NULL) {
        return false;
    }
    for (Py_ssize_t i = 0; i < bytes; i++) {
        if (text[i] == '\0') {
            PyErr_SetString(PyExc_ValueError, "a name or a tag contains a NUL character");
            return false;
        }
    }
    *ret = text;
    return true;
}

int64_t py_deadline_ms(PyObject *seconds)
{
    if (seconds == NULL || seconds == Py_None) {
        return CAIRN_FOREVER;
    }
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred() != NULL) {
        return -1;
    }
    if (isnan(value)) {
        PyErr_SetString(PyExc_ValueError, "a time in seconds must not be NaN");
        return -1;
    }
    if (value < 0) {
        value = 0;
    }
    return value > 1e12 ? CAIRN_FOREVER : (int64_t)ceil(value * 1000);
}

void *py_scratch_take(struct py_scratch *scratch, size_t count, size_t bytes)
{
    struct py_block *block = NULL;
    if (bytes == 0 || count < (SIZE_MAX - sizeof *block) / bytes) {
        block = calloc(1, sizeof *block + (count * bytes > 0 ? count * bytes : 1));
    }
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    block->next = scratch->blocks;
    scratch->blocks = block;
    return block->data;
}

void py_scratch_free(struct py_scratch *scratch)
{
    while (scratch->blocks != NULL) {
        struct py_block *block = scratch->blocks;
        scratch->blocks = block->next;
        free(block);
    }
}

int64_t *py_int64_array(struct py_scratch *scratch, PyObject *sequence, Py_ssize_t *io_count)
{
    Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0) {
        return NULL;
    }
    if (*io_count >= 0 && count != *io_count) {
        PyErr_Format(PyExc_ValueError, "%zd numbers are needed, but there are %zd", *io_count,
                     count);
        return NULL;
    }
    int64_t *array = py_scratch_take(scratch, (size_t)count, sizeof *array);
    for (Py_ssize_t i = 0; array != NULL && i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        if (item == NULL) {
            return NULL;
        }
        array[i] = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (array[i] == -1 && PyErr_Occurred() != NULL) {
            return NULL;
        }
    }
    *io_count = count;
    return array;
}
