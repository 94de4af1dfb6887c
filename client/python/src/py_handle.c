/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn._cairn.Handle: a cairn_t. Calls that may wait release the GIL; close is refused (BUSY)
 * while another thread is inside. In a forked child nothing of it is touched, not even to free it.
 */
#include "py_private.h"

#include <unistd.h>

cairn_t *py_handle_enter(struct py_handle *handle)
{
    if (handle->pid != getpid()) {
        py_raise_code(CAIRN_E_FORKED,
                      "this handle belongs to the parent process; open another one in the child");
        return NULL;
    }
    if (handle->cairn == NULL) {
        py_raise_code(CAIRN_E_CLOSED, "this client is closed; open a new one");
        return NULL;
    }
    handle->calls++;
    return handle->cairn;
}

void py_handle_leave(struct py_handle *handle) { handle->calls--; }

/* The value of an option, or NULL. NULL for all of them once an exception is set, which thus is the
 * first one's. */
static PyObject *option(PyObject *dict, const char *key)
{
    PyObject *value = PyErr_Occurred() == NULL ? PyDict_GetItemString(dict, key) : NULL;
    return value == Py_None ? NULL : value;
}

static int32_t option_int(PyObject *dict, const char *key)
{
    PyObject *value = option(dict, key);
    long number = value != NULL ? PyLong_AsLong(value) : 0;
    if (PyErr_Occurred() == NULL && (number < INT32_MIN || number > INT32_MAX)) {
        PyErr_Format(PyExc_OverflowError, "option %s is out of range", key);
    }
    return (int32_t)number;
}

static uint64_t option_u64(PyObject *dict, const char *key)
{
    PyObject *value = option(dict, key);
    return value == NULL ? 0 : PyLong_AsUnsignedLongLong(value);
}

static const char *option_text(PyObject *dict, const char *key)
{
    PyObject *value = option(dict, key);
    return value == NULL ? NULL : PyUnicode_AsUTF8AndSize(value, NULL);
}

/* Texts are borrowed from the dict. An exception is set when one does not fit. */
static void read_options(PyObject *dict, struct cairn_options *options)
{
    options->rank = option_int(dict, "rank");
    options->world_size = option_int(dict, "world_size");
    options->read_only = option_int(dict, "read_only");
    options->threads = option_int(dict, "threads");
    options->snapshots = option_int(dict, "snapshots");
    options->when_full = option_int(dict, "when_full");
    options->arena_bytes = option_u64(dict, "arena_bytes");
    options->io_deadline_ms = (int64_t)(option_u64(dict, "io_deadline_ms") & INT64_MAX);
    options->save_deadline_ms = (int64_t)(option_u64(dict, "save_deadline_ms") & INT64_MAX);
    options->attempt = option_text(dict, "attempt");
    options->cert_file = option_text(dict, "cert_file");
    options->key_file = option_text(dict, "key_file");
    options->ca_file = option_text(dict, "ca_file");
    options->label = option_text(dict, "label");
    options->encoding = option_int(dict, "encoding");
    options->when_down = option_int(dict, "when_down");
}

static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn_error err;
    cairn_t *cairn = NULL;
    const char *url;
    PyObject *dict;
    int rc;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "sO!:Handle", &url, &PyDict_Type, &dict)) {
        return NULL;
    }
    PyObject *copy = PyDict_Copy(dict); /* nobody changes it while the GIL is away */
    if (copy == NULL) {
        return NULL;
    }
    read_options(copy, &options);
    struct py_handle *handle = NULL;
    if (PyErr_Occurred() == NULL) {
        handle = (struct py_handle *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    }
    if (handle == NULL) {
        Py_DECREF(copy);
        return NULL;
    }
    handle->pid = getpid();
    Py_BEGIN_ALLOW_THREADS rc = cairn_open(url, &options, &cairn, &err);
    Py_END_ALLOW_THREADS Py_DECREF(copy);
    if (rc != 0) {
        Py_DECREF(handle);
        return py_raise(&err);
    }
    handle->cairn = cairn;
    return (PyObject *)handle;
}

