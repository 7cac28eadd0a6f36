/* Power, energy, temperature, clocks, throttling, utilisation, memory. */
#include <math.h>
#include <string.h>

#include "nvml.h"

enum {
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    NUM_CLOCKS = 4,
    REASON_IDLE = 0x1,
    REASON_POWER_CAP = 0x4,
    REASON_HW_SLOWDOWN = 0x8,
    REASON_SYNC_BOOST = 0x10,
    REASON_SW_THERMAL = 0x20,
    REASON_HW_THERMAL = 0x40,
    REASON_POWER_BRAKE = 0x80,
    MAX_SAMPLES = 120,
    SAMPLING_TOTAL_POWER = 0,
    SAMPLING_GPU_UTILIZATION = 1,
};
static const double UTILIZATION_WINDOW_S = 1.0 / 6;

static unsigned milli(double value) { return (unsigned)floor(value * 1000 + 1e-6); }

#define UINT_READING(call, reading)                  \
    status_t call(device_t device, unsigned *to) {   \
        ENTER_WHOLE(device, target);                 \
        REQUIRE(to);                                    \
        *to = (reading);                             \
        return NVML_SUCCESS;                         \
    }
#define MILLIWATTS(call, watts) UINT_READING(call, milli(target.gpu->watts))

MILLIWATTS(nvmlDeviceGetEnforcedPowerLimit, limit_w)
MILLIWATTS(nvmlDeviceGetPowerManagementLimit, limit_w)
MILLIWATTS(nvmlDeviceGetPowerManagementDefaultLimit, default_limit_w)
UINT_READING(nvmlDeviceGetPowerManagementMode, 1)
UINT_READING(nvmlDeviceGetPerformanceState, wave_value(&target.gpu->busy, target.t_s) > 0 ? 0 : 8)
UINT_READING(nvmlDeviceGetPowerState, 0)

status_t nvmlDeviceGetPowerManagementLimitConstraints(device_t device, unsigned *low, unsigned *high) {
    ENTER_WHOLE(device, target);
    REQUIRE(low && high);
    *low = milli(target.gpu->min_limit_w);
    *high = milli(target.gpu->max_limit_w);
    return NVML_SUCCESS;
}

/* Settings cannot be changed. */
#define READ_ONLY(call)                                       \
    status_t call(device_t device) {                          \
        ENTER_WHOLE(device, target);                          \
        return NVML_NO_PERMISSION;                            \
    }
READ_ONLY(nvmlDeviceSetPowerManagementLimit)
READ_ONLY(nvmlDeviceSetPersistenceMode)
READ_ONLY(nvmlDeviceSetGpuLockedClocks)
READ_ONLY(nvmlDeviceResetGpuLockedClocks)
READ_ONLY(nvmlDeviceSetMemoryLockedClocks)
READ_ONLY(nvmlDeviceResetMemoryLockedClocks)

/* The mean of 1 s on Ampere except GA100 and on newer GPUs, the instant value on GA100 and older GPUs. */
status_t nvmlDeviceGetPowerUsage(device_t device, unsigned *power_mw) {
    ENTER_WHOLE(device, target);
    REQUIRE(power_mw);
    const struct sensor *sensor = target.gpu->usage_is_average > 0 ? &target.gpu->average : &target.gpu->instant;
    *power_mw = milli(sensor_power_w(target.gpu, sensor, frozen_time_s(target.index, "power", target.t_s)));
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *energy_mj) {
    ENTER_WHOLE(device, target);
    REQUIRE(energy_mj);
    double t_s = frozen_time_s(target.index, "energy", target.t_s);
    *energy_mj = (unsigned long long)(energy_counter_j(target.gpu, t_s) * 1000);
    return NVML_SUCCESS;
}

static int die_c(const struct target *target) {
    return (int)floor(gpu_die_c(target->gpu, frozen_time_s(target->index, "temperature", target->t_s)));
}

