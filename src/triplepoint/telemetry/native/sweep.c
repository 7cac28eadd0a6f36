/* Calls a list of C functions one after the other and keeps what they return; `_sweep.pyi` documents it.
 *
 * Arguments are whole numbers and pointers. The C ABIs of x86-64 (System V) and AArch64 pass the first six of those in
 * registers of 64 bits, whatever their width in the prototype, and ignore those a function does not take; a result of
 * 32 bits comes back in the lower half of a register. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define NUM_ARGUMENTS 6

typedef int64_t (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

typedef struct {
    uint64_t function;
    uint64_t every;
    uint64_t by_value;
    uint64_t arguments[NUM_ARGUMENTS];
    uint64_t strides[NUM_ARGUMENTS];
    uint64_t result;
    uint64_t result_stride;
} Step;

static void sweep(const Step *steps, Py_ssize_t num_steps, uint64_t slot) {
    for (const Step *step = steps; step < steps + num_steps; step++) {
        int64_t *result = (int64_t *)(uintptr_t)(step->result + slot * step->result_stride);
        if (slot % step->every) {
            *result = -1;
            continue;
        }
        uint64_t at[NUM_ARGUMENTS];
        for (int i = 0; i < NUM_ARGUMENTS; i++) {
            at[i] = step->arguments[i] + slot * step->strides[i];
            if (step->by_value >> i & 1) at[i] = *(const uint64_t *)(uintptr_t)at[i];
        }
        *result = ((Function)(uintptr_t)step->function)(at[0], at[1], at[2], at[3], at[4], at[5]);
    }
}

static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static PyObject *method_run(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    Py_buffer steps;
    if (num_arguments != 2) return PyErr_Format(PyExc_TypeError, "run takes steps and a slot");
    size_t slot = PyLong_AsSize_t(arguments[1]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &steps, PyBUF_SIMPLE) < 0) return NULL;
    if (steps.len % (Py_ssize_t)sizeof(Step)) {
        PyBuffer_Release(&steps);
        return PyErr_Format(PyExc_ValueError, "a step has %zu bytes", sizeof(Step));
    }
    Py_BEGIN_ALLOW_THREADS
    sweep(steps.buf, steps.len / (Py_ssize_t)sizeof(Step), slot);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&steps);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))method_run, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sweep", NULL, -1, methods, NULL, NULL, NULL, NULL};

static int add_address(PyObject *made, const char *name, void *address) {
    PyObject *number = PyLong_FromVoidPtr(address);
    int failed = PyModule_AddObjectRef(made, name, number);
    Py_XDECREF(number);
    return failed;
}

PyMODINIT_FUNC PyInit__sweep(void) {
    PyObject *made = PyModule_Create(&module);
    if (!made || add_address(made, "MONOTONIC_NS", (void *)(uintptr_t)monotonic_ns) < 0 ||
        add_address(made, "PREAD", (void *)(uintptr_t)pread) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
