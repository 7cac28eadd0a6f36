/* The closed loop of power, heat and clocks in stretches of a step; `_stretches.pyi` documents it, `periodic.py` uses it.

   Stretches do not depend on each other. */
#include "loop.h"

/* Values of a device beside those of both loops. */
enum { CEILING = NUM_SHARED_VALUES, NUM_VALUES };

typedef struct {
    Machine machine;
    size_t num_stretches, num_periods;
    const double *rates, *dither;
    double *record, *rate, *heat;
    int64_t *index;
    DeviceClocks clocks;
} Loop;

/* Set and record the clocks of a period by those of a stretch and the ceilings. */
static inline void set_clocks(const Loop *loop, const DeviceClocks *clocks, const Period *period, double dither) {
    size_t all = count_devices(&loop->machine);
    const double *ceiling = loop->machine.values + CEILING * all;
    for (size_t device = 0; device < all; device++) {
        /* A ceiling between two clocks is one of them for part of the time and the other for the rest. */
        int64_t most = (int64_t)smaller(larger(ceiling[device] + dither, 0.0), (double)loop->machine.num_clocks);
        period->index[device] = most < clocks->index[device] ? most : clocks->index[device];
        period->record[ALLOWED * period->record_stride + device] = clocks->allowed[device];
    }
}

WIDE static void simulate_stretch(const Loop *loop, const Scratch *scratch, size_t stretch) {
    const Machine *machine = &loop->machine;
    size_t num_states = machine->num_states, num_rows = num_states + machine->num_devices;
    size_t length = loop->num_periods / loop->num_stretches, all = count_devices(machine);
    DeviceClocks clocks = {
        loop->clocks.allowed + stretch * all, loop->clocks.requested + stretch * all, loop->clocks.index + stretch * all,
    };
    for (size_t node = 0; node < machine->num_nodes; node++)
        memcpy(scratch->columns + node * num_rows, loop->heat + (node * loop->num_stretches + stretch) * num_states,
               num_states * sizeof(double));
    for (size_t number = stretch * length; number < (stretch + 1) * length; number++) {
        Period period = {
            .rates = loop->rates + number * all, .record = loop->record + number * all,
            .index = loop->index + number * all,
            .rates_stride = loop->num_periods * all, .record_stride = loop->num_periods * all,
        };
        set_clocks(loop, &clocks, &period, loop->dither[number]);
        loop->rate[number] = 1.0 / find_slowest(machine, &period);
        record_heat(machine, scratch, &period);
        find_power(machine, scratch, &period, loop->rate[number]);
        move_heat(machine, scratch);
        limit_power(machine, scratch, &clocks);
    }
    for (size_t node = 0; node < machine->num_nodes; node++)
        memcpy(loop->heat + (node * loop->num_stretches + stretch) * num_states, scratch->columns + node * num_rows,
               num_states * sizeof(double));
}

/* Simulate all stretches; return 0 if out of memory. */
static int simulate(const Loop *loop) {
    Scratch scratch;
    if (!make_scratch(&loop->machine, 0, &scratch)) return 0;
    for (size_t stretch = 0; stretch < loop->num_stretches; stretch++) simulate_stretch(loop, &scratch, stretch);
    free(scratch.columns);
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

PyObject *method_chain(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
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
    Machine *machine = &loop->machine;
    if (arrays[HEAT].ndim != 3) return HEAT;
    machine->num_nodes = (size_t)arrays[HEAT].shape[0];
    loop->num_stretches = (size_t)arrays[HEAT].shape[1];
    machine->num_states = (size_t)arrays[HEAT].shape[2];
    loop->num_periods = (size_t)arrays[RATE].len / sizeof(double);
    machine->num_devices = (size_t)arrays[TWIN].len / sizeof(int64_t);
    machine->num_clocks = (size_t)arrays[TABLES].len / sizeof(double) / NUM_TABLES;
    size_t all = count_devices(machine), record = loop->num_periods * all;
    size_t clocks = loop->num_stretches * all;
    if (machine->num_devices > machine->num_states) return TWIN;
    if (!loop->num_stretches || loop->num_periods % loop->num_stretches) return RATE;
    const size_t sizes[NUM_ARGUMENTS] = {
        [RATES] = NUM_RATES * record,
        [DITHER] = loop->num_periods,
        [TABLES] = NUM_TABLES * machine->num_clocks,
        [VALUES] = NUM_VALUES * all,
        [TWIN] = machine->num_devices,
        [PROPAGATOR] = machine->num_nodes * (machine->num_states + machine->num_devices) * machine->num_states,
        [NUMBERS] = NUM_NUMBERS,
        [RECORD] = NUM_RECORDS * record,
        [INDEX] = record,
        [RATE] = loop->num_periods,
        [CLOCK_ALLOWED] = clocks,
        [CLOCK_REQUESTED] = clocks,
        [CLOCK] = clocks,
        [HEAT] = machine->num_nodes * loop->num_stretches * machine->num_states,
    };
    for (int number = 0; number < NUM_ARGUMENTS; number++)
        if ((size_t)arrays[number].len != sizes[number] * sizeof(double)) return number;
    return -1;
}

/* Return the number of the first array with an index out of range, or -1. */
static int check_indices(const Loop *loop) {
    const Machine *machine = &loop->machine;
    if (!are_below(machine->twin, machine->num_devices, machine->num_devices)) return TWIN;
    size_t clocks = loop->num_stretches * count_devices(machine);
    return are_below(loop->clocks.index, clocks, machine->num_clocks) ? -1 : CLOCK;
}

PyObject *method_run(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    Py_buffer arrays[NUM_ARGUMENTS];
    if (num_arguments != NUM_ARGUMENTS) return PyErr_Format(PyExc_TypeError, "run takes %d arrays", NUM_ARGUMENTS);
    if (get_arrays(arguments, NUM_ARGUMENTS, RECORD, arrays)) return NULL;
    Loop loop = {
        .machine = {
            .tables = arrays[TABLES].buf, .values = arrays[VALUES].buf, .propagator = arrays[PROPAGATOR].buf,
            .numbers = arrays[NUMBERS].buf, .twin = arrays[TWIN].buf,
        },
        .rates = arrays[RATES].buf, .dither = arrays[DITHER].buf, .record = arrays[RECORD].buf,
        .rate = arrays[RATE].buf, .heat = arrays[HEAT].buf, .index = arrays[INDEX].buf,
        .clocks = {arrays[CLOCK_ALLOWED].buf, arrays[CLOCK_REQUESTED].buf, arrays[CLOCK].buf},
    };
    int wrong = find_sizes(arrays, &loop), beyond = wrong < 0 ? check_indices(&loop) : -1, has_memory = 1;
    if (wrong < 0 && beyond < 0) {
        Py_BEGIN_ALLOW_THREADS
        has_memory = simulate(&loop);
        Py_END_ALLOW_THREADS
    }
    return conclude(arrays, NUM_ARGUMENTS, wrong, beyond, has_memory);
}
