/* One control period of all devices of a machine: what stretches of a step and the loop through time have in common.

   Sums have the order of their terms and no fused products, so that results are the same on every processor. */
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

/* Effects of a clock; see `clock_effects`. */
enum { STRETCH, STARVED, LEAKAGE_SHARE, ENERGY_SHARE, CLOCK_ENERGY, GROWTH, NUM_TABLES };

/* Values of a device; either loop has more. */
enum { LIMIT_W, INLET_LEAKAGE_W, SHUTDOWN_K, NUM_SHARED_VALUES };

/* Numbers of a machine; the loop through time has more. */
enum { LEAKAGE_GROWTH, FIXED_W, MOST_W, SCALE, RISE_STEP, AT_REST, NUM_NUMBERS };

/* What is recorded of a control period; the loop through time has more. */
enum { POWER_W, RISE_K, SLOWDOWN, ALLOWED, NUM_RECORDS };

typedef struct {
    size_t num_nodes, num_devices, num_states, num_clocks;
    const double *tables, *values, *propagator, *numbers;
    const int64_t *twin;
} Machine;

/* Activity and record of a control period. Kinds of rates and of records are so many values apart. */
typedef struct {
    const double *rates;
    double *record;
    int64_t *index;
    size_t rates_stride, record_stride;
} Period;

/* Clocks of all devices; see `ClockState`. */
typedef struct {
    double *allowed, *requested;
    int64_t *index;
} DeviceClocks;

/* Heat and power of each node, then its heat after the period; power of all devices. */
typedef struct {
    double *columns, *after, *power_w, *clocked_w;
} Scratch;

/* Get all arrays of a call, those from number `first_changed` on for writing; return whether that failed. */
int get_arrays(PyObject *const *arguments, int number, int first_changed, Py_buffer *arrays);

/* Release all arrays of a call and return None; or NULL, if the number of an array of a wrong size or with an index out of
   range is not -1, or memory ran out. */
PyObject *conclude(Py_buffer *arrays, int number, int wrong_size, int wrong_index, int has_memory);

PyObject *method_chain(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments);
PyObject *method_follow(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments);
PyObject *method_run(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments);

/* If one of both is no number, these return the second. */
static inline double smaller(double a, double b) { return a < b ? a : b; }
static inline double larger(double a, double b) { return a > b ? a : b; }

/* Return whether all indices lie below a limit. */
static inline int are_below(const int64_t *indices, size_t number, size_t limit) {
    for (size_t place = 0; place < number; place++)
        if (indices[place] < 0 || (size_t)indices[place] >= limit) return 0;
    return 1;
}

static inline size_t count_devices(const Machine *machine) { return machine->num_nodes * machine->num_devices; }

/* Allocate the scratch of a machine and `more` values; return these, or NULL. `columns` is to be freed. */
static inline double *make_scratch(const Machine *machine, size_t more, Scratch *scratch) {
    size_t all = count_devices(machine), size = machine->num_nodes * (machine->num_states + machine->num_devices);
    scratch->columns = malloc((size + machine->num_states + 2 * all + more) * sizeof *scratch->columns);
    if (!scratch->columns) return NULL;
    scratch->after = scratch->columns + size;
    scratch->power_w = scratch->after + machine->num_states;
    scratch->clocked_w = scratch->power_w + all;
    return scratch->clocked_w + all;
}

/* Multiply a column, such as heat and power of a node at the start of a period, by a matrix stored column by column. */
static inline void multiply(const double *column, const double *matrix, size_t num_rows, size_t num_states,
                            double *restrict after) {
    memset(after, 0, num_states * sizeof *after);
    for (size_t row = 0; row < num_rows; row++, matrix += num_states)
        for (size_t state = 0; state < num_states; state++) after[state] += column[row] * matrix[state];
}

/* Record the slowdowns of a period, and return the highest of them; the period has its clocks. */
static inline double find_slowest(const Machine *machine, const Period *period) {
    const double *rates = period->rates, *tables = machine->tables;
    size_t stride = period->rates_stride;
    double slowest = 0.0;
    for (size_t device = 0, all = count_devices(machine); device < all; device++) {
        if (rates[AWAKE_W * stride + device] < machine->numbers[AT_REST]) period->index[device] = 0;
        size_t index = (size_t)period->index[device];
        double bound = tables[STRETCH * machine->num_clocks + index] * rates[BOUND * stride + device];
        double starved = tables[STARVED * machine->num_clocks + index] * rates[STREAMS * stride + device];
        double slowdown = 1.0 + bound + starved;
        period->record[SLOWDOWN * period->record_stride + device] = slowdown;
        slowest = larger(slowest, slowdown);
    }
    return slowest;
}

