/* The closed loop of power, heat and clocks in stretches of a step; `_stretches.pyi` documents it, `periodic.py` uses it.

   Stretches do not depend on each other. Sums have the order of their terms and no fused products, so that results are
   the same on every processor. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Wide registers save a seventh of the loop: 31.5 instead of 36.8 ns for a device and period, one core of a Xeon, 4 nodes
   of 8 devices. The loader picks the copy for the processor. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

/* Activity in a control period; see `Profile.rates`. */
enum { TRAFFIC_W, WORK_W, AWAKE_W, BOUND, STREAMS, NUM_RATES };

/* Effects of a clock; see `Clocks`. */
enum { STRETCH, STARVED, LEAKAGE_SHARE, ENERGY_SHARE, CLOCK_ENERGY, GROWTH, NUM_TABLES };

/* Values of a device. */
enum { LIMIT_W, INLET_LEAKAGE_W, SHUTDOWN_K, CEILING, NUM_VALUES };

/* What is recorded of a control period. */
enum { POWER_W, RISE_K, SLOWDOWN, ALLOWED, NUM_RECORDS };

enum { LEAKAGE_GROWTH, FIXED_W, MOST_W, SCALE, RISE_STEP, AT_REST, NUM_NUMBERS };

typedef struct {
    size_t num_stretches, num_periods, num_nodes, num_devices, num_states, num_clocks;
    const double *rates, *dither, *tables, *values, *propagator, *numbers;
    const int64_t *twin;
    double *record, *rate, *allowed, *requested, *heat;
    int64_t *index, *clock;
} Loop;

/* Heat of a node before and after a control period, and power of all devices. */
typedef struct {
    double *columns, *after, *power_w, *clocked_w;
} Scratch;

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

/* Multiply a column, such as heat and power of a node at the start of a period, by a matrix stored column by column. */
static inline void multiply(const double *column, const double *matrix, size_t num_rows, size_t num_states,
                            double *restrict after) {
    memset(after, 0, num_states * sizeof *after);
    for (size_t row = 0; row < num_rows; row++, matrix += num_states)
        for (size_t state = 0; state < num_states; state++) after[state] += column[row] * matrix[state];
}

/* Set the clocks of all devices by the power of the last period, as `Governor.steer` does without heat and brakes. */
static void steer(const Loop *loop, const Scratch *scratch, size_t stretch) {
    size_t all = loop->num_nodes * loop->num_devices;
    double highest = (double)(loop->num_clocks - 1);
    const double *growth = loop->tables + GROWTH * loop->num_clocks, *limit_w = loop->values + LIMIT_W * all;
    for (size_t device = 0, at = stretch * all; device < all; device++, at++) {
        size_t place = device % loop->num_devices, twin = device - place + (size_t)loop->twin[place];
        /* A package has one limit: the governor sees half of its power on each of its two devices. */
        double power_w = 0.5 * (scratch->power_w[device] + scratch->power_w[twin]);
        double clocked_w = 0.5 * (scratch->clocked_w[device] + scratch->clocked_w[twin]);
        double change = (limit_w[device] - power_w) / (clocked_w * growth[loop->clock[at]]);
        loop->allowed[at] = smaller(larger(loop->requested[at] + change, 0.0), highest);
        loop->requested[at] = smaller(loop->allowed[at], loop->requested[at] + loop->numbers[RISE_STEP]);
        loop->clock[at] = (int64_t)loop->requested[at];
    }
}

/* Return the highest slowdown of all devices in a period, and record clocks and slowdowns. */
static double find_slowest(const Loop *loop, size_t stretch, size_t period) {
    size_t all = loop->num_nodes * loop->num_devices, size = loop->num_periods * all;
    const double *ceiling = loop->values + CEILING * all, *tables = loop->tables;
    double slowest = 0.0;
    for (size_t device = 0, at = period * all; device < all; device++, at++) {
        /* A ceiling between two clocks is one of them for part of the time and the other for the rest. */
        int64_t index = loop->clock[stretch * all + device], most = (int64_t)(ceiling[device] + loop->dither[period]);
        if (most < index) index = most > 0 ? most : 0;
        if (loop->rates[AWAKE_W * size + at] < loop->numbers[AT_REST]) index = 0;
        double bound = tables[STRETCH * loop->num_clocks + (size_t)index] * loop->rates[BOUND * size + at];
        double starved = tables[STARVED * loop->num_clocks + (size_t)index] * loop->rates[STREAMS * size + at];
        double slowdown = bound + starved + 1.0;
        loop->index[at] = index;
        loop->record[SLOWDOWN * size + at] = slowdown;
        loop->record[ALLOWED * size + at] = loop->allowed[stretch * all + device];
        slowest = larger(slowest, slowdown);
    }
    return slowest;
}

