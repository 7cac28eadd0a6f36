/* The extension module `_stretches`; `_stretches.pyi` documents it. */
#include "loop.h"

int get_arrays(PyObject *const *arguments, int number, int first_changed, Py_buffer *arrays) {
    for (int open = 0; open < number; open++) {
        int flags = PyBUF_C_CONTIGUOUS | (open < first_changed ? 0 : PyBUF_WRITABLE);
        if (PyObject_GetBuffer(arguments[open], &arrays[open], flags) < 0) {
            while (open--) PyBuffer_Release(&arrays[open]);
            return 1;
        }
    }
    return 0;
}

PyObject *conclude(Py_buffer *arrays, int number, int wrong_size, int wrong_index, int has_memory) {
    for (int open = 0; open < number; open++) PyBuffer_Release(&arrays[open]);
    if (wrong_size >= 0) return PyErr_Format(PyExc_ValueError, "array %d has a wrong size", wrong_size);
    if (wrong_index >= 0) return PyErr_Format(PyExc_ValueError, "array %d has an index out of range", wrong_index);
    if (!has_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"chain", (PyCFunction)(void (*)(void))method_chain, METH_FASTCALL, NULL},
    {"follow", (PyCFunction)(void (*)(void))method_follow, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))method_run, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_stretches", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stretches(void) { return PyModule_Create(&module); }
