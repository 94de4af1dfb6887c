/* SPDX-License-Identifier: Apache-2.0
 *
 * set_tensors and set_blobs: tuples to cairn.h's structs. A tensor is (name, dtype, shape, address,
 * stride or None, keepalive, placement, coordinate or None, group or None, boxes or None[, eager[,
 * device]]), a box (offset, length, stride or None, address), a blob (name, kind, data, placement,
 * coordinate or None). With the GIL but for the call itself.
 */
#include "py_private.h"

enum { TENSOR_FIELDS = 10, TENSOR_FIELDS_MAX = 12, BOX_FIELDS = 4, BLOB_FIELDS = 5 };

static bool read_int(PyObject *object, int *ret)
{
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred() != NULL) {
        return false;
    }
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a number is out of range");
        return false;
    }
    *ret = (int)value;
    return true;
}

/* 0 is where a tensor without elements lies; of any other one libcairn refuses it by name. */
static bool read_address(PyObject *object, void **ret)
{
    *ret = PyLong_AsVoidPtr(object);
    return *ret != NULL || PyErr_Occurred() == NULL;
}

static bool expect_tuple(PyObject *object, Py_ssize_t fields, const char *what)
{
    if (PyTuple_Check(object) && PyTuple_Size(object) == fields) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "a %s must be a tuple of %zd values", what, fields);
    return false;
}

static bool read_box(struct py_scratch *scratch, PyObject *item, Py_ssize_t ndim,
                     struct cairn_box *box)
{
    if (!expect_tuple(item, BOX_FIELDS, "box")) {
        return false;
    }
    box->offset = py_int64_array(scratch, PyTuple_GetItem(item, 0), &ndim);
    box->length =
        box->offset != NULL ? py_int64_array(scratch, PyTuple_GetItem(item, 1), &ndim) : NULL;
    if (box->length == NULL) {
        return false;
    }
    if (PyTuple_GetItem(item, 2) != Py_None) {
        box->stride = py_int64_array(scratch, PyTuple_GetItem(item, 2), &ndim);
        if (box->stride == NULL) {
            return false;
        }
    }
    return read_address(PyTuple_GetItem(item, 3), &box->data);
}

static bool read_boxes(struct py_scratch *scratch, PyObject *list, struct cairn_tensor *tensor)
{
    Py_ssize_t count = PySequence_Size(list);
    if (count < 0) {
        return false;
    }
    struct cairn_box *boxes = py_scratch_take(scratch, (size_t)count, sizeof *boxes);
    if (boxes == NULL) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        bool ok = item != NULL && read_box(scratch, item, (Py_ssize_t)tensor->ndim, &boxes[i]);
        Py_XDECREF(item);
        if (!ok) {
            return false;
        }
    }
    tensor->boxes = boxes;
    tensor->box_count = (size_t)count;
    return true;
}

/* A whole tensor that is not row-major: one box with strides. */
static bool read_stride(struct py_scratch *scratch, PyObject *stride, struct cairn_tensor *tensor)
{
    Py_ssize_t ndim = (Py_ssize_t)tensor->ndim;
    struct cairn_box *box = py_scratch_take(scratch, 1, sizeof *box);
    if (box == NULL) {
        return false;
    }
    box->offset = py_scratch_take(scratch, tensor->ndim, sizeof *box->offset);
    box->stride = py_int64_array(scratch, stride, &ndim);
    if (box->offset == NULL || box->stride == NULL) {
        return false;
    }
    box->length = tensor->shape;
    box->data = tensor->data;
    tensor->boxes = box;
    tensor->box_count = 1;
    return true;
}

static bool read_group(struct py_scratch *scratch, PyObject *list, struct cairn_tensor *tensor)
{
    Py_ssize_t count = -1;
    int64_t *wide = py_int64_array(scratch, list, &count);
    int32_t *group = wide != NULL ? py_scratch_take(scratch, (size_t)count, sizeof *group) : NULL;
    if (group == NULL) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (wide[i] < 0 || wide[i] > INT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "a rank in a tensor's group is out of range");
            return false;
        }
        group[i] = (int32_t)wide[i];
    }
    tensor->group = group;
    tensor->group_count = (uint32_t)count;
    return true;
}