/* Set and record the power of all devices in a period. */
static void find_power(const Loop *loop, const Scratch *scratch, size_t period) {
    size_t all = loop->num_nodes * loop->num_devices, size = loop->num_periods * all, clocks = loop->num_clocks;
    size_t num_rows = loop->num_states + loop->num_devices;
    double speed = loop->rate[period] / loop->numbers[SCALE];
    for (size_t device = 0, at = period * all; device < all; device++, at++) {
        size_t node = device / loop->num_devices, place = device % loop->num_devices;
        size_t index = (size_t)loop->index[at];
        double *column = scratch->columns + node * num_rows, rise_k = column[place];
        /* Leakage stops growing at the shutdown temperature, where a real device turns off. */
        double leakage_w = exp(smaller(rise_k, loop->values[SHUTDOWN_K * all + device]) * loop->numbers[LEAKAGE_GROWTH]);
        leakage_w *= loop->values[INLET_LEAKAGE_W * all + device] * loop->tables[LEAKAGE_SHARE * clocks + index];
        double clocked_w = loop->rates[WORK_W * size + at] * speed * loop->tables[ENERGY_SHARE * clocks + index];
        clocked_w += leakage_w + loop->rates[AWAKE_W * size + at] * loop->tables[CLOCK_ENERGY * clocks + index];
        double power_w = loop->rates[TRAFFIC_W * size + at] * speed + clocked_w + loop->numbers[FIXED_W];
        /* Hardware limits power to this within less than a control period. */
        power_w = smaller(power_w, loop->numbers[MOST_W]);
        scratch->power_w[device] = column[loop->num_states + place] = power_w;
        scratch->clocked_w[device] = clocked_w;
        loop->record[POWER_W * size + at] = power_w;
        loop->record[RISE_K * size + at] = rise_k;
    }
}

WIDE static void simulate_stretch(const Loop *loop, const Scratch *scratch, size_t stretch) {
    size_t num_states = loop->num_states, num_rows = num_states + loop->num_devices;
    size_t length = loop->num_periods / loop->num_stretches;
    for (size_t node = 0; node < loop->num_nodes; node++)
        memcpy(scratch->columns + node * num_rows, loop->heat + (node * loop->num_stretches + stretch) * num_states,
               num_states * sizeof(double));
    for (size_t period = stretch * length; period < (stretch + 1) * length; period++) {
        loop->rate[period] = 1.0 / find_slowest(loop, stretch, period);
        find_power(loop, scratch, period);
        for (size_t node = 0; node < loop->num_nodes; node++) {
            double *column = scratch->columns + node * num_rows;
            multiply(column, loop->propagator + node * num_rows * num_states, num_rows, num_states, scratch->after);
            memcpy(column, scratch->after, num_states * sizeof *column);
        }
        steer(loop, scratch, stretch);
    }
    for (size_t node = 0; node < loop->num_nodes; node++)
        memcpy(loop->heat + (node * loop->num_stretches + stretch) * num_states, scratch->columns + node * num_rows,
               num_states * sizeof(double));
}

/* Simulate all stretches; return 0 if out of memory. */
static int simulate(const Loop *loop) {
    size_t all = loop->num_nodes * loop->num_devices, num_rows = loop->num_states + loop->num_devices;
    double *room = malloc((loop->num_nodes * num_rows + loop->num_states + 2 * all) * sizeof *room);
    if (!room) return 0;
    Scratch scratch = {.columns = room, .after = room + loop->num_nodes * num_rows};
    scratch.power_w = scratch.after + loop->num_states;
    scratch.clocked_w = scratch.power_w + all;
    for (size_t stretch = 0; stretch < loop->num_stretches; stretch++) simulate_stretch(loop, &scratch, stretch);
    free(room);
    return 1;
}

