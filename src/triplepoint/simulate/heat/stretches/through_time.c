/* The closed loop of power, heat and clocks through time; `_stretches.pyi` documents it, `loop.py` uses it. */
#include "loop.h"

/* Values of a device beside those of both loops. */
enum { INLET_C = NUM_SHARED_VALUES, BRAKE, NUM_VALUES };

/* Numbers of a machine beside those of both loops. */
enum { PERIOD_S = NUM_NUMBERS, STEP_S, IS_CLOSED, NUM_ALL_NUMBERS };

/* Records beside those of both loops. */
enum { CEILING = NUM_RECORDS, NUM_ALL_RECORDS };

/* Zones of temperature, and their effects; see `Governor.zones`. */
enum { NUM_ZONES = 5 };
enum { START_C, CEILING_STEP, ELAPSED_S, RESTART_S, NUM_EFFECTS };

/* State of the job. */
enum { POSITION_S, RATE, NUM_JOB };

/* Remaining time of a slowdown that counts as none. Unit: s. */
static const double ROUNDING_S = 1e-9;

typedef struct {
    Machine machine;
    size_t num_periods, num_bins;
    const double *edges_s, *integral, *zones;
    const int64_t *slowdown_index;
    double *record, *rate, *position_s, *ceiling, *slowdown_left_s, *heat, *job;
    uint8_t *is_slowed;
    int64_t *index;
    DeviceClocks clocks;
} Course;

/* Find the integral of the profile up to a position in any of its repetitions. */
static void integrate(const Course *course, double position_s, double *integral) {
    size_t size = NUM_RATES * count_devices(&course->machine), low = 0, high = course->num_bins;
    double step_s = course->machine.numbers[STEP_S], within_s = fmod(position_s, step_s);
    double num_steps = round((position_s - within_s) / step_s);
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (course->edges_s[middle] <= within_s)
            low = middle;
        else
            high = middle;
    }
    double part = (within_s - course->edges_s[low]) / (course->edges_s[low + 1] - course->edges_s[low]);
    const double *before = course->integral + low * size, *after = before + size;
    const double *step = course->integral + course->num_bins * size;
    for (size_t place = 0; place < size; place++)
        integral[place] = num_steps * step[place] + before[place] + part * (after[place] - before[place]);
}

/* Lower clocks of hot and of braked devices. */
static void limit_heat(const Course *course, const Period *period) {
    size_t all = count_devices(&course->machine);
    double highest = (double)(course->machine.num_clocks - 1);
    const double *rise_k = period->record + RISE_K * period->record_stride, *values = course->machine.values;
    for (size_t device = 0; device < all; device++) {
        double temp_c = rise_k[device] + values[INLET_C * all + device];
        const double *zone = course->zones + START_C * NUM_ZONES, *last = zone + NUM_ZONES - 1;
        while (zone < last && zone[1] <= temp_c) zone++;
        double ceiling = smaller(larger(course->ceiling[device] + zone[CEILING_STEP * NUM_ZONES], 0.0), highest);
        double left_s = larger(course->slowdown_left_s[device] + zone[ELAPSED_S * NUM_ZONES], zone[RESTART_S * NUM_ZONES]);
        int64_t index = (int64_t)smaller(course->clocks.requested[device], ceiling);
        if (left_s > ROUNDING_S || values[BRAKE * all + device] != 0.0) index = course->slowdown_index[index];
        course->ceiling[device] = ceiling;
        course->slowdown_left_s[device] = left_s;
        course->clocks.index[device] = index;
    }
}

/* Record clocks and their limits. */
static void record_clocks(const Course *course, const Period *period, uint8_t *is_slowed) {
    size_t all = count_devices(&course->machine), size = all * sizeof(double);
    memcpy(period->index, course->clocks.index, all * sizeof *period->index);
    memcpy(period->record + ALLOWED * period->record_stride, course->clocks.allowed, size);
    memcpy(period->record + CEILING * period->record_stride, course->ceiling, size);
    for (size_t device = 0; device < all; device++) is_slowed[device] = course->slowdown_left_s[device] > ROUNDING_S;
}