static bool read_tensor(struct py_scratch *scratch, PyObject *item, struct cairn_tensor *tensor)
{
    Py_ssize_t ndim = -1;
    *tensor = (struct cairn_tensor)CAIRN_TENSOR_INIT;
    Py_ssize_t fields = PyTuple_Check(item) ? PyTuple_Size(item) : TENSOR_FIELDS;
    bool is_long = fields > TENSOR_FIELDS && fields <= TENSOR_FIELDS_MAX;
    if (!expect_tuple(item, is_long ? fields : TENSOR_FIELDS, "tensor") ||
        (fields > TENSOR_FIELDS &&
         !read_int(PyTuple_GetItem(item, TENSOR_FIELDS), &tensor->eager)) ||
        (fields > TENSOR_FIELDS + 1 &&
         !read_int(PyTuple_GetItem(item, TENSOR_FIELDS + 1), &tensor->device)) ||
        !py_text(PyTuple_GetItem(item, 0), &tensor->name) ||
        !read_int(PyTuple_GetItem(item, 1), &tensor->dtype)) {
        return false;
    }
    tensor->shape = py_int64_array(scratch, PyTuple_GetItem(item, 2), &ndim);
    if (tensor->shape == NULL || !read_address(PyTuple_GetItem(item, 3), &tensor->data) ||
        !read_int(PyTuple_GetItem(item, 6), &tensor->placement) ||
        !py_text(PyTuple_GetItem(item, 7), &tensor->coordinate)) {
        return false;
    }
    tensor->ndim = (uint32_t)ndim;
    PyObject *stride = PyTuple_GetItem(item, 4), *group = PyTuple_GetItem(item, 8),
             *boxes = PyTuple_GetItem(item, 9);
    if (stride != Py_None && !read_stride(scratch, stride, tensor)) {
        return false;
    }
    if (group != Py_None && !read_group(scratch, group, tensor)) {
        return false;
    }
    return boxes == Py_None || read_boxes(scratch, boxes, tensor);
}

/* Sets the tensors, or else the blobs. Returns false with an exception. */
static bool set(struct py_handle *handle, const struct cairn_tensor *tensors,
                const struct cairn_blob *blobs, size_t count)
{
    struct cairn_error err;
    int rc;
    cairn_t *cairn = py_handle_enter(handle);
    if (cairn == NULL) {
        return false;
    }
    Py_BEGIN_ALLOW_THREADS rc = tensors != NULL ? cairn_set_tensors(cairn, tensors, count, &err)
                                                : cairn_set_blobs(cairn, blobs, count, &err);
    Py_END_ALLOW_THREADS py_handle_leave(handle);
    if (rc != 0) {
        py_raise(&err);
    }
    return rc == 0;
}

PyObject *py_handle_set_tensors(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct py_scratch scratch = {NULL};
    /* A copy: the strings that C points to live as long as this list, which nobody else changes. */
    PyObject *list = PySequence_List(args);
    if (list == NULL) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    struct cairn_tensor *tensors = py_scratch_take(&scratch, (size_t)count, sizeof *tensors);
    bool ok = tensors != NULL;
    for (Py_ssize_t i = 0; i < count && ok; i++) {
        ok = read_tensor(&scratch, PyList_GetItem(list, i), &tensors[i]);
    }
    ok = ok && set(handle, tensors, NULL, (size_t)count);
    py_scratch_free(&scratch);
    if (!ok) {
        Py_DECREF(list);
        return NULL;
    }
    PyObject *old = handle->keepalive; /* the list's tuples hold the tensors */
    handle->keepalive = list;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static bool read_blob(PyObject *item, struct cairn_blob *blob)
{
    char *data;
    Py_ssize_t bytes;
    *blob = (struct cairn_blob)CAIRN_BLOB_INIT;
    if (!expect_tuple(item, BLOB_FIELDS, "blob") ||
        !py_text(PyTuple_GetItem(item, 0), &blob->name) ||
        !read_int(PyTuple_GetItem(item, 1), &blob->kind) ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(item, 2), &data, &bytes) != 0 ||
        !read_int(PyTuple_GetItem(item, 3), &blob->placement)) {
        return false;
    }
    blob->data = data;
    blob->data_bytes = (size_t)bytes;
    return py_text(PyTuple_GetItem(item, 4), &blob->coordinate);
}

PyObject *py_handle_set_blobs(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct py_scratch scratch = {NULL};
    PyObject *list = PySequence_List(args);
    if (list == NULL) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    struct cairn_blob *blobs = py_scratch_take(&scratch, (size_t)count, sizeof *blobs);
    bool ok = blobs != NULL;
    for (Py_ssize_t i = 0; i < count && ok; i++) {
        ok = read_blob(PyList_GetItem(list, i), &blobs[i]);
    }
    ok = ok && set(handle, NULL, blobs, (size_t)count);
    py_scratch_free(&scratch);
    Py_DECREF(list);
    if (!ok) {
        return NULL;
    }
    Py_RETURN_NONE;
}