/* Arguments of `chain`, all of them arrays of floats. */
enum { STAY, STEADY, END, START, NUM_LINKS };

typedef struct {
    size_t num_nodes, num_stretches, num_states;
    const double *stay, *steady;
    double *end, *start;
} Chain;

/* Times that the heat of a step is computed from its mean: after one, slow parts of the network still depend on
   it. */
enum { HEAT_PASSES = 2 };

/* Replace the heat at the start of every stretch of a node by that which the stretches before leave; `after` is scratch.
   What the power in a stretch adds by its end does not depend on its start. */
WIDE static void chain_node(const Chain *chain, size_t node, double *after) {
    size_t num_states = chain->num_states, num_stretches = chain->num_stretches, size = num_states * sizeof(double);
    const double *stay = chain->stay + node * num_states * num_states;
    double *start = chain->start + node * num_stretches * num_states, *end = chain->end + node * num_stretches * num_states;
    for (size_t stretch = 0; stretch < num_stretches; stretch++) {
        multiply(start + stretch * num_states, stay, num_states, num_states, after);
        for (size_t state = 0; state < num_states; state++) end[stretch * num_states + state] -= after[state];
    }
    memcpy(start, chain->steady + node * num_states, size);
    for (int pass = 0; pass < HEAT_PASSES; pass++) {
        for (size_t stretch = 0; stretch < num_stretches; stretch++) {
            multiply(start + stretch * num_states, stay, num_states, num_states, after);
            for (size_t state = 0; state < num_states; state++) after[state] += end[stretch * num_states + state];
            if (stretch + 1 < num_stretches) memcpy(start + (stretch + 1) * num_states, after, size);
        }
        if (pass + 1 < HEAT_PASSES) memcpy(start, after, size);
    }
}

/* Get all arrays of a call, those from number `first_changed` on for writing; return whether that failed. */
static int get_arrays(PyObject *const *arguments, int number, int first_changed, Py_buffer *arrays) {
    for (int open = 0; open < number; open++) {
        int flags = PyBUF_C_CONTIGUOUS | (open < first_changed ? 0 : PyBUF_WRITABLE);
        if (PyObject_GetBuffer(arguments[open], &arrays[open], flags) < 0) {
            while (open--) PyBuffer_Release(&arrays[open]);
            return 1;
        }
    }
    return 0;
}