/* Simulate all periods; `integrals` and `rates` are scratch. */
WIDE static void simulate(const Course *course, const Scratch *scratch, double *integrals, double *rates) {
    const Machine *machine = &course->machine;
    size_t all = count_devices(machine), size = NUM_RATES * all, num_states = machine->num_states;
    size_t num_rows = num_states + machine->num_devices;
    double *done = integrals, *before = integrals + size, *job = course->job;
    for (size_t node = 0; node < machine->num_nodes; node++)
        memcpy(scratch->columns + node * num_rows, course->heat + node * num_states, num_states * sizeof(double));
    integrate(course, job[POSITION_S], before);
    for (size_t number = 0; number < course->num_periods; number++) {
        Period period = {
            .rates = rates, .record = course->record + number * all, .index = course->index + number * all,
            .rates_stride = all, .record_stride = course->num_periods * all,
        };
        double moved_s = job[RATE] * machine->numbers[PERIOD_S], per_second = 1.0 / moved_s;
        job[POSITION_S] += moved_s;
        integrate(course, job[POSITION_S], done);
        for (size_t place = 0; place < size; place++) rates[place] = (done[place] - before[place]) * per_second;
        double *other = before;
        before = done;
        done = other;
        record_clocks(course, &period, course->is_slowed + number * all);
        course->rate[number] = job[RATE];
        course->position_s[number] = job[POSITION_S];
        double slowest = find_slowest(machine, &period);
        find_power(machine, scratch, &period, job[RATE]);
        move_heat(machine, scratch);
        record_heat(machine, scratch, &period);
        if (machine->numbers[IS_CLOSED] != 0.0) {
            limit_power(machine, scratch, &course->clocks);
            limit_heat(course, &period);
        }
        job[RATE] = 1.0 / slowest;
    }
    for (size_t node = 0; node < machine->num_nodes; node++)
        memcpy(course->heat + node * num_states, scratch->columns + node * num_rows, num_states * sizeof(double));
}

/* Arguments of `follow`, all of them arrays. */
enum { EDGES, INTEGRAL, TABLES, VALUES, TWIN, PROPAGATOR, NUMBERS, ZONES, SLOWDOWN_INDEX, RECORD, IS_SLOWED, INDEX, RATES,
       POSITIONS, CLOCK_ALLOWED, CLOCK_REQUESTED, CLOCK, CLOCK_CEILING, CLOCK_LEFT, HEAT, JOB, NUM_ARGUMENTS };