static void handle_dealloc(PyObject *self)
{
    struct py_handle *handle = (struct py_handle *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (handle->cairn != NULL && handle->pid == getpid()) {
        cairn_t *cairn = handle->cairn;
        handle->cairn = NULL;
        int rc;
        Py_BEGIN_ALLOW_THREADS rc = cairn_close(cairn, 0, NULL);
        Py_END_ALLOW_THREADS(void)
            rc; /* nobody is left to be told; Client warns before it comes to this */
    }
    Py_XDECREF(handle->keepalive);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *handle_close(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_error err;
    PyObject *seconds = Py_None;
    int rc, cut = 0;
    if (!PyArg_ParseTuple(args, "|Op:close", &seconds, &cut)) {
        return NULL;
    }
    int64_t deadline_ms = py_deadline_ms(seconds);
    if (deadline_ms < 0) {
        return NULL;
    }
    if (handle->cairn == NULL || handle->pid != getpid()) {
        Py_RETURN_NONE;
    }
    if (handle->calls > 0) {
        return py_raise_code(
            CAIRN_E_BUSY,
            "another thread is inside a call of this client; close the client after that call");
    }
    cairn_t *cairn = handle->cairn;
    handle->cairn = NULL;
    Py_BEGIN_ALLOW_THREADS rc = cairn_close(cairn, cut ? CAIRN_CUT : deadline_ms, &err);
    Py_END_ALLOW_THREADS Py_CLEAR(handle->keepalive);
    if (rc != 0) {
        return py_raise(&err);
    }
    Py_RETURN_NONE;
}

/* --- save and restore
 * --------------------------------------------------------------------------------- */

static bool read_tags(struct py_scratch *scratch, PyObject *list, const char *const **ret,
                      size_t *ret_count)
{
    Py_ssize_t count = PyTuple_Size(list);
    const char **tags = count >= 0 ? py_scratch_take(scratch, (size_t)count, sizeof *tags) : NULL;
    for (Py_ssize_t i = 0; tags != NULL && i < count; i++) {
        if (!py_text(PyTuple_GetItem(list, i), &tags[i])) {
            return false;
        }
    }
    *ret = tags;
    *ret_count = tags != NULL ? (size_t)count : 0;
    return tags != NULL;
}

static bool read_metrics(struct py_scratch *scratch, PyObject *list,
                         const struct cairn_metric **ret, size_t *ret_count)
{
    Py_ssize_t count = PyTuple_Size(list);
    struct cairn_metric *metrics =
        count >= 0 ? py_scratch_take(scratch, (size_t)count, sizeof *metrics) : NULL;
    for (Py_ssize_t i = 0; metrics != NULL && i < count; i++) {
        PyObject *item = PyTuple_GetItem(list, i);
        if (!PyArg_ParseTuple(item, "sd", &metrics[i].name, &metrics[i].value)) {
            return false;
        }
    }
    *ret = metrics;
    *ret_count = metrics != NULL ? (size_t)count : 0;
    return metrics != NULL;
}

static PyObject *handle_save(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_save_options options = CAIRN_SAVE_OPTIONS_INIT;
    struct py_scratch scratch = {NULL};
    struct cairn_error err;
    unsigned long long step;
    PyObject *tags, *metrics, *result = NULL;
    const char *metadata;
    Py_ssize_t metadata_bytes;
    long long deadline_ms;
    unsigned long long cuda_event = 0;
    if (!PyArg_ParseTuple(args, "KO!O!y#Liii|iiKzi:save", &step, &PyTuple_Type, &tags,
                          &PyTuple_Type, &metrics, &metadata, &metadata_bytes, &deadline_ms,
                          &options.mode, &options.verify_staged, &options.when_full,
                          &options.check_replicas, &options.full, &cuda_event, &options.refusal,
                          &options.refusal_code)) {
        return NULL;
    }
    options.metadata = metadata_bytes > 0 ? metadata : NULL;
    options.metadata_bytes = (size_t)metadata_bytes;
    options.cuda_event = (void *)(uintptr_t)cuda_event;
    options.deadline_ms = deadline_ms;
    cairn_t *cairn = NULL;
    if (read_tags(&scratch, tags, &options.tags, &options.tag_count) &&
        read_metrics(&scratch, metrics, &options.metrics, &options.metric_count)) {
        cairn = py_handle_enter(handle);
    }
    if (cairn != NULL) {
        cairn_op_t *op = NULL;
        int rc;
        PyObject *keepalive =
            handle->keepalive; /* another thread may replace it while the GIL is away */
        Py_XINCREF(keepalive);
        Py_BEGIN_ALLOW_THREADS rc = cairn_save(cairn, step, &options, &op, &err);
        Py_END_ALLOW_THREADS py_handle_leave(handle);
        result = rc == 0 ? py_op_new(op, true, NULL) : py_raise(&err);
        Py_XDECREF(keepalive);
    }
    py_scratch_free(&scratch);
    return result;
}

static PyObject *handle_restore(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_error err;
    struct py_scratch scratch = {NULL};
    unsigned long long step, term;
    long long deadline_ms;
    PyObject *only;
    cairn_op_t *op = NULL;
    int rc;
    if (!PyArg_ParseTuple(args, "KKiiLO!|i:restore", &step, &term, &options.allow_older,
                          &options.strict, &deadline_ms, &PyTuple_Type, &only,
                          &options.all_local)) {
        return NULL;
    }
    options.step = step;
    options.term = term;
    options.deadline_ms = deadline_ms;
    cairn_t *cairn = read_tags(&scratch, only, &options.only, &options.only_count)
                         ? py_handle_enter(handle)
                         : NULL;
    if (cairn == NULL) {
        py_scratch_free(&scratch);
        return NULL;
    }
    PyObject *keepalive = handle->keepalive;
    Py_XINCREF(keepalive);
    Py_BEGIN_ALLOW_THREADS rc = cairn_restore(cairn, &options, &op, &err);
    Py_END_ALLOW_THREADS py_handle_leave(handle);
    py_scratch_free(&scratch);
    PyObject *result = rc == 0 ? py_op_new(op, false, keepalive) : py_raise(&err);
    Py_XDECREF(keepalive);
    return result;
}

static PyObject *handle_annotate(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_annotation note = CAIRN_ANNOTATION_INIT;
    struct py_scratch scratch = {NULL};
    struct cairn_error err;
    unsigned long long step, term;
    PyObject *metrics, *tags, *removed;
    long long deadline_ms;
    int rc = -1;
    if (!PyArg_ParseTuple(args, "KKO!O!O!L:annotate", &step, &term, &PyTuple_Type, &metrics,
                          &PyTuple_Type, &tags, &PyTuple_Type, &removed, &deadline_ms)) {
        return NULL;
    }
    note.term = term;
    note.deadline_ms = deadline_ms;
    cairn_t *cairn = NULL;
    if (read_metrics(&scratch, metrics, &note.metrics, &note.metric_count) &&
        read_tags(&scratch, tags, &note.tags, &note.tag_count) &&
        read_tags(&scratch, removed, &note.removed_tags, &note.removed_tag_count)) {
        cairn = py_handle_enter(handle);
    }
    if (cairn == NULL) {
        py_scratch_free(&scratch);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS rc = cairn_annotate(cairn, step, &note, &err);
    Py_END_ALLOW_THREADS py_handle_leave(handle);
    py_scratch_free(&scratch);
    if (rc != 0) {
        return py_raise(&err);
    }
    Py_RETURN_NONE;
}

static PyObject *handle_forget(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_error err;
    unsigned long long step, term;
    const char *reason;
    int rc;
    if (!PyArg_ParseTuple(args, "KKs:forget", &step, &term, &reason)) {
        return NULL;
    }
    cairn_t *cairn = py_handle_enter(handle);
    if (cairn == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS rc = cairn_forget(cairn, step, term, reason, &err);
    Py_END_ALLOW_THREADS py_handle_leave(handle);
    if (rc != 0) {
        return py_raise(&err);
    }
    Py_RETURN_NONE;
}

/* --- what is there
 * -------------------------------------------------------------------------------------- */

static PyObject *checkpoint_tuple(const struct cairn_checkpoint *c)
{
    return Py_BuildValue("KKKKKKKLiiiiii", (unsigned long long)c->term, (unsigned long long)c->step,
                         (unsigned long long)c->sequence, (unsigned long long)c->plain_bytes,
                         (unsigned long long)c->stored_bytes, (unsigned long long)c->parent_term,
                         (unsigned long long)c->parent_step, (long long)c->commit_time_ns,
                         (int)c->world_size, c->state, c->health, c->superseded, c->latest,
                         c->planned);
}

/* (checkpoint, (tag, ...), ((metric, value), ...)) */
static PyObject *list_row(const cairn_list_t *list, size_t idx)
{
    struct cairn_checkpoint checkpoint = CAIRN_CHECKPOINT_INIT;
    cairn_list_get(list, idx, &checkpoint);
    PyObject *row = checkpoint_tuple(&checkpoint), *tags = PyList_New(0), *metrics = PyList_New(0);
    PyObject *result = NULL;
    const char *name;
    double value = 0;
    bool good = row != NULL && tags != NULL && metrics != NULL;
    for (size_t i = 0; good && (name = cairn_list_tag(list, idx, i)) != NULL; i++) {
        PyObject *item = PyUnicode_FromString(name);
        good = item != NULL && PyList_Append(tags, item) == 0;
        Py_XDECREF(item);
    }
    for (size_t i = 0; good && (name = cairn_list_metric(list, idx, i, &value)) != NULL; i++) {
        PyObject *item = Py_BuildValue("sd", name, value);
        good = item != NULL && PyList_Append(metrics, item) == 0;
        Py_XDECREF(item);
    }
    if (good) {
        result = Py_BuildValue("OOO", row, tags, metrics);
    }
    Py_XDECREF(row);
    Py_XDECREF(tags);
    Py_XDECREF(metrics);
    return result;
}

static PyObject *handle_list(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_error err;
    cairn_list_t *list = NULL;
    long long deadline_ms;
    int rc;
    if (!PyArg_ParseTuple(args, "L:list", &deadline_ms)) {
        return NULL;
    }
    cairn_t *cairn = py_handle_enter(handle);
    if (cairn == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS rc = cairn_list(cairn, deadline_ms, &list, &err);
    Py_END_ALLOW_THREADS py_handle_leave(handle);
    if (rc != 0) {
        return py_raise(&err);
    }
    PyObject *result = PyList_New(0);
    for (size_t i = 0; result != NULL && i < cairn_list_count(list); i++) {
        PyObject *item = list_row(list, i);
        if (item == NULL || PyList_Append(result, item) != 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(item);
    }
    cairn_list_free(list);
    return result;
}

static PyObject *handle_status(PyObject *self, PyObject *args)
{
    struct py_handle *handle = (struct py_handle *)self;
    struct cairn_checkpoint checkpoint = CAIRN_CHECKPOINT_INIT;
    struct cairn_error err;
    unsigned long long term, step;
    long long deadline_ms;
    int rc;
    if (!PyArg_ParseTuple(args, "KKL:status", &term, &step, &deadline_ms)) {
        return NULL;
    }
    checkpoint.term = term;
    checkpoint.step = step;
    cairn_t *cairn = py_handle_enter(handle);
    if (cairn == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS rc = cairn_status(cairn, deadline_ms, &checkpoint, &err);
    Py_END_ALLOW_THREADS py_handle_leave(handle);
    return rc == 0 ? checkpoint_tuple(&checkpoint) : py_raise(&err);
}

static PyObject *handle_is_open(PyObject *self, PyObject *Py_UNUSED(args))
{
    const struct py_handle *handle = (const struct py_handle *)self;
    return PyBool_FromLong(handle->cairn != NULL && handle->pid == getpid());
}

static PyMethodDef handle_methods[] = {
    {"set_tensors", py_handle_set_tensors, METH_O,
     "set_tensors(list of tuples): see py_register.c"},
    {"set_blobs", py_handle_set_blobs, METH_O, "set_blobs(list of tuples): see py_register.c"},
    {"save", handle_save, METH_VARARGS,
     "save(step, tags, metrics, metadata, deadline_ms, mode, verify_staged, when_full, "
     "check_replicas=0, full=0, cuda_event=0, refusal=None, refusal_code=0) -> Op"},
    {"restore", handle_restore, METH_VARARGS,
     "restore(step, term, allow_older, strict, deadline_ms, only) -> Op"},
    {"annotate", handle_annotate, METH_VARARGS,
     "annotate(step, term, metrics, tags, removed_tags, deadline_ms)"},
    {"forget", handle_forget, METH_VARARGS, "forget(step, term, reason)"},
    {"list", handle_list, METH_VARARGS,
     "list(deadline_ms) -> list of (tuple, tags, metrics), newest first"},
    {"status", handle_status, METH_VARARGS, "status(term, step, deadline_ms) -> tuple"},
    {"is_open", handle_is_open, METH_NOARGS, "whether calls can be made in this process"},
    {"close", handle_close, METH_VARARGS,
     "close(seconds=None): waits for saves in flight, aborts what is left"},
    {NULL, NULL, 0, NULL},
};

static char handle_doc[] =
    "Handle(url, options): one rank of one attempt. Use cairn.Client."; /* slots want it writable */

static PyType_Slot handle_slots[] = {
    {Py_tp_new, handle_new},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_methods, handle_methods},
    {Py_tp_doc, handle_doc},
    {0, NULL},
};

PyType_Spec py_handle_spec = {
    .name = "cairn._cairn.Handle",
    .basicsize = sizeof(struct py_handle),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = handle_slots,
};