/* Set and record the power of all devices of a node in a period, in which the job runs at a speed. */
static inline void find_node_power(const Machine *machine, const Scratch *scratch, const Period *period, size_t node,
                                   double speed) {
    size_t all = count_devices(machine), clocks = machine->num_clocks, stride = period->rates_stride;
    double *column = scratch->columns + node * (machine->num_states + machine->num_devices);
    const double *rates = period->rates, *values = machine->values, *numbers = machine->numbers;
    for (size_t place = 0, device = node * machine->num_devices; place < machine->num_devices; place++, device++) {
        size_t index = (size_t)period->index[device];
        /* Leakage stops growing at the shutdown temperature, where a real device turns off. */
        double leakage_w = exp(smaller(column[place], values[SHUTDOWN_K * all + device]) * numbers[LEAKAGE_GROWTH]);
        leakage_w *= values[INLET_LEAKAGE_W * all + device] * machine->tables[LEAKAGE_SHARE * clocks + index];
        double clocked_w = rates[WORK_W * stride + device] * speed * machine->tables[ENERGY_SHARE * clocks + index];
        clocked_w += leakage_w + rates[AWAKE_W * stride + device] * machine->tables[CLOCK_ENERGY * clocks + index];
        double power_w = rates[TRAFFIC_W * stride + device] * speed + clocked_w + numbers[FIXED_W];
        /* Hardware limits power to this within less than a control period. */
        power_w = smaller(power_w, numbers[MOST_W]);
        scratch->power_w[device] = column[machine->num_states + place] = power_w;
        scratch->clocked_w[device] = clocked_w;
        period->record[POWER_W * period->record_stride + device] = power_w;
    }
}

/* Set and record the power of all devices in a period, in which the job runs at a speed. */
static inline void find_power(const Machine *machine, const Scratch *scratch, const Period *period, double rate) {
    double speed = rate / machine->numbers[SCALE];
    for (size_t node = 0; node < machine->num_nodes; node++) find_node_power(machine, scratch, period, node, speed);
}

/* Record the temperatures of all devices. */
static inline void record_heat(const Machine *machine, const Scratch *scratch, const Period *period) {
    size_t num_rows = machine->num_states + machine->num_devices;
    for (size_t node = 0; node < machine->num_nodes; node++)
        memcpy(period->record + RISE_K * period->record_stride + node * machine->num_devices,
               scratch->columns + node * num_rows, machine->num_devices * sizeof(double));
}

/* Move heat on by a period. */
static inline void move_heat(const Machine *machine, const Scratch *scratch) {
    size_t num_states = machine->num_states, num_rows = num_states + machine->num_devices;
    for (size_t node = 0; node < machine->num_nodes; node++) {
        double *column = scratch->columns + node * num_rows;
        multiply(column, machine->propagator + node * num_rows * num_states, num_rows, num_states, scratch->after);
        memcpy(column, scratch->after, num_states * sizeof *column);
    }
}

/* Set the clocks of all devices by the power of the last period. */
static inline void limit_power(const Machine *machine, const Scratch *scratch, const DeviceClocks *clocks) {
    size_t all = count_devices(machine), num_devices = machine->num_devices;
    double highest = (double)(machine->num_clocks - 1);
    const double *growth = machine->tables + GROWTH * machine->num_clocks;
    for (size_t device = 0, place = 0; device < all; device++, place = place + 1 < num_devices ? place + 1 : 0) {
        size_t twin = device - place + (size_t)machine->twin[place];
        /* A package has one limit: the governor sees half of its power on each of its two devices. */
        double power_w = 0.5 * (scratch->power_w[device] + scratch->power_w[twin]);
        double clocked_w = 0.5 * (scratch->clocked_w[device] + scratch->clocked_w[twin]);
        double spare_w = machine->values[LIMIT_W * all + device] - power_w;
        double change = spare_w / (clocked_w * growth[clocks->index[device]]);
        clocks->allowed[device] = smaller(larger(clocks->requested[device] + change, 0.0), highest);
        double raised = clocks->requested[device] + machine->numbers[RISE_STEP];
        clocks->requested[device] = larger(smaller(raised, clocks->allowed[device]), 0.0);
        clocks->index[device] = (int64_t)clocks->requested[device];
    }
}