/* Fill in the sizes; return the number of the first array of a wrong size, or -1. */
static int find_sizes(const Py_buffer *arrays, Course *course) {
    Machine *machine = &course->machine;
    if (arrays[HEAT].ndim != 2 || !arrays[HEAT].len) return HEAT;
    machine->num_nodes = (size_t)arrays[HEAT].shape[0];
    machine->num_states = (size_t)arrays[HEAT].shape[1];
    machine->num_devices = (size_t)arrays[TWIN].len / sizeof(int64_t);
    machine->num_clocks = (size_t)arrays[SLOWDOWN_INDEX].len / sizeof(int64_t);
    course->num_periods = (size_t)arrays[RATES].len / sizeof(double);
    course->num_bins = (size_t)arrays[EDGES].len / sizeof(double) - 1;
    size_t all = count_devices(machine), record = course->num_periods * all;
    if (arrays[EDGES].len < (Py_ssize_t)(2 * sizeof(double))) return EDGES;
    if (machine->num_devices > machine->num_states) return TWIN;
    const size_t sizes[NUM_ARGUMENTS] = {
        [EDGES] = course->num_bins + 1,
        [INTEGRAL] = (course->num_bins + 1) * NUM_RATES * all,
        [TABLES] = NUM_TABLES * machine->num_clocks,
        [VALUES] = NUM_VALUES * all,
        [TWIN] = machine->num_devices,
        [PROPAGATOR] = machine->num_nodes * (machine->num_states + machine->num_devices) * machine->num_states,
        [NUMBERS] = NUM_ALL_NUMBERS,
        [ZONES] = NUM_EFFECTS * NUM_ZONES,
        [SLOWDOWN_INDEX] = machine->num_clocks,
        [RECORD] = NUM_ALL_RECORDS * record,
        [INDEX] = record,
        [RATES] = course->num_periods,
        [POSITIONS] = course->num_periods,
        [CLOCK_ALLOWED] = all,
        [CLOCK_REQUESTED] = all,
        [CLOCK] = all,
        [CLOCK_CEILING] = all,
        [CLOCK_LEFT] = all,
        [HEAT] = machine->num_nodes * machine->num_states,
        [JOB] = NUM_JOB,
    };
    for (int number = 0; number < NUM_ARGUMENTS; number++) {
        size_t size = number == IS_SLOWED ? record : sizes[number] * sizeof(double);
        if ((size_t)arrays[number].len != size) return number;
    }
    return -1;
}

/* Return the number of the first array with an index out of range, or -1. */
static int check_indices(const Course *course) {
    const Machine *machine = &course->machine;
    if (!are_below(machine->twin, machine->num_devices, machine->num_devices)) return TWIN;
    if (!are_below(course->slowdown_index, machine->num_clocks, machine->num_clocks)) return SLOWDOWN_INDEX;
    return are_below(course->clocks.index, count_devices(machine), machine->num_clocks) ? -1 : CLOCK;
}

PyObject *method_follow(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    Py_buffer arrays[NUM_ARGUMENTS];
    if (num_arguments != NUM_ARGUMENTS) return PyErr_Format(PyExc_TypeError, "follow takes %d arrays", NUM_ARGUMENTS);
    if (get_arrays(arguments, NUM_ARGUMENTS, RECORD, arrays)) return NULL;
    Course course = {
        .machine = {
            .tables = arrays[TABLES].buf, .values = arrays[VALUES].buf, .propagator = arrays[PROPAGATOR].buf,
            .numbers = arrays[NUMBERS].buf, .twin = arrays[TWIN].buf,
        },
        .edges_s = arrays[EDGES].buf, .integral = arrays[INTEGRAL].buf, .zones = arrays[ZONES].buf,
        .slowdown_index = arrays[SLOWDOWN_INDEX].buf, .record = arrays[RECORD].buf, .rate = arrays[RATES].buf,
        .position_s = arrays[POSITIONS].buf, .ceiling = arrays[CLOCK_CEILING].buf,
        .slowdown_left_s = arrays[CLOCK_LEFT].buf, .heat = arrays[HEAT].buf, .job = arrays[JOB].buf,
        .is_slowed = arrays[IS_SLOWED].buf, .index = arrays[INDEX].buf,
        .clocks = {arrays[CLOCK_ALLOWED].buf, arrays[CLOCK_REQUESTED].buf, arrays[CLOCK].buf},
    };
    int wrong = find_sizes(arrays, &course), beyond = wrong < 0 ? check_indices(&course) : -1, has_memory = 1;
    if (wrong < 0 && beyond < 0) {
        Scratch scratch;
        size_t size = NUM_RATES * count_devices(&course.machine);
        double *room = make_scratch(&course.machine, 3 * size, &scratch);
        has_memory = room != NULL;
        if (room) {
            Py_BEGIN_ALLOW_THREADS
            simulate(&course, &scratch, room, room + 2 * size);
            Py_END_ALLOW_THREADS
        }
        free(scratch.columns);
    }
    return conclude(arrays, NUM_ARGUMENTS, wrong, beyond, has_memory);
}
