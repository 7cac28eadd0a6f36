/* Python bindings of the scanner; `_scanner.pyi` documents them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "scanner.h"

typedef struct {
    PyObject_HEAD
    Scanner scanner;
    int is_busy;
} Object;

static PyObject *new_scanner(PyTypeObject *type, PyObject *arguments, PyObject *keyword_arguments) {
    static char *keywords[] = {"host", "streams", NULL};
    int host = 0, streams = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keyword_arguments, "|$pp", keywords, &host, &streams)) return NULL;
    Object *self = (Object *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->scanner.reader.wants_host = host;
    self->scanner.reader.wants_streams = streams;
    return (PyObject *)self;
}

static void dealloc(Object *self) {
    PyTypeObject *type = Py_TYPE(self);
    free_scanner(&self->scanner);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Return whether the scanner is free; set an exception if another thread is using it. */
static int check_free(Object *self) {
    if (self->is_busy) PyErr_SetString(PyExc_RuntimeError, "the scanner is in use by another thread");
    return !self->is_busy;
}

static PyObject *method_feed(Object *self, PyObject *argument) {
    Py_buffer bytes;
    int has_memory;
    if (!check_free(self) || PyObject_GetBuffer(argument, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    self->is_busy = 1;
    Py_BEGIN_ALLOW_THREADS
    has_memory = feed(&self->scanner, bytes.buf, (size_t)bytes.len);
    Py_END_ALLOW_THREADS
    self->is_busy = 0;
    PyBuffer_Release(&bytes);
    if (!has_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *method_finish(Object *self, PyObject *unused) {
    (void)unused;
    if (!check_free(self)) return NULL;
    if (!finish(&self->scanner)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *method_feed_event(Object *self, PyObject *argument) {
    Py_buffer bytes;
    if (!check_free(self) || PyObject_GetBuffer(argument, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    int has_row = feed_event(&self->scanner, bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    return has_row < 0 ? PyErr_NoMemory() : PyBool_FromLong(has_row);
}

static PyObject *method_take_rows(Object *self, PyObject *unused) {
    (void)unused;
    if (!check_free(self)) return NULL;
    Scanner *scanner = &self->scanner;
    PyObject *rows = PyBytes_FromStringAndSize((char *)scanner->rows, (Py_ssize_t)(scanner->num_rows * sizeof(Row)));
    if (rows) scanner->num_rows = 0;
    return rows;
}

static PyObject *method_take_launches(Object *self, PyObject *unused) {
    (void)unused;
    if (!check_free(self)) return NULL;
    Scanner *scanner = &self->scanner;
    size_t size = scanner->num_launches * sizeof(Launch);
    PyObject *launches = PyBytes_FromStringAndSize((char *)scanner->launches, (Py_ssize_t)size);
    if (launches) scanner->num_launches = 0;
    return launches;
}

static PyObject *take_pieces(Pieces *pieces) {
    PyObject *list = PyList_New((Py_ssize_t)pieces->count);
    size_t start = 0;
    for (size_t index = 0; list && index < pieces->count; index++) {
        PyObject *piece = PyBytes_FromStringAndSize((char *)pieces->bytes + start, (Py_ssize_t)(pieces->ends[index] - start));
        if (!piece) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)index, piece);
        start = pieces->ends[index];
    }
    if (list) pieces->count = pieces->num_bytes = 0;
    return list;
}

static PyObject *method_take_metadata(Object *self, PyObject *unused) {
    (void)unused;
    return check_free(self) ? take_pieces(&self->scanner.metadata) : NULL;
}

static PyObject *method_take_damaged(Object *self, PyObject *unused) {
    (void)unused;
    return check_free(self) ? take_pieces(&self->scanner.damaged) : NULL;
}

/* Return the interned strings from number `argument` on. */
static PyObject *list_interned(const Interned *table, PyObject *argument) {
    size_t first = PyLong_AsSize_t(argument);
    if (PyErr_Occurred()) return NULL;
    if (first > table->count) first = table->count;
    PyObject *list = PyList_New((Py_ssize_t)(table->count - first));
    for (size_t index = first; list && index < table->count; index++) {
        const Entry *entry = &table->entries[index];
        PyObject *text = PyBytes_FromStringAndSize((char *)table->bytes + entry->offset, (Py_ssize_t)entry->size);
        if (!text) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)(index - first), text);
    }
    return list;
}

static PyObject *method_names(Object *self, PyObject *first) {
    return check_free(self) ? list_interned(&self->scanner.reader.names, first) : NULL;
}

static PyObject *method_threads(Object *self, PyObject *first) {
    return check_free(self) ? list_interned(&self->scanner.reader.threads, first) : NULL;
}

static PyObject *method_messages(Object *self, PyObject *first) {
    return check_free(self) ? list_interned(&self->scanner.reader.messages, first) : NULL;
}

static PyObject *method_geometries(Object *self, PyObject *first) {
    return check_free(self) ? list_interned(&self->scanner.reader.geometries, first) : NULL;
}

static PyObject *get_num_events(Object *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(self->scanner.num_events);
}

static PyObject *get_num_damaged(Object *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(self->scanner.num_damaged);
}

static PyObject *get_has_events(Object *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->scanner.has_events);
}

static PyObject *get_is_closed(Object *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->scanner.is_closed);
}

static PyMethodDef methods[] = {
    {"feed", (PyCFunction)method_feed, METH_O, NULL},
    {"finish", (PyCFunction)method_finish, METH_NOARGS, NULL},
    {"feed_event", (PyCFunction)method_feed_event, METH_O, NULL},
    {"take_rows", (PyCFunction)method_take_rows, METH_NOARGS, NULL},
    {"take_launches", (PyCFunction)method_take_launches, METH_NOARGS, NULL},
    {"take_metadata", (PyCFunction)method_take_metadata, METH_NOARGS, NULL},
    {"take_damaged", (PyCFunction)method_take_damaged, METH_NOARGS, NULL},
    {"names", (PyCFunction)method_names, METH_O, NULL},
    {"threads", (PyCFunction)method_threads, METH_O, NULL},
    {"messages", (PyCFunction)method_messages, METH_O, NULL},
    {"geometries", (PyCFunction)method_geometries, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"num_events", (getter)get_num_events, NULL, NULL, NULL},
    {"num_damaged", (getter)get_num_damaged, NULL, NULL, NULL},
    {"has_events", (getter)get_has_events, NULL, NULL, NULL},
    {"is_closed", (getter)get_is_closed, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_scanner}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {Py_tp_getset, properties}, {0, NULL},
};

static PyType_Spec spec = {"triplepoint.trace.kineto._scanner.Scanner", sizeof(Object), 0, Py_TPFLAGS_DEFAULT, slots};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_scanner", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scanner(void) {
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2")) {
        PyErr_SetString(PyExc_ImportError, "reading traces needs a processor with AVX2 (Intel from 2013, AMD from 2015)");
        return NULL;
    }
#endif
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module ? PyType_FromSpec(&spec) : NULL;
    if (!type || PyModule_AddObject(module, "Scanner", type) < 0 ||
        PyModule_AddIntConstant(module, "ROW_BYTES", (long)sizeof(Row)) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
