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

static PyMethodDef methods[] = {
    {"chain", (PyCFunction)(void (*)(void))method_chain, METH_FASTCALL, NULL},
    {"follow", (PyCFunction)(void (*)(void))method_follow, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))method_run, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_stretches", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stretches(void) { return PyModule_Create(&module); }
