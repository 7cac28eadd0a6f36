/* True state of a GPU, and the readings of its sensors and counters. */
#include <math.h>

#include "node.h"

double gpu_power_w(const struct gpu *gpu, double t_s) {
    return gpu->idle_w + (gpu->max_w - gpu->idle_w) * wave_value(&gpu->load, t_s);
}

/* Return the energy since scenario time 0, negative before it. */
double gpu_energy_j(const struct gpu *gpu, double t_s) {
    return gpu->idle_w * t_s + (gpu->max_w - gpu->idle_w) * wave_integral(&gpu->load, t_s);
}

/* Return the power behind a first-order low pass. */
static double delayed_power_w(const struct gpu *gpu, const struct response *response, double t_s) {
    return gpu->idle_w + (gpu->max_w - gpu->idle_w) * response_value(response, t_s);
}

double gpu_die_c(const struct gpu *gpu, double t_s) {
    return gpu->inlet_c + gpu->resistance_c_per_w * delayed_power_w(gpu, &gpu->die, t_s);
}

double gpu_memory_c(const struct gpu *gpu, double t_s) {
    return gpu->inlet_c + gpu->memory_resistance_c_per_w * delayed_power_w(gpu, &gpu->memory, t_s);
}

/* The difference between hotspot and die follows the power without delay. */
double gpu_hotspot_c(const struct gpu *gpu, double t_s) {
    return gpu_die_c(gpu, t_s) + gpu->hotspot_c_per_w * gpu_power_w(gpu, t_s);
}

double gpu_sm_mhz(const struct gpu *gpu, double t_s) {
    if (wave_value(&gpu->busy, t_s) <= 0)
        return gpu->idle_sm_mhz;
    for (int cause = 0; cause < NUM_CAUSES; cause++)
        if (gpu_is_throttled(gpu, cause, t_s))
            return gpu->throttled_sm_mhz;
    return gpu->max_sm_mhz;
}

/* Return the share of a window in which a kernel ran, 0-1. */
double gpu_busy(const struct gpu *gpu, double from_s, double to_s) {
    return (wave_integral(&gpu->busy, to_s) - wave_integral(&gpu->busy, from_s)) / (to_s - from_s);
}

double gpu_used_memory_bytes(const struct gpu *gpu, double t_s) {
    return wave_value(&gpu->busy, t_s) > 0 ? gpu->used_memory_bytes : gpu->idle_memory_bytes;
}

int gpu_is_throttled(const struct gpu *gpu, enum cause cause, double t_s) {
    return wave_value(&gpu->cause[cause], t_s) > 0;
}

/* Return a number in -1..1, uniformly distributed, and always the same for a refresh of a sensor. */
static double noise_at(double refresh, double seed) {
    double x = sin(refresh * 12.9898 + seed * 78.233) * 43758.5453;
    return 2 * (x - floor(x)) - 1;
}

/* Round down to a multiple of the quantum. A thousandth below the next one counts as it, because sums are inexact. */
static double quantised(double value, double quantum) {
    return quantum > 0 ? quantum * floor(value / quantum + 1e-3) : value;
}

double sensor_power_w(const struct gpu *gpu, const struct sensor *sensor, double t_s) {
    double refresh = floor((t_s - sensor->phase_s) / sensor->period_s);
    double end_s = refresh * sensor->period_s + sensor->phase_s - sensor->lag_s;
    double mean_w = (gpu_energy_j(gpu, end_s) - gpu_energy_j(gpu, end_s - sensor->window_s)) / sensor->window_s;
    return quantised(sensor->gain * mean_w + sensor->noise_w * noise_at(refresh, gpu->pci_bus), sensor->quantum_w);
}

double energy_counter_j(const struct gpu *gpu, double t_s) {
    double refresh_s = floor((t_s - gpu->energy_phase_s) / gpu->energy_period_s) * gpu->energy_period_s;
    return quantised(gpu->energy_offset_j + gpu_energy_j(gpu, refresh_s + gpu->energy_phase_s), gpu->energy_unit_j);
}

/* Traffic is proportional to the load. */
double traffic_bytes(const struct gpu *gpu, double offset_bytes, double bytes_per_s, double t_s) {
    return floor(offset_bytes + bytes_per_s * wave_integral(&gpu->load, t_s));
}

double violation_ns(const struct gpu *gpu, enum cause cause, double t_s) {
    return gpu->violation_offset_ns + floor(1e9 * wave_integral(&gpu->cause[cause], t_s));
}