status_t nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *temperature_c) {
    ENTER_WHOLE(device, target);
    if (!temperature_c || sensor != 0) /* The only sensor is that of the die. */
        return NVML_INVALID_ARGUMENT;
    *temperature_c = (unsigned)die_c(&target);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetTemperatureV(device_t device, struct temperature_v1 *temperature) {
    ENTER_WHOLE(device, target);
    if (!temperature || temperature->sensorType != 0)
        return NVML_INVALID_ARGUMENT;
    if (temperature->version != VERSION(*temperature, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    temperature->temperature = die_c(&target);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetMarginTemperature(device_t device, struct margin_v1 *margin) {
    ENTER_WHOLE(device, target);
    if (!margin || margin->version != VERSION(*margin, 1))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    margin->marginTemperature = (int)target.gpu->max_c - die_c(&target);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetTemperatureThreshold(device_t device, int kind, unsigned *threshold_c) {
    ENTER_WHOLE(device, target);
    const double thresholds[] = {target.gpu->shutdown_c, target.gpu->slowdown_c, target.gpu->memory_max_c,
                                 target.gpu->max_c};
    REQUIRE(threshold_c && kind >= 0);
    if (kind >= 4)
        return NVML_NOT_SUPPORTED;
    *threshold_c = (unsigned)thresholds[kind];
    return NVML_SUCCESS;
}

static status_t clock_mhz(const struct target *target, int kind, double sm_mhz, unsigned *to) {
    REQUIRE(to && kind >= 0 && kind < NUM_CLOCKS);
    *to = (unsigned)(kind == CLOCK_MEMORY ? target->gpu->memory_mhz : sm_mhz);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetClockInfo(device_t device, int kind, unsigned *to) {
    ENTER_WHOLE(device, target);
    return clock_mhz(&target, kind, gpu_sm_mhz(target.gpu, target.t_s), to);
}

status_t nvmlDeviceGetClock(device_t device, int kind, int which, unsigned *to) {
    ENTER_WHOLE(device, target);
    (void)which;
    return clock_mhz(&target, kind, gpu_sm_mhz(target.gpu, target.t_s), to);
}

status_t nvmlDeviceGetMaxClockInfo(device_t device, int kind, unsigned *to) {
    ENTER_WHOLE(device, target);
    return clock_mhz(&target, kind, target.gpu->max_sm_mhz, to);
}

status_t nvmlDeviceGetApplicationsClock(device_t device, int kind, unsigned *to) {
    ENTER_WHOLE(device, target);
    return clock_mhz(&target, kind, target.gpu->max_sm_mhz, to);
}

static status_t one_clock(double mhz, unsigned *count, unsigned *clocks) {
    REQUIRE(count);
    unsigned room = *count;
    *count = 1;
    if (!clocks || room < 1)
        return NVML_INSUFFICIENT_SIZE;
    clocks[0] = (unsigned)mhz;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetSupportedMemoryClocks(device_t device, unsigned *count, unsigned *clocks) {
    ENTER_WHOLE(device, target);
    return one_clock(target.gpu->memory_mhz, count, clocks);
}

status_t nvmlDeviceGetSupportedGraphicsClocks(device_t device, unsigned memory, unsigned *count, unsigned *clocks) {
    ENTER_WHOLE(device, target);
    (void)memory;
    return one_clock(target.gpu->max_sm_mhz, count, clocks);
}

status_t nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons) {
    static const unsigned reason_of[NUM_CAUSES] = {
        [POWER_CAP] = REASON_POWER_CAP,
        [SW_THERMAL] = REASON_SW_THERMAL,
        [HW_THERMAL] = REASON_HW_THERMAL | REASON_HW_SLOWDOWN,
        [POWER_BRAKE] = REASON_POWER_BRAKE | REASON_HW_SLOWDOWN,
        [SYNC_BOOST] = REASON_SYNC_BOOST,
    };
    ENTER_WHOLE(device, target);
    REQUIRE(reasons);
    *reasons = wave_value(&target.gpu->busy, target.t_s) > 0 ? 0 : REASON_IDLE;
    for (int cause = 0; cause < NUM_CAUSES; cause++)
        if (gpu_is_throttled(target.gpu, cause, target.t_s))
            *reasons |= reason_of[cause];
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

status_t nvmlDeviceGetSupportedClocksEventReasons(device_t device, unsigned long long *reasons) {
    ENTER_WHOLE(device, target);
    REQUIRE(reasons);
    *reasons = 0x1ff;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetSupportedClocksThrottleReasons(device_t device, unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

/* Policies: 0 power, 1 thermal, 2 sync boost. Units: us for the reference time, ns for the violation time. */
status_t nvmlDeviceGetViolationStatus(device_t device, int policy, struct violation_time *violation) {
    static const enum cause causes[] = {POWER_CAP, SW_THERMAL, SYNC_BOOST};
    ENTER_WHOLE(device, target);
    REQUIRE(violation && policy >= 0);
    if (policy >= 3)
        return NVML_NOT_SUPPORTED;
    violation->referenceTime = node_wall_us(node_now(), target.t_s);
    violation->violationTime = (unsigned long long)violation_ns(target.gpu, causes[policy], target.t_s);
    return NVML_SUCCESS;
}

static unsigned percent(double share) { return (unsigned)floor(share * 100 + 0.5); }

status_t nvmlDeviceGetUtilizationRates(device_t device, struct utilization *to) {
    ENTER_WHOLE(device, target);
    REQUIRE(to);
    if (target.gpu->mig_instances > 0)
        return NVML_NOT_SUPPORTED;
    double end_s = floor(target.t_s / UTILIZATION_WINDOW_S) * UTILIZATION_WINDOW_S;
    to->gpu = percent(gpu_busy(target.gpu, end_s - UTILIZATION_WINDOW_S, end_s));
    to->memory = to->gpu / 2;
    return NVML_SUCCESS;
}

/* Readings in the driver's ring buffer since a wall time in us, oldest first. */
status_t nvmlDeviceGetSamples(device_t device, int kind, unsigned long long since_us, int *type, unsigned *count,
                              struct sample *samples) {
    ENTER_WHOLE(device, target);
    REQUIRE(type && count);
    if (kind != SAMPLING_TOTAL_POWER && kind != SAMPLING_GPU_UTILIZATION)
        return NVML_NOT_SUPPORTED;
    const struct sensor *sensor = &target.gpu->instant;
    double last = floor((target.t_s - sensor->phase_s) / sensor->period_s);
    unsigned room = *count;
    *type = TYPE_UINT;
    *count = 0;
    for (int i = MAX_SAMPLES - 1; i >= 0; i--) {
        double at_s = (last - i) * sensor->period_s + sensor->phase_s;
        if (node_wall_us(node_now(), at_s) <= since_us)
            continue;
        if (samples && *count >= room)
            return NVML_INSUFFICIENT_SIZE;
        if (samples) {
            samples[*count].timeStamp = node_wall_us(node_now(), at_s);
            samples[*count].value.uiVal = kind == SAMPLING_TOTAL_POWER
                                              ? milli(sensor_power_w(target.gpu, sensor, at_s + 1e-9))
                                              : percent(gpu_busy(target.gpu, at_s - sensor->period_s, at_s));
        }
        (*count)++;
    }
    return *count ? NVML_SUCCESS : NVML_NOT_FOUND;
}