static PyObject *method_chain(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    Py_buffer arrays[NUM_LINKS];
    if (num_arguments != NUM_LINKS) return PyErr_Format(PyExc_TypeError, "chain takes %d arrays", NUM_LINKS);
    if (get_arrays(arguments, NUM_LINKS, END, arrays)) return NULL;
    int is_sized = arrays[START].ndim == 3, has_memory = 1;
    if (is_sized) {
        const Py_ssize_t *shape = arrays[START].shape;
        Chain chain = {
            .num_nodes = (size_t)shape[0], .num_stretches = (size_t)shape[1], .num_states = (size_t)shape[2],
            .stay = arrays[STAY].buf, .steady = arrays[STEADY].buf, .end = arrays[END].buf, .start = arrays[START].buf,
        };
        Py_ssize_t size = (Py_ssize_t)sizeof(double) * shape[0] * shape[2];
        is_sized = arrays[STAY].len == size * shape[2] && arrays[STEADY].len == size &&
                   arrays[END].len == size * shape[1] && arrays[START].len == size * shape[1] && shape[1];
        double *after = is_sized ? malloc(chain.num_states * sizeof *after) : NULL;
        has_memory = !is_sized || after;
        if (after) {
            Py_BEGIN_ALLOW_THREADS
            for (size_t node = 0; node < chain.num_nodes; node++) chain_node(&chain, node, after);
            Py_END_ALLOW_THREADS
        }
        free(after);
    }
    for (int number = 0; number < NUM_LINKS; number++) PyBuffer_Release(&arrays[number]);
    if (!is_sized) return PyErr_Format(PyExc_ValueError, "an array has a wrong size");
    if (!has_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Arguments of `run`, all of them arrays. */
enum { RATES, DITHER, TABLES, VALUES, TWIN, PROPAGATOR, NUMBERS, RECORD, INDEX, RATE, CLOCK_ALLOWED, CLOCK_REQUESTED, CLOCK,
       HEAT, NUM_ARGUMENTS };

/* Fill in the loop from its arrays; return the number of the first one of a wrong size, or -1. */
static int find_sizes(const Py_buffer *arrays, Loop *loop) {
    if (arrays[HEAT].ndim != 3) return HEAT;
    loop->num_nodes = (size_t)arrays[HEAT].shape[0];
    loop->num_stretches = (size_t)arrays[HEAT].shape[1];
    loop->num_states = (size_t)arrays[HEAT].shape[2];
    loop->num_periods = (size_t)arrays[RATE].len / sizeof(double);
    loop->num_devices = (size_t)arrays[TWIN].len / sizeof(int64_t);
    loop->num_clocks = (size_t)arrays[TABLES].len / sizeof(double) / NUM_TABLES;
    size_t all = loop->num_nodes * loop->num_devices, record = loop->num_periods * all;
    size_t clocks = loop->num_stretches * all;
    if (!loop->num_stretches || loop->num_periods % loop->num_stretches) return RATE;
    const size_t sizes[NUM_ARGUMENTS] = {
        [RATES] = NUM_RATES * record,
        [DITHER] = loop->num_periods,
        [TABLES] = NUM_TABLES * loop->num_clocks,
        [VALUES] = NUM_VALUES * all,
        [TWIN] = loop->num_devices,
        [PROPAGATOR] = loop->num_nodes * (loop->num_states + loop->num_devices) * loop->num_states,
        [NUMBERS] = NUM_NUMBERS,
        [RECORD] = NUM_RECORDS * record,
        [INDEX] = record,
        [RATE] = loop->num_periods,
        [CLOCK_ALLOWED] = clocks,
        [CLOCK_REQUESTED] = clocks,
        [CLOCK] = clocks,
        [HEAT] = loop->num_nodes * loop->num_stretches * loop->num_states,
    };
    for (int number = 0; number < NUM_ARGUMENTS; number++)
        if ((size_t)arrays[number].len != sizes[number] * sizeof(double)) return number;
    return -1;
}

static PyObject *method_run(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    Py_buffer arrays[NUM_ARGUMENTS];
    if (num_arguments != NUM_ARGUMENTS) return PyErr_Format(PyExc_TypeError, "run takes %d arrays", NUM_ARGUMENTS);
    int wrong = -1, has_memory = 1;
    if (get_arrays(arguments, NUM_ARGUMENTS, RECORD, arrays)) return NULL;
    Loop loop = {
        .rates = arrays[RATES].buf, .dither = arrays[DITHER].buf, .tables = arrays[TABLES].buf,
        .values = arrays[VALUES].buf, .twin = arrays[TWIN].buf, .propagator = arrays[PROPAGATOR].buf,
        .numbers = arrays[NUMBERS].buf, .record = arrays[RECORD].buf, .index = arrays[INDEX].buf,
        .rate = arrays[RATE].buf, .allowed = arrays[CLOCK_ALLOWED].buf, .requested = arrays[CLOCK_REQUESTED].buf,
        .clock = arrays[CLOCK].buf, .heat = arrays[HEAT].buf,
    };
    wrong = find_sizes(arrays, &loop);
    if (wrong < 0) {
        Py_BEGIN_ALLOW_THREADS
        has_memory = simulate(&loop);
        Py_END_ALLOW_THREADS
    }
    for (int number = 0; number < NUM_ARGUMENTS; number++) PyBuffer_Release(&arrays[number]);
    if (wrong >= 0) return PyErr_Format(PyExc_ValueError, "array %d has a wrong size", wrong);
    if (!has_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"chain", (PyCFunction)(void (*)(void))method_chain, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))method_run, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_stretches", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stretches(void) { return PyModule_Create(&module); }
